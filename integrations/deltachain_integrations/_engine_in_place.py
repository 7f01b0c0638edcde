"""An engine's tensors, which follow a chain in place. A thread works ahead: it downloads and proves
the newest version while the engine still serves an older one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltachain import Error, Store, Subscriber, Trust, Update

from ._engine_preparer import LoadResult, Preparer, Rest, Version, missing_version
from ._engine_weights import WeightSums

__all__ = ["EngineInPlace", "VersionUpdate"]

_logger = logging.getLogger("deltachain")

# The function of `Subscriber(into=)`.
Loader = Callable[[Callable[[], Iterator[tuple[str, Any]]]], Mapping[str, Any] | None]


@dataclass(slots=True)
class VersionUpdate(Version):
    """A version that is ready to be written.

    Attributes:
        update: writes it.
        sums: the sums of the engine's weights after it is written in place; None if unknown.
    """

    update: Update
    sums: WeightSums | None = None


class EngineInPlace(Preparer[VersionUpdate]):
    """The tensors of one worker. Each downloads for itself.

    The workers of a server follow together, so all of them make the same calls in the same order.
    Each `go_on` lets the thread poll for one version. `take` first waits until the thread of each
    worker has finished that poll: worker 0 ends it.

    Args:
        chain: the chain.
        load: loads a version as a whole, and finds where its tensors are.
        group: the workers, if there are several.
        agree: returns whether a condition is true for all workers.
        sums: returns the sums of the engine's weights after a version that is ready; called in the
            thread, too.
        trust: as for `Subscriber`.
    """

    is_collective = True
    is_in_place = True
    _subscriber: Subscriber

    def __init__(
        self,
        chain: str,
        load: Loader,
        group: Any,
        agree: Callable[[bool], bool],
        sums: Callable[[VersionUpdate], WeightSums | None],
        *,
        trust: Trust | None = None,
    ) -> None:
        # Otherwise the subscriber would wait for a directory that does not exist.
        store = Store(chain)
        store.check_exists()
        subscriber = Subscriber(store, into=load, group=group, trust=trust)
        self._agree, self._sums = agree, sums
        # The thread sets the attributes below, and what is ready, while it polls, and other threads
        # while it does not.
        self._is_lost = False
        # True if the thread polls, or is to poll.
        self._is_looking = True
        # The highest version that was asked for since the thread may poll, and the last version
        # that was taken.
        self._asked, self._taken = 0, -1
        # Why the last poll failed, and the number of polls that are to follow polls that fail.
        self._failed: str | None = None
        self._retries = 0
        super().__init__(chain, store, subscriber)

    @property
    def version(self) -> int | None:
        return self._subscriber.version

    def is_torn(self, version: VersionUpdate) -> bool:
        """True if layers that cannot be written in place failed after a version was written."""
        return self._subscriber.torn or version.update.times is not None

    @property
    def is_found(self) -> bool:
        """True if the places of the tensors are known, so that the next version can be written in
        place."""
        return self._subscriber.is_found

    def is_ready(self, number: int, *, begins: bool = False) -> bool:
        """True if the version is ready, or waiting would not help. That includes a version that is
        held already, even if other code has written to the tensors since. If a lower version is
        ready, the thread polls again; also if the last poll has failed and this is the first
        question of an attempt. All workers call this together."""
        with self._state:
            if self._is_called or number <= self._taken:
                return True
            self._asked = max(self._asked, number)
            if begins and (self._is_looking or self._failed is not None):
                self._retries += 1
            self._is_looking = self._is_looking or self._is_due()
            self._state.notify_all()
            return not self._is_looking

    def failure(self, number: int) -> str | None:
        with self._state:
            ready = self._ready
            has = number <= self._taken or (ready is not None and ready.number >= number)
            if has or self._is_called:
                return None
            return self._subscriber.failure if self._is_looking else self._failed

    def _is_due(self) -> bool:
        """True if the thread has to poll again: it has found a version below the one that was asked
        for, or it has failed and is to try again. The answer does not depend on the time of the
        questions, so the threads of all workers poll equally often."""
        if self._failed is not None and self._retries:
            self._retries -= 1
            return True
        return self._ready is not None and self._ready.number < self._asked

    def _wait(self, number: int | None, timeout: float) -> VersionUpdate:
        """Waits for a version. All workers call this together."""
        self._quiet()
        if self._is_lost:
            self._subscriber.mark_written()
            self._is_lost, self._ready = False, None
        ready = self._ready
        if not self._agree(ready is not None and number in (None, ready.number)) or ready is None:
            self._ready = None
            if number is None:
                update = self._subscriber.prepare(timeout=timeout)
            elif (found := self._subscriber.find(number, timeout=timeout)) is not None:
                update = found
            else:
                raise missing_version(number)
            ready = self._ready = self._version_of(update)
        return ready

    def _quiet(self) -> None:
        """Ends the thread's current work."""
        with self._state:
            self._is_called = True
            self._state.notify_all()
            self._state.wait_for(lambda: not self._is_looking)

    def _version_of(self, update: Update) -> VersionUpdate:
        shapes = {name: shape for name, _, shape, _ in update.table()}
        version = VersionUpdate(update.version, update.digest, shapes, update)
        version.sums = self._sums(version)
        return version

    def check(self) -> float:
        """Compares the sums of all tensors with those of the version that they hold, and returns
        the seconds that it took. All workers call this together, between two updates.

        Raises:
            StateMismatchError: if other code has written to them.
        """
        self._quiet()
        try:
            return self._subscriber.check()
        finally:
            self.go_on()

    def is_held(self, version: VersionUpdate, holds: Callable[[Version], bool]) -> bool:
        """True if all workers hold the version."""
        return version.update.is_held

    def load(self, version: VersionUpdate, load_all: Callable[..., None], rest: Rest) -> LoadResult:
        """Writes the version in place, or loads all of it and finds where its tensors are. Layers
        that cannot be written in place are loaded if they have changed."""
        version.update.apply()
        if (changes := version.update.changes()) is None:
            return "all tensors", None
        tensors = rest()
        own = {tensor.data_ptr() for tensor in tensors.values()}
        if not any(address in own for address, *_ in changes):
            return "in place", version.sums
        load_all(tensors.items(), is_whole=False)
        return f"in place, and {len(tensors)} tensors by the loader", None

    def why_whole(self, version: VersionUpdate) -> str | None:
        base = version.update.base
        if not self.is_found:
            return "the model's loader does more than copying"
        if base is not None and base < version.number and version.update.changes() is None:
            # An update back to an older version has no sums.
            return (
                "the chain has no links that can be taken in place: publish with the profile local"
            )
        return None

    def taken(self, version: VersionUpdate) -> None:
        self._ready, self._taken = None, version.number

    def lost(self) -> None:
        # The thread may be using the subscriber.
        self._is_lost = True

    def go_on(self) -> None:
        with self._state:
            if self._is_called and not self._stop:
                self._is_looking, self._asked, self._retries = True, 0, 0
                super().go_on()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_looking or self._stop)
                if not self._is_looking:
                    return
            ready, failed = None, None
            try:
                update = self._next()
                ready = None if update is None else self._version_of(update)
            except Error as error:
                # All workers have this error, and `take` raises it again.
                failed = str(error)
                if failed != self._failed:
                    _logger.warning("%s", error)
            except Exception:
                _logger.exception("the next version was not prepared ahead")
            with self._state:
                self._ready, self._failed = ready, failed
                if failed is None:
                    self._retries = 0
                self._is_looking = self._is_due()
                self._state.notify_all()
