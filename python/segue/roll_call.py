# ===- roll_call.py - which rank is the cause when a message fails -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What ranks know of each other beside their messages: words in the store of their process group, and processes of one machine.

A library of messages says that a connection was closed, or that nothing came; which rank is the cause is found out here. A rank says in the
store that it has given up, that it has left, or that it waits, too. Whoever says nothing when the roll is called is the cause. Of a rank on
the same machine the process says more, and at once: whether it has ended, or is stopped.

The store may be in a process that hangs, and calls of it have no limit of time then. So a thread of its own makes them, and who asks waits for
a moment alone.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Iterable

from .errors import RankFailedError

if TYPE_CHECKING:
    import torch.distributed as dist

#: Seconds that ranks have to answer when the roll is called; those who wait look around twice a second.
_ROLL_CALL_SECONDS = 2.0
#: Seconds that the store has for an answer.
_STORE_SECONDS = 1.0


class RollCall:
    """One rank's view of the others.

    Parameters
    ----------
    store : Store
        A connection of its own: other calls may block in that of the group.
    prefix : str
        Of all keys; the same on every rank, and of no one else.
    rank, ranks : int
        The number of this rank, and how many there are.
    """

    def __init__(self, store: Any, prefix: str, rank: int, ranks: int):
        self._store, self._prefix, self._rank, self._ranks = store, prefix, rank, ranks
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_lost = False  # the store has not answered
        self._where: list[tuple[str, int, int]] = []  # machine, process and its beginning of each rank

    def meet(self, seconds: float) -> None:
        """Waits until every rank is there. Raises RankFailedError, naming those that are not."""
        self._set(f"here/{self._rank}", json.dumps([_machine(), os.getpid(), _beginning(os.getpid())]))
        found, missing = self._found("here", seconds)
        if missing and self._is_lost:
            raise RankFailedError(f"RANK_FAILED: {self.cause('when ranks met')}")
        if missing:
            raise RankFailedError(f"RANK_FAILED: {ranks_text(missing)} made no trainer within {seconds:g} s; every rank makes the same trainers, in one order")
        self._where = [tuple(json.loads(found[rank])) for rank in range(self._ranks)]

    def connected(self, seconds: float) -> str | None:
        """Says that this rank has its connections, and waits until all have theirs. Returns why they will not, where that is known.

        A rank that went on before, and left at once, would break connections that another is still making.
        """
        self._set(f"connected/{self._rank}", "")
        _, missing = self._found("connected", seconds, self.look)
        return self.cause("when connections were made") if missing else None

    def _found(self, what: str, seconds: float, in_vain: Callable[[], str | None] = lambda: None) -> tuple[dict[int, str], set[int]]:
        """What each rank has written, and the ranks that have written nothing within the time, or when waiting is in vain."""
        until = time.monotonic() + seconds
        found: dict[int, str] = {}
        while True:
            found |= self._texts(what, set(range(self._ranks)) - found.keys())
            missing = set(range(self._ranks)) - found.keys()
            if not missing or time.monotonic() > until or self._is_lost or in_vain():
                return found, missing
            time.sleep(0.005)

    def end(self) -> None:
        """Asks the store for nothing more."""
        self._asked.put(None)
        self._is_lost = True

    # --- words ----------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Says what this rank is at, for who calls the roll."""
        self._set(f"said/{self._rank}", text)

    def publish(self, why: str) -> str:
        """Gives the reason why all end. The first reason stays, and is returned."""
        given = self._ask(lambda: self._store.compare_set(f"{self._prefix}/why", "", why).decode())
        return given or why

    def look(self) -> str | None:
        """Why waiting is in vain, where that is known. Answers when the roll is called."""
        if why := self._published() or self._dead():
            return why
        if self._texts("roll", [0]):
            self.say("waits, too")
        return None

    def cause(self, when: str, error: str = "") -> str:
        """Calls the roll, and names the rank that is the cause of a failure.

        Parameters
        ----------
        when : str
            For the text: "when a sum failed".
        error : str
            What the library says; nothing where nothing came, though connections are well.
        """
        self._set("roll/0", "")
        until = time.monotonic() + _ROLL_CALL_SECONDS
        while True:
            if why := self._published() or self._dead() or self._left() or (None if error else self._stopped(when)):
                return why
            silent = set(range(self._ranks)) - {self._rank} - self._texts("said", range(self._ranks)).keys()
            if self._is_lost:
                return f"the store of the process group does not answer {when}: the process that has it, of rank 0 or of torchrun, hangs or has ended"
            said = f" ({error})" if error else ""
            if not silent:
                return f"the connections between ranks failed {when}{said}"
            if time.monotonic() > until:
                return f"{ranks_text(silent)} did not come {when}{said}"
            time.sleep(0.02)

    def _published(self) -> str | None:
        return self._texts("why", [None]).get(None)

    def _left(self) -> str | None:
        said = self._texts("said", range(self._ranks))
        left = {rank: text for rank, text in said.items() if text.startswith("left") and rank != self._rank}
        if not left:
            return None
        reason = next(iter(left.values())).removeprefix("left")
        return f"{ranks_text(left)} left the others: its trainer or its program has ended{reason}"

    # --- processes of this machine --------------------------------------------------------

    def _here(self) -> Iterable[tuple[int, int, int]]:
        """Rank, process and beginning of the others on this machine."""
        machine = _machine()
        return [(rank, process, beginning) for rank, (where, process, beginning) in enumerate(self._where) if where == machine and rank != self._rank]

    def _dead(self) -> str | None:
        dead = {rank: process for rank, process, beginning in self._here() if _beginning(process) != beginning}
        if not dead:
            return None
        # One that said why is told as that.
        return self._published() or self._left() or (
            f"{ranks_text(dead)} has died: process {next(iter(dead.values()))} of this machine is no longer there")

    def _stopped(self, when: str) -> str | None:
        stopped = {rank: process for rank, process, _ in self._here() if _state(process) == "T"}
        return f"{ranks_text(stopped)} did not come {when}: process {next(iter(stopped.values()))} of this machine is stopped" if stopped else None

    # --- the store ------------------------------------------------------------------------

    def _set(self, key: str, text: str) -> None:
        self._ask(lambda: self._store.set(f"{self._prefix}/{key}", text))

    def _texts(self, what: str, which: Iterable[Any]) -> dict[Any, str]:
        """What is written under these keys, of those that there are."""
        keys = {each: f"{self._prefix}/{what}" + ("" if each is None else f"/{each}") for each in which}

        def read() -> dict[Any, str]:
            return {each: self._store.get(key).decode() for each, key in keys.items() if self._store.check([key])}

        return self._ask(read) or {}

    def _ask(self, call: Callable[[], Any]) -> Any:
        """What the store answers; None where it does not."""
        if self._is_lost:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=_answer, args=(self._asked,), name="segue roll call", daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put((call, answer))
        try:
            found = answer.get(timeout=_STORE_SECONDS)
        except queue.Empty:
            found = _LOST
        self._is_lost |= found is _LOST
        return None if found is _LOST else found


