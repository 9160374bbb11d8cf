# ===- claims.py - several processes share the files of tests ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Where several processes run the tests (tools/check.py), each file is run by the one that claims it first.

SEGUE_TEST_CLAIMS names a folder, empty at first, which holds a file for each that is claimed. A process claims the next file
when it has come to the end of one: nobody has to know how long they take.
"""

import os
from pathlib import Path

_claimed = {}
_made_room = False


def _makes_room(folder: Path) -> bool:
    """Whether this process has been asked to end."""
    global _made_room
    for asked in [] if _made_room else folder.glob("room-for-*"):
        try:
            asked.rename(folder / f"made-room-{os.environ['SEGUE_TEST_PROCESS']}")
        except FileNotFoundError:  # another was faster
            continue
        _made_room = True
        break
    return _made_room


def _claim(path: Path) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pytest_runtest_protocol(item):
    """True, which says that nothing is left to do, for the tests of others."""
    folder = os.environ.get("SEGUE_TEST_CLAIMS")
    if not folder:
        return None
    if item.path not in _claimed:
        _claimed[item.path] = not _makes_room(Path(folder)) and _claim(Path(folder) / item.path.stem)
    return None if _claimed[item.path] else True
