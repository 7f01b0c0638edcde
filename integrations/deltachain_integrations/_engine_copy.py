"""The copy of a model that inference workers on one machine share. One process manages it and
prepares new versions while the engines still serve an older one; the others read its files."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from deltachain import (
    Error,
    InUseError,
    IoError,
    Store,
    Subscriber,
    TimeoutError,
    Trust,
    UsageError,
)
from deltachain.adapters import FoundVersion, find_version

from ._engine_preparer import LoadResult, Preparer, Rest, Version, missing_version

__all__ = ["EngineCopy", "shared_memory_directory"]

_logger = logging.getLogger("deltachain")

# Seconds between polls of a directory that another process may manage, and before a retry after a
# failure.
_POLL = 0.1
_PAUSE = 1.0


@dataclass(slots=True)
class VersionFiles(Version):
    """A version whose files are on this machine.

    Attributes:
        path: the directory of its files.
        tensors: views of its files, which stay valid after the files are removed.
    """

    path: str
    tensors: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class _Request:
    """A version that the engine waits for: a number, or the newest one.

    Attributes:
        number: the number; None: the newest.
        version: the version, when it is ready.
        failure: why it is not ready yet.
    """

    number: int | None
    version: VersionFiles | None = None
    failure: Error | None = None


class EngineCopy(Preparer[VersionFiles]):
    """One worker's use of the shared copy. A thread works ahead: it updates the copy to the newest
    version, if this process manages it.

    Args:
        chain: the chain; None if another process manages the copy: then no store is opened.
        directory: the shared copy. With a chain, the first process that opens it manages it; the
            others read it.
        remove: whether to remove the directory at the end, if this process manages it.
        trust: as for `Subscriber`, if this process manages it.
    """

    def __init__(
        self, chain: str | None, directory: str, *, remove: bool = False, trust: Trust | None = None
    ) -> None:
        self._remove = remove
        store = subscriber = None
        try:
            if chain is not None:
                store = Store(chain)
                # Otherwise the subscriber would wait for a directory that does not exist.
                store.check_exists()
                # A killed process may have left a directory that is to be removed, with the copy of
                # a chain that was since recreated.
                subscriber = Subscriber(
                    store, host_copy=directory, kind="torch", adopt=remove, trust=trust
                )
        except InUseError:
            pass
        except Error:
            if remove:
                with suppress(OSError):
                    os.rmdir(directory)
            raise
        # The condition guards all attributes below.
        self._held: VersionFiles | None = None
        self._wanted: _Request | None = None
        # Reason why the last attempt failed.
        self._said: str | None = None
        super().__init__(directory, store, subscriber)

    def is_ready(self, number: int, *, begins: bool = False) -> bool:
        """True if this version or a later one is held or ready, or if the last attempt failed. Only
        the process that manages the directory has to wait. Attempts are repeated without a
        question."""
        with self._state:
            return self._has(number) or self._said is not None or not self.keeps

    def failure(self, number: int) -> str | None:
        with self._state:
            if self._has(number) or self._subscriber is None:
                return None
            return self._said or self._subscriber.failure

    def _has(self, number: int) -> bool:
        """True if this version or a later one is held or ready."""
        return any(one is not None and one.number >= number for one in (self._held, self._ready))

    def _wait(self, number: int | None, timeout: float) -> VersionFiles:
        """Waits for a version. The newest version is that of the chain, or of a directory that
        another process manages. In the second case failures are retried, and a chain without
        versions is waited for. Existing files stay."""
        end = time.monotonic() + timeout
        wanted = _Request(number)
        with self._state:
            if self._ready is not None and self._ready.number == number:
                wanted.version = self._ready
            self._wanted, self._is_called = wanted, True
            self._state.notify_all()
            try:
                while (ready := wanted.version) is None:
                    if wanted.failure is not None and number is not None:
                        # The subscriber has retried already, and the engine is paused.
                        raise wanted.failure
                    left = end - time.monotonic()
                    if left <= 0:
                        raise self._late(wanted, timeout) from wanted.failure
                    self._state.wait(min(left, 1.0))
            finally:
                self._wanted = None
                self._state.notify_all()
        return ready

    def _late(self, wanted: _Request, timeout: float) -> Error:
        name = "a version" if wanted.number is None else f"version {wanted.number}"
        if self.keeps:
            why = "" if wanted.failure is None else f": {wanted.failure}"
            return TimeoutError(f"{name} was not ready after {timeout:.0f} s{why}")
        return TimeoutError(
            f"{self.directory} is managed by another process and was not at {name} after "
            f"{timeout:.0f} s: check that process",
            file=self.directory,
        )

    def load(self, version: VersionFiles, load_all: Callable[..., None], rest: Rest) -> LoadResult:
        load_all(version.tensors.items())
        return "all tensors", None

    def taken(self, version: VersionFiles) -> None:
        with self._state:
            self._held = version
            if self._ready is not None and self._ready.number != version.number:
                self._ready = None

    def lost(self) -> None:
        """Does nothing: the files are unchanged."""
        with self._state:
            self._ready, self._held = self._ready or self._held, None
            self.go_on()

    def _end(self) -> None:
        """Ends the thread, and removes the directory if the caller asked for that."""
        super()._end()
        if self._remove and self.keeps:
            # Renamed first, while it is locked, so that no process finds half of it.
            gone = tempfile.mkdtemp(
                prefix="deltachain-removed-", dir=os.path.dirname(self.directory)
            )
            try:
                os.rename(self.directory, os.path.join(gone, "copy"))
            except OSError as error:
                _logger.warning("%s was not removed: %s", self.directory, error)
            shutil.rmtree(gone, ignore_errors=True)

    # The thread.

    def _run(self) -> None:
        while True:
            with self._state:
                if self._stop:
                    return
                wanted = self._wanted
            failure: Error | None = None
            is_there = False
            try:
                if wanted is None:
                    self._go_ahead()
                else:
                    is_there = self._reach(wanted.number)
                self._said = None
            except Error as error:
                failure = error
            except FileNotFoundError as error:
                # Files were removed while they were read. The next poll finds newer files.
                _logger.info("will retry: %s", error)
            except OSError as error:
                failure = IoError(f"IO: {error}", retryable=True)
            if failure is not None and str(failure) != self._said:
                self._said = str(failure)
                _logger.warning("%s", self._said)
            with self._state:
                if wanted is not None:
                    wanted.failure = failure
                    wanted.version = self._ready if is_there else None
                self._state.notify_all()
                if not self._stop and self._wanted is wanted:
                    self._state.wait(_POLL if failure is None else _PAUSE)

    def _go_ahead(self) -> None:
        """Prepares the newest version for this worker, repeatedly if this process manages the
        directory."""
        self._make_ready(find_version(self.directory))
        while update := self._next():
            update.apply()
            self._make_ready(find_version(self.directory))

    def _reach(self, wanted: int | None) -> bool:
        """Prepares this version, or the newest one, for this worker. Returns whether the version
        exists: if another process manages the directory, it may come later."""
        found = None if wanted is None else find_version(self.directory, wanted)
        if found is None and self._subscriber is not None:
            update = self._subscriber.find(wanted)
            if update is not None:
                update.apply()
            elif wanted is not None:
                raise missing_version(wanted)
            else:
                return False
        found = found or find_version(self.directory, wanted)
        self._make_ready(found)
        return found is not None

    def _make_ready(self, found: FoundVersion | None) -> None:
        """Opens a version's files."""
        if found is None:
            return
        with self._state:
            held, ready = self._held, self._ready
            if ready is not None and ready.path == found.path:
                return
        version = held
        if version is None or version.path != found.path:
            tensors = found.tensors("torch")
            shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
            version = VersionFiles(found.version, found.digest, shapes, found.path, tensors)
        with self._state:
            if self._held is held:
                self._ready = version
            self._state.notify_all()


