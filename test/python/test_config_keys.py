# ===- test_config_keys.py - the tables of config keys are those of the code ----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Every key that a section of a config reads stands in the table of its page with its type and default, and no other key does."""

import json
import re
import sys
from pathlib import Path

import pytest

import segue
from segue import _runtime

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))
import config_keys  # noqa: E402

RUNTIME = ROOT / "runtime"
SECTIONS = {section.path: section for section in config_keys.sections(ROOT)}
#: The type as a page says it, and what the reader says that it allows.
ALLOWED = {"bool": "true or false", "int": "whole number", "number": "a number", "list": "a list", "path": "a text"}


def readers() -> dict[str, tuple[str, str]]:
    """Section -> the type that reads it, and the source of its `read`."""
    found = {}
    listed = re.findall(r"\{(\"[\w.]+\"|\w+::section), \[\]\(ConfigReader &reader\) \{ (\w+)::read", (RUNTIME / "lib/Session/ConfigSections.cpp").read_text())
    sources = {path: path.read_text() for path in [*RUNTIME.rglob("*.cpp"), *RUNTIME.rglob("*.h")]}
    for section, kind in listed:
        if "::" in section:
            header = next(text for text in sources.values() if re.search(rf"struct {kind} \{{", text))
            section = re.search(r'section = "([\w.]+)"', header).group(1)
        source = next(text for path, text in sources.items() if path.suffix == ".cpp" and f"{kind} {kind}::read(ConfigReader" in text)
        body = source[source.index(f"{kind} {kind}::read(ConfigReader") :]
        found[section.strip('"')] = kind, body[: body.index("\n}\n")]
    return found


READERS = readers()


def keys_of(body: str) -> set[str]:
    keys = set(re.findall(r"reader\s*\.get\w+(?:<\w+>)?\(\s*\"(\w+)\"", body)) | set(re.findall(r"bytesOf\(\"(\w+)\"\)", body))
    for names in re.findall(r"for \(std::string_view key : \{([^}]*)\}\) \{\n\s*\w+\.\w+ = reader\.get", body):
        keys |= set(re.findall(r"\"(\w+)\"", names))
    if "TelemetryConfig::read" in body:
        keys |= {"telemetry_enabled", "telemetry_file"}
    return keys


def rows(section: str) -> dict[str, tuple[str, str]]:
    """Key -> type and default, as the page says them."""
    found = {}
    for keys, kind, default, _ in SECTIONS[section].rows():
        names = re.findall(r"`(\w+)`", keys)
        parts, kinds = (re.split(r", (?![^\[]*\])", text) for text in (default, kind))
        for place, name in enumerate(names):
            found[name] = (kinds[place] if len(kinds) == len(names) else kind), (parts[place] if len(parts) == len(names) else default)
    return found


def test_every_section_has_its_table():
    assert len(READERS) >= 8, "ConfigSections.cpp is read in a wrong way"
    assert READERS.keys() - SECTIONS.keys() == set(), f"a page in docs/ has the table of each, {config_keys.HEAD}, below a heading '## Config: `section`'"
    assert SECTIONS.keys() - READERS.keys() == set(), "runtime/lib/Session/ConfigSections.cpp has no line for these"


@pytest.mark.parametrize("section", sorted(READERS.keys() & SECTIONS.keys()))
def test_the_table_has_the_keys_that_the_code_reads(section):
    read, said = keys_of(READERS[section][1]), set(rows(section))
    assert read - said == set(), f"{READERS[section][0]}::read reads these; give each a row in {SECTIONS[section].page}"
    assert said - read == set(), f"{SECTIONS[section].page} has rows for these, which {READERS[section][0]}::read does not read"


def refusal(section: str, key: str, value) -> str:
    config: dict = {key: value}
    for part in reversed(section.split(".")):
        config = {part: config}
    with pytest.raises(segue.ConfigError) as caught:
        _runtime.within_tiers("cpu", config=None, config_text=json.dumps(config))
    return str(caught.value)


@pytest.mark.parametrize("section", sorted(READERS.keys() & SECTIONS.keys()))
def test_the_runtime_knows_each_key_and_its_type(section):
    for key, (kind, _) in rows(section).items():
        message = refusal(section, key, {"neither": "a number nor a list"})
        assert f"{section}.{key}" in message and "unknown key" not in message, message
        wanted = next((text for name, text in ALLOWED.items() if re.match(rf"{name}\b", kind)), None)
        if wanted is not None and " or list" not in kind:
            assert wanted in message, (key, kind, message)
    assert "unknown key" in refusal(section, "no_such_key_at_all", 1)


@pytest.mark.parametrize("section", sorted(READERS.keys() & SECTIONS.keys()))
def test_defaults_are_those_of_the_code(section):
    """Defaults that the code says as numbers or booleans, in the type's fields or where the key is read."""
    kind, body = READERS[section]
    header = next(text for path in RUNTIME.rglob("*.h") if re.search(rf"^struct {kind} \{{", text := path.read_text(), re.M))
    fields = {}
    for line in re.findall(r"^  (?:bool|double|int64_t) ([^;(]+);", header, re.M):
        fields |= dict(re.findall(r"(\w+) = (-?[\w.]+)", line))
    compared = 0
    read = re.sub(r"^  if \(reader\.has.*$", "", body, flags=re.M)  # keys that are compared with others have been read before
    for key, fallback in re.findall(r"reader\.get(?:Bool|Int|Number)\(\s*\"(\w+)\", ([\w.]+)", read):
        value = fields.get(fallback.removeprefix("config."), fallback)
        default = rows(section)[key][1].replace("−", "-")
        said = re.match(r"`?(true|false|-?[\d.]+)", default)
        if value in ("true", "false"):
            assert said and said.group(1) == value, (key, default, value)
        elif said is not None:
            assert float(said.group(1)) == float(value), (key, default, value)
        compared += said is not None
    assert compared or section == "memory.tiers"  # whose keys have no defaults that are numbers
