"""Following a chain with the caller's tensors as the only copy: of one process, on any device, or divided among
several. The library downloads, proves and writes; here is where the tensors are, and what processes agree on."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _native
from ._device_memory import DeviceMemory
from ._errors import CancelledError, IoError, StateMismatchError, TornError, UnsupportedError, UsageError
from ._like import known
from ._parts import Info, bound, located, parts_of
from ._ranks import Ranks
from ._tensors import Tensor, kind_of, note_written, shaped

__all__ = ["Loader", "TensorFollower"]

# Loads a version in the caller's way, and returns where its tensors are: None if that is unknown. Of a name that maps
# to an empty list, nothing is needed. It is given a function that gives all tensors, each time it is called.
Loader = Callable[[Callable[[], Iterator[tuple[str, Any]]]], Mapping[str, Any] | None]

_logger = logging.getLogger("deltachain")

_NOTHING = "USAGE: the tensors hold no whole version, or into= has not said where they are: apply an update"

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
        # The tensors of the chain that they were bound as.
        self._bound: list[Info] | None = None
        # How long another rank may take to vote.
        self._patience: float | None = None
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

    # Preparing.

    def poll(
        self,
        version: int | None,
        timeout: float | None,
        threads: int | None,
        progress: Any,
        until: Callable[[], bool] | None,
    ) -> tuple[bool, _native.Prepared | None]:
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
    ) -> _native.Prepared | None:
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
    ) -> _native.Prepared | None:
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
    ) -> tuple[bool, _native.Prepared | None]:
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
        is_found = self._given is not None
        if is_found:
            self._bind(made)
        if is_found and all(is_in_place for is_in_place, _ in told):
            # R-SUM-11.
            ranks.same("table, links and sums", {"version": told[ranks.rank][1]})
            try:
                self._native.prove(made, self._group, threads, progress)
            except (IoError, CancelledError):
                raise
            except Exception as error:
                # It is the same on all ranks, since they compare together.
                _logger.warning("version %d is loaded as a whole: %s", version, error)
            else:
                return True, made
            self._begin(f"load version {version}")

        def again() -> bytes:
            nonlocal made
            assert made is not None
            if made.is_in_place:
                if not is_found:
                    self._native.displaced()
                else:
                    # If nothing else is known.
                    self._native.exceeded()
                made = self._native.poll(version, timeout, threads, progress, stop.is_set)[1]
            if made is None or made.is_in_place:
                raise IoError(f"IO: version {version} is not there on rank {ranks.rank}", retryable=True)
            return made.commit.encode()

        ranks.same("version", {"commit": ranks.together(again, stop.set)[ranks.rank].decode()})
        return True, made

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
            if any(is_torn for _, is_torn, _ in told):
                self._native.lost()
            else:
                # All find their tensors again.
                self._native.displaced()
                self._bound = None
        if not all(is_found for _, _, is_found in told):
            self._give(None)

    def _bind(self, made: _native.Prepared) -> None:
        """Finds the tensors of a version in those of all ranks."""
        ranks = self._ranks
        infos = [(name, dtype, list(shape)) for name, dtype, shape, _ in made.table()]
        error: Exception | None = None
        placed: _native.Placed | None = None
        if any(ranks.agree(word=b"+" if self._bound is None else b"")):
            # All tell their parts if one has to know them.
            self._bound = None
        try:
            if self._bound == infos:
                self._native.check_ties(made)
            assert self._given is not None
            needed = [info for info in infos if info[0] not in self._unused]
            if self._bound != infos:
                given = bound(needed, self._given, self._is_group)
                placed = self._native.place(made, given, _torch_for(self._given), self._loader is not None)
        except Exception as raised:
            error = raised
        word = json.dumps([placed.elements() if placed else [], self._unused]).encode()
        told = [json.loads(word) for word in ranks.agree(error, word)]
        if placed is None:
            return
        unused = set.intersection(*(set(unused) for _, unused in told))
        boxes = [[(name, [list(map(tuple, part)) for part in parts]) for name, parts in own] for own, _ in told]
        self._native.bind(placed, ranks.rank, boxes, sorted(unused))
        self._bound = infos

    @property
    def _group(self) -> TensorFollower | None:
        """What the library asks of all ranks: `add` and `vote`."""
        return self if self._is_group else None

    def add(self, sums: bytes, error: BaseException | None) -> list[bytes]:
        """The sums of all ranks."""
        return self._ranks.agree(error, sums)

    def vote(self, error: BaseException | None) -> BaseException | None:
        """What has failed, here or on another rank: all know it then.

        Raises:
            TornError: if a rank was lost, so that it is unknown what others have written.
        """
        try:
            return self._ranks.vote(error, self._patience)
        except Exception as raised:
            raise TornError(f"TORN: it is unknown what other ranks have written: {raised}") from (error or raised)

    # Switching.

    def switch(self, prepared: _native.Prepared, ranks: None, threads: int | None, progress: Any) -> dict[str, Any]:
        """As `_native.Follower.switch`: writes the tensors, in all processes or in none."""
        if prepared.told is not None:
            return prepared.told
        is_whole, moved = not prepared.is_in_place, self._moved()
        # That all call this is the vote: none has written anything before.
        self._begin(
            f"apply version {prepared.version}, {'as a whole' if is_whole else 'in place'}",
            None if is_whole and self._is_bound else moved,
        )
        note_written({str(number): tensor for number, (_, tensor, _) in enumerate(self._given or ())})
        # Loading may take one rank much longer than another.
        self._patience = None if is_whole else self._ranks.limit
        if is_whole and self._loader is not None:
            return self._load(prepared, threads, progress)
        if is_whole:
            self._bind(prepared)
        return self._native.switch(prepared, self._group, threads, progress)

    def _load(self, prepared: _native.Prepared, threads: int | None, progress: Any) -> dict[str, Any]:
        """Lets the loader load all tensors, and finds where they are then."""
        self._native.begin(prepared)
        # From here on the tensors are torn, until the library is told otherwise.
        self._give(None)
        failure: BaseException | None = None
        into = None
        try:
            assert self._loader is not None
            into = self._loader(lambda: _shaped(prepared, threads))
            if into is not None and known(into) is None:
                raise UsageError(
                    "USAGE: the function of into= must return a mapping from names to tensors, or None, not "
                    f"{type(into).__name__}"
                )
        except BaseException as raised:
            failure = raised
        failed = self.vote(failure)
        if failed is not None:
            raise failed
        told = self._native.finish(prepared)
        # If not all ranks have found theirs, the next version is loaded as a whole, too.
        if all(self._ranks.agree(word=b"" if into is None else b"+")):
            try:
                self._give(into)
                self._bind(prepared)
            except UsageError as error:
                self._give(None)
                _logger.warning("versions cannot be taken in place: %s", error)
        if self._bound is not None:
            try:
                self._native.check(self._group, False, threads, progress, None)
            except (StateMismatchError, UnsupportedError) as error:
                # On all ranks, since they compare together.
                self._give(None)
                _logger.warning(
                    "versions cannot be taken in place: the loader has not put them where it seemed: %s", error
                )
        return told

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
        return self._native.proof if self.is_found else None

    # Checking.

    def check(
        self, ranks: None, doubts: bool, threads: int | None, progress: Any, until: Callable[[], bool] | None
    ) -> None:
        """Compares the sums of all memory with those of the held version."""
        self._begin("check()", self._moved())
        held = self._native.held_commit()
        self._ranks.same("version", {"commit": "none" if held is None else held[0]})
        if held is None or self._bound is None:
            raise UsageError(_NOTHING)
        self._native.check(self._group, doubts, threads, progress, until)

    def verify(self, threads: int | None, progress: Any, until: Callable[[], bool] | None) -> None:
        """Hashes all tensors; those of a device cross to the host."""
        if self._is_group:
            raise UsageError("USAGE: no process has all tensors, so they cannot be hashed: use check()")
        self._begin("verify()", self._moved())
        if self._native.held() is None or self._bound is None:
            raise UsageError(_NOTHING)
        self._native.verify(threads, progress, until)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Names and copies of tensors; of the parts that this process holds."""
        if moved := self._moved():
            raise moved
        if self._native.held() is not None:
            yield from ((name, _copied(tensor)) for name, tensor, _ in self._given or ())


def _torch_for(given: list[tuple[str, Any, Any]]) -> DeviceMemory | None:
    """What reads and writes tensors if some of them are on a device."""
    is_on_device = any(kind_of(tensor) == "torch" and tensor.device.type != "cpu" for _, tensor, _ in given)
    return DeviceMemory() if is_on_device else None


def _copied(tensor: Any) -> Any:
    kind = kind_of(tensor)
    if kind == "torch":
        return tensor.detach().clone()
    if kind == "numpy":
        return tensor.copy()
    return Tensor(tensor.dtype, tensor.shape, bytes(tensor.data)) if isinstance(tensor, Tensor) else bytes(tensor)


def _shaped(made: _native.Prepared, threads: int | None) -> Iterator[tuple[str, Any]]:
    """Names and tensors of a version, of torch."""
    stream = made.tensors(threads)
    while (rows := stream.next()) is not None:
        for name, dtype, shape, data in rows:
            yield name, shaped("torch", dtype, shape, data)
