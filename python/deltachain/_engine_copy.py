"""The copy of a model that inference workers on one machine share. One process manages it and prepares new versions
while the engines still serve an older one; the others read its files."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import _native
from ._errors import ChainError, Error, InUseError, TimeoutError, UsageError, WrongBaseError
from ._host_copy import mapped
from ._native import rules
from ._store import open_store
from ._subscriber import Subscriber

__all__ = ["EngineCopy", "Version", "check_digest", "missing_version", "shared_memory_directory"]

_logger = logging.getLogger("deltachain")

# Seconds between polls of a directory that another process manages, and of a chain that this process follows.
_POLL_DIRECTORY = 0.1
_POLL_CHAIN = 1.0


@dataclass(slots=True)
class Version:
    """A version whose files are on this machine and verified.

    Attributes:
        number: its number.
        digest: its state digest.
        path: the directory of its files.
        tensors: views of its files, which stay valid after the files are removed.
    """

    number: int
    digest: str
    path: str
    tensors: Mapping[str, Any]

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of its tensors."""
        return {name: list(tensor.shape) for name, tensor in self.tensors.items()}


@dataclass(slots=True, eq=False)
class _Wanted:
    """A version that the engine waits for: a number, or the newest one.

    Attributes:
        number: the number; None: the newest.
        version: the version, when it is ready.
        failure: why it is not ready yet.
    """

    number: int | None
    version: Version | None = None
    failure: Error | None = None


class Ahead:
    """What has been prepared ahead for a worker."""

    # The version that is ready.
    _ready: Any

    @property
    def ready(self) -> int | None:
        """The version that is ready for this worker."""
        ready = self._ready
        return None if ready is None else ready.number

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the tensors of the version that is ready; none if there is none."""
        ready = self._ready
        return {} if ready is None else ready.shapes


class EngineCopy(Ahead):
    """One worker's use of the shared copy. A thread works ahead: it updates the copy to the newest version, if this
    process manages it.

    Args:
        chain: the chain; None if another process manages the copy: then no store is opened.
        directory: the shared copy. With a chain, the first process that opens it manages it; the others read it.
        remove: whether to remove the directory at the end, if this process manages it.
        trust, quorum: as for `Subscriber`, if this process manages it.
    """

    def __init__(
        self,
        chain: str | None,
        directory: str,
        *,
        remove: bool = False,
        trust: str | list[str] | None = None,
        quorum: int = 1,
    ) -> None:
        self._directory, self._remove = directory, remove
        self._subscriber: Subscriber | None = None
        try:
            if chain is not None:
                # A subscriber would wait for a directory that does not exist.
                open_store(chain)
                # A directory that is to be removed may be left by a killed process, of a chain that was made anew.
                self._subscriber = Subscriber(
                    chain, host_copy=directory, kind="torch", adopt=remove, trust=trust, quorum=quorum
                )
        except InUseError:
            pass
        except Error:
            if remove:
                with suppress(OSError):
                    os.rmdir(directory)
            raise
        self._state = threading.Condition()
        # All below is guarded by the condition.
        self._held: Version | None = None
        self._ready: Version | None = None
        self._wanted: _Wanted | None = None
        self._stays = False
        self._stop = False
        # Why the last attempt failed.
        self._said: str | None = None
        self._polling = None if self._subscriber is None else self._subscriber._polling(_POLL_CHAIN, _POLL_CHAIN)
        self._thread = threading.Thread(target=self._run, name="deltachain-ahead", daemon=True)
        self._thread.start()

    @property
    def keeps(self) -> bool:
        """Whether this process manages the directory."""
        return self._subscriber is not None

    @property
    def directory(self) -> str:
        """The shared copy."""
        return self._directory

    @property
    def failure(self) -> str | None:
        """Why no newer version is ready: the last poll has failed."""
        return None if self._polling is None else self._polling.failure

    def is_ready(self, number: int) -> bool:
        """Whether a version is ready for this worker, or waiting would not help: it or a later one is held or ready, or
        what was tried last has failed. Only the process that manages the directory has to wait."""
        with self._state:
            is_there = any(one is not None and one.number >= number for one in (self._held, self._ready))
            return is_there or self._said is not None or not self.keeps

    def take(self, number: int | None, digest: str | None, timeout: float) -> Version:
        """Waits until a version is ready on this machine.

        Args:
            number: its number; None: the newest version of the chain, or of a directory that another process manages.
                Failures are retried then, and a chain may have no version yet.
            digest: its state digest, if known.
            timeout: maximum seconds.

        Raises:
            WrongBaseError: if the version has another digest.
            ChainError: if there is no such version.
            TimeoutError: if it takes too long.
            Error: if it cannot be built. Existing files stay.
        """
        end = time.monotonic() + timeout
        wanted = _Wanted(number)
        with self._state:
            if self._ready is not None and self._ready.number == number:
                wanted.version = self._ready
            self._wanted, self._stays = wanted, self.keeps
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
            except BaseException:
                self._stays = False
                raise
            finally:
                self._wanted = None
                self._state.notify_all()
        try:
            check_digest(ready.number, ready.digest, digest)
        except WrongBaseError:
            self.go_on()
            raise
        return ready

    def _late(self, wanted: _Wanted, timeout: float) -> Error:
        name = "a version" if wanted.number is None else f"version {wanted.number}"
        if self.keeps:
            why = "" if wanted.failure is None else f": {wanted.failure}"
            return TimeoutError(f"{name} was not ready after {timeout:.0f} s{why}")
        return TimeoutError(
            f"{self._directory} is managed by another process and was not at {name} after {timeout:.0f} s: check that "
            "process",
            file=self._directory,
        )

    def taken(self, version: Version) -> None:
        """The engine has this version now."""
        with self._state:
            self._held = version
            if self._ready is not None and self._ready.number != version.number:
                self._ready = None

    def lost(self) -> None:
        """The engine's version is unknown: the next version is loaded as a whole. The files are what they were."""
        with self._state:
            self._ready = self._ready or self._held
            self._held = None
            self._stays = False
            self._state.notify_all()

    def go_on(self) -> None:
        """All workers have loaded the version: the copy may be updated again."""
        with self._state:
            self._stays = False
            self._state.notify_all()

    def close(self) -> None:
        """Ends the thread, and removes the directory if that was asked for."""
        with self._state:
            self._stop = True
            self._state.notify_all()
        self._thread.join(timeout=30.0)
        if self._subscriber is None:
            return
        if self._remove:
            # Renamed first, while it is locked, so that no process finds half of it.
            gone = tempfile.mkdtemp(prefix="deltachain-removed-", dir=os.path.dirname(self._directory))
            try:
                os.rename(self._directory, os.path.join(gone, "copy"))
            except OSError as error:
                _logger.warning("%s was not removed: %s", self._directory, error)
            shutil.rmtree(gone, ignore_errors=True)
        self._subscriber.close()

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
            except OSError as error:
                # Files were removed while they were read: the next poll finds newer ones.
                _logger.info("will retry: %s", error)
            if failure is not None and str(failure) != self._said:
                self._said = str(failure)
                _logger.warning("%s", self._said)
            with self._state:
                if wanted is not None:
                    wanted.failure = failure
                    wanted.version = self._ready if is_there else None
                self._state.notify_all()
                if not self._stop and self._wanted is wanted:
                    self._state.wait(_POLL_DIRECTORY if failure is None else _POLL_CHAIN)

    def _is_called(self) -> bool:
        """Whether the thread has to stop working ahead."""
        return self._stop or self._stays or self._wanted is not None

    def _go_ahead(self) -> None:
        """Prepares the newest version for this worker, repeatedly if this process manages the directory."""
        self._make_ready(self._find(None))
        if self._subscriber is not None and self._polling is not None:
            while update := self._subscriber._next(self._polling, False, until=self._is_called):
                update.apply()
                self._make_ready(self._find(None))

    def _reach(self, wanted: int | None) -> bool:
        """Prepares this version, or the newest one, for this worker. Returns whether it exists: if another process
        manages the directory, it may come later."""
        found = None if wanted is None else self._find(wanted)
        if found is None and self._subscriber is not None:
            update = self._subscriber._poll(wanted, None)
            if update is not None:
                update.apply()
            elif wanted is not None:
                raise missing_version(wanted)
            else:
                return False
        found = found or self._find(wanted)
        self._make_ready(found)
        return found is not None

    def _make_ready(self, found: tuple[int, str, str] | None) -> None:
        """Opens a version's files."""
        if found is None:
            return
        number, digest, path = found
        with self._state:
            held, ready = self._held, self._ready
            if ready is not None and ready.path == path:
                return
        is_held = held is not None and held.path == path
        version = held if is_held else Version(number, digest, path, mapped(path, "torch"))
        with self._state:
            if self._held is held:
                self._ready = version
            self._state.notify_all()

    def _find(self, wanted: int | None) -> tuple[int, str, str] | None:
        """Number, digest and directory of a version in the shared copy: the one wanted, or the current one. Versions
        are renamed into `versions`, so they are complete."""
        found = _native.find_version(self._directory, wanted)
        return None if found is None else (found[0], found[1], os.path.realpath(found[2]))


