"""Following a chain: versions are fetched and proven beside the version in use, then exchanged with it."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _native
from ._errors import ChainError, Error, TimeoutError, TornError, UsageError
from ._files import Patch, Progress, patch_of, taken
from ._host_copy import differences, mapped
from ._native import rules
from ._store import Credentials, open_store
from ._tensors import kind_of, name_of, shaped, usual_kind

__all__ = ["Lag", "Subscriber", "Times", "Update"]

_logger = logging.getLogger("deltachain")


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a version is behind the head of its chain."""

    versions: int
    """Versions between it and the head."""
    seconds: float | None
    """Since its commit was stored, as far as the clocks agree; None if the store does not tell."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the phases took. Downloading and building overlap."""

    plan: float
    """Listing and reading documents."""
    download: float
    """Until the last byte came."""
    build: float
    """Until everything was decoded, proven, and on disk or prepared beside the memory."""
    switch: float
    """The switch."""


class Subscriber:
    """Keeps a copy of a model at versions of a chain, and tells what changes from one to the next.

    Args:
        url: the chain: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`, `http(s)://`.
        host_copy: a directory on disk that is kept at the version; its files are in `HOST_COPY/current`, a symbolic
            link that is switched. It survives the process, and every process of the machine can read it (`HostCopy`);
            one keeps it.
        into: tensors of your own that are the copy: a mapping as for `diff`, on the CPU; nobody else may write to
            them. The first version overwrites them, later versions change them in place, each time only when all is
            proven. While the first version is fetched, it takes the model's memory a second time. Without `host_copy`
            and `into`, the copy is in memory of this package.
        tensors: patterns of names: only these tensors are taken. `*`, `?`, `[ab]`, `{a,b}`.
        cache: a directory for links that have been fetched; no other process may use it. With `host_copy` the cache
            is in that directory.
        other_files: with `host_copy`, whether to take the chain's other files, such as config.json and tokenizers.
        allow_rollback: digest of a commit that may be reached although the chain has gone back.
        adopt: whether the first version may be of another chain than the one held.
        kind: `"torch"`, `"numpy"` or `"deltachain"`: what patches are made of. By default torch if it is imported,
            otherwise numpy if that is.
        threads: threads that decode and hash; as many as there are processors, by default.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the work.
        storage_options: settings of the kind of store, by the names that obstore knows: `{"region": "eu-central-1"}`,
            `endpoint`, `access_key_id`. They come before the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
        credentials: for S3, a function that returns `access_key_id`, `secret_access_key`, `token` (or None) and
            `expires_at` (an aware datetime, or None). Called from another thread, again shortly before they expire.
        stall: seconds without a byte in either direction after which a request is given up (60).
        attempts: how often an operation is tried if its failure may pass (8).
        max_rate: bytes per second of all requests together.

    A subscriber belongs to the process that made it, and is used by one thread at a time.

    Raises:
        UsageError: if the directory does not exist, another process keeps it, or settings are missing.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        host_copy: str | os.PathLike[str] | None = None,
        into: Mapping[str, Any] | None = None,
        tensors: Sequence[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        other_files: bool = True,
        allow_rollback: str | None = None,
        adopt: bool = False,
        kind: str | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credentials: Credentials | None = None,
        stall: float | None = None,
        attempts: int | None = None,
        max_rate: int | None = None,
    ) -> None:
        if host_copy is not None and into is not None:
            raise UsageError("USAGE: give host_copy= or into=, not both")
        if host_copy is not None and cache is not None:
            raise UsageError("USAGE: a host copy keeps its own cache")
        if isinstance(tensors, str):
            raise TypeError("tensors= is a list of patterns")
        store = open_store(
            url,
            storage_options=storage_options,
            credentials=credentials,
            stall=stall,
            attempts=attempts,
            max_rate=max_rate,
        )
        patterns = None if tensors is None else list(tensors)
        own_cache = None if cache is None else os.fspath(cache)
        place = None if host_copy is None else os.fspath(host_copy)
        self._native = _native.Follower(store, place, patterns, own_cache, other_files, allow_rollback, adopt, into)
        self._on_disk = place is not None
        self._kind = kind or (kind_of(next(iter(into.values()))) if into else usual_kind())
        self._threads = threads
        self._progress = progress
        # Whether what is patched by hand may hold parts of two versions.
        self._is_engine_torn = False
        self._url = os.fspath(url)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<deltachain.Subscriber {self._url}>"

    def __reduce__(self) -> Any:
        raise TypeError("subscribers of deltachain cannot be pickled: open them in the process that uses them")

    def close(self) -> None:
        """Gives up the copy in memory, connections and the lock of a directory."""
        self._native.close()

    @property
    def version(self) -> int | None:
        """The version held; None before the first one."""
        held = self._native.held()
        return None if held is None else held[0]

    @property
    def digest(self) -> str | None:
        """State digest of the version held."""
        held = self._native.held()
        return None if held is None else held[1]

    @property
    def path(self) -> str | None:
        """The directory of the files of the version held, if there is a host copy: what `current` leads to. It stays
        until the version after the next is being built."""
        held = self._native.held()
        return None if held is None or held[2] is None else os.fspath(held[2])

    @property
    def torn(self) -> bool:
        """Whether your engine, or the tensors of `into=`, may hold parts of two versions: an `applying()`, `full()`
        or `apply()` has begun and not come to its end. `full()` repairs that, of any update."""
        return self._is_engine_torn or self._native.is_torn

    def poll(self, *, timeout: float | None = None) -> Update | None:
        """Looks once: prepares the head, or gives None if it is held already, or there is no version or no chain yet.

        Raises:
            TimeoutError: if it takes longer than `timeout` seconds; with 0, if there is anything to wait for. Nothing
                has changed.
            Error: as for `prepare`.
        """
        update = self._seek(None, timeout)
        return None if update is None or update._native is None else update

    def _seek(self, version: int | None, timeout: float | None) -> Update | None:
        """Looks once: prepares a version, or the head; None if there is no such version yet."""
        try:
            return Update(self, self._native.prepare(version, timeout, self._threads, self._progress))
        except ChainError as error:
            is_new = self.version is None
            no_version = error.rule == rules.CHN_03 and (is_new or version is not None)
            if no_version or (error.rule == rules.CHN_01 and is_new):
                return None
            raise

    def prepare(self, version: int | None = None, *, timeout: float | None = None, poll: float = 0.5) -> Update:
        """Fetches and proves a version beside the one in use, which does not change.

        Args:
            version: which one; by default the head, and if that is held already, the next one as soon as it exists.
            timeout: seconds after which to give up, also if the store does not answer or there is no chain yet; with 0
                it looks once. By default there is no limit.
            poll: seconds between two looks while there is nothing new.

        Returns:
            What is ready to be applied. If `version` is held already, it changes nothing.

        Raises:
            TimeoutError: if the version does not exist, or is not here, in time. Nothing has changed.
            WrongBaseError: if the held version is not what the chain says; `advice` tells what to do.
            Error: if there is no good way to the version. What is held is kept.
        """
        end = None if timeout is None else time.monotonic() + max(0.0, timeout)
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            update = self.poll(timeout=left) if version is None else self._seek(version, left)
            if update is not None:
                return update
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("the time is over, and there is no such version yet")
            time.sleep(poll if left is None else min(poll, left))

    def follow(
        self,
        *,
        stop: threading.Event | Callable[[], bool] | None = None,
        poll: float = 2.0,
        poll_longest: float = 30.0,
    ) -> Iterator[Update]:
        """Gives each new version when it is ready, until `stop`. Several new versions are taken at once.

        Apply each before you ask for the next; one that you do not apply comes again after a pause. If something
        cannot be reached, is damaged or is missing, that is logged (`logging.getLogger("deltachain")`) and tried
        again; the held version stays.

        Args:
            stop: an event, or a function that says whether to end.
            poll: seconds between two looks at first; they grow while there is nothing new.
            poll_longest: the longest pause.

        Raises:
            UsageError, TornError: trying again does not help.
        """
        pause, said, refused = poll, None, None
        while not _is_set(stop):
            try:
                update = self.poll()
            except (UsageError, TornError):
                raise
            except Error as error:
                update = None
                if str(error) != said:
                    said = str(error)
                    _logger.warning("will retry: %s", said)
            else:
                said = None
            if update is not None and update.version != refused:
                pause = poll
                yield update
                refused = None if self.version == update.version else update.version
                continue
            if _waited(stop, pause * random.uniform(0.5, 1.0)):
                return
            refused = None
            pause = min(pause * 2, poll_longest)

    def verify(self) -> None:
        """Hashes the copy in memory and compares it with the version held.

        Raises:
            WrongBaseError: if somebody has written to it.
        """
        self._native.verify(self._threads, self._progress)

    def state(self) -> Iterator[tuple[str, Any]]:
        """Names and tensors of the version held, one at a time: copies, if it is in memory; views of its files, if
        it is on disk."""
        if self._on_disk:
            path = self.path
            if path is not None:
                yield from mapped(path, self._kind).items()
            return
        for number, (name, dtype, shape) in enumerate(self._native.tensors()):
            yield name, shaped(self._kind, dtype, shape, self._native.read(number))


class Update:
    """A version that has been fetched and proven, and waits to be applied. The version in use has not changed.

    Attributes:
        version: its number.
        digest: its state digest: 64 hexadecimal digits.
        base: the version held when this was prepared; None if there was none.
        lag: how far it is behind the head of the chain. Asked for when it is read.
        times: seconds of each phase; None until it has been applied.
        downloaded: bytes of links and other files that were fetched; None until it has been applied.
        routes: the routes taken: pairs of the version that each comes from, or None, and the one that it leads to.
    """

    def __init__(self, subscriber: Subscriber, native: _native.Prepared | None) -> None:
        self._subscriber = subscriber
        self._native = native
        held = subscriber._native.held()
        self.base: int | None = None if held is None else held[0]
        self.version: int = native.version if native is not None else held[0]  # type: ignore[index]
        self.digest: str = native.digest if native is not None else held[1]  # type: ignore[index]
        # How often the copy had been switched.
        self._switches = subscriber._native.switches
        self._before = subscriber.path
        self._after = None if native is None else native.directory()
        self.times: Times | None = None
        self.downloaded: int | None = None
        self.routes: list[tuple[int | None, int]] = []

    def __repr__(self) -> str:
        return f"<deltachain.Update to version {self.version}, {self.digest[:12]}>"

    def __reduce__(self) -> Any:
        raise TypeError("updates of deltachain cannot be pickled: use them in the process that prepared them")

    @property
    def lag(self) -> Lag:
        versions, seconds = self._subscriber._native.lag(self.version)
        return Lag(versions, seconds)

    def patches(self) -> Iterator[Patch]:
        """What changes from the version held to this one: a patch for each tensor that changes. For a first version,
        that is every tensor. Tensors that the new version does not have any more are not among them.

        Raises:
            UsageError: if the update has been applied.
        """
        native = self._native
        if native is None:
            return
        kind = self._subscriber._kind
        self._check_unapplied(native)
        if self._after is not None:
            yield from differences(self._before, os.fspath(self._after), kind, self._subscriber._threads)
            return
        begin = 0
        while rows := native.patches(begin):
            for row in rows:
                yield patch_of(row, kind)
            begin += len(rows)
            self._check_unapplied(native)

    @contextmanager
    def applying(self) -> Iterator[Iterator[Patch]]:
        """Patches your engine, then switches the copy.

        In the block, load the patches (`Patch`) that it gives: all of them. When the block ends, the copy becomes
        this version. From the beginning of the block until then the subscriber is *torn*: your engine may hold parts
        of two versions. It stays so if the block or the switch ends with an exception, or the block has not taken all
        patches. `full()` is the way on then.

        Raises:
            TornError: if the subscriber is torn; at the end, if the block has not taken all patches.
            UsageError: if something else has been applied since this was prepared.
        """
        subscriber = self._subscriber
        self._check()
        if subscriber.torn:
            raise TornError("an update ended half way: load all with update.full()")
        subscriber._is_engine_torn = True
        with taken(self.patches()) as patches:
            yield patches
        self.apply()
        subscriber._is_engine_torn = False

    @contextmanager
    def full(self) -> Iterator[Iterator[Patch]]:
        """As `applying()`, but switches the copy first, and gives every tensor of the version as a whole: `indices` is
        None. What was torn is whole again when the block has taken all and ends."""
        subscriber = self._subscriber
        self._check()
        subscriber._is_engine_torn = True
        self.apply()
        tensors = subscriber.state()
        with taken(Patch(name, _shape_of(own), _dtype_of(own), None, own) for name, own in tensors) as patches:
            yield patches
        subscriber._is_engine_torn = False

    def apply(self) -> None:
        """Switches the copy, without telling what changes: for engines that read the files of a host copy, or whose
        tensors are the copy (`into=`). If it is interrupted, call it again, or go on with another update.

        Raises:
            UsageError: if something else has been applied since this was prepared.
        """
        self._check()
        if self._native is None:
            return
        subscriber = self._subscriber
        fields = subscriber._native.switch(self._native, subscriber._threads, subscriber._progress)
        self.times = Times(*fields["times"])
        self.downloaded = fields["downloaded"]
        self.routes = fields["routes"]

    def _check(self) -> None:
        """Refuses what is not for the version held any more, before anything is touched."""
        native = self._subscriber._native
        native.held()
        is_applied = self._native is not None and self._native.is_applied
        if native.switches != self._switches + is_applied:
            raise UsageError("USAGE: something else has been applied since this was prepared: prepare again")
        if self._after is not None and not is_applied and not os.path.isdir(self._after):
            raise UsageError("USAGE: something else has been prepared since: prepare again")

    def _check_unapplied(self, native: _native.Prepared) -> None:
        self._check()
        if native.is_applied:
            raise UsageError(
                "USAGE: the update has been applied: read patches before that, in `with update.applying()`"
            )


def _shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _dtype_of(tensor: Any) -> str:
    return name_of(tensor)


def _is_set(stop: threading.Event | Callable[[], bool] | None) -> bool:
    if stop is None:
        return False
    return stop.is_set() if isinstance(stop, threading.Event) else bool(stop())


def _waited(stop: threading.Event | Callable[[], bool] | None, seconds: float) -> bool:
    """Waits, in steps in which a function is asked; whether it is time to end."""
    if isinstance(stop, threading.Event):
        return stop.wait(seconds)
    end = time.monotonic() + seconds
    while not _is_set(stop):
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, 0.1))
    return True
