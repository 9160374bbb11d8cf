# ===- compile_cache.py - what was compiled before, on a disk ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Compiled files by what they were compiled from, so that the next process need not compile them.

An entry's name is the hash of all that decides its bytes: the text, the options, the files that these name, the version of ptxas where
it has made cubins, and the compiler itself.
It begins with a code that only this user can make of name and bytes (`Signatures` in the runtime): machine code that somebody
else has put there, or that belongs to another text, is not used. Any number of processes may read and write at once: an entry takes its
name when it is whole. What was used longest ago goes when there is no room.

``SEGUE_CACHE_DIR`` names the folder (default: ``segue`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; empty: no cache),
``SEGUE_CACHE_SIZE`` how much it may take (default: 1GiB).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Mapping

from . import _runtime, cubins
from .errors import InvalidArgumentError

log = logging.getLogger("segue")

FOLDER, SIZE = "SEGUE_CACHE_DIR", "SEGUE_CACHE_SIZE"
_CODE = 64  # digits before the file
_NEW = ".new-"
_DEFAULT = "1GiB"
_ABANDONED = 3600.0  # seconds after which an entry that has no name yet is nobody's


def find(arguments: Mapping[str, Any]) -> bytes | None:
    """The file that the compiler made of these arguments before; None if there is none."""
    folder = _folder()
    if folder is None:
        return None
    try:
        name = _name(arguments)
        data = (folder / name).read_bytes()
        if not _runtime.entry_has_code(name.encode() + data[_CODE:], data[:_CODE].decode("ascii", "replace")):
            (folder / name).unlink()
            log.warning("%s is damaged, or not this user's: it is compiled again", folder / name)
            return None
        os.utime(folder / name)
        return data[_CODE:]
    except OSError:
        return None


def keep(arguments: Mapping[str, Any], file: bytes) -> None:
    """Keeps what the compiler made of these arguments. What stands in the way is said once, and ends nothing."""
    folder = _folder()
    if folder is None:
        return
    try:
        name = _name(arguments)
        code = _runtime.code_of_entry(name.encode() + file)
        if not code:
            return  # no key can be kept for this user
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_NEW, delete=False) as new:
            try:
                new.write(code.encode() + file)
                new.flush()
                os.replace(new.name, folder / name)
            except BaseException:
                os.unlink(new.name)
                raise
        _make_room(folder)
    except OSError as error:
        _say_once(f"{folder}: compiled code is not kept ({error.strerror or error}); set {FOLDER} to another folder, or to nothing")


@functools.lru_cache
def _say_once(text: str) -> None:
    log.warning("%s", text)


def is_on() -> bool:
    """True where what was compiled before may be found."""
    return _folder() is not None


def _folder() -> Path | None:
    named = os.environ.get(FOLDER)
    if named is not None:
        return Path(named) if named else None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "segue" if os.path.isabs(home) else None


def _name(arguments: Mapping[str, Any]) -> str:
    found = hashlib.sha256(_compiler())
    for key, value in sorted(arguments.items()):
        found.update(repr((key, value)).encode())
        if key == "stitch_hints" and value:
            found.update(Path(value).read_bytes())
        if key == "ptxas" and value:
            found.update(cubins.version(value).encode())
    return found.hexdigest()


@functools.lru_cache
def _compiler() -> bytes:
    """The hash of the compiler."""
    found = hashlib.sha256()
    for library in sorted(Path(__file__).parent.glob("_compiler*.so")):
        found.update(library.read_bytes())
    return found.digest()


def _most() -> int:
    from .memory import parse_bytes

    try:
        return parse_bytes(os.environ.get(SIZE) or _DEFAULT)
    except InvalidArgumentError as error:
        _say_once(f"{SIZE}: {error}; {_DEFAULT} are taken")
        return parse_bytes(_DEFAULT)


def _make_room(folder: Path) -> None:
    """Removes what was used longest ago, if the folder takes more than it may."""
    entries, now = [], time.time()
    for each in os.scandir(folder):
        try:
            status = each.stat()
            if each.name.startswith(_NEW) and now - status.st_mtime > _ABANDONED:
                os.unlink(each.path)
            elif len(each.name) == _CODE:
                entries.append((status.st_mtime, status.st_size, each.path))
        except FileNotFoundError:  # another process makes room, too
            continue
    total, most = sum(size for _, size, _ in entries), _most()
    if total <= most:
        return
    for _, size, path in sorted(entries):
        if total <= most * 9 // 10:
            return
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        total -= size