def check_digest(number: int, found: str, wanted: str | None) -> None:
    """Compares the digest of the chain's version with that of an update.

    Raises:
        WrongBaseError: if they differ.
    """
    if wanted is not None and found != wanted:
        raise WrongBaseError(
            f"WRONG_BASE: version {number} of the chain has the digest {found}, but {wanted} was expected",
            advice="check that the update is for this chain; nothing has changed",
        )


def missing_version(number: int) -> ChainError:
    """The chain has no such version."""
    return ChainError(f"CHAIN: there is no version {number} in the chain", rule=rules.CHN_03, advice="check the update")


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
    # Some file systems have no bounds, and say 0.
    if 0 < size.f_blocks * size.f_frsize < 2 * model:
        raise UsageError(
            f"USAGE: the copy needs room for two versions, {2 * model / 2**20:.0f} MiB, and {root} has "
            f"{size.f_blocks * size.f_frsize / 2**20:.0f} MiB in all: enlarge it (--shm-size of Docker, an emptyDir "
            "with medium: Memory in Kubernetes), or set host_copy to a directory on a disk",
            file=root,
        )
    name = hashlib.sha256(os.fsencode(chain)).hexdigest()[:16]
    path = os.path.join(root, f"deltachain-{os.getuid()}-{name}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.lstat(path).st_uid != os.getuid():
        # All users may write there.
        raise UsageError(f"USAGE: the directory belongs to another user (file {path})", file=path)
    return path
