"""Publishing from a training run: adds versions to a chain while training continues."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _native
from ._chain import Version, newest
from ._errors import CancelledError, ForkedError, IoError, UsageError
from ._files import Progress
from ._interrupts import start, unmasked
from ._keys import Signer, Trusts, signers, trusted
from ._like import Collector, Expected, Like, Reference, pairs, place_of
from ._ranks import Ranks, ranks_of, started, usual_shards
from ._settings import (
    RouteProfile,
    Stop,
    check_profiles,
    ending,
    function,
    maybe_absolute,
    notes,
    number,
    whole,
)
from ._store import Chain, store_of
from ._tensors import known

__all__ = ["Guard", "PublishJob", "PublishReport", "Publisher", "RoutePlan"]

_logger = logging.getLogger("deltachain")

# Maximum number of tensors, and of bytes, per batch of copies.
_AT_ONCE = 256
_HELD = 32 << 20

# Seconds between two checks whether to stop.
_LOOK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    """The routes that a `Publisher` gives to its versions, besides the one from the previous
    version.

    Args:
        snapshot_cost: give a version a snapshot for late joiners when they would read more than
            this many times the size of the last snapshot (2.0). `math.inf`: never; version 0 always
            has one.
        snapshot_every: instead, give every this many versions a snapshot.
        skips: for each of these distances, a version whose number is a multiple of it also gets a
            link from the version that is this distance older.

    Raises:
        UsageError: if a setting is invalid, or both of the first two are given.
    """

    snapshot_cost: float | None = None
    snapshot_every: int | None = None
    skips: Sequence[int] = ()

    def __post_init__(self) -> None:
        number("snapshot_cost", self.snapshot_cost, 0)
        whole("snapshot_every", self.snapshot_every, 1)
        for skip in self.skips:
            whole("skips", skip, 1)
        if self.snapshot_cost is not None and self.snapshot_every is not None:
            raise UsageError("USAGE: give snapshot_cost= or snapshot_every=, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The versions that a `Publisher` refuses, since they are likely to be mistakes.

    Args:
        max_changed: the maximum share of elements, from 0 to 1, that may differ from the previous
            version. Elements that are removed or added count.
        refuse_nonfinite: whether a version with values that are not finite (NaN or infinite) is
            refused, with the names of the tensors. Results that an engine has computed with them
            may stay in its caches after a rollback.
        allow_empty: whether a version may have no tensors at all. Readers would empty their models,
            so it is refused otherwise.

    Raises:
        UsageError: if the share is not a number from 0 to 1.
    """

    max_changed: float | None = None
    refuse_nonfinite: bool = False
    allow_empty: bool = False

    def __post_init__(self) -> None:
        number("max_changed", self.max_changed, 0, 1)


@dataclass(frozen=True, slots=True)
class PublishTimes:
    """Seconds of each step.

    Attributes:
        wait: waiting for the previous version; training is stopped.
        snapshot: copying the tensors; training is stopped.
        store: making and storing links.
        commit: creating the commit.
    """

    wait: float
    snapshot: float
    store: float
    commit: float


@dataclass(frozen=True, slots=True)
class PublishReport:
    """A version that has been published.

    Attributes:
        version: its number.
        digest: its state digest, 64 hexadecimal digits, as in `Update.digest`.
        commit: digest of its commit.
        bytes: bytes of its links, all shards and routes together.
        changed: elements that differ from the previous version, or are new.
        elements: elements of all tensors.
        snapshot: whether the version has a snapshot, for late joiners.
        is_new: false if it was skipped, because its step was published already (`once=`). The other
            attributes are then those of the newest version; `changed` and `elements` are 0.
        times: the seconds of each step.
    """

    version: int
    digest: str
    commit: str
    bytes: int
    changed: int
    elements: int
    snapshot: bool
    is_new: bool
    times: PublishTimes


