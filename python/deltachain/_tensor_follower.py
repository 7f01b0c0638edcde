"""Following a chain with tensors of torch as the only copy: of one process, on any device, or divided among several.
The library plans and downloads; what is read, proven and written is in `_in_place`."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from . import _native
from ._errors import CancelledError, Error, IoError, StateMismatchError, UsageError, WrongBaseError
from ._in_place import Changes, Memory, Piece, Step, check, load, prove
from ._native import rules
from ._parts import Box, Info, Part, bound, covers, parts_of, ties
from ._ranks import Ranks
from ._tensors import note_written

__all__ = ["TensorFollower", "needs_torch"]

_logger = logging.getLogger("deltachain")

# What `apply` proves, in the words of SPEC-in-place section 24.1.
CHANGED_LANES, MEMORY, HASHED = "changed_lanes", "memory", "hashed"


def needs_torch(into: Mapping[str, Any]) -> bool:
    """Whether tensors are on a device, are parts, or share their memory: then torch patches them."""
    places: set[int] = set()
    for value in into.values():
        if isinstance(value, Part | list | tuple) or hasattr(value, "to_local"):
            return True
        device = getattr(value, "device", None)
        if type(device).__module__ != "torch":
            continue
        if device.type != "cpu":
            return True
        if str(value.layout) == "torch.strided" and not value.is_nested and value.numel():
            if value.data_ptr() in places:
                return True
            places.add(value.data_ptr())
    return False


class Prepared:
    """A version that has been downloaded, and proven as far as `proof` says.

    Attributes:
        native: the version.
        memory: where its tensors are.
        changes: what is to be written; None if all tensors are to be loaded.
        told: what has been told of the switch; None before.
    """

    def __init__(self, native: _native.Prepared, memory: Memory, changes: Changes | None, seconds: float) -> None:
        self.native, self.memory, self.changes, self.seconds = native, memory, changes, seconds
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
        into: the tensors.
        ranks: the processes that hold them together.
    """

    def __init__(self, native: _native.Follower, into: Mapping[str, Any], ranks: Ranks) -> None:
        self._native, self._ranks = native, ranks
        self._is_group = ranks.size > 1
        self._given = list(parts_of(into, self._is_group))
        self._names = {str(number): tensor for number, (_, tensor, _) in enumerate(self._given)}
        # Where the tensors of the last version are, and what these tensors were.
        self._bound: tuple[list[Info], Memory] | None = None
        self._calls = 0
        self.is_torn = False
        self.proof: str | None = None
        self.checked: datetime | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

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
            is_there, made = first(until if ranks.size == 1 else lambda: stop.is_set() or (until and until()))
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
            return json.dumps([made.commit, made.how, made.basis()]).encode()

        told = [json.loads(word) for word in ranks.together(follow, stop.set)]
        assert made is not None
        begin = time.monotonic()
        memory = self._memory(made)
        if all(how == "in_place" for _, how, _ in told):
            # R-SUM-11.
            ranks.same("links and sums", {"version": json.dumps(told[ranks.rank])})
            try:
                changes = prove(memory, _pieces(made))
            except Exception as error:
                if isinstance(error, IoError | CancelledError):
                    raise
                _logger.warning("version %d is loaded as a whole: %s", version, error)
            else:
                return True, Prepared(made, memory, changes, time.monotonic() - begin)
        self._begin(f"load version {version}")

        def again() -> bytes:
            nonlocal made
            assert made is not None
            if made.how == "in_place":
                self._native.failed(made)
                made = self._native.poll(version, timeout, threads, progress, stop.is_set)[1]
            if made is None or made.how == "in_place":
                raise IoError(f"IO: version {version} is not there on rank {ranks.rank}", retryable=True)
            return made.commit.encode()

        ranks.same("version", {"commit": str(ranks.together(again, stop.set)[ranks.rank])})
        return True, Prepared(made, memory, None, 0.0)

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

    def _memory(self, made: _native.Prepared) -> Memory:
        """Where the tensors of a version are."""
        ranks = self._ranks
        table = made.table()
        infos = [(name, dtype, list(shape)) for name, dtype, shape, _ in table]
        error: Exception | None = None
        memory = None
        boxes: dict[str, list[Box]] = {}
        try:
            if self._bound is None or self._bound[0] != infos:
                parts = bound(infos, self._given, self._is_group)
                memory = Memory(parts, {}, {}, ties(parts), self._add if self._is_group else None)
                boxes = {name: [part.part for part in own] for name, own in parts.items()}
            else:
                memory = self._bound[1]
            memory.check_ties({name: digest for name, _, _, digest in table})
        except Exception as raised:
            error = raised
        told = [json.loads(word) for word in ranks.agree(error, json.dumps(boxes).encode())]
        assert memory is not None
        if self._bound is None or self._bound[1] is not memory:
            memory.divide(
                infos,
                ranks.rank,
                [{name: [tuple(map(tuple, box)) for box in own] for name, own in rank.items()} for rank in told],
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
        begin = time.monotonic()
        note_written(self._names)
        if prepared.changes is None:
            self._load(prepared)
        else:
            self._exchange(prepared.changes)
        try:
            told = self._native.switched(prepared.native, prepared.proof)
        except BaseException:
            self._is_lost()
            raise
        self.is_torn, self.proof = False, prepared.proof
        if prepared.changes is None:
            self.checked = datetime.now(UTC)
        plan, download, build, _ = told["times"]
        told["times"] = (plan, download, build + prepared.seconds, time.monotonic() - begin)
        prepared.told = told
        return told

    def _exchange(self, changes: Changes) -> None:
        """Writes the proven lanes. All ranks do, or all go back; if it is not known what others did, it is torn."""
        failure: BaseException | None = None
        try:
            changes.switch()
        except BaseException as error:
            failure = error
        try:
            self._vote(failure)
        except _Lost as lost:
            self._is_lost()
            raise lost.error from failure
        except BaseException as error:
            try:
                failure = None
                try:
                    changes.undo()
                except BaseException as raised:
                    failure = raised
                self._vote(failure)
            except BaseException as raised:
                self._is_lost()
                raise error from (raised.error if isinstance(raised, _Lost) else raised)
            if isinstance(error, StateMismatchError):
                # Other code has written to the memory: it is no version.
                self._native.lost()
            raise

    def _load(self, prepared: Prepared) -> None:
        """Writes all tensors."""
        self.is_torn = True
        failure: BaseException | None = None
        try:
            for name, data in _tensors(prepared.native):
                load(prepared.memory, name, data)
        except BaseException as error:
            failure = error
        try:
            self._vote(failure)
        except BaseException as error:
            self._is_lost()
            raise error.error if isinstance(error, _Lost) else error from failure

    def _vote(self, failure: BaseException | None) -> None:
        """Raises if anything has failed here or on another rank; `_Lost` if that is not known."""
        try:
            error = self._ranks.vote(failure)
        except BaseException as raised:
            raise _Lost(raised) from failure
        if error is not None:
            raise error

    def _is_lost(self) -> None:
        self.is_torn, self.proof = True, None
        self._native.lost()

    # Checking.

    def check(self, threads: int | None, progress: Any, until: Callable[[], bool] | None) -> None:
        """Compares the sums of all memory with those of the held version."""
        self._begin("check()")
        held = self._native.held_commit()
        self._ranks.same("version", {"commit": "torn" if self.is_torn else "none" if held is None else held[0]})
        if held is None or self.is_torn or self._bound is None:
            raise UsageError("USAGE: the tensors hold no whole version: apply an update")
        try:
            check(self._bound[1], dict(self._native.sums()), until)
        except StateMismatchError as error:
            self._native.lost()
            self.proof = None
            raise WrongBaseError(str(error), rule=rules.SUM_04, advice="prepare again: that loads all tensors") from error
        self.proof, self.checked = MEMORY, datetime.now(UTC)

    def verify(self, threads: int | None, progress: Any, until: Callable[[], bool] | None) -> None:
        """Hashes all tensors, which crosses from the device to the host."""
        if self._is_group:
            raise UsageError("USAGE: no process has all tensors, so they cannot be hashed: use check()")
        if self._native.held() is None:
            raise UsageError("USAGE: no version is held")
        own = {name: tensor for name, tensor, _ in self._given}
        _, rows = _native.digest(own, threads, progress)
        if {(info[0], digest) for info, digest in rows} != {(name, digest) for name, _, _, digest in self._native.table()}:
            self._native.lost()
            raise WrongBaseError(
                f"WRONG_BASE {rules.APP_01}: other code has written to the tensors",
                rule=rules.APP_01,
                advice="prepare again: that loads all tensors",
            )
        self.proof, self.checked = HASHED, datetime.now(UTC)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Names and copies of tensors; of the parts that this process holds."""
        if self._native.held() is not None:
            for name, tensor, _ in self._given:
                yield name, tensor.detach().clone()


class _Lost(Exception):
    """A rank was lost while others depended on it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _pieces(made: _native.Prepared) -> Iterator[Piece]:
    for name, number, first, count, lanes, steps in made.plans():
        yield Piece(name, number, first, count, lanes, [Step(*step) for step in steps])


def _tensors(made: _native.Prepared) -> Iterator[tuple[str, Any]]:
    """Names and bytes of all tensors of a version, some at a time."""
    begin: int | None = 0
    while begin is not None:
        rows, begin = made.tensors(begin)
        for name, _, _, data in rows:
            yield name, data