def shared_memory_directory(chain: str, model: int, root: str = "/dev/shm") -> str:
    """The default directory of a chain's shared copy: in the machine's memory, one per user.

    Args:
        chain: the chain.
        model: bytes of the model.
        root: where memory is mounted.

    Raises:
        UsageError: if two versions cannot fit there, or another user has made the directory.
    """
    if not os.path.isdir(root):
        root = tempfile.gettempdir()
    size = os.statvfs(root)
    # Some file systems have no limit, and report 0.
    if 0 < size.f_blocks * size.f_frsize < 2 * model:
        raise UsageError(
            f"USAGE: the copy needs room for two versions, {2 * model / 2**20:.0f} MiB, and "
            f"{root} has {size.f_blocks * size.f_frsize / 2**20:.0f} MiB in all: enlarge it "
            "(--shm-size of Docker, an emptyDir with medium: Memory in Kubernetes), or set "
            "host_copy to a directory on a disk",
            file=root,
        )
    name = hashlib.sha256(os.fsencode(chain)).hexdigest()[:16]
    path = os.path.join(root, f"deltachain-{os.getuid()}-{name}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.lstat(path).st_uid != os.getuid():
        # All users may write to the parent directory.
        raise UsageError(f"USAGE: the directory belongs to another user (file {path})", file=path)
    return path
