"""Following a chain: downloads and verifies versions beside the version in use, and then switches
to them."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native
from ._chain import MOST_VERSION, given
from ._errors import (
    ChainError,
    Error,
    StateMismatchError,
    TornError,
    UsageError,
    WrongBaseError,
    advised,
)
from ._files import Patch, Progress, patch_of, taken
from ._host_copy import differences, raw
from ._keys import Trusts, trusted
from ._ranks import ranks_of
from ._settings import Stop, absolute, ending, function, maybe_absolute, number, whole
from ._store import Chain, store_of
from ._tensor_follower import Loader, TensorFollower, WatchedProgress
from ._tensors import Kind, check_dtype, checked_kind, kind_of, known, shaped, usual_kind

if TYPE_CHECKING:
    import torch

__all__ = ["Subscriber", "Update", "pull"]

_logger = logging.getLogger("deltachain")

_WRITTEN = (
    "other code has written to the tensors, or has moved them: find it, and prepare again, which "
    "loads all of them"
)


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a version behind the head of its chain.

    Attributes:
        versions: versions between it and the head.
        seconds: since its commit was stored, as far as the clocks agree; None if unknown.
    """

    versions: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the phases took. Downloading and building overlap.

    Attributes:
        plan: listing and reading documents.
        download: until the last byte arrived.
        build: until everything was decoded, verified, and on disk or prepared beside the memory.
        switch: switching to the version.
    """

    plan: float
    download: float
    build: float
    switch: float


class Subscriber:
    """Keeps a copy of a model at versions of a chain, and gives the changes between them.

    Args:
        chain: the chain: a directory, `s3://BUCKET/PREFIX`, `gs://`, `az://`, `http(s)://`, or a
            `Store`.
        host_copy: a directory for the copy; its files are in `HOST_COPY/current`, a symbolic link
            that is switched. It survives the process. One process manages it, every process of the
            machine can read it (`HostCopy`).
        into: your own tensors as the copy: a mapping as for `diff`, or a module of torch, whose
            tensors are read in each call. The first version overwrites them, later ones change them
            in place if the chain has links of the profile local. There is no other copy: the host's
            memory holds only what changes. Tensors on a device are read and written by torch, in
            the thread that calls. No other thread may move or free them during a call; moves
            between calls are noticed (docs/following.md). Or a function that loads a whole version
            in its own way: its argument is a function that returns names and tensors of torch, any
            number of times; it returns such a mapping, so that the next version is written in
            place, or None. Without `host_copy` and `into`, the copy is in memory of this package.
        group: the processes that hold the tensors of `into` together: a process group of
            torch.distributed, or a `Group`, which has a timeout. `into` then has the tensors of
            this rank: DTensors, a `Part` or a list of them, or whole tensors; names of which the
            rank has nothing are omitted. All ranks make the same calls. Rank 0 decides which
            version is next, and when waiting ends.
        strict: whether `into` must have the chain's tensors, all of them and no others. Otherwise
            tensors that only one side has are left as they are. Parts that wrappers add to names,
            such as `module.`, and names that are tied to others never matter.
        tensors: patterns of names, to select tensors. `*`, `?`, `[ab]`, `{a,b}`.
        cache: a directory for downloaded links; no other process may use it. With `host_copy` the
            cache is in that directory.
        other_files: with `host_copy`, whether to download the chain's assets, such as config.json
            and tokenizers.
        allow_rollback: digest of a commit that the subscriber may roll back to.
        adopt: whether the first version may be of another chain than the held version.
        trust: take only versions that these keys have signed: a public key, a path of a file of
            them, a list of both, or a `Trust`, which has a quorum. The head is then the highest
            signed version.
        forget_trust: with a host copy, forget that it was managed with `trust`, which must
            otherwise be given again.
        kind: `"torch"`, `"numpy"` or `"deltachain"`: the kind of tensors in patches. By default
            that of `into`; otherwise torch if it is imported, or else numpy if that is.
        threads: threads that decode and hash; by default, as many as processors. All objects with
            the same number share the threads, which are kept. Threads that wait for the store are
            additional (`Store`).
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the
            work.

    A chain's directory need not exist yet: `follow()`, and calls with a `timeout`, wait for it.

    A subscriber belongs to the process that made it. Only one thread may use it at a time.

    Raises:
        UsageError: if the host copy is in use by another process, or a setting is missing, unknown
            or invalid.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        host_copy: str | os.PathLike[str] | None = None,
        into: Mapping[str, Any] | torch.nn.Module | Loader | None = None,
        group: Any = None,
        strict: bool = True,
        tensors: Sequence[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        other_files: bool = True,
        allow_rollback: str | None = None,
        adopt: bool = False,
        trust: Trusts | None = None,
        forget_trust: bool = False,
        kind: Kind | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if host_copy is not None and into is not None:
            raise UsageError("USAGE: give host_copy= or into=, not both")
        if host_copy is not None and cache is not None:
            raise UsageError("USAGE: host_copy= has its own cache: omit cache=")
        if isinstance(tensors, str) or any(
            not isinstance(pattern, str) for pattern in tensors or ()
        ):
            raise UsageError(f"USAGE: tensors= must be a list of patterns, not {tensors!r:.60}")
        own = known(into)
        if into is not None and own is None and (not callable(into) or isinstance(into, type)):
            raise UsageError(
                "USAGE: into= must be a mapping from names to tensors, a module of torch, or a "
                f"function, not {_described(into)}"
            )
        if own is not None and group is None and not any(map(_is_given, own.values())):
            raise UsageError("USAGE: into= has no tensors: nothing would be loaded")
        if group is not None and into is None:
            raise UsageError("USAGE: group= is for the tensors of into=, which are missing")
        if not strict and into is None:
            raise UsageError(
                "USAGE: strict= is for the tensors of into=, which are missing; tensors= selects "
                "some"
            )
        _native.check_settings(threads, [])
        function("progress", progress)
        keys = trusted(trust)
        self._kind = checked_kind(kind) or (
            kind_of(next(iter(own.values()))) if own else usual_kind()
        )
        self._store = store_of(chain)
        self._is_own_store = self._store is not chain
        kept = (
            _native.Follower
            if into is None
            else partial(TensorFollower, into, ranks_of(group), strict)
        )
        self._native = kept(
            self._store._native,
            into is not None,
            {
                "directory": maybe_absolute(host_copy),
                "tensors": None if tensors is None else list(tensors),
                "cache": maybe_absolute(cache),
                "other_files": other_files,
                "allow_rollback": allow_rollback,
                "adopt": adopt,
                "trust": keys,
                "forget_trust": forget_trust,
                "threads": threads,
                "progress": None if progress is None else WatchedProgress(progress),
            },
        )
        self._on_disk = host_copy is not None
        self._threads = threads
        # True if the caller's engine may hold parts of two versions.
        self._is_engine_torn = False
        self._checked: datetime | None = None
        # Time when the held version was applied by this object.
        self._switched: datetime | None = None
        self._fallbacks: dict[str, int] = {}
        # The poller of `follow()`, and its settings.
        self._following: _native.Polling | None = None
        self._followed: tuple[float, float, int | None] | None = None

    def __repr__(self) -> str:
        url = self._store._name
        try:
            held = self._native.held()
        except (Error, AttributeError):
            return f"<deltachain.{type(self).__name__} {url}, not open, or in use>"
        said = "no version yet" if held is None else f"version {held.version}, {held.digest[:12]}"
        return f"<deltachain.{type(self).__name__} {url}, {said}{', torn' if self.torn else ''}>"

    def __reduce__(self) -> Any:
        raise TypeError("subscribers cannot be pickled: open them in the process that uses them")

    @property
    def version(self) -> int | None:
        """The held version; None before the first one."""
        held = self._native.held()
        return None if held is None else held.version

    @property
    def digest(self) -> str | None:
        """State digest of the held version."""
        held = self._native.held()
        return None if held is None else held.digest

    @property
    def commit(self) -> str | None:
        """Digest of the commit of the held version."""
        held = self._native.held()
        return None if held is None else held.commit

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata given when the held version was published, such as the step; empty before
        the first version. Reading it does not access the store."""
        held = self._native.held()
        return {} if held is None else given(held.metadata)

    @property
    def stored(self) -> datetime | None:
        """Time when the held version was published, by the store's clock; None if the store has no
        time. Reading it accesses the store."""
        version = self.version
        return None if version is None else self._native.stored(version)

    @property
    def path(self) -> str | None:
        """With a host copy, the directory of the held version's files: the target of `current`. It
        stays until the version after the next is being built."""
        held = self._native.held()
        directory = None if held is None else held.directory
        return None if directory is None else os.fspath(directory)

    @property
    def torn(self) -> bool:
        """True if your engine, or the tensors of `into=`, may hold parts of two versions, because
        an `applying()`, `full()` or `apply()` was interrupted. `full()` of any update repairs an
        engine; with `into=`, the next version is loaded as a whole."""
        return self._is_engine_torn or self._native.is_torn

    @property
    def is_found(self) -> bool:
        """True if the places of the tensors of `into=` are known, so that versions can be written
        in place. False before the function of `into=` has returned them, or if it returned None."""
        return isinstance(self._native, TensorFollower) and self._native.is_found

    def mark_written(self) -> None:
        """Notes that other code has written to the tensors of `into=`: the next version is loaded
        as a whole. With `group=`, one rank is enough.

        Raises:
            UsageError: without `into=`.
        """
        self._native.doubt("torn")

    def state(self) -> Iterator[tuple[str, Any]]:
        """Names and tensors of the held version, one at a time: copies from memory, or views of
        files on disk. With `group=`, copies of the parts that this rank holds."""
        if isinstance(self._native, TensorFollower):
            if self.version is not None:
                yield from self._native.state()
            return
        for name, _, _, tensor in self._rows():
            yield name, tensor

    def _rows(self) -> Iterator[tuple[str, str, tuple[int, ...], Any]]:
        """Yields name, dtype, shape and tensor of the held version, including facts that a tensor
        of torch does not have. Without `into=`."""
        if self.version is None:
            return
        if not self._on_disk:
            for at, form in enumerate(self._native.tensors()):
                check_dtype(self._kind, form.dtype, form.name)
                shape = tuple(form.shape)
                tensor = shaped(self._kind, form.dtype, shape, self._native.read(at))
                yield form.name, form.dtype, shape, tensor
            return
        path = self.path
        if path is not None:
            for name, (dtype, whole_shape, data) in raw(path).items():
                check_dtype(self._kind, dtype, name)
                yield name, dtype, whole_shape, shaped(self._kind, dtype, whole_shape, data)

    def _dtypes(self) -> list[tuple[str, str]]:
        """Names and dtypes of the held version. Without `into=`."""
        path = self.path
        if path is not None:
            return [(name, dtype) for name, (dtype, _, _) in raw(path).items()]
        return [(form.name, form.dtype) for form in self._native.tensors()]

    def _polling(
        self, poll: float, poll_longest: float, every: int | None = None
    ) -> _native.Polling:
        number("poll", poll, 0)
        number("poll_longest", poll_longest, 0)
        whole("every", every, 1, MOST_VERSION)
        missing = self._store._native.missing_directory()
        if missing is not None:
            _logger.warning(
                "waiting for the directory of the chain, which does not exist yet: %s", missing
            )
        settings = (poll, poll_longest, every)
        # A `follow()` that continues after a stop need not read the whole chain again.
        if self._following is None or self._followed != settings:
            self._following, self._followed = _native.Polling(*settings), settings
        return self._following

    @property
    def failure(self) -> str | None:
        """The reason why the store does not answer, or why the last poll of `follow()` has failed;
        None if neither is the case. Known after the first of several attempts (`Store`). Any thread
        may read it while another one follows."""
        failed = None if self._following is None else self._following.failure
        return self._native.trouble or failed

    def status(self) -> dict[str, Any]:
        """What this subscriber holds, as plain values that JSON can express, under the keys of
        `deltachain status --json`. A program that serves them at the path `/status` is a member of
        a fleet (`fleet`). Reads nothing; call it between updates.
        """
        held = self._native.held()
        failure = self.failure
        problems = [] if failure is None else [failure]
        if held is None:
            problems.append("it holds no version")
        if self.torn:
            problems.append("it may hold parts of two versions")
        return {
            "healthy": not problems,
            "problems": problems,
            "version": None if held is None else held.version,
            "state": None if held is None else held.digest,
            "commit": None if held is None else held.commit,
            "chain": None if held is None else held.chain,
            "proof": self.proof,
            "switched": None if self._switched is None else self._switched.isoformat(),
            "servers": [],
        }

    @property
    def proof(self) -> str | None:
        """Level of proof that the copy is the held version; None if no version is held.

        - `"changed_lanes"`: the lanes that links changed hold its values; nothing about other
          lanes;
        - `"memory"`: all of it had the version's sums at `checked`: it has not changed by accident;
        - `"hashed"`: all of it had the version's digests at `checked`.

        Also None if the function of `into=` has loaded a version, but has returned no tensors, or
        tensors in other places.
        """
        return self._native.proof

    @property
    def checked(self) -> datetime | None:
        """Time when all of the copy was last compared with the version that it held, by sums or
        digests; None if no version is held."""
        return None if self.proof is None else self._checked

    @property
    def fallbacks(self) -> dict[str, int]:
        """Number of times that this subscriber loaded the tensors of `into=` as a whole, by
        `Update.fallback_reason`."""
        return dict(self._fallbacks)

    def _check_held(self) -> None:
        """Refuses a proof of a version that is not held. With `into=`, all ranks refuse it
        together."""
        if not isinstance(self._native, TensorFollower) and self.version is None:
            raise UsageError(
                "USAGE: no version is held yet: apply an update first",
                advice="apply an update first",
            )

    def _check(self, version: int | None, timeout: float | None) -> None:
        whole("version", version, 0, MOST_VERSION)
        number("timeout", timeout, -math.inf)
        if timeout is None:
            self._store.check_exists("check the path, or give timeout= to wait for it")

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the copy in memory, threads, connections and the lock of a directory. A `Store`
        that was given stays open."""
        self._native.close()
        if self._is_own_store:
            self._store._native.close()

    def poll(self, *, timeout: float | None = None, stop: Stop | None = None) -> Update | None:
        """Polls once: prepares the head; returns None if the head is held already, or if there is
        no version or no chain yet.

        Raises:
            CancelledError: if `stop` ends the call; see `prepare`.
            TimeoutError: if it takes longer than `timeout` seconds; with 0, if it would have to
                wait. Nothing has changed.
            Error: as for `prepare`.
        """
        update = self.find(timeout=timeout, stop=stop)
        return None if update is None or update.is_held else update

    def find(
        self, version: int | None = None, *, timeout: float | None = None, stop: Stop | None = None
    ) -> Update | None:
        """Polls once for a version, by default the head, and prepares it. Unlike `poll`, it returns
        an update of the held version, too, which changes nothing (`Update.is_held`); and None only
        if there is no such version yet.

        Raises:
            CancelledError, TimeoutError, Error: as for `poll`.
        """
        until = ending(stop)
        self._check(version, timeout)
        polled = self._native.poll(version, timeout, until)
        return Update(self, polled.prepared) if polled.is_there else None

    def prepare(
        self,
        version: int | None = None,
        *,
        timeout: float | None = None,
        poll: float = 0.5,
        stop: Stop | None = None,
    ) -> Update:
        """Downloads and verifies a version beside the one in use, which does not change.

        Args:
            version: its number; by default the head, or if that is held already, the next one as
                soon as it exists.
            timeout: maximum seconds to wait, including for a store that does not answer or a chain
                that does not exist yet; with 0 it polls once. By default there is no limit.
            poll: seconds between polls while there is no new version.
            stop: an event, or a function that returns whether to stop.

        Returns:
            An update that is ready to be applied. If `version` is held already, it changes nothing.

        Raises:
            TimeoutError: if the version does not exist, or is not ready, in time. Nothing has
                changed.
            CancelledError: if `stop` ends the call. Nothing has changed.
            UsageError: without `timeout`, if the chain is in a directory that does not exist.
            WrongBaseError: if the held version does not match the chain; `advice` says what to do.
            Error: if the version cannot be built. The held version stays.
        """
        until = ending(stop)
        self._check(version, timeout)
        number("poll", poll, 0)
        return Update(self, self._native.prepare(version, timeout, poll, until))

    def follow(
        self,
        *,
        stop: Stop | None = None,
        poll: float = 2.0,
        poll_longest: float = 30.0,
        every: int | None = None,
    ) -> Iterator[Update]:
        """Yields each new version when it is ready, until `stop`. If several are new, it yields
        only the newest.

        Apply each update before you ask for the next; an update that you do not apply is yielded
        again after a pause. Unreachable, damaged or missing files are logged
        (`logging.getLogger("deltachain")`) and retried; the held version stays.

        Args:
            stop: an event, or a function that returns whether to stop.
            poll: seconds between polls at first; they grow while there is no new version.
            poll_longest: the maximum of these seconds.
            every: yield only versions whose number is a multiple of this, such as each 10th for
                evaluation.

        Raises:
            UsageError, TornError: a retry would not help.
        """
        polling, until = self._polling(poll, poll_longest, every), ending(stop)
        refused = False
        while prepared := self._native.next(polling, refused, until):
            update = Update(self, prepared)
            yield update
            refused = self.version != update.version

    def check(self, *, stop: Stop | None = None) -> float:
        """Compares the sums of all of the copy in memory with those of the held version, which
        takes about as long as copying it. It notices accidents; `verify` hashes. Call it after
        anything that may have written to the tensors of `into=` (a sleep, a reset, a reload by the
        engine), and from time to time. With `group=`, all ranks call it.

        Returns:
            Seconds that the comparison took. `proof` and `checked` have the result from then on.

        Raises:
            StateMismatchError, WrongBaseError: if other code has written to the copy, or has moved
                it. The next version is loaded as a whole.
            UnsupportedError: if the chain has no sums of this version.
            CancelledError: if `stop` ends the call.
        """
        until, begin = ending(stop), time.monotonic()
        self._check_held()
        with advised((StateMismatchError, WrongBaseError), _WRITTEN):
            self._native.check(None, True, until)
        self._checked = datetime.now(UTC)
        return time.monotonic() - begin

    def verify(self, *, stop: Stop | None = None) -> None:
        """Hashes the copy in memory and compares it with the held version.

        Raises:
            WrongBaseError, StateMismatchError: if other code has written to the copy, or has moved
                it.
            CancelledError: if `stop` ends the call.
        """
        until = ending(stop)
        self._check_held()
        with advised((StateMismatchError, WrongBaseError), _WRITTEN):
            self._native.verify(until)
        self._checked = datetime.now(UTC)


class Update:
    """A version that has been downloaded and verified, and is ready to be applied. The version in
    use has not changed.

    Attributes:
        version: its number.
        digest: its state digest: 64 hexadecimal digits.
        commit: digest of its commit.
        metadata: the metadata given when it was published, such as the step.
        stored: when it was published, by the store's clock; None if the store has no time. Reading
            it accesses the store.
        base: the version held when this was prepared; None if there was none.
        lag: its lag behind the head of the chain. Reading it accesses the store.
        times: seconds of each phase; None until it has been applied.
        downloaded: bytes of links and assets that were downloaded; None until it has been applied.
        routes: the routes used: pairs of the version that each starts from, or None, and the one
            that it leads to.
        fallback_reason: why the tensors of `into=` were loaded as a whole: `"no_route"`,
            `"budget"`, `"proof"`, `"check"`, `"torn"` or `"place"` (docs/following.md). None until
            it has been applied, if they were patched, and for a first version.
    """

    def __init__(self, subscriber: Subscriber, native: _native.PreparedUpdate | None) -> None:
        self._subscriber = subscriber
        self._native = native
        held = subscriber._native.held()
        self.base: int | None = None if held is None else held.version
        ready = held if native is None else native
        assert ready is not None
        self.version, self.digest = ready.version, ready.digest
        self.commit, self.metadata = ready.commit, given(ready.metadata)
        # The number of switches so far.
        self._switches = subscriber._native.switches
        self._before = subscriber.path
        self._after = None if native is None else native.directory()
        self.times: Times | None = None
        self.downloaded: int | None = None
        self.routes: list[tuple[int | None, int]] = []
        self.fallback_reason: str | None = None

    def __repr__(self) -> str:
        return f"<deltachain.Update to version {self.version}, {self.digest[:12]}>"

    def __reduce__(self) -> Any:
        raise TypeError("updates cannot be pickled: use them in the process that prepared them")

    @property
    def lag(self) -> Lag:
        return Lag(**self._subscriber._native.lag(self.version))

    @property
    def stored(self) -> datetime | None:
        return self._subscriber._native.stored(self.version)

    @property
    def is_held(self) -> bool:
        """True if the version was held already when this was prepared, so that there is nothing to
        apply."""
        return self._native is None

    def table(self) -> list[tuple[str, str, list[int], str]]:
        """Name, dtype, shape and digest (SPEC section 3) of each selected tensor of the version;
        only with `into=`. Empty if the version was held already.

        Raises:
            UsageError: without `into=`.
        """
        table = [] if self._native is None else self._native.table()
        return [(one.name, one.dtype, one.shape, one.digest) for one in table]

    def changes(self) -> list[tuple[int, int, tuple[int, int], tuple[int, int]]] | None:
        """Sums of the lanes that `apply` writes in place (SPEC section 24). None if the version is
        loaded as a whole, or was held already. Empty unless `into=` is a function, because
        otherwise nothing is summed for it.

        Returns:
            For each storage of torch and each 16 MiB of it in which something changes: the
            storage's address, the number of the 16 MiB, and the two sums of the old values that
            change and of the new ones. The sums of the storage afterwards (`piece_sums`) are
            those before, minus the old ones, plus the new ones, modulo 2^31 - 1.

        Raises:
            UsageError: without `into=`.
        """
        changes = None if self._native is None else self._native.changes()
        if changes is None:
            return None
        return [(one.storage, one.piece, one.old, one.new) for one in changes]

    def patches(self) -> Iterator[Patch]:
        """Yields the changes from the held version to this one: a patch for each tensor that
        changes. For a first version, that is every tensor. Removed tensors are not included.

        Raises:
            UsageError: if the update has been applied.
        """
        native = self._native
        if native is None:
            return
        self._check_gives_patches()
        kind = self._subscriber._kind
        self._check_unapplied(native)
        if self._after is not None:
            yield from differences(
                self._before, os.fspath(self._after), kind, self._subscriber._threads
            )
            return
        begin = 0
        while patches := native.patches(begin):
            for patch in patches:
                yield patch_of(patch, kind)
            begin += len(patches)
            self._check_unapplied(native)

    @contextmanager
    def applying(self) -> Iterator[Iterator[Patch]]:
        """Patches your engine, then switches the copy.

        In the block, load all patches (`Patch`) of the iterator. When the block ends, the copy
        switches to this version. From the beginning of the block until then the subscriber is
        *torn*: your engine may hold parts of two versions. It stays torn if the block or the switch
        ends with an exception, or the block has not read all patches. Then use `full()`.

        Raises:
            TornError: if the subscriber is torn; at the end, if the block has not read all patches.
            UsageError: if this update, or another one since it was prepared, has been applied; or
                if a dtype is one that the library of `kind=` does not have. Nothing has changed.
        """
        subscriber = self._subscriber
        self._check()
        self._check_gives_patches()
        if self._native is not None:
            self._check_unapplied(self._native)
        self._check_kinds()
        if subscriber.torn:
            raise TornError("an update was interrupted: load all tensors with update.full()")
        subscriber._is_engine_torn = True
        with taken(self.patches()) as patches:
            yield patches
        self.apply()
        subscriber._is_engine_torn = False

    @contextmanager
    def full(self) -> Iterator[Iterator[Patch]]:
        """Same as `applying()`, but switches the copy first, and gives every tensor of the version
        as a whole: `indices` is None. When the block has read all of them and ends, the subscriber
        is not torn any more."""
        subscriber = self._subscriber
        self._check()
        self._check_gives_patches()
        self._check_kinds()
        subscriber._is_engine_torn = True
        self.apply()
        with taken(
            Patch(name, shape, dtype, None, own) for name, dtype, shape, own in subscriber._rows()
        ) as patches:
            yield patches
        subscriber._is_engine_torn = False

    def apply(self) -> None:
        """Switches the copy without patches, for engines that read the files of a host copy, or
        whose tensors are the copy (`into=`). If the call is interrupted, repeat it, or continue
        with another update.

        On a device the tensors are read and written in its current stream, after the kernels that
        are queued there; the call ends when they have been written. Pause the engine before, and
        wait for its other streams. With `group=` all ranks write, or all roll back to the old
        version; a rank that cannot know which is torn.

        Raises:
            UsageError: if another update has been applied since this was prepared.
            StateMismatchError, WrongBaseError: if other code has written to the tensors since
                `prepare`, or has moved them; the next version is loaded as a whole.
        """
        self._check()
        if self._native is None:
            return
        subscriber = self._subscriber
        with advised((StateMismatchError, WrongBaseError), _WRITTEN):
            told = subscriber._native.switch(self._native, None)
        subscriber._switched = datetime.now(UTC)
        if subscriber.proof in ("memory", "hashed"):
            # The version was loaded as a whole, and read back.
            subscriber._checked = subscriber._switched
        self.times = Times(**told["times"])
        self.downloaded = told["downloaded"]
        self.routes = told["routes"]
        fallback = told["fallback"]
        if fallback is not None and self.fallback_reason is None:
            subscriber._fallbacks[fallback] = subscriber._fallbacks.get(fallback, 0) + 1
        self.fallback_reason = fallback

    def _check_gives_patches(self) -> None:
        if isinstance(self._subscriber._native, TensorFollower):
            raise UsageError(
                "USAGE: update.apply() patches the tensors of into= itself, so there are no "
                "patches to load"
            )

    def _check_kinds(self) -> None:
        """Refuses a dtype that the library of the patches does not have, before anything
        changes."""
        subscriber = self._subscriber
        if subscriber._kind == "deltachain":
            return
        tensors: Iterable[tuple[str, str]]
        if self._native is None:
            tensors = subscriber._dtypes()
        elif self._after is not None and self._native.told is None:
            tensors = [(name, dtype) for name, (dtype, _, _) in raw(os.fspath(self._after)).items()]
        elif self._native.told is not None:
            tensors = subscriber._dtypes()
        else:
            tensors = [(form.name, form.dtype) for form in self._native.tensors()]
        for name, dtype in tensors:
            check_dtype(subscriber._kind, dtype, name)

    def _check(self) -> None:
        """Refuses an outdated update before anything changes."""
        native = self._subscriber._native
        native.held()
        is_applied = self._native is not None and self._native.told is not None
        if native.switches != self._switches + is_applied:
            raise UsageError(
                "USAGE: another update was applied after this one was prepared: prepare again"
            )
        if self._after is not None and not is_applied and not os.path.isdir(self._after):
            raise UsageError("USAGE: another update was prepared after this one: prepare again")

    def _check_unapplied(self, native: _native.PreparedUpdate) -> None:
        self._check()
        if native.told is not None:
            raise UsageError(
                "USAGE: the update has been applied, so it has no patches any more: read them in "
                "`with update.applying()`"
            )


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _is_given(tensors: Any) -> bool:
    """True if a value is given for a name of `into=`."""
    return not (isinstance(tensors, list | tuple) and not tensors)


def pull(
    chain: Chain,
    directory: str | os.PathLike[str],
    version: int | None = None,
    *,
    trust: Trusts | None = None,
    tensors: Sequence[str] | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Path:
    """Updates a directory to a version of a chain, by default the newest, as the tool's `pull`
    does.

    Args:
        chain: the chain.
        directory: the directory, which `Subscriber(host_copy=)` or the tool's `follow` may manage,
            too, at other times.
        version: the number of the version.
        trust: the keys whose versions to accept, as for `Subscriber`.
        tensors: patterns of names, to select tensors, as for `Subscriber`.
        progress: called as `progress(phase, done, total)`, in bytes.
        stop: an event, or a function that returns whether to stop.

    Returns:
        The directory `current` in it, which can be loaded like any directory of a model.

    Raises:
        ChainError: if there is no such version.
        CancelledError: if `stop` ends the download.
        Error: as for `Subscriber`.
    """
    store = store_of(chain)
    store.check_exists("check the path, and that its file system is mounted")
    place = absolute(directory)
    settings: dict[str, Any] = {"trust": trust, "tensors": tensors, "progress": progress}
    with Subscriber(store, host_copy=place, **settings) as subscriber:
        update = subscriber.find(version, stop=stop)
        if update is None:
            which = "any version" if version is None else f"a version {version}"
            raise ChainError(
                f"CHAIN R-CHN-03: the chain does not have {which} yet (file {store._name})",
                rule="R-CHN-03",
                file=store._name,
                advice="see which versions it has with log()",
            )
        update.apply()
    return Path(place) / "current"
