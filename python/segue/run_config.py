# ===- run_config.py - what a trainer asks of its config -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The config of a run, as far as Python has to know it."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping

from .errors import ConfigError


def statistics_of(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> str:
    """What Selective Precision, where the config has it, is to know of gradients: "block", "layer" or nothing."""
    if config is None:
        return ""
    if not isinstance(config, Mapping):
        try:
            with open(config, encoding="utf-8") as file:
                config = json.load(file)
        except (OSError, ValueError, RecursionError):
            return ""  # the runtime says what is wrong with it
    section: Any = config
    for key in ("memory", "stagehand", "selective_precision"):
        section = section.get(key) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not section.get("enabled") or section.get("mode") == "off":
        return ""
    return "layer" if section.get("granularity") == "layer" else "block"


def text_of(config: Mapping[str, Any]) -> str:
    """What would stand in a file. The runtime says what else is wrong with it."""
    try:
        return json.dumps(config)
    except RecursionError as error:
        raise ConfigError("config: it is nested too deeply; a config has some five levels") from error
    except (TypeError, ValueError) as error:  # of a type that JSON lacks; a mapping that contains itself
        raise ConfigError(f"config: it cannot be written as JSON: {error}") from error
