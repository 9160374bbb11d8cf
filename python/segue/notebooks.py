# ===- notebooks.py - what notebooks show of our objects ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Tables of HTML for notebooks, without styles of their own: those of the notebook fit. Every text in them is escaped."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Iterable, Sequence

from .inspection import command_text, inputs_text, size_text

if TYPE_CHECKING:
    from . import _runtime


def facts(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """A table of names and values; what is None is left out."""
    lines = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in rows if value is not None)
    return f"<table><caption>{html.escape(title)}</caption><tbody>{lines}</tbody></table>"


def grid(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a head."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def step_result(result: "_runtime.StepResult") -> str:
    """What `trainer.last` is shown as; the bindings call this."""
    return facts(f"step {result.step}" + (", skipped" if result.is_skipped else ""), (
        ("loss", f"{result.loss:.6g}"), ("gradient norm", f"{result.grad_norm:.6g}"),
        ("clipped to", f"{result.clip:.3g} of it" if result.clip != 1 else None), ("loss scale", f"{result.loss_scale:g}" if result.loss_scale != 1 else None)))


def program(found: "_runtime.Program") -> str:
    """What a program of a binary is shown as; the bindings call this."""
    return facts(f"program {found.name}", (
        ("inputs", inputs_text(found)), ("outputs", ", ".join(value.name for value in found.outputs)), ("commands", command_text(found)),
        ("arena", size_text(found.arena_bytes)), ("products", f"{found.matmul_flops / 1e9:.2f} GFLOP" if found.matmul_flops else None)))


def binary(found: "_runtime.Binary") -> str:
    """What a binary is shown as; the bindings call this."""
    return grid(f"{found.name}: {size_text(found.bytes)}, {len(found.kernels)} kernels", ("program", "inputs", "commands", "arena", "GFLOP"), (
        (each.name, inputs_text(each), command_text(each), size_text(each.arena_bytes), f"{each.matmul_flops / 1e9:.2f}")
        for each in found.programs if not each.name.startswith("recompute.")))
