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
from ._like import known
from ._native import rules
from ._parts import Box, Info, Part, bound, located, parts_of, ties
from ._ranks import Ranks
from ._tensors import note_written, shaped

__all__ = ["Loader", "TensorFollower", "needs_torch"]

# Loads a version in the caller's way, and returns where its tensors are: None if that is unknown. Of a name that maps
# to an empty list, nothing is needed. It is given a function that gives all tensors, each time it is called.
Loader = Callable[[Callable[[], Iterator[tuple[str, Any]]]], Mapping[str, Any] | None]

_logger = logging.getLogger("deltachain")

_NOTHING = "USAGE: the tensors hold no whole version, or into= has not said where they are: apply an update"

# What `apply` proves, in the words of SPEC section 24.1.
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
        changes: what is to be written; None if all tensors are to be loaded.
        seconds: that proving took.
        told: what has been told of the switch; None before.
    """

    def __init__(
        self,
        native: _native.Prepared,
        table: list[tuple[str, str, list[int], str]],
        changes: Changes | None,
        seconds: float,
    ) -> None:
        self.native, self.table, self.changes, self.seconds = native, table, changes, seconds
        self.told: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    @property
    def is_applied(self) -> bool:
        """Whether the tensors have been switched to it."""
        return self.told is not None


class TensorFollower:
    """In the place of `_native.Follower`: the copy is in tensors of torch.

    All ranks of a group make the same calls. Rank 0 decides which version comes and when waiting ends.

    Args:
        native: follows the chain without a copy.
        into: the tensors, a module that has them, or what loads all of a version and returns them.
        ranks: the processes that hold them together.
    """

    def __init__(self, native: _native.Follower, into: Any, ranks: Ranks) -> None:
        self._native, self._ranks = native, ranks
        self._is_group = ranks.size > 1
        self._loader: Loader | None = into if known(into) is None else None
        self._into: Any = None
        self._given: list[tuple[str, Any, tuple[slice, ...] | None]] | None = None
        # Where they lay when they were given.
        self._places: list[_native.Place] = []
        # Names of which this process has nothing, and of which none is needed if no process has anything.
        self._unused: list[str] = []
        self._give(None if self._loader else into)
        # Where the tensors of the last version are, and what these tensors were.
        self._bound: tuple[list[Info], Memory] | None = None
        # Digests of the held tensors.
        self._table: dict[str, str] = {}
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def _give(self, into: Any) -> None:
        """Takes these tensors from now on."""
        self._into, self._bound, self._given, self._places, self._unused = into, None, None, [], []
        tensors = known(into)
        if tensors is not None:
            given = list(parts_of(tensors, self._is_group))
            self._places = [_native.Place(name, tensor) for name, tensor, _ in given]
            self._unused = [name for name, own in tensors.items() if isinstance(own, list) and not own]
            self._given = given

    def _moved(self) -> Exception | None:
        """Compares where the tensors lie with where they lay. If one lies elsewhere, all are bound anew, those of a
        loader by the next version, which is loaded as a whole. Returns which one, or why they cannot be bound."""
        if self._into is None:
            return None
        try:
            tensors = list(located(known(self._into) or {}))
            places = [_native.Place(name, tensor) for name, _, tensor in tensors]
            if len(places) != len(self._places):
                before, now = ({name for name, *_ in own} for own in (self._given or (), tensors))
                raise UsageError(f"USAGE: into= has other tensors than before: {sorted(before ^ now)!s:.200}")
            for old, new in zip(self._places, places, strict=True):
                old.check(new)
        except Exception as error:
            self._native.displaced()
            try:
                self._give(None if self._loader else self._into)
            except Exception as other:
                return other
            return error
        return None

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
        moved = self._moved()
        self._begin(call, None if self._is_bound else moved)
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
                return True, Prepared(made, table, changes, time.monotonic() - begin)
            self._begin(f"load version {version}")

        def again() -> bytes:
            nonlocal made
            assert made is not None
            if made.is_in_place:
                if memory is None:
                    self._native.displaced()
                else:
                    self._native.failed(made, not isinstance(failure, StateMismatchError))
                made = self._native.poll(version, timeout, threads, progress, stop.is_set)[1]
            if made is None or made.is_in_place:
                raise IoError(f"IO: version {version} is not there on rank {ranks.rank}", retryable=True)
            return made.commit.encode()

        ranks.same("version", {"commit": ranks.together(again, stop.set)[ranks.rank].decode()})
        return True, Prepared(made, table, None, 0.0)

    def _begin(self, call: str, error: Exception | None = None) -> None:
        """The first exchange of a call, or of another attempt within it. All ranks raise what one has to."""
        self._calls += 1
        if self._is_group:
            self._ranks.wait()
            self._ranks.begin(self._calls, call, error)
        elif error is not None:
            raise error

    def _compare_held(self) -> None:
        """If not all ranks have the same whole version, all load the next one as a whole. If it is not known on all of
        them where the loader has put the tensors, it is known on none."""
        held = self._native.held_commit()
        word = json.dumps([None if held is None else held[0], self.is_torn, self.is_found])
        told = [json.loads(word) for word in self._ranks.agree(word=word.encode())]
        if any(one != told[0] for one in told):
            (self._native.lost if any(is_torn for _, is_torn, _ in told) else self._native.displaced)()
        if not all(is_found for _, _, is_found in told):
            self._give(None)

    def _memory(self, table: list[tuple[str, str, list[int], str]]) -> Memory:
        """Where the tensors of a version are."""
        ranks = self._ranks
        infos = [(name, dtype, list(shape)) for name, dtype, shape, _ in table]
        error: Exception | None = None
        memory = None
        boxes: dict[str, list[Box]] = {}
        if any(ranks.agree(word=b"+" if self._bound is None else b"")):
            # All tell their parts if one has to know them.
            self._bound = None
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
        is_whole, moved = prepared.changes is None, self._moved()
        # That all call this is the vote: none has written anything before.
        self._begin(
            f"apply version {prepared.version}, {'as a whole' if is_whole else 'in place'}",
            None if is_whole and self._is_bound else moved,
        )
        note_written({str(number): tensor for number, (_, tensor, _) in enumerate(self._given or ())})
        self._native.begin(prepared.native)
        # From here on the tensors are torn, until the native follower is told otherwise.
        if prepared.changes is None:
            self._load(prepared, threads)
        else:
            self._exchange(prepared.native, prepared.changes)
        told = self._native.switched(prepared.native, CHANGED_LANES)
        plan, download, build, switch = told["times"]
        told["times"] = (plan, download, build + prepared.seconds, switch)
        self._table = {name: digest for name, _, _, digest in prepared.table}
        if is_whole:
            self._prove_loaded()
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
        memory = self._memory(prepared.table) if self._loader is None else None
        try:
            if memory is not None:
                for name, _, _, data in _tensors(prepared.native, threads):
                    load(memory, name, data)
            elif self._loader is not None:
                self._give(None)
                into = self._loader(lambda: _shaped(prepared.native, threads))
                if into is not None and known(into) is None:
                    raise UsageError(
                        "USAGE: the function of into= must return a mapping from names to tensors, or None, not "
                        f"{type(into).__name__}"
                    )
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

    def _prove_loaded(self) -> None:
        """Compares the sums of all tensors with those of the version that has been loaded, as far as it is known where
        they are."""
        if self._bound is None:
            return
        try:
            check(self._bound[1], self._sums())
        except (StateMismatchError, UnsupportedError) as error:
            # On all ranks, since they compare together.
            if self._loader is None:
                self._native.checked(None)
                raise
            self._give(None)
            _logger.warning("versions cannot be taken in place: the loader has not put them where it seemed: %s", error)
        else:
            self._native.checked(MEMORY)

    def _sums(self) -> dict[str, Any]:
        """For each tensor of the held version its sums."""
        return {name: sums for name, sums in self._native.sums() if name in self._table}

    @property
    def is_found(self) -> bool:
        """Whether it is known where the tensors are."""
        return self._given is not None

    @property
    def _is_bound(self) -> bool:
        """Whether a version can be loaded."""
        return self.is_found or self._loader is not None

    @property
    def proof(self) -> str | None:
        """As `_native.Follower.proof`: of memory that was not read nothing is proven."""
        proof: str | None = self._native.proof
        return proof if self.is_found else None

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
        self._begin("check()", self._moved())
        held = self._native.held_commit()
        self._ranks.same("version", {"commit": "none" if held is None else held[0]})
        if held is None or self._bound is None:
            raise UsageError(_NOTHING)
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
        self._begin("verify()", self._moved())
        if self._native.held() is None or not self.is_found:
            raise UsageError(_NOTHING)
        own = {name: tensor for name, tensor, _ in self._given or () if name in self._table}
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
        if moved := self._moved():
            raise moved
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
