# ===- distributed.py - several ranks over a process group of PyTorch's -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""How ranks reach each other: `torch.distributed`, which `torchrun` starts.

The runtime asks for blocking calls on the host's memory (`segue/runtime/Collectives/Transport.h`); they come on a thread of the
device. Ranks with a GPU each may send tensors by NCCL, which the runtime calls itself (`segue/runtime/Cuda/Nccl.h`), and ask here what has
become of the others. A transport has a gloo group of its own over the ranks of the group that it is given: what a program sends by its own group on
its own threads does not come between.

Who waits looks around twice a second (`roll_call.py`). A call of gloo's that is given up is ended by closing the connections of the group, so that
nobody writes to memory that is somebody else's by then, and so that the other ranks end theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import re
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from . import _runtime
from .errors import InvalidArgumentError, RankFailedError, StateTornError, UnsupportedError
from .roll_call import RollCall, store_of
from .whole_step import WholeStep

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Seconds after which who waits looks at what has become of the others.
_LOOK_SECONDS = 0.5
#: Of the message that closes connections, which nobody sends.
_NO_TAG = 0x5E61
_NOT_YET = ("tensor",)
_MESSAGES = ("auto", "host", "nccl")
_STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "pipeline")
_log = logging.getLogger("segue")
_made: dict[tuple[str, ...], int] = {}  # transports of this process, by the ranks that they reach


