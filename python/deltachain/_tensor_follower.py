"""Following a chain with the caller's tensors as the only copy: in one process, on any device, or
divided among several processes. The library downloads, proves and writes; this module finds the
places of the tensors, and makes processes agree."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, Self

from . import _native
from ._errors import (
    CancelledError,
    Error,
    IoError,
    StateMismatchError,
    TornError,
    UnsupportedError,
    UsageError,
)
from ._files import Progress
from ._parts import address_of, bound, located, parts_of
from ._ranks import Ranks
from ._tensors import Tensor, check_dtype, kind_of, known, note_written, shaped

__all__ = ["Loader", "TensorFollower", "WatchedProgress"]

# Loads a version in the caller's own way, and returns the places of its tensors, or None if these
# are unknown. A name that maps to an empty list needs no tensor. The argument is a function that
# returns all tensors, each time it is called.
Loader = Callable[[Callable[[], Iterator[tuple[str, Any]]]], Mapping[str, Any] | None]

_Until = Callable[[], object] | None

_logger = logging.getLogger("deltachain")

_NOTHING = (
    "USAGE: the tensors do not hold a whole version, or their places are unknown: apply an update"
)


# The last follower that wrote to the tensor at an address.
_owners: dict[tuple[Any, int], weakref.ref[TensorFollower]] = {}


def _forget(ended: weakref.ref[TensorFollower]) -> None:
    for address in [address for address, owner in _owners.items() if owner is ended]:
        del _owners[address]


class WatchedProgress:
    """The caller's progress function. An exception from it, of any class, ends the work."""

    def __init__(self, function: Progress) -> None:
        self._function = function
        self.raised: BaseException | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        try:
            self._function(phase, done, total)
        except BaseException as error:
            self.raised = error
            raise


class _Preparation:
    """A version that all ranks prepare. Each method is one step, which a rank does alone."""

    def __init__(self, follower: TensorFollower, timeout: float | None, until: _Until) -> None:
        self._follower = follower
        self._rank = follower._ranks.rank
        self._timeout = timeout
        self._until = until
        #: Set when another rank has failed, which ends the step early.
        self.stop = threading.Event()
        #: The version of this rank, once it has one.
        self.made: _native.PreparedUpdate | None = None

    def choose(
        self,
        first: Callable[[_Until], _native.PollResult | _native.PreparedUpdate | None],
    ) -> dict[str, Any] | None:
        """Lets rank 0 choose and download a version with `first`. The other ranks do nothing."""
        if self._rank != 0:
            return None
        found = first(self._until if self._follower._ranks.size == 1 else self._is_over)
        is_there = True
        if isinstance(found, _native.PollResult):
            is_there, found = found.is_there, found.prepared
        self.made = found
        return {"is_there": is_there, "version": None if found is None else found.version}

    def fetch(self, version: int) -> dict[str, Any]:
        """Downloads the chosen version; rank 0 has it already."""
        if self._rank != 0:
            self.made = self._poll(version)
        if self.made is None:
            raise self._missing(version)
        return {"is_in_place": self.made.is_in_place, "agreement": self.made.agreement()}

    def fetch_whole(self, version: int, why: Literal["place", "budget"]) -> str:
        """Downloads the version as a whole, unless this rank has it like that. Returns the digest
        of its commit.

        Args:
            version: the version.
            why: the reason that the rank gives, if no other one is known.
        """
        if self.made is not None and self.made.is_in_place:
            self._follower.doubt(why)
            self.made = self._poll(version)
        if self.made is None or self.made.is_in_place:
            raise self._missing(version)
        return self.made.commit

    def _is_over(self) -> bool:
        return self.stop.is_set() or (self._until is not None and bool(self._until()))

    def _poll(self, version: int) -> _native.PreparedUpdate | None:
        poll = _native.Follower.poll
        return poll(self._follower, version, self._timeout, self.stop.is_set).prepared

    def _missing(self, version: int) -> IoError:
        return IoError(f"IO: version {version} is missing on rank {self._rank}", retryable=True)