#: The store has not answered, and will not.
_LOST = object()


def _answer(asked: "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]") -> None:
    while (each := asked.get()) is not None:
        call, answer = each
        try:
            answer.put(call())
        except RuntimeError:  # the process that has the store is gone
            answer.put(_LOST)


def ranks_text(ranks: Iterable[int]) -> str:
    return "rank " + " and rank ".join(map(str, sorted(ranks)))


def store_of(group: "dist.ProcessGroup") -> Any:
    """The store of a group, by a connection of its own."""
    import torch.distributed as dist

    store: Any = group.get_group_store() if hasattr(group, "get_group_store") else dist.distributed_c10d._get_process_group_store(group)
    try:
        store = store.clone()
    except (RuntimeError, AttributeError):  # of a kind that has one connection, or none
        return store
    store.set_timeout(timedelta(seconds=10))  # nothing is asked for that is not there
    return store


def _machine() -> str:
    """Where numbers of processes mean the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} without /proc"


def _stat(process: int) -> list[str]:
    """What the system says of a process, from its state on; empty where there is none."""
    try:
        with open(f"/proc/{process}/stat", encoding="latin-1") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _state(process: int) -> str:
    return (_stat(process) or ["X"])[0]


def _beginning(process: int) -> int:
    """When a process began, in the system's ticks; 0: there is none, or it has ended."""
    fields = _stat(process)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZXx" else 0