class GroupTransport:
    """A transport over the ranks of a process group.

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: all ranks. Its timeout is that of every call.

    Attributes
    ----------
    rank, ranks : int
        The number of this rank in the group, and how many there are.
    seconds : float
        How long a call waits for the others.

    Raises
    ------
    InvalidArgumentError
        `torch.distributed` is not initialised, or this process is not in the group.
    RankFailedError
        Another rank did not come within the timeout.
    """

    def __init__(self, group: "ProcessGroup | None" = None):
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgumentError('distributed="ddp" needs torch.distributed: start the program by "torchrun --nproc-per-node 2 train.py", and call '
                                       'torch.distributed.init_process_group("gloo") before the trainer is made')
        given: Any = dist.group.WORLD if group is None else group
        if given is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(given) < 0:
            raise InvalidArgumentError("this process is not in the process group that the trainer is given; make the trainer on its ranks alone")
        self.rank, self.ranks = dist.get_rank(given), dist.get_world_size(given)
        self.seconds = _timeout_of(given)
        self._lock = threading.Lock()
        self._ended: str | None = None  # why there are no more calls
        self._looked = 0.0  # when what has become of the others was looked at last
        self._sent: list[tuple[Any, torch.Tensor]] = []  # what other ranks may not have asked for yet
        members = dist.get_process_group_ranks(given)
        key = tuple(map(str, members))
        _made[key] = _made.get(key, 0) + 1
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # processes before this one may have used the same store
        store, prefix = store_of(given), f"segue/{start}/{'.'.join(map(str, members))}/{_made[key]}"
        self._roll_call = RollCall(store, prefix, self.rank, self.ranks)
        self._roll_call.meet(self.seconds)
        # Not by `new_group`, whose names depend on what other groups a rank is in, and which `destroy_process_group` ends. Gloo's own timeout comes
        # after ours, which says more.
        self._group: Any = self._connect(store_of(given), prefix)
        if lacking := self._roll_call.connected(self.seconds):
            raise RankFailedError(f"RANK_FAILED: {self._end(lacking)}")

    def _connect(self, store: Any, prefix: str) -> Any:
        """Has gloo make its connections. `store` is a connection of their own: gloo waits in it for each rank, whatever has become of that.

        So a thread waits there, and this one looks at the others; the thread of a wait that is in vain ends by gloo's timeout.
        """
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def connect() -> None:
            try:
                made.put(dist.ProcessGroupGloo(
                    dist.PrefixStore(f"{prefix}/gloo", store),  # type: ignore[attr-defined]  # public, and left out of __all__
                    self.rank, self.ranks, timedelta(seconds=self.seconds + 30)))
            except RuntimeError as error:
                made.put(error)

        threading.Thread(target=connect, name="segue connections", daemon=True).start()
        found: Any = None
        while found is None:
            try:
                found = made.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if why := self._roll_call.look():
                    raise RankFailedError(f"RANK_FAILED: {self._roll_call.publish(why)}") from None
        if isinstance(found, RuntimeError):
            why = self._roll_call.publish(self._roll_call.cause("when connections were made", _short(found)))
            raise RankFailedError(f"RANK_FAILED: {why}") from None
        return found

    # --- calls ------------------------------------------------------------------------------

    def all_reduce(self, data: memoryview) -> None:
        self._call("a sum", data, lambda: self._group.allreduce([_floats(data)]))

    def reduce(self, data: memoryview, root: int) -> None:
        options = dist.ReduceOptions()
        options.rootRank, options.rootTensor = root, 0
        self._call(f"a sum for rank {root}", data, lambda: self._group.reduce([_floats(data)], options))

    def reduce_scatter(self, whole: memoryview, part: memoryview) -> None:
        self._call("a scattered sum", part, lambda: self._group._reduce_scatter_base(_floats(part), _floats(whole)))

    def all_gather(self, part: memoryview, whole: memoryview) -> None:
        self._call("a gathering", part, lambda: self._group._allgather_base(_bytes(whole), _bytes(part)))

    def broadcast(self, data: memoryview, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._call("a broadcast", data, lambda: self._group.broadcast([_bytes(data)], options))

    def send(self, data: memoryview, to: int) -> None:
        if self._ended is not None:
            raise RankFailedError(self._ended)
        if not data.nbytes:  # nobody receives it
            return
        self._sent = [(work, copy) for work, copy in self._sent if not work.is_completed()]
        copy = _bytes(data).clone()  # which gloo reads until the other rank has it
        try:
            self._sent.append((self._group.send([copy], to, 0), copy))
        except RuntimeError as error:
            raise RankFailedError(self._end(self._roll_call.cause(f"when a message to rank {to} failed", _short(error)))) from None

    def receive(self, data: memoryview, source: int) -> None:
        self._call(f"a message of rank {source}", data, lambda: self._group.recv([_bytes(data)], source, 0), may_look=False)

    def abandon(self, why: str) -> None:
        """Has calls that are under way end on all ranks, with the reason. Any thread may call."""
        self._end(f"rank {self.rank} has given up: {why}")

    def look(self) -> str | None:
        """Why the ranks make no more calls, where that is known without one. Any thread may call, as often as it likes."""
        if self._ended is None and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            if why := self._roll_call.look():
                self._end(why)
        return self._ended

    def missed(self, what: str) -> str:
        """Ends the group, as others have not come to `what` in time. Why, with the rank where it can be found out. Any thread may call."""
        return self._ended or self._end(self._roll_call.cause(f"to {what} within {self.seconds:g} s"))

    def leave(self) -> None:
        """Says that this rank makes no more calls. Raises nothing."""
        with self._lock:
            is_first, self._ended = self._ended is None, self._ended or "this rank has left the others: its trainer has ended"
        if is_first:
            error = getattr(sys, "last_value", None)  # what ends the program
            self._roll_call.say("left" + (f": {type(error).__name__}: {error}" if error is not None else ""))
            self._close()
        self._roll_call.end()

    def _call(self, what: str, data: memoryview, start: Callable[[], "dist.Work"], may_look: bool = True) -> None:
        if self._ended is not None:
            raise RankFailedError(self._ended)
        if not data.nbytes:  # there is none on any rank
            return
        until = time.monotonic() + self.seconds
        # Gloo closes connections when a wait for a message of one rank is over: one alone.
        pause = _LOOK_SECONDS if may_look else self.seconds
        try:
            work = start()
            while not _has_ended(work, min(pause, max(until - time.monotonic(), 0.001))):
                if why := self._ended or self._roll_call.look():
                    self._give_up(work, why)
                elif time.monotonic() >= until:
                    self._give_up(work, self._roll_call.cause(f"within {self.seconds:g} s"))
        except RankFailedError:
            raise
        except RuntimeError as error:
            why = self._ended or self._end(self._roll_call.cause(f"when {what} failed", _short(error)))
            raise RankFailedError(why) from None

    def _give_up(self, work: "dist.Work", why: str) -> None:
        """Ends a call under way, whose memory nobody touches from then on."""
        why = self._end(why)
        with contextlib.suppress(RuntimeError):
            work.wait()
        raise RankFailedError(why)

    def _end(self, why: str) -> str:
        """Makes no more calls, and has the other ranks make no more. Returns the reason, which is that of the first rank that has one."""
        with self._lock:
            if self._ended is not None:
                return self._ended
            self._ended = why
        self._ended = why = self._roll_call.publish(why)
        self._close()
        return why

    def _close(self) -> None:
        """Closes the connections of the group, which ends what is under way at both ends.

        Gloo closes all of a group when one wait is over; its `abort` of today does nothing.
        """
        for rank in range(self.ranks):
            if rank != self.rank:
                with contextlib.suppress(RuntimeError):
                    self._group.recv([torch.zeros(1)], rank, _NO_TAG).wait(timedelta(milliseconds=1))


class Ranks:
    """The ranks that a trainer trains with; alone, it is rank 0 of one.

    Parameters
    ----------
    transport : GroupTransport, optional
        None: there is one rank.
    bucket_bytes : int
        The bytes of a message.
    adds_in_order : bool
        Adds one rank after the other.
    strategy : str
        ``ddp``; ``zero1``: each rank has the optimizer states of some parameters, and updates them for all; ``zero2``: and their gradients;
        ``zero3``: and these parameters. ``pipeline``: each rank has some of the modules.
    stages : sequence of int
        Of a pipeline: how many modules each rank has; none: so that the costliest stage is as cheap as can be.
    messages : str
        How tensors go: ``host``, ``nccl``, or ``auto``.
    """

    def __init__(self, transport: GroupTransport | None = None, bucket_bytes: int = 0, adds_in_order: bool = False, strategy: str = "ddp",
                 stages: Sequence[int] = (), messages: str = "host"):
        self._transport, self._bucket_bytes, self.adds_in_order, self.strategy, self.stages = transport, bucket_bytes, adds_in_order, strategy, list(stages)
        self._messages = messages
        self.rank, self.count = (transport.rank, transport.ranks) if transport is not None else (0, 1)
        #: For the session; None for one rank.
        self.collectives: _runtime.Collectives | None = None

    @property
    def are_several(self) -> bool:
        """Whether there is more than this one, or a group of one."""
        return self._transport is not None

    @property
    def shares_states(self) -> bool:
        """Whether each rank has the states of some parameters alone."""
        return self.strategy != "ddp"

    @property
    def gather_parameters(self) -> bool:
        """Whether each rank has some parameters alone, so that all ranks together bring them."""
        return self.strategy in ("zero3", "pipeline") and self.count > 1

    @property
    def writes(self) -> bool:
        """Whether this rank writes files and draws bars: the first one does."""
        return self.rank == 0

    def join(self, device: "_runtime.Device") -> None:
        """Lets the ranks work together on what is on `device`."""
        if self._transport is not None:
            self.collectives, said = _runtime.Collectives.over(device, self._transport, self._bucket_bytes, self.adds_in_order, self._messages,
                                                               self.strategy == "pipeline")
            if said and self.writes:
                _log.info("%s", said)

    def exchange(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, which JSON can say, in the order of ranks. Each waits until all have given theirs.

        Raises
        ------
        RankFailedError
            Another rank is at something else than `what` (of 27 characters at most), or has failed.
        """
        if self.collectives is None:
            return [value]
        with WholeStep():  # Ctrl-C comes to all ranks of a terminal: who waits here hears of another one's end and of its own at once
            told = self.collectives.exchange(what, json.dumps(value))
        return [json.loads(text) for text in told]

    def take_values_of_first(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Writes the first rank's values into tensors by name, where others have not the same. Every rank calls this."""
        form: Callable[[torch.Tensor], list[Any]] = lambda tensor: [str(tensor.dtype), list(tensor.shape)]  # noqa: E731
        told = self.exchange("values of parameters", {name: [form(tensor), _hash_of(tensor)] for name, tensor in tensors.items()})
        forms = [{name: known[0] for name, known in each.items()} for each in told]
        if self._transport is None or any(each != forms[0] for each in forms):  # of other modules, which the runtime refuses
            return
        for name in (name for name in tensors if any(each[name] != told[0][name] for each in told)):
            tensor, value = tensors[name], _bytes_of(tensors[name])
            self._transport.broadcast(memoryview(value.numpy().data), 0)
            with torch.no_grad():
                tensor.copy_(value.view(tensor.dtype).reshape(tensor.shape))

    @staticmethod
    def told(error: BaseException) -> None:
        """Every rank knows of this error: the runtime has told them, or `exchange` has."""
        if not isinstance(error, StateTornError):  # which is found behind the last meeting of a step
            error._is_known_to_all_ranks = True  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """An error in here that others have not been told of ends them, too: they would wait for this rank."""
        try:
            yield
        except BaseException as error:
            if self._transport is not None and not isinstance(error, RankFailedError) and not hasattr(error, "_is_known_to_all_ranks"):
                self._transport.abandon(f"{what} ended with {_short(error, with_type=True)}")
            raise

    def leave(self) -> None:
        """Says that this rank takes part no more. Raises nothing."""
        if self._transport is not None:
            self._transport.leave()


def ranks_for(how: str | None, group: "ProcessGroup | None", bucket_mb: float | None, reduction: str | None, stages: Sequence[int] | None,
              messages: str | None = None) -> Ranks:
    """What `Trainer(distributed=...)` and its options mean."""
    if how is None:
        for name, value in (("process_group", group), ("bucket_mb", bucket_mb), ("reduction", reduction), ("stages", stages), ("messages", messages)):
            if value is not None:
                raise InvalidArgumentError(f'{name} is about several ranks; give distributed="ddp", too')
        return Ranks()
    if how in _NOT_YET:
        raise UnsupportedError(f'distributed={how!r} is not there yet; "ddp" is, where each rank has everything, "zero1", "zero2" and "zero3", where each '
                               'has the optimizer states of some parameters, their gradients, too, or these parameters, too, and "pipeline", where each has some modules')
    if how not in _STRATEGIES:
        raise InvalidArgumentError(f'distributed is {how!r}; there are {", ".join(_STRATEGIES)}')
    if bucket_mb is not None and not bucket_mb > 0:
        raise InvalidArgumentError(f"bucket_mb is {bucket_mb!r}; it is the MiB of a message, above 0")
    if reduction not in (None, "ordered"):
        raise InvalidArgumentError(f'reduction is {reduction!r}; it is "ordered", or left out')
    if messages not in (None, *_MESSAGES):
        raise InvalidArgumentError(f'messages is {messages!r}; there are {", ".join(_MESSAGES)}')
    if stages is not None and how != "pipeline":
        raise InvalidArgumentError('stages says how many modules each rank of a pipeline has; give distributed="pipeline"')
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in stages or ()):
        raise InvalidArgumentError(f"stages is {stages!r}; it has the number of modules of each rank, as [2, 3]")
    return Ranks(GroupTransport(group), max(int((25 if bucket_mb is None else bucket_mb) * 2**20), 1), reduction == "ordered", how, stages or (),
                 messages or "host")


def _has_ended(work: "dist.Work", seconds: float) -> bool:
    """Whether a call ends within so long; raises what it fails with."""
    try:
        work.wait(timedelta(seconds=seconds))
        return True
    except RuntimeError:
        if not work.is_completed():
            return False
    work.wait()  # raises again what it has failed with, unless it has ended well meanwhile
    return True


def _floats(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.float32)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in memory of the CPU: its own, or a copy."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _hash_of(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(_bytes_of(tensor).numpy().data, digest_size=16).hexdigest()


def _bytes(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def _short(error: BaseException, with_type: bool = False) -> str:
    """One line of what an error says, without the place in gloo's source and the advice behind it."""
    text = re.sub(r"^\[[^]]*\] |\. This is typically caused.*", "", (f"{error}".splitlines() or [""])[0])[:300]
    return f"{type(error).__name__}: {text}" if with_type else text


def _timeout_of(group: "ProcessGroup") -> float:
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout.total_seconds()
        except (RuntimeError, AttributeError):
            pass
    return dist.default_pg_timeout.total_seconds()