class PublishJob(Future[PublishReport]):
    """A running publish: a `concurrent.futures.Future`, which can also be awaited.

        published = await publisher.publish_async(model.state_dict())

    Cancelling the task that awaits it cancels the publish. Like every future, it works with
    `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future`. If its outcome is never
    read, the next call of the publisher raises its error.
    """

    def __init__(self, call: int) -> None:
        super().__init__()
        self._call = call
        self._is_heard = self._is_asked_to_end = self._is_stopped = False
        self._thread: threading.Thread | None = None
        # The job's thread does the work, or a caller who was interrupted before the thread was
        # known to run, and who ends the job.
        self._claim = _native.Claim()
        self._is_started = False

    # The base class sees the job as pending until it ends, since it refuses to cancel a running
    # future.

    def __repr__(self) -> str:
        if not self.done():
            return "<deltachain.PublishJob, running>"
        said = "cancelled" if self.cancelled() else "failed" if super().exception() else "published"
        return f"<deltachain.PublishJob, {said}>"

    def running(self) -> bool:
        """True if the job has not ended yet."""
        return not self.done()

    def cancel(self) -> bool:
        """Asks the publish to end. Returns True if it was still running, so that the request may
        have an effect.

        A version that is committed before the request takes effect is a result. `result()` waits
        for the end and returns or raises; `cancelled()` is True once the publish has ended without
        a version. If the request for the commit itself is aborted, the store may still have
        executed it, as after any lost connection: the next publish continues from there.
        """
        self._is_asked_to_end = True
        self._stop()
        return not self.done()

    def result(self, timeout: float | None = None) -> PublishReport:
        """Waits for the version, at most `timeout` seconds.

        Raises:
            CancelledError: if the publish was cancelled.
            TimeoutError: if it is still running.
            Exception: the error of the publish.
        """
        try:
            return super().result(timeout)
        except FutureCancelled:
            raise _cancelled() from None
        finally:
            self._is_heard = self._is_heard or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Like `result`, but returns why the publish failed; None if it has succeeded."""
        try:
            return super().exception(timeout)
        except FutureCancelled:
            raise _cancelled() from None
        finally:
            self._is_heard = self._is_heard or self.done()

    def __await__(self) -> Generator[Any, None, PublishReport]:
        # Only code that awaits a job needs asyncio, whose import takes as long as that of this
        # package.
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _stop(self) -> None:
        self._is_stopped = True

    def _join(self, until: Callable[[], bool] | None) -> None:
        """Waits for the end, but not for a thread that an interrupt has, or may have, kept from
        starting."""
        if not self._is_started and self._claim.belongs_to("caller"):
            self._is_asked_to_end = True
            if not self.done():
                self._ended(_cancelled())
            return
        thread = self._thread
        # The job itself, which has ended then, may call this.
        if thread is None or thread is threading.current_thread():
            return
        # `Thread.join` alone is not enough: if an interrupt ends one, CPython 3.11 takes the thread
        # for ended (`threading._wait_for_tstate_lock`, bpo-45274), and the next one returns at
        # once.
        pause = None if until is None else 0.0
        while not wait((self,), pause).done:
            if until is not None and until():
                raise CancelledError("stopped while the previous version was still being published")
            pause = _LOOK
        thread.join()

    def _ended(self, error: BaseException) -> None:
        """Ends the job with an error."""
        if isinstance(error, CancelledError):
            super().cancel()
            self.set_running_or_notify_cancel()
        else:
            self.set_exception(error)

    def _outcome(self) -> BaseException | None:
        """Returns the job's error, unless the caller has seen it or has cancelled the job."""
        if self._is_heard or (self.cancelled() and self._is_asked_to_end):
            return None
        return _cancelled() if self.cancelled() else self.exception()


def _cancelled() -> CancelledError:
    return CancelledError("the publish was cancelled")


