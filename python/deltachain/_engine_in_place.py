"""An engine's tensors, which follow a chain in place. A thread works ahead: it downloads and proves the newest version
while the engine still serves an older one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._engine_copy import Ahead, check_digest, missing_version
from ._engine_weights import SumsRow
from ._errors import Error
from ._store import open_store
from ._subscriber import Subscriber, Update
from ._tensor_follower import Loader

__all__ = ["EngineInPlace", "Staged"]

_logger = logging.getLogger("deltachain")

# Seconds between polls.
_POLL = 1.0


@dataclass(slots=True)
class Staged:
    """A version that is ready to be written.

    Attributes:
        number: its number.
        digest: its state digest.
        update: writes it.
        extra: what the engine has made of it ahead.
    """

    number: int
    digest: str
    update: Update
    extra: Any = None

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of its tensors; none if it is held already."""
        native = self.update._native
        return {} if native is None else {name: shape for name, _, shape, _ in native.table()}

    @property
    def changes(self) -> list[SumsRow] | None:
        """What is written in place, by storages and 16 MiB of them, as sums; None if all tensors are loaded."""
        native = self.update._native
        return None if native is None else native.changes()


class EngineInPlace(Ahead):
    """The tensors of one worker. It has the methods of `EngineCopy`.

    The workers of a server follow together, so all of them make the same calls in the same order. Each `go_on` lets the
    thread look for one version, and `take` first waits until the thread of each worker has ended that: worker 0 ends
    it.

    Args:
        chain: the chain.
        load: loads a version as a whole, and finds where its tensors are.
        group: the workers, if there are several.
        agree: whether something is true for all workers.
        ahead: what to do with a version as soon as it is ready.
        trust, quorum: as for `Subscriber`.
    """

    # Each worker downloads for itself.
    keeps = True

    def __init__(
        self,
        chain: str,
        load: Loader,
        group: Any,
        agree: Callable[[bool], bool],
        ahead: Callable[[Any], Any],
        *,
        trust: str | list[str] | None = None,
        quorum: int = 1,
    ) -> None:
        # A subscriber would wait for a directory that does not exist.
        open_store(chain)
        self.directory = chain
        self._subscriber = Subscriber(chain, into=load, group=group, trust=trust, quorum=quorum)
        self._agree, self._ahead = agree, ahead
        self._polling = self._subscriber._polling(_POLL, _POLL)
        self._state = threading.Condition()
        # All below is set by the thread while it looks, and by others while it does not.
        self._ready: Staged | None = None
        self._is_lost = False
        # Whether the thread looks for a version, or is to; and whether it has to end that.
        self._is_looking = True
        self._is_called = self._stop = False
        # The highest version that was asked for since it may look; and the one that was taken last.
        self._asked, self._taken = 0, -1
        self._thread = threading.Thread(target=self._run, name="deltachain-ahead", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why no newer version is ready: the last poll has failed."""
        return self._polling.failure

    @property
    def version(self) -> int | None:
        """The version that the tensors hold; None if that is unknown."""
        return self._subscriber.version

    @property
    def is_torn(self) -> bool:
        """Whether the tensors may hold parts of two versions."""
        return self._subscriber.torn

    @property
    def is_found(self) -> bool:
        """Whether it is known where the tensors are, so that the next version can be written in place."""
        found: bool = self._subscriber._native.is_found
        return found

    def is_ready(self, number: int) -> bool:
        """Whether a version is ready, or waiting would not help: it is held already, also if other code has written to
        the tensors since. If a lower one is ready, the thread looks again. All workers call this together."""
        with self._state:
            if self._is_called or number <= self._taken:
                return True
            self._asked = max(self._asked, number)
            self._is_looking = self._is_looking or self._is_lower()
            self._state.notify_all()
            return not self._is_looking

    def _is_lower(self) -> bool:
        """Whether the thread has found a version below the one that was asked for. That does not depend on when it was
        asked for, so that the threads of all workers look equally often."""
        return self._ready is not None and self._ready.number < self._asked

    def take(self, number: int | None, digest: str | None, timeout: float) -> Staged:
        """Waits until a version is ready. All workers call this together.

        Args:
            number: its number; None: the newest.
            digest: its state digest, if known.
            timeout: maximum seconds.

        Raises:
            WrongBaseError: if the version has another digest.
            ChainError: if there is no such version.
            TimeoutError: if it takes too long.
            Error: if it cannot be downloaded or proven.
        """
        self._quiet()
        if self._is_lost:
            self._subscriber._native.lost()
            self._is_lost, self._ready = False, None
        ready = self._ready
        if not self._agree(ready is not None and number in (None, ready.number)):
            self._ready = None
            if number is None:
                update: Update | None = self._subscriber.prepare(timeout=timeout)
            else:
                update = self._subscriber._poll(number, timeout)
                if update is None:
                    raise missing_version(number)
            assert update is not None
            ready = self._ready = self._staged(update)
        assert ready is not None
        check_digest(ready.number, ready.digest, digest)
        return ready

    def _quiet(self) -> None:
        """Ends what the thread does."""
        with self._state:
            self._is_called = True
            self._state.notify_all()
            self._state.wait_for(lambda: not self._is_looking)

    def _staged(self, update: Update) -> Staged:
        staged = Staged(update.version, update.digest, update)
        staged.extra = self._ahead(staged)
        return staged

    def check(self) -> float:
        """Compares the sums of all tensors with those of the version that they hold, and returns the seconds that it
        took. All workers call this together, between two updates.

        Raises:
            StateMismatchError: if other code has written to them.
        """
        self._quiet()
        try:
            return self._subscriber.check()
        finally:
            self.go_on()

    def taken(self, version: Staged) -> None:
        """The engine has this version now."""
        self._ready, self._taken = None, version.number

    def lost(self) -> None:
        """Other code has written to the tensors: the next version is loaded as a whole."""
        # The thread may be using the subscriber.
        self._is_lost = True

    def go_on(self) -> None:
        """The thread may look for the next version."""
        with self._state:
            if self._is_called and not self._stop:
                self._is_called, self._is_looking, self._asked = False, True, 0
                self._state.notify_all()

    def close(self) -> None:
        """Ends the thread. The tensors stay as they are."""
        with self._state:
            self._is_called = self._stop = True
            self._state.notify_all()
        self._thread.join(timeout=30.0)
        self._subscriber.close()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_looking or self._stop)
                if not self._is_looking:
                    return
            ready = None
            try:
                update = self._subscriber._next(self._polling, False, until=lambda: self._is_called)
                ready = None if update is None else self._staged(update)
            except Error as error:
                # All workers have it, and `take` meets it again.
                _logger.warning("%s", error)
            except Exception:
                _logger.exception("the next version was not prepared ahead")
            with self._state:
                self._ready = ready
                self._is_looking = self._is_lower()
                self._state.notify_all()