class TensorFollower(_native.Follower):
    """A follower whose copy is in tensors of torch.

    All ranks of a group make the same calls. Rank 0 decides which version is next and when waiting
    ends.

    Args:
        into: the tensors, a module that has them, or a function that loads all of a version and
            returns them.
        ranks: the processes that hold the tensors together.
        strict: whether the tensors must be the chain's, all of them and no others.
        store, is_into, settings: as for `_native.Follower`.
    """

    def __new__(
        cls,
        into: Any,
        ranks: Ranks,
        strict: bool,
        store: _native.Store,
        is_into: bool,
        settings: Mapping[str, Any],
    ) -> Self:
        return super().__new__(cls, store, is_into, settings)

    def __init__(
        self,
        into: Any,
        ranks: Ranks,
        strict: bool,
        store: _native.Store,
        is_into: bool,
        settings: Mapping[str, Any],
    ) -> None:
        self._progress: WatchedProgress | None = settings["progress"]
        self._ranks = ranks
        self._strict = strict
        self._is_group = ranks.size > 1
        self._loader: Loader | None = into if known(into) is None else None
        self._into: Any = None
        # The places of the given tensors, and the part that each holds.
        self._given: list[tuple[_native.TensorPlace, tuple[slice, ...] | None]] | None = None
        # Names of which this process has nothing. They are not needed if no process has them.
        self._unused: list[str] = []
        # True if the library has bound the tensors to tensors of the chain; and these, by name.
        self._bound = False
        self._named: list[tuple[str, _native.TensorPlace]] = []
        self._give(None if self._loader else into)
        # True if this follower was the last one to write to its tensors; true if another one has
        # written since.
        self._is_owner = self._is_overwritten = False
        # Time limit for the votes of other ranks.
        self._patience: float | None = None
        self._calls = 0

    def _give(self, into: Any) -> None:
        """Sets the tensors from now on."""
        self._into, self._bound, self._given, self._unused = into, False, None, []
        self._is_owner = False
        tensors = known(into)
        if tensors is not None:
            parts = list(parts_of(tensors, self._is_group))
            given = [(_native.TensorPlace(name, tensor), index) for name, tensor, index in parts]
            self._unused = [
                name for name, own in tensors.items() if isinstance(own, list) and not own
            ]
            self._given = given

    def _moved(self) -> Exception | None:
        """Compares the places of the tensors with their places before. If a tensor has moved, all
        tensors are bound again; those of a loader with the next version, which is loaded as a
        whole. Returns an error that names the moved tensor, or says why the tensors cannot be bound
        or read."""
        if self._is_overwritten:
            self._is_overwritten = False
            self.doubt("torn")
        if self._into is None:
            return None
        try:
            given, now = (
                self._given or [],
                [(name, tensor) for name, _, tensor in located(known(self._into) or {})],
            )
            if len(now) != len(given):
                others = {place.name for place, _ in given} ^ {name for name, _ in now}
                raise UsageError(
                    f"USAGE: the tensors of into= have changed: {sorted(others)!s:.200}"
                )
            for (place, _), (name, tensor) in zip(given, now, strict=True):
                place.check(name, tensor)
        except Exception as error:
            self.doubt("place")
            try:
                self._give(None if self._loader else self._into)
            except Exception as other:
                return other
            return error
        return None

    # Preparing.

    def poll(self, version: int | None, timeout: float | None, until: _Until) -> _native.PollResult:
        """Same as `_native.Follower.poll`, in all processes."""
        return self._prepared(
            f"poll({version})", partial(super().poll, version, timeout), timeout, until
        )

    def prepare(
        self, version: int | None, timeout: float | None, poll: float, until: _Until
    ) -> _native.PreparedUpdate | None:
        """Same as `_native.Follower.prepare`, in all processes."""
        first = partial(super().prepare, version, timeout, poll)
        return self._prepared(f"prepare({version})", first, timeout, until).prepared

    def next(
        self, polling: _native.Polling, waits: bool, until: _Until
    ) -> _native.PreparedUpdate | None:
        """Same as `_native.Follower.next`, in all processes."""
        first = partial(super().next, polling, waits)
        return self._prepared("follow()", first, None, until).prepared

    def _prepared(
        self,
        call: str,
        first: Callable[[_Until], _native.PollResult | _native.PreparedUpdate | None],
        timeout: float | None,
        until: _Until,
    ) -> _native.PollResult:
        """Downloads a version, on rank 0 first, and proves it.

        All ranks run every line here. Only the steps of `_Preparation` differ between ranks, and
        the results of each step are exchanged before the next one.
        """
        ranks = self._ranks
        moved = self._moved()
        self._begin(call, self._hindrance(moved), timeout)
        self._compare_held()
        preparation = _Preparation(self, timeout, until)
        stop = preparation.stop.set
        chosen = ranks.results(partial(preparation.choose, first), stop)[0]
        assert chosen is not None
        version = chosen["version"]
        if version is None:
            return _native.PollResult(chosen["is_there"], None)
        told = ranks.results(partial(preparation.fetch, version), stop)
        made = preparation.made
        assert made is not None
        is_found = self._given is not None and self._is_bound_to(made)
        if is_found and all(one["is_in_place"] for one in told):
            if self._is_proven(made, told[ranks.rank]["agreement"]):
                return _native.PollResult(True, made)
            self._begin(f"load version {version}")
        # "place" if there is no other known reason.
        why: Literal["place", "budget"] = "budget" if is_found else "place"
        commits = ranks.results(partial(preparation.fetch_whole, version, why), stop)
        ranks.same("version", {"commit": commits[ranks.rank]})
        return _native.PollResult(True, preparation.made)

    def _is_proven(self, made: _native.PreparedUpdate, agreement: str) -> bool:
        """Proves a version in place, together with the other ranks. Returns False, on all ranks, if
        it must be loaded as a whole.

        Args:
            made: the version.
            agreement: what all ranks must agree on before they add up sums.
        """
        # R-SUM-11.
        self._ranks.same("table, links and sums", {"version": agreement})
        try:
            super().prove(made, self._group)
        except (IoError, CancelledError):
            raise
        except (Error, RuntimeError, MemoryError) as error:
            if self._progress is not None and error is self._progress.raised:
                raise
            # All ranks have this error, since they compare together.
            _logger.warning("version %d is loaded as a whole: %s", made.version, error)
            return False
        return True

    def _begin(
        self, call: str, error: Exception | None = None, timeout: float | None = None
    ) -> None:
        """Does the first exchange of a call, or of another attempt within it. All ranks raise an
        error that one of them has."""
        self._calls += 1
        if self._is_group:
            self._ranks.wait()
            self._ranks.begin(self._calls, call, error, timeout)
        elif error is not None:
            raise error

    def _compare_held(self) -> None:
        """If not all ranks have the same whole version, makes all of them load the next one as a
        whole. If a rank does not know the places of its loader's tensors, no rank uses them."""
        held = self.held()
        own = {
            "commit": None if held is None else held.commit,
            "is_torn": self.is_torn,
            "is_found": self.is_found,
        }
        told = self._ranks.results(lambda: own)
        if any(one != told[0] for one in told):
            if any(one["is_torn"] for one in told):
                self.doubt("torn")
            else:
                # All ranks bind their tensors again.
                self.doubt("place")
                self._bound = False
        if not all(one["is_found"] for one in told):
            self._give(None)

    def _is_bound_to(self, made: _native.PreparedUpdate) -> bool:
        """Finds the tensors of a version. Returns False if they do not fit, but a loader can load
        the version: it may convert dtypes, for example.

        Raises:
            UsageError: if they do not fit, and there is no loader.
        """
        try:
            self._bind(made)
        except UsageError as error:
            # All ranks have this error.
            if self._loader is None:
                raise
            self.doubt("place")
            self._give(None)
            _logger.warning("version %d is loaded as a whole: %s", made.version, error)
            return False
        return True

    def _bind(self, made: _native.PreparedUpdate) -> None:
        """Finds the tensors of a version among those of all ranks."""
        ranks = self._ranks
        placed: _native.FoundTensors | None = None
        unused = list(self._unused)
        # If one rank has to know the parts, all ranks tell theirs.
        self._bound = all(ranks.agree(word=b"+" if self._bound else b""))

        def find() -> bytes:
            nonlocal placed
            assert self._given is not None
            if self._bound and self.fits(made):
                return b""
            needed = [form for form in made.table() if form.name not in self._unused]
            given = bound(needed, self._given, self._is_group, self._strict)
            self._named = [(name, place) for name, place, _ in given]
            if not self._strict:
                unused.extend({form.name for form in needed} - {name for name, _ in self._named})
            placed = self.place(made, given, _torch_for(self._given), self._loader is not None)
            return placed.told(unused) if self._is_group else b""

        told = ranks.tell(find)
        # A single rank may have no tensors, but not all ranks.
        if not self._strict and not any(ranks.agree(word=b"+" if self._named else b"")):
            raise UsageError(
                "USAGE: into= has no tensor of the chain on any rank: nothing would be loaded"
            )
        if placed is None:
            return
        if self._is_group:
            self.bind(placed, ranks.rank, told)
        else:
            self.bind_alone(placed, set(unused))
        self._bound = True

    @property
    def _group(self) -> TensorFollower | None:
        """The object through which the library communicates with all ranks, with `add` and `vote`;
        None without a group."""
        return self if self._is_group else None

    def add(self, sums: bytes, error: BaseException | None) -> list[bytes]:
        """Returns the sums of all ranks."""
        return self._ranks.agree(error, sums)

    def vote(self, error: BaseException | None) -> BaseException | None:
        """Returns the failure of this or another rank, if there is one: all ranks then know it.

        Raises:
            TornError: if a rank was lost, so that it is unknown whether the others have written.
        """
        try:
            return self._ranks.vote(error, self._patience)
        except Exception as raised:
            raise TornError(
                f"TORN: it is unknown what other ranks have written: {raised}",
                advice="prepare again on all ranks, which loads all; or restart the run if one "
                "was lost",
            ) from (error or raised)

    # Switching.

    def switch(self, prepared: _native.PreparedUpdate, ranks: object) -> _native._SwitchFacts:
        """Same as `_native.Follower.switch`: writes the tensors, in all processes or in none."""
        if prepared.told is not None:
            return prepared.told
        is_whole, moved = not prepared.is_in_place, self._moved()
        # This call, which all ranks make, is the vote: no rank has written anything before.
        self._begin(
            f"apply version {prepared.version}, {'as a whole' if is_whole else 'in place'}",
            self._hindrance(moved) if is_whole else moved,
        )
        note_written(
            {str(number): place.tensor for number, (place, _) in enumerate(self._given or ())}
        )
        # Loading may take much longer on one rank than on another.
        self._patience = None if is_whole else self._ranks.limit
        if is_whole and self._loader is not None:
            told = self._load(prepared)
            self._own()
            return told
        if is_whole:
            self._bind(prepared)
        self._own()
        return super().switch(prepared, self._group)

    def _own(self) -> None:
        """Tells other followers of this process that this one writes to their tensors, so that they
        load the next version as a whole."""
        if self._is_owner:
            return
        self._is_owner = True
        # A weak reference, whose entry is removed when this follower ends.
        own = weakref.ref(self, _forget)
        others: dict[int, TensorFollower] = {}
        for place, _ in self._given or ():
            address = address_of(place.tensor)
            if address is None:
                continue
            before = _owners.get(address)
            other = None if before is None else before()
            if other is not None and other is not self:
                others[id(other)] = other
            _owners[address] = own
        for other in others.values():
            other._lose()

    def _lose(self) -> None:
        """Notes that another follower has written to the tensors of this one."""
        self._is_owner = False
        try:
            self.doubt("torn")
        except UsageError:
            # Another thread is using this follower, or it is closed.
            self._is_overwritten = True
        _logger.warning(
            "two subscribers have the same tensors in into=: the older subscriber has lost its "
            "version, and loads the next one as a whole"
        )

    def _load(self, prepared: _native.PreparedUpdate) -> _native._SwitchFacts:
        """Makes the loader load all tensors, and finds their places afterwards."""
        self.begin(prepared)
        # From here on the tensors are torn, until `finish` succeeds.
        self._give(None)
        failure: BaseException | None = None
        into = None
        try:
            assert self._loader is not None
            into = self._loader(lambda: self._shaped(prepared))
            if into is not None and known(into) is None:
                raise UsageError(
                    "USAGE: the function of into= must return a mapping from names to tensors, or "
                    f"None, not {type(into).__name__}"
                )
        except BaseException as raised:
            failure = raised
        failed = self.vote(failure)
        if failed is not None:
            raise failed
        told = self.finish(prepared)
        # If not all ranks have found their tensors, the next version is loaded as a whole, too.
        if all(self._ranks.agree(word=b"" if into is None else b"+")):
            try:
                self._give(into)
                self._bind(prepared)
            except UsageError as error:
                self._give(None)
                _logger.warning("versions cannot be taken in place: %s", error)
        if self._bound:
            try:
                super().check(self._group, False, None)
            except (StateMismatchError, UnsupportedError) as error:
                # On all ranks, since they compare together.
                self._give(None)
                _logger.warning(
                    "versions cannot be taken in place: the tensors are not where the loader "
                    "seemed to put them: %s",
                    error,
                )
        return told

    def _shaped(self, prepared: _native.PreparedUpdate) -> Iterator[tuple[str, Any]]:
        """Yields names and torch tensors of a version."""
        stream = self.stream(prepared)
        while (tensors := stream.next()) is not None:
            for one in tensors:
                check_dtype("torch", one.dtype, one.name)
                yield one.name, shaped("torch", one.dtype, one.shape, one.data)

    @property
    def is_found(self) -> bool:
        """True if the places of the tensors are known."""
        return self._given is not None

    def _hindrance(self, moved: Exception | None) -> Exception | None:
        """Returns the reason why no version can be loaded as a whole, given the result of `_moved`.
        Tensors that have moved are no obstacle; a module whose `state_dict()` fails is one."""
        can_load = self.is_found or self._loader is not None
        return None if can_load and isinstance(moved, Error) else moved

    @property
    def proof(self) -> str | None:
        """Same as `_native.Follower.proof`, but None for memory that was not read."""
        return super().proof if self.is_found else None

    # Checking.

    def check(self, ranks: object, doubts: bool, until: _Until) -> None:
        """Compares the sums of all memory with those of the held version."""
        self._begin("check()", self._moved())
        held = self.held()
        self._ranks.same("version", {"commit": "none" if held is None else held.commit})
        if held is None or not self._bound:
            raise UsageError(_NOTHING)
        super().check(self._group, doubts, until)

    def verify(self, until: _Until) -> None:
        """Hashes all tensors; tensors on a device are copied to the host."""
        if self._is_group:
            raise UsageError(
                "USAGE: no process has all tensors, so they cannot be hashed: use check()"
            )
        self._begin("verify()", self._moved())
        if self.held() is None or not self._bound:
            raise UsageError(_NOTHING)
        super().verify(until)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Yields names and copies of tensors, or of the parts that this process holds."""
        if moved := self._moved():
            raise moved
        if not self._bound:
            raise UsageError(_NOTHING)
        yield from ((name, _copied(place.tensor)) for name, place in self._named)


def _torch_for(given: list[tuple[_native.TensorPlace, Any]]) -> object:
    """Returns the object that reads and writes tensors if some of them are on a device."""
    tensors = [place.tensor for place, _ in given]
    is_on_device = any(
        kind_of(tensor) == "torch" and tensor.device.type != "cpu" for tensor in tensors
    )
    if not is_on_device:
        return None
    from ._device_memory import DeviceMemory

    return DeviceMemory()


def _copied(tensor: Any) -> Any:
    kind = kind_of(tensor)
    if kind == "torch":
        return tensor.detach().clone()
    if kind == "numpy":
        return tensor.copy()
    return (
        Tensor(tensor.dtype, tensor.shape, bytes(tensor.data))
        if isinstance(tensor, Tensor)
        else bytes(tensor)
    )