class _Copier:
    """Copies the tensors of this rank's shards to a snapshot, some at a time."""

    def __init__(
        self,
        snapshot: _native.Snapshot,
        places: Mapping[str, int],
        ranks: Ranks,
        is_mapping: bool,
    ) -> None:
        self._snapshot = snapshot
        self._places = places
        self._ranks = ranks
        # Tensors of a mapping are valid throughout, those of a stream until the next one.
        self._at_once = _AT_ONCE if is_mapping else 1
        self._waiting: list[GivenTensor] = []
        self._held = 0
        #: True if a tensor has the name that files use for their metadata.
        self.has_metadata = False

    def add(self, name: str, value: Any, expected: Expected | None) -> None:
        """Copies a tensor of this rank now or with later ones. Ignores those of other ranks."""
        shard = self._places.get(name, 0)
        if shard % self._ranks.size != self._ranks.rank:
            return
        self.has_metadata |= name == "__metadata__"
        self._waiting.append(GivenTensor(shard, name, value, expected))
        self._held += expected.nbytes if expected else _size(value)
        if len(self._waiting) >= self._at_once or self._held >= _HELD:
            self.copy()

    def copy(self) -> None:
        """Copies the tensors that wait."""
        self._snapshot.add(self._waiting)
        self._waiting.clear()
        self._held = 0

    def is_same(self, name: str, value: Any) -> bool:
        """Compares a tensor with the copy that has its name. Tensors of other ranks count as the
        same."""
        self.copy()
        shard = self._places.get(name, 0)
        if shard % self._ranks.size != self._ranks.rank:
            return True
        return bool(self._snapshot.is_same(shard, name, value))


