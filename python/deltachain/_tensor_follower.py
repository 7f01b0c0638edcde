"""Following a chain with tensors of torch as the only copy: of one process, on any device, or divided among several.
The library plans and downloads; what is read, proven and written is in `_in_place`."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _native
from ._errors import (
    CancelledError,
    IoError,
    StateMismatchError,
    TornError,
    UnsupportedError,
    UsageError,
    WrongBaseError,
)
from ._in_place import Changes, Memory, Piece, Step, check, load, prove
from ._native import rules
from ._parts import Box, Info, Part, bound, parts_of, ties
from ._ranks import Ranks
from ._tensors import note_written, shaped

__all__ = ["Loader", "TensorFollower", "needs_torch"]

# Loads a version in the caller's way, and returns where its tensors are: None if that is unknown. Of a name that maps
# to an empty list, nothing is needed. It is given a function that gives all tensors, each time it is called.
Loader = Callable[[Callable[[], Iterator[tuple[str, Any]]]], Mapping[str, Any] | None]

_logger = logging.getLogger("deltachain")

# What `apply` proves, in the words of SPEC-in-place section 24.1.
CHANGED_LANES, MEMORY, HASHED = "changed_lanes", "memory", "hashed"


def needs_torch(into: Mapping[str, Any]) -> bool:
    """Whether tensors are on a device, are parts, lie not in a row, or share their memory: then torch patches them."""
    places: set[int] = set()
    for value in into.values():
        if isinstance(value, Part | list | tuple) or hasattr(value, "to_local"):
            return True
        device: Any = getattr(value, "device", None)
        if type(device).__module__ != "torch":
            continue
        if device.type != "cpu":
            return True
        if str(value.layout) == "torch.strided" and not value.is_nested and value.numel():
            if value.data_ptr() in places or not value.is_contiguous():
                return True
            places.add(value.data_ptr())
    return False


class Prepared:
    """A version that has been downloaded, and proven as far as `proof` says.

    Attributes:
        native: the version.
        table: name, dtype, shape and digest of its tensors.
        memory: where its tensors are; None if only the caller's loader knows.
        changes: what is to be written; None if all tensors are to be loaded.
        seconds: that proving took.
        told: what has been told of the switch; None before.
    """

    def __init__(
        self,
        native: _native.Prepared,
        table: list[tuple[str, str, list[int], str]],
        memory: Memory | None,
        changes: Changes | None,
        seconds: float,
    ) -> None:
        self.native, self.table, self.memory, self.changes, self.seconds = native, table, memory, changes, seconds
        self.told: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    @property
    def proof(self) -> str:
        """How far the memory is proven when it has been applied."""
        return HASHED if self.changes is None else CHANGED_LANES

    @property
    def is_applied(self) -> bool:
        """Whether the tensors have been switched to it."""
        return self.told is not None


class TensorFollower:
    """In the place of `_native.Follower`: the copy is in tensors of torch.

    All ranks of a group make the same calls. Rank 0 decides which version comes and when waiting ends.

    Args:
        native: follows the chain without a copy.
        into: the tensors, or what loads all of a version and returns them.
        ranks: the processes that hold them together.
    """

    def __init__(self, native: _native.Follower, into: Mapping[str, Any] | Loader, ranks: Ranks) -> None:
        self._native, self._ranks = native, ranks
        self._is_group = ranks.size > 1
        self._loader = None if isinstance(into, Mapping) else into
        self._given: list[tuple[str, Any, tuple[slice, ...] | None]] | None = None
        # Names of which this process has nothing, and of which none is needed if no process has anything.
        self._unused: list[str] = []
        if isinstance(into, Mapping):
            self._give(into)
        # Where the tensors of the last version are, and what these tensors were.
        self._bound: tuple[list[Info], Memory] | None = None
        # Digests of the held tensors.
        self._table: dict[str, str] = {}
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def _give(self, into: Mapping[str, Any] | None) -> None:
        """Takes these tensors from now on."""
        self._bound = None
        self._given = None if into is None else list(parts_of(into, self._is_group))
        self._unused = [name for name, given in (into or {}).items() if isinstance(given, list) and not given]

    @property
    def is_torn(self) -> bool:
        """Whether the tensors may hold parts of two versions."""
        return self._native.is_engine_torn

    # Preparing.

    def poll(
        self,
        version: int | None,
        timeout: float | None,
        threads: int | None,
        progress: Any,
        until: Callable[[], bool] | None,
    ) -> tuple[bool, Prepared | None]:
        """As `_native.Follower.poll`."""

        def first(until: Callable[[], bool] | None) -> tuple[bool, _native.Prepared | None]:
            return self._native.poll(version, timeout, threads, progress, until)

        return self._prepared(f"poll({version})", first, timeout, threads, progress, until)

    def prepare(
        self,
        version: int | None,
        timeout: float | None,
        poll: float,
        threads: int | None,
        progress: Any,
        until: Callable[[], bool] | None,
    ) -> Prepared | None:
        """As `_native.Follower.prepare`."""

        def first(until: Callable[[], bool] | None) -> tuple[bool, _native.Prepared | None]:
            return True, self._native.prepare(version, timeout, poll, threads, progress, until)

        return self._prepared(f"prepare({version})", first, timeout, threads, progress, until)[1]

    def next(
        self,
        polling: _native.Polling,
        waits: bool,
        until: Callable[[], bool] | None,
        threads: int | None,
        progress: Any,
    ) -> Prepared | None:
        """As `_native.Follower.next`."""

        def first(until: Callable[[], bool] | None) -> tuple[bool, _native.Prepared | None]:
            return True, self._native.next(polling, waits, until, threads, progress)

        return self._prepared("follow()", first, None, threads, progress, until)[1]

    def _prepared(
        self,
        call: str,
        first: Callable[[Callable[[], bool] | None], tuple[bool, _native.Prepared | None]],
        timeout: float | None,
        threads: int | None,
        progress: Any,
        until: Callable[[], bool] | None,
    ) -> tuple[bool, Prepared | None]:
        """Downloads a version, on rank 0 first, and proves it."""
        ranks = self._ranks
        self._begin(call)
        self._compare_held()
        is_there, made = True, None
        stop = threading.Event()

        def choose() -> bytes:
            nonlocal is_there, made
            if ranks.rank != 0:
                return b""
            is_there, made = first(
                until if ranks.size == 1 else lambda: stop.is_set() or (until is not None and until())
            )
            return json.dumps([is_there, None if made is None else made.version]).encode()

        is_there, version = json.loads(ranks.together(choose, stop.set)[0])
        if version is None:
            return is_there, None

        def follow() -> bytes:
            nonlocal made
            if ranks.rank != 0:
                made = self._native.poll(version, timeout, threads, progress, stop.is_set)[1]
            if made is None:
                raise IoError(f"IO: version {version} is not there on rank {ranks.rank}", retryable=True)
            return json.dumps([made.is_in_place, made.agreement()]).encode()

        told = [json.loads(word) for word in ranks.together(follow, stop.set)]
        assert made is not None
        begin = time.monotonic()
        table = made.table()
        memory = None if self._given is None else self._memory(table)
        failure: Exception | None = None
        if memory is not None and all(is_in_place for is_in_place, _ in told):
            # R-SUM-11.
            ranks.same("table, links and sums", {"version": told[ranks.rank][1]})
            try:
                changes = prove(memory, _pieces(made, threads))
            except (IoError, CancelledError):
                raise
            except Exception as error:
                # It is the same on all ranks, since they compare together.
                failure = error
                _logger.warning("version %d is loaded as a whole: %s", version, error)
            else:
                return True, Prepared(made, table, memory, changes, time.monotonic() - begin)
            self._begin(f"load version {version}")

        def again() -> bytes:
            nonlocal made
            assert made is not None
            if made.is_in_place:
                self._native.failed(made, not isinstance(failure, StateMismatchError))
                made = self._native.poll(version, timeout, threads, progress, stop.is_set)[1]
            if made is None or made.is_in_place:
                raise IoError(f"IO: version {version} is not there on rank {ranks.rank}", retryable=True)
            return made.commit.encode()

        ranks.same("version", {"commit": ranks.together(again, stop.set)[ranks.rank].decode()})
        return True, Prepared(made, table, memory, None, 0.0)

    def _begin(self, call: str) -> None:
        """The first exchange of a call, or of another attempt within it."""
        self._calls += 1
        if self._is_group:
            self._ranks.wait()
            self._ranks.begin(self._calls, call, None)

    def _compare_held(self) -> None:
        """If not all ranks have the same whole version, all load the next one as a whole."""
        held = self._native.held_commit()
        told = self._ranks.agree(word=json.dumps([None if held is None else held[0], self.is_torn]).encode())
        if len(set(told)) > 1:
            self._native.lost()

    def _memory(self, table: list[tuple[str, str, list[int], str]]) -> Memory:
        """Where the tensors of a version are."""
        ranks = self._ranks
        infos = [(name, dtype, list(shape)) for name, dtype, shape, _ in table]
        error: Exception | None = None
        memory = None
        boxes: dict[str, list[Box]] = {}
        try:
            if self._bound is None or self._bound[0] != infos:
                assert self._given is not None
                needed = [info for info in infos if info[0] not in self._unused]
                parts = bound(needed, self._given, self._is_group)
                memory = Memory(parts, {}, {}, ties(parts), self._add if self._is_group else None)
                boxes = {name: [part.part for part in own] for name, own in parts.items()}
            else:
                memory = self._bound[1]
            memory.check_ties({name: digest for name, _, _, digest in table})
        except Exception as raised:
            error = raised
        told = [json.loads(word) for word in ranks.agree(error, json.dumps([boxes, self._unused]).encode())]
        assert memory is not None
        if self._bound is None or self._bound[1] is not memory:
            nowhere = set.intersection(*(set(unused) for _, unused in told))
            memory.divide(
                [info for info in infos if info[0] not in nowhere],
                ranks.rank,
                [{name: [tuple(map(tuple, box)) for box in own] for name, own in rank.items()} for rank, _ in told],
            )
            self._bound = (infos, memory)
        return memory

    def _add(self, sums: Any, error: Exception | None) -> Any:
        """Adds up sums over all ranks."""
        import torch

        words = self._ranks.agree(error, bytes(sums.to(torch.int32).contiguous().view(-1).numpy().tobytes()))
        total = torch.zeros_like(sums)
        for word in words:
            if word:
                total += torch.frombuffer(bytearray(word), dtype=torch.int32).view(-1, 4)
        return total

    # Switching.

    def switch(self, prepared: Prepared, threads: int | None, progress: Any) -> dict[str, Any]:
        """As `_native.Follower.switch`: writes the tensors, in all processes or in none."""
        if prepared.told is not None:
            return prepared.told
        # That all call this is the vote: none has written anything before.
        self._begin(f"apply version {prepared.version}, {prepared.proof}")
        note_written({str(number): tensor for number, (_, tensor, _) in enumerate(self._given or ())})
        self._native.begin(prepared.native)
        # From here on the tensors are torn, until the native follower is told otherwise.
        if prepared.changes is None:
            self._load(prepared, threads)
        else:
            self._exchange(prepared.native, prepared.changes)
        told = self._native.switched(prepared.native, prepared.proof)
        plan, download, build, switch = told["times"]
        told["times"] = (plan, download, build + prepared.seconds, switch)
        self._table = {name: digest for name, _, _, digest in prepared.table}
        if self._loader is not None and prepared.changes is None:
            self._prove_found()
        prepared.told = told
        return told

    def _exchange(self, native: _native.Prepared, changes: Changes) -> None:
        """Writes the proven lanes. All ranks do, or all go back; if it is not known what others did, they are torn."""
        failure: BaseException | None = None
        try:
            changes.switch()
        except BaseException as raised:
            failure = raised
        error = self._vote(failure, self._ranks.limit)
        if error is None:
            return
        failure = None
        try:
            changes.undo()
        except BaseException as raised:
            failure = raised
        if self._vote(failure, self._ranks.limit) is None:
            # If other code has written to the memory, it is no version.
            self._native.undone(native, not isinstance(error, StateMismatchError))
        raise error

    def _load(self, prepared: Prepared, threads: int | None) -> None:
        """Writes all tensors."""
        failure: BaseException | None = None
        into = None
        try:
            if self._loader is None:
                assert prepared.memory is not None
                for name, _, _, data in _tensors(prepared.native, threads):
                    load(prepared.memory, name, data)
            else:
                self._give(None)
                into = self._loader(lambda: _shaped(prepared.native, threads))
        except BaseException as raised:
            failure = raised
        # Loading may take one rank much longer than another.
        failed = self._vote(failure, None)
        if failed is not None:
            raise failed
        if self._loader is not None:
            self._find(into, prepared.table)

    def _find(self, into: Mapping[str, Any] | None, table: list[tuple[str, str, list[int], str]]) -> None:
        """Takes the tensors that the loader has found, if all ranks have found theirs. Otherwise the next version is
        loaded as a whole, too."""
        if not all(self._ranks.agree(word=b"" if into is None else b"+")):
            return
        try:
            self._give(into)
            self._memory(table)
        except UsageError as error:
            self._give(None)
            _logger.warning("versions cannot be taken in place: %s", error)

    def _prove_found(self) -> None:
        """Compares the sums of all tensors that the loader has found with those of the version that it has loaded."""
        if self._bound is None:
            return
        try:
            check(self._bound[1], self._sums(), None)
        except (StateMismatchError, UnsupportedError) as error:
            # On all ranks, since they compare together.
            self._give(None)
            _logger.warning("versions cannot be taken in place: the loader has not put them where it seemed: %s", error)

    def _sums(self) -> dict[str, Any]:
        """For each tensor of the held version its sums."""
        return {name: sums for name, sums in self._native.sums() if name in self._table}

    @property
    def is_found(self) -> bool:
        """Whether it is known where the tensors are."""
        return self._given is not None

    def _vote(self, failure: BaseException | None, timeout: float | None) -> BaseException | None:
        """What has failed, here or on another rank: all know it then.

        Raises:
            TornError: if a rank was lost, so that it is unknown what others have written.
        """
        try:
            return self._ranks.vote(failure, timeout)
        except Exception as raised:
            raise TornError(f"TORN: it is unknown what other ranks have written: {raised}") from (failure or raised)

    # Checking.

    def check(self, threads: int | None, progress: Any, until: Callable[[], bool] | None) -> None:
        """Compares the sums of all memory with those of the held version."""
        self._begin("check()")
        held = self._native.held_commit()
        self._ranks.same("version", {"commit": "none" if held is None else held[0]})
        if held is None or self._bound is None:
            raise UsageError("USAGE: the tensors hold no whole version: apply an update")
        try:
            check(self._bound[1], self._sums(), until)
        except StateMismatchError:
            self._native.checked(None)
            raise
        self._native.checked(MEMORY)

    def verify(self, threads: int | None, progress: Any, until: Callable[[], bool] | None) -> None:
        """Hashes all tensors, which crosses from the device to the host."""
        if self._is_group:
            raise UsageError("USAGE: no process has all tensors, so they cannot be hashed: use check()")
        if self._native.held() is None:
            raise UsageError("USAGE: no version is held")
        own = {name: tensor for name, tensor, _ in self._given or ()}
        _, rows = _native.digest(own, threads, progress)
        if {info[0]: digest for info, digest in rows} != self._table:
            self._native.checked(None)
            raise WrongBaseError(
                f"WRONG_BASE {rules.APP_01}: other code has written to the tensors",
                rule=rules.APP_01,
                advice="prepare again: that loads all tensors",
            )
        self._native.checked(HASHED)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Names and copies of tensors; of the parts that this process holds."""
        if self._native.held() is not None:
            for name, tensor, _ in self._given or ():
                yield name, tensor.detach().clone()


def _pieces(made: _native.Prepared, threads: int | None) -> Iterator[Piece]:
    plans = made.plans(threads)
    while rows := plans.next():
        for name, number, first, count, lanes, steps in rows:
            yield Piece(name, number, first, count, lanes, [Step(*step) for step in steps])


def _tensors(made: _native.Prepared, threads: int | None) -> Iterator[tuple[str, str, list[int], Any]]:
    """Names, dtypes, shapes and bytes of all tensors of a version, some at a time."""
    begin: int | None = 0
    while begin is not None:
        rows, begin = made.tensors(begin, threads)
        yield from rows


def _shaped(made: _native.Prepared, threads: int | None) -> Iterator[tuple[str, Any]]:
    """Names and tensors of a version, of torch."""
    for name, dtype, shape, data in _tensors(made, threads):
        yield name, shaped("torch", dtype, shape, data)