class Publisher:
    """Adds versions to a chain. Creates the chain if it does not exist.

        with dc.Publisher("s3://bucket/run7", like="base/", group=dist.group.WORLD) as pub:
            for step, batch in enumerate(data):
                train(batch)
                job = pub.publish_async(model.state_dict(), metadata={"step": step})

    At its end, the block waits for the running publish, and raises its error if it fails.

    Args:
        chain: the chain: a directory, `s3://BUCKET/PREFIX`, `gs://`, `az://`, or a `Store`.
        like: a reference checkpoint in safetensors, a file or a directory; or a `Like`, which also
            transforms tensors. Versions take its names, shapes, dtypes and file layout, and its
            assets (configuration, tokenizer). Each tensor of another floating-point dtype is cast
            to the checkpoint's dtype. Prefixes of wrappers are removed from names (`_orig_mod.`,
            `module.`, `base_model.model.`). Tied tensors are written as in the checkpoint. Without
            `like`, tensors are not converted.
        group: the processes that publish together: a process group of torch.distributed, or a
            `Group`, which has a timeout. Each process makes the same calls. Needs `like`. By
            default, this process alone.
        keep_last: prune from time to time, and keep this many of the newest versions.
        once: the name of a metadata entry that holds an integer, such as `"step"`: each step is
            published only once. A version whose entry is not greater than that of the newest
            version is skipped, and its `PublishReport.is_new` is False. If it is lower, a warning
            is logged, once until a version is published. With a group, the metadata of rank 0
            count.
        shards: the number of shards of a new chain. By default 1 for a single process, otherwise a
            multiple of 24. It limits how many processes can share the work later, and it never
            changes.
        threads: threads that compare and compress; by default, as many as processors. All objects
            with the same number share the threads, which are kept. Threads that wait for the store
            are additional (`Store`).
        profile: `"compact"`, the smallest links, or `"local"`, links that `Subscriber(into=)` can
            apply in place. Or a list of both: each version then has links of each.
        routes: when versions get snapshots, and links from older versions (`RoutePlan`).
        guard: which versions are refused (`Guard`).
        sign_key: sign each version: a secret key as text, a path of the file that holds it, a
            `SignWith`, or a list of these. By default `DELTACHAIN_SIGNING_KEY` of the environment,
            a text or a path. With a group, rank 0 signs, and no other rank needs the key.
        trust: follow only a head that these keys have signed, as in `Subscriber`; the keys that
            sign must be among them. By default one of those that sign.
        vouch: digest of the commit of a head to follow although the keys have not signed it, to
            start signing a chain, or although later versions were lost for good. Check that version
            first, since you vouch for it.
        unsigned: publish without a signature, although the newest version has one. Followers with
            `trust=` then stay at the last signed version. Without it, a missing key is an error if
            the newest version is signed.
        scratch: a directory for links that wait to be stored, and for the head that is built after
            a restart.
        progress: called as `progress(phase, done, total)`, in bytes, from another thread. An
            exception from it ends the publish.

    Memory: beside the model, one copy of the last published version, and one of the version that is
        being published; with a group, only this rank's shards of both. Each copy is on the CPU, as
        large as `like` on disk.

    A publisher belongs to the process that made it. Only one thread may use it at a time. It may be
    killed at any time; the next one continues where the chain ends.

    Raises:
        UsageError: if `like` is not a checkpoint, or a setting is missing, unknown or invalid.
        IoError: if the chain can neither be read nor created.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        like: str | os.PathLike[str] | Like | None = None,
        group: Any = None,
        keep_last: int | None = None,
        once: str | None = None,
        shards: int | None = None,
        threads: int | None = None,
        profile: RouteProfile | Sequence[RouteProfile] = "compact",
        routes: RoutePlan | None = None,
        guard: Guard | None = None,
        sign_key: Signer | Sequence[Signer] | None = None,
        trust: Trusts | None = None,
        vouch: str | None = None,
        unsigned: bool = False,
        scratch: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._process = os.getpid()
        self._job: PublishJob | None = None
        # True before the publisher is open, and after it was closed.
        self._is_closed = True
        self._lock = _native.CallLock()
        # The number of collective calls, and the number of the call that made the last version.
        self._calls = self._made_in = 0
        whole("keep_last", keep_last, 1)
        whole("shards", shards, 1)
        for name, given, kind in (("routes", routes, RoutePlan), ("guard", guard, Guard)):
            if given is not None and not isinstance(given, kind):
                raise UsageError(
                    f"USAGE: {name}= must be a dc.{kind.__name__}, not {type(given).__name__}"
                )
        function("progress", progress)
        profiles: list[str] = [profile] if isinstance(profile, str) else list(profile)
        check_profiles(profiles or [""])
        _native.check_settings(threads, profiles)
        reference = like if isinstance(like, Like) else Like(like)
        self._ranks = ranks_of(group)
        if reference.path is None and (self._ranks.size > 1 or (shards or 1) > 1):
            raise UsageError(
                "USAGE: several ranks or shards need like= to assign tensors to shards"
            )
        self._shards = shards
        self._of: int | None = None
        self._places: dict[str, int] = {}
        self._transform = reference.transform
        self._seen: PublishReport | None = None
        self._once = once
        # True once a name has been logged that files cannot hold.
        self._is_remarked = False

        def opened() -> None:
            self._like = (
                None if reference.path is None else Reference(reference.path, reference.fill)
            )
            own = signers(sign_key) if self._ranks.rank == 0 else []
            keys = trusted(trust)
            self._store = store_of(chain)
            self._is_own_store = self._store is not chain
            if self._ranks.rank == 0:
                self._store._native.init()
            self._store.check_exists()
            settings = {
                "like": None if self._like is None else self._like.path,
                "profiles": profiles,
                "routes": routes or RoutePlan(),
                "guard": guard or Guard(),
                "assets": reference.other_files,
                "exclude": reference._patterns(),
                "keep_last": keep_last,
                "scratch": maybe_absolute(scratch),
                "once": once,
                "sign": [
                    one._replace(function=self._asking(one.function)) if one.function else one
                    for one in own
                ],
                "trust": keys,
                "vouch": vouch,
                # Rank 0 makes the commit, and has the key.
                "unsigned": unsigned or self._ranks.rank != 0,
                "threads": threads,
                "progress": progress,
            }
            self._native = _native.Publisher(self._store._native, settings)
            self._is_closed = False

        # The first rank makes the directory that the others open.
        for is_first in (True, False):
            self._ranks.tell(opened if is_first == (self._ranks.rank == 0) else bytes)
        if self._like is not None:
            forms = {
                name: f"{tensor.dtype} {list(tensor.shape)}"
                for name, tensor in self._like.tensors.items()
            }
            ties = {name: f"tied to {kept!r}" for name, kept in self._like.ties.items()}
            self._ranks.same("like=", forms | ties)
        _open.add(self)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as other:
            # The exception that ended the block is raised instead.
            _logger.error("publishing also failed: %s", other)

    def __repr__(self) -> str:
        url = self._store._name
        if self._is_closed:
            return f"<deltachain.Publisher {url}, closed>"
        last = self._seen
        said = (
            "nothing published yet"
            if last is None
            else f"last published version {last.version}, {last.digest[:12]}"
        )
        return (
            f"<deltachain.Publisher {url}, {said}{', publishing' if self._is_publishing() else ''}>"
        )

    def _asking(self, function: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Returns a function that signs in a thread of its own, so that a cancelled publish does
        not wait for it."""
        owner = weakref.ref(self)

        def ask(text: bytes) -> bytes:
            answer = started(lambda: function(text), "deltachain-sign")
            publisher = owner()
            job = None if publisher is None else publisher._job
            while not wait((answer,), _LOOK).done:
                if job is not None and job._is_stopped:
                    raise _cancelled()
            return answer.result()

        return ask

    def _is_publishing(self) -> bool:
        job = self._job
        return job is not None and not job.done()

    def __reduce__(self) -> Any:
        raise TypeError("publishers cannot be pickled: open them in the process that uses them")

    @property
    def last(self) -> PublishReport | None:
        """The last version that this publisher has published, or has found published (`once=`)."""
        return self._seen

    @property
    def head(self) -> int | None:
        """The number of the chain's newest version; None if there is none yet. Waits for the
        running publish, then asks the store."""
        with self._call(), unmasked():
            self._join()
            if self._is_closed:
                raise UsageError("USAGE: the publisher has been closed", advice="open another one")
            head = self._native.head()
            return None if head is None else head.version

    @property
    def newest(self) -> Version | None:
        """The chain's newest version, with its metadata; None if there is none yet. A restarted
        trainer reads its step from it. Waits for the running publish, then asks the store.

        >>> import tempfile, deltachain as dc
        >>> with dc.Publisher(tempfile.mkdtemp(), once="step") as pub:
        ...     step = int(pub.newest.metadata["step"]) + 1 if pub.newest else 0
        ...     pub.publish({"w": dc.Tensor("U8", (1,), b"a")}, metadata={"step": step}).is_new
        ...     pub.publish({"w": dc.Tensor("U8", (1,), b"b")}, metadata={"step": step}).is_new
        ...     pub.newest.metadata
        True
        False
        {'step': '0'}
        """
        with self._call(), unmasked():
            self._join()
            if self._is_closed:
                raise UsageError("USAGE: the publisher has been closed", advice="open another one")
            return next(iter(newest(self._store._native, 1)), None)

    def publish(
        self, weights: Any, *, metadata: Mapping[str, Any] | None = None, stop: Stop | None = None
    ) -> PublishReport:
        """Publishes a version and waits until it is committed. Like `publish_async(...).result()`.
        `stop` (an event, or a function that returns whether to stop) and Ctrl-C end it.

        Raises:
            CancelledError: if `stop` ends it before the version is published.
            Error: as for `publish_async`.

        >>> import tempfile, deltachain as dc
        >>> with dc.Publisher(tempfile.mkdtemp()) as pub:
        ...     pub.publish({"w": dc.Tensor("U8", (2,), b"ab")}).version
        0
        """
        with self._call(), unmasked():
            before, until = self._job, ending(stop)
            try:
                with unmasked():
                    job = self._begin(weights, metadata, until)
                    while until is not None and not wait((job,), _LOOK).done:
                        if until():
                            job.cancel()
                            break
                    return job.result()
            except KeyboardInterrupt:
                # The interrupt may have come right after the work had started.
                begun = self._job
                if begun is not None and begun is not before:
                    begun.cancel()
                    self._join()
                    begun._is_heard = True
                raise

    def publish_async(
        self, weights: Any, *, metadata: Mapping[str, Any] | None = None, stop: Stop | None = None
    ) -> PublishJob:
        """Copies the tensors and returns. Other threads do the rest, while training may change the
        tensors.

        Args:
            weights: a mapping from names to tensors, a module of torch, or a stream of (name,
                tensor) pairs, of which one is held at a time. Tensors may be on a device. With a
                group, each rank gives the same names, dtypes and shapes, and streams in the same
                order; this is checked before any tensor is gathered. Tensors sharded over the ranks
                (DTensor) are gathered one at a time; others must be whole.
            metadata: names and texts for the commit, such as the step. Read back by
                `Publisher.newest`, `Subscriber.metadata`, `Update.metadata` and `log`.
            stop: ends the wait for the previous version: an event, or a function that returns
                whether to stop.

        Returns:
            A future of the version, which can be awaited.

        Only one version is published at a time: the call waits for the previous one, so training
        waits if it is faster than the store. If an earlier publish failed and its future was
        not checked, that error is raised here, before the tensors are read.

        Raises:
            CancelledError: if `stop` ends the wait for the previous version. It is still being
                published, and this one is not; with a group, the other ranks wait for this one to
                call again.
            UsageError: if names are missing or unexpected, a tensor does not fit, the metadata do
                not have the entry of `once=` or it is not an integer, or ranks differ; the chain
                does not change. A stream is first read to its end on all ranks, since others may be
                waiting for it. An error on one rank is raised on all.
        """
        with self._call(), unmasked():
            return self._begin(weights, metadata, ending(stop))

    def _begin(
        self, weights: Any, metadata: Mapping[str, Any] | None, until: Callable[[], bool] | None
    ) -> PublishJob:
        began = time.monotonic()
        self._settle("publish()", until)
        waited = time.monotonic()
        noted: dict[str, str] = {}
        repeated = self._divide(metadata, noted)
        if repeated is not None:
            return self._skipped(weights, repeated, waited - began)
        snapshot = self._take(weights)
        taken = time.monotonic()
        job = PublishJob(self._calls)
        # Not a daemon: the interpreter waits for it when it ends.
        pending = _Pending(job, snapshot, noted, wait=waited - began, snapshot_time=taken - waited)
        job._thread = threading.Thread(target=self._run, args=(pending,), name="deltachain-publish")
        self._job = job
        try:
            start(job._thread)
            job._is_started = True
        except BaseException:
            # An interrupt may come while the thread is already running.
            job.cancel()
            raise
        return job

    def _skipped(
        self, weights: Any, newest: _native._PublishedVersion, waited: float
    ) -> PublishJob:
        """Ends a publish whose step exists already: nothing is copied."""

        def read() -> None:
            # Producing a stream may involve other processes.
            if known(weights) is None:
                deque(pairs(weights), maxlen=0)

        self._ranks.tell(read)
        job = PublishJob(self._calls)
        times = PublishTimes(wait=waited, snapshot=0.0, store=0.0, commit=0.0)
        self._seen = PublishReport(**newest, times=times)
        job.set_result(self._seen)
        return job

    def allow_repeats(self) -> None:
        """Ends skipping by `once=`: the next version may have a step that is published already,
        such as the best model of a training that has ended. Waits for the running publish.

        Raises:
            Error: of the running publish, as in `wait`.
        """
        self.wait()
        self._once = None
        self._native.repeat()

    def wait(self, *, stop: Stop | None = None) -> None:
        """Waits for the running publish, and raises its error unless its future has been checked.

        Raises:
            CancelledError: if `stop` ends the wait, as in `publish_async`.
        """
        with self._call(), unmasked():
            self._settle("wait()", ending(stop))

    def close(self) -> None:
        """Does the same as `wait`; then frees copies, threads and connections. A `Store` that was
        given stays open. Closing twice is not an error."""
        with self._call(), unmasked():
            _open.discard(self)
            if self._is_closed:
                return
            error = self._outcome()
            self._ranks.wait()
            self._is_closed = True
            self._native.close()
            if self._is_own_store:
                self._store._native.close()
            if error is not None:
                raise error

    def _call(self) -> _native.LockedCall:
        """Returns the context of one call, which has exclusive use of the publisher."""
        self._check()
        return self._lock.call()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                "this publisher was opened before a fork: open one in the child, or start "
                "processes with spawn"
            )

    def _join(self, until: Callable[[], bool] | None = None) -> None:
        if self._job is not None:
            self._job._join(until)

    def _settle(self, call: str, until: Callable[[], bool] | None) -> None:
        """Begins a call: waits for the previous job; all ranks raise its error if a rank has not
        seen it yet."""
        if self._is_closed:
            raise UsageError("USAGE: the publisher has been closed", advice="open another one")
        if until is not None:
            self._join(until)
        # A call that is interrupted here also counts.
        self._calls += 1
        error = self._outcome()
        self._ranks.wait()
        made = (
            f"version {self._seen.version}"
            if self._seen and self._made_in == self._calls - 1
            else "no version"
        )
        self._ranks.begin(self._calls, f"{call} after {made}", error)

    def _outcome(self) -> BaseException | None:
        """Waits for the previous job. Returns its error, unless the caller has seen it."""
        self._join()
        error = None if self._job is None else self._job._outcome()
        self._job = None
        return error

    def _divide(
        self, metadata: Mapping[str, Any] | None, noted: dict[str, str]
    ) -> _native._PublishedVersion | None:
        """Assigns tensors to shards, as many as the head has, or as a new chain starts with. Adds
        the metadata to `noted`, as texts. Returns the newest version that rank 0 knows of, if this
        step exists by `once=`."""

        def find() -> dict[str, Any]:
            noted.update(notes(metadata))
            number, is_first = self._of, self._ranks.rank == 0
            if is_first and number is None:
                head = self._native.head()
                usual = self._shards or usual_shards(self._ranks.size)
                number = usual if head is None else head.shards
            asks = is_first and self._once is not None
            repeated = self._native.repeated(noted, None) if asks else None
            return {"shards": number, "repeated": repeated}

        first = self._ranks.results(find)[0]
        self._place(first["shards"])
        repeated: _native._PublishedVersion | None = first["repeated"]
        return repeated

    def _place(self, of: int) -> None:
        """Assigns tensors to this many shards."""
        if of == self._of:
            return
        if of > 1 and self._like is None:
            raise UsageError(
                f"USAGE: the chain has {of} shards: give like=, to assign tensors to shards"
            )
        if self._like is not None:
            sizes = {name: expected.nbytes for name, expected in self._like.tensors.items()}
            self._places = _native.divide(sizes, of) if of > 1 else {}
        self._of = of

    def _take(self, weights: Any) -> _native.Snapshot:
        """Copies this rank's tensors. A stream is always read to its end."""
        snapshot = self._native.snapshot()
        copier = _Copier(snapshot, self._places, self._ranks, isinstance(weights, Mapping))
        collector = Collector(self._like, self._transform, copier.add, copier.is_same)
        error: BaseException | None = None
        try:
            for name, value in self._ranks.agreed(weights):
                try:
                    place = place_of(value)
                    # All ranks do this together, so it continues after an error.
                    value = self._ranks.whole(value, self._owners(name))
                    if error is None:
                        collector.add(name, value, place)
                except Exception as raised:
                    error = error or raised
            if error is None:
                collector.finish()
                copier.copy()
        except BaseException as raised:
            # An interrupt has priority over an earlier error of a tensor.
            if error is None or not isinstance(raised, Exception):
                error = raised
        try:
            self._ranks.agree(error)
        except BaseException:
            self._native.discard(snapshot)
            raise
        if copier.has_metadata and not self._is_remarked:
            self._is_remarked = True
            _logger.warning(
                "followers with a host copy will refuse the tensor %r, which files cannot hold",
                "__metadata__",
            )
        return snapshot

    def _owners(self, name: Any) -> set[int]:
        """Returns the ranks that need a tensor."""
        if self._ranks.size == 1:
            return {0}
        if self._like is None or self._transform is not None or not isinstance(name, str):
            # The shard is known only after the transform.
            return set(range(self._ranks.size))
        places = [self._places[place] for place in self._like.places(name) if place in self._places]
        return {place % self._ranks.size for place in places}

    def _run(self, pending: _Pending) -> None:
        job = pending.job
        if not job._claim.belongs_to("thread"):
            return
        try:
            published = self._publish(pending)
        except BaseException as error:
            job._ended(error)
        else:
            self._seen = published
            if published.is_new:
                self._made_in = job._call
            job.set_result(published)

    def _publish(self, pending: _Pending) -> PublishReport:
        job, snapshot, metadata = pending.job, pending.snapshot, pending.metadata
        ranks, native, of = self._ranks, self._native, self._of
        assert of is not None
        numbers = list(range(ranks.rank, of, ranks.size))

        def until() -> bool:
            return job._is_stopped

        def look() -> _native._PublishedVersion | None:
            return native.repeated(metadata, until) if ranks.rank == 0 else None

        def store() -> bytes:
            return native.store(snapshot, numbers, of, ranks.rank == 0, until)

        def commit() -> _native._PublishedVersion | None:
            return native.commit(stored, metadata, until) if ranks.rank == 0 else None

        began = time.monotonic()
        try:
            if self._once is not None:
                # Another writer may have published this step.
                repeated = ranks.results(look, job._stop)[0]
                if repeated is not None:
                    native.discard(snapshot)
                    times = pending.times(store=time.monotonic() - began, commit=0.0)
                    return PublishReport(**repeated, times=times)
            stored = ranks.together(store, job._stop)
            ended = time.monotonic()
            made = ranks.results(commit, _go_on)[0]
        except BaseException as error:
            # An aborted publish that is still running is forgotten when the next one starts.
            if not ranks.is_busy:
                native.forget()
            if job._is_asked_to_end and isinstance(error, IoError):
                raise _cancelled() from error
            raise
        assert made is not None
        times = pending.times(store=ended - began, commit=time.monotonic() - ended)
        published = PublishReport(**made, times=times)
        if ranks.rank != 0:
            if published.is_new:
                native.committed(published.version, published.commit)
            else:
                native.forget()
        return published


class _Pending(NamedTuple):
    """A version that is copied, but not yet published."""

    job: PublishJob
    snapshot: _native.Snapshot
    metadata: dict[str, str]
    wait: float
    """Seconds that the call waited for the previous version."""
    snapshot_time: float
    """Seconds that the copy took."""

    def times(self, *, store: float, commit: float) -> PublishTimes:
        """The times of all steps."""
        return PublishTimes(wait=self.wait, snapshot=self.snapshot_time, store=store, commit=commit)


class GivenTensor(NamedTuple):
    """A tensor to be copied."""

    shard: int
    """The number of its shard."""
    name: str
    tensor: Any
    expected: Expected | None
    """The form that it must have; None for any."""


def _go_on() -> None:
    """Does not end a commit, even when another rank has failed."""


def _size(value: Any) -> int:
    """Returns the bytes of a tensor. Its faults are reported when it is copied."""
    try:
        return int(value.nbytes)
    except Exception:
        return 0


_open: weakref.WeakSet[Publisher] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    # All threads have ended, and the futures will not be checked any more.
    for publisher in list(_open):
        job = publisher._job
        if job is not None and publisher._process == os.getpid() and job.done():
            error = job._outcome()
            if error is not None:
                _logger.error(
                    "%r ended, and its last version was not published: %s", publisher, error
                )
