"""Publishing from a training run: versions are added to a chain while training goes on."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _native
from ._errors import ForkedError, IoError, UsageError
from ._files import Profile, Progress
from ._like import Expected, Like, Taking
from ._ranks import Alone, Group, Ranks, TorchGroup, divide, usual_shards
from ._store import Credentials, open_store

__all__ = ["PublishTimes", "Published", "Publisher"]

_logger = logging.getLogger("deltachain")

# Tensors that are copied at once, and their bytes.
_AT_ONCE = 256
_HELD = 32 << 20


@dataclass(frozen=True, slots=True)
class PublishTimes:
    """Seconds that the steps took."""

    wait: float
    """For the version before, which the trainer stood still for."""
    snapshot: float
    """Copying the tensors, which the trainer stood still for too."""
    store: float
    """Making and storing links."""
    commit: float
    """Making them a version."""


@dataclass(frozen=True, slots=True)
class Published:
    """A version that has been published."""

    version: int
    digest: str
    """Its state digest, 64 hexadecimal digits: what `Update.digest` says where it is followed."""
    commit: str
    """Digest of its commit."""
    bytes: int
    """Bytes of its links, all shards and routes together."""
    changed: int
    """Elements that differ from the version before, or are new."""
    elements: int
    """Elements of all tensors."""
    snapshot: bool
    """Whether there is a route from nothing, for those who join late."""
    times: PublishTimes


class _Job(Future[Published]):
    """A publish under way. Whether somebody has asked for its outcome decides whether it is raised again later."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call = call
        self.is_heard = False
        self.is_cancelled = False
        self.is_stopped = False
        self.ends_waiting = _native.Stop()

    def result(self, timeout: float | None = None) -> Published:
        try:
            return super().result(timeout)
        finally:
            self.is_heard = self.is_heard or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.is_heard = True
        return error

    def cancel(self) -> bool:
        """Asks the work to end. What has become a version stays one."""
        self.is_cancelled = True
        self.stop()
        return False

    def stop(self) -> None:
        self.is_stopped = True
        self.ends_waiting.stop()


class Publisher:
    """Adds versions to a chain. It begins the chain if there is none.

        with dc.Publisher("s3://bucket/run7", like="base/", group=dist.group.WORLD) as pub:
            for step, batch in enumerate(data):
                train(batch)
                job = pub.publish_async(model.state_dict(), metadata={"step": step})

    At the end of the block it waits for the version that is being published, and raises the error of a failure.

    Args:
        url: the chain: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`.
        like: a checkpoint in safetensors, a file or a directory. Versions get its names, shapes, dtypes and division
            into files, and its other files (configuration, tokenizer). Each tensor of another floating-point dtype is
            cast to the checkpoint's dtype. Prefixes of wrappers are removed from names (`_orig_mod.`, `module.`,
            `base_model.model.`). Of tied tensors, those that the checkpoint has are written. Without `like`, tensors
            are taken as they are.
        group: the processes that publish together: a process group of torch.distributed, or an object as
            `deltachain.Group` describes. Each process makes the same calls. Needs `like`. Without it, this process
            alone.
        rank_timeout: with a group, seconds without a sign of life after which ranks do not go on waiting for one that
            is silent (stopped, or its interpreter held) while a version is stored. They give that version up, with a
            retryable `IoError`; once all are back, versions are published again. The first step of each call is
            waited for without a limit, as in every collective, unless the version before was given up like this. A
            rank whose process ends is noticed at once, and the others cannot go on without it.
        keep_last: prune from time to time, and keep this many of the newest versions.
        transform: called with the name (without wrappers) and the tensor, before names and dtypes are compared with
            `like`; returns a tensor, pairs of names and tensors, a mapping, or None to leave it out. With a group,
            each rank calls it for all tensors. For trainers whose checkpoint is quantised.
        shards: the number of shards of the chain, if this begins it. By default 1 for a single process, otherwise a
            multiple of 24. It limits how many processes can share the work later, and it never changes.
        threads: threads that compare and compress; as many as there are processors, by default.
        profile: `"compact"`, the smallest links, or `"direct"`, whose values can be used without the base.
        snapshots: when a version also gets a snapshot (a link from nothing) for late joiners. A float: when they
            would read more than this many times the last snapshot. An int: every this many versions. None: never
            (version 0 always has one).
        skips: for each of these distances, a version whose number is a multiple of it also gets a link from the
            version that is this distance older.
        other_files: whether the other files of `like` are published.
        max_changed: the share of elements, from 0 to 1, that may differ from the version before: a guard against
            mistakes.
        scratch: a directory for links that wait to be stored, and for the head that is built after a restart.
        progress: called as `progress(phase, done, total)`, in bytes, from another thread. An exception from it ends
            the publish.
        storage_options, credentials, stall, attempts, max_rate: how to talk to the store, as in `open_store`.

    Memory: beside the model, a copy of the version published last, and one of the version that is being published;
        with a group, only this rank's shards of both. Each copy is on the CPU, as large as `like` on disk.

    A publisher belongs to the process that made it, and is used by one thread at a time. It may be killed at any time;
    the next one continues where the chain ends.

    Raises:
        UsageError: if `like` is not a checkpoint, or settings are missing.
        IoError: if the chain can neither be read nor begun.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        like: str | os.PathLike[str] | None = None,
        group: Any = None,
        rank_timeout: float = 300.0,
        keep_last: int | None = None,
        transform: Callable[[str, Any], Any] | None = None,
        shards: int | None = None,
        threads: int | None = None,
        profile: Profile = "compact",
        snapshots: float | int | None = 2.0,
        skips: Sequence[int] = (),
        other_files: bool = True,
        max_changed: float | None = None,
        scratch: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credentials: Credentials | None = None,
        stall: float | None = None,
        attempts: int | None = None,
        max_rate: int | None = None,
    ) -> None:
        self._process = os.getpid()
        self._url = os.fspath(url)
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None
        self._native: Any = None
        self._lock = threading.Lock()
        # How many times other ranks were called, and in which call the version was made that is the last one.
        self._calls = self._made_in = 0
        if not rank_timeout > 0:
            raise UsageError("USAGE: rank_timeout must be more than 0")
        self._ranks = Ranks(_group_of(group), rank_timeout)
        if like is None and (self._ranks.size > 1 or (shards or 1) > 1):
            raise UsageError("USAGE: several ranks or shards need like=, from which they know who has which tensors")
        if shards is not None and shards < 1:
            raise UsageError("USAGE: shards must be 1 or more")
        if keep_last is not None and keep_last < 1:
            raise UsageError("USAGE: keep_last must be 1 or more")
        self._shards = shards
        self._of: int | None = None
        self._places: dict[str, int] = {}
        self._transform = transform
        self._threads, self._progress = threads, progress
        self._seen: Published | None = None

        def opened() -> None:
            self._like = None if like is None else Like(like)
            store = open_store(
                url,
                storage_options=storage_options,
                credentials=credentials,
                create=self._ranks.rank == 0,
                stall=stall,
                attempts=attempts,
                max_rate=max_rate,
            )
            if self._ranks.rank == 0:
                store.init()
            self._native = _native.Publisher(
                store,
                None if like is None else os.fspath(like),
                profile,
                snapshots,
                list(skips),
                other_files,
                max_changed,
                keep_last,
                None if scratch is None else os.fspath(scratch),
            )

        # The first rank makes the directory that the others open.
        if self._ranks.rank == 0:
            self._all(opened)
            self._all(None)
        else:
            self._all(None)
            self._all(opened)
        if self._like is not None:
            forms = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in self._like.tensors.items()}
            ties = {name: f"the same as {kept!r}" for name, kept in self._like.ties.items()}
            self._ranks.same("like=", forms | ties)
        _open.add(self)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as other:
            # What ended the block is what its caller has to know.
            _logger.error("publishing failed, too: %s", other)

    def __repr__(self) -> str:
        return f"<deltachain.Publisher {self._url}>"

    def __reduce__(self) -> Any:
        raise TypeError("publishers of deltachain cannot be pickled: open them in the process that uses them")

    @property
    def last(self) -> Published | None:
        """What this publisher has published last."""
        return self._seen

    @property
    def head(self) -> int | None:
        """The number of the chain's newest version; None if there is none yet. Waits for what is under way, then asks
        the store."""
        with self._used():
            self._join()
            if self._native is None:
                raise UsageError("USAGE: the publisher has been closed")
            head = self._native.head()
            return None if head is None else int(head[0])

    def publish(self, weights: Any, *, metadata: Mapping[str, Any] | None = None) -> Published:
        """Publishes a version and waits until everybody can see it. As `publish_async(...).result()`; Ctrl-C ends it.

        >>> import tempfile, deltachain as dc
        >>> with dc.Publisher(tempfile.mkdtemp()) as pub:
        ...     pub.publish({"w": dc.Tensor("U8", (2,), b"ab")}).version
        0
        """
        with self._used():
            before = self._job
            try:
                return self._begin(weights, metadata).result()
            except KeyboardInterrupt:
                # Maybe it came when the work had just begun.
                job = self._job
                if job is not None and job is not before:
                    job.cancel()
                    self._join()
                    job.is_heard = True
                raise

    def publish_async(self, weights: Any, *, metadata: Mapping[str, Any] | None = None) -> Future[Published]:
        """Copies the tensors and returns. Other threads do the rest, and training may go on and change the tensors.

        Args:
            weights: a mapping from names to tensors, a module of torch, or a stream of (name, tensor) pairs; of a
                stream, one tensor is held at a time. Tensors may be on a device. With a group, each rank gives the
                same names, dtypes and shapes, a stream in the same order, too; that is compared before anything is
                gathered. Tensors that are spread over the ranks (DTensor) are gathered one at a time; others must be
                whole.
            metadata: notes in the commit: names and texts, such as the step.

        Returns:
            A future of the version. `cancel()` asks the work to end; then `result()` raises `CancelledError`, unless
            the version was already published.

        Only one version is published at a time. The call waits for the one before, so training waits if it is faster
        than the store. An earlier failure that was not asked for is raised here, before the tensors are read.

        Raises:
            UsageError: if names are missing or too many, a tensor does not fit, or ranks do not give the same; the
                chain stays as it is. A stream is read to its end before that, on all ranks, since others may be
                waiting for it. Whatever one rank raises, all raise.
        """
        with self._used():
            return self._begin(weights, metadata)

    def _begin(self, weights: Any, metadata: Mapping[str, Any] | None) -> _Job:
        began = time.monotonic()
        self._settle("publish()")
        waited = time.monotonic()
        snapshot, noted = self._take(weights, metadata)
        taken = time.monotonic()
        job = _Job(self._calls)
        job.set_running_or_notify_cancel()
        self._job = job
        # Not a daemon: the interpreter waits for it when it ends.
        arguments = (job, snapshot, noted, (waited - began, taken - waited))
        self._thread = threading.Thread(target=self._run, args=arguments, name="deltachain-publish")
        self._thread.start()
        return job

    def wait(self) -> None:
        """Waits for what is under way, and raises what failed unless it has been asked for."""
        with self._used():
            self._settle("wait()")

    def close(self) -> None:
        """As `wait`; then gives up copies and connections. Closing twice is not an error."""
        with self._used():
            _open.discard(self)
            if self._native is None:
                return
            error = self._outcome()
            self._ranks.wait()
            native, self._native = self._native, None
            native.close()
            if error is not None:
                raise error

    @contextmanager
    def _used(self) -> Iterator[None]:
        """By this thread."""
        self._check()
        if not self._lock.acquire(blocking=False):
            raise UsageError("USAGE: another thread is using it")
        try:
            yield
        finally:
            self._lock.release()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                "this publisher was opened before a fork: open one in the child, or start processes by spawn"
            )

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _settle(self, call: str) -> None:
        """Begins a call: waits for the job before; all ranks learn of what nobody has heard yet on one of them."""
        if self._native is None:
            raise UsageError("USAGE: the publisher has been closed")
        # A call that is interrupted here counts, too.
        self._calls += 1
        error = self._outcome()
        self._ranks.wait()
        made = f"version {self._seen.version}" if self._seen and self._made_in == self._calls - 1 else "no version"
        self._ranks.begin(self._calls, f"{call} after {made}", error)

    def _outcome(self) -> BaseException | None:
        """Waits for the job before: its error, unless that has been heard."""
        self._join()
        job, self._job = self._job, None
        return None if job is None or job.is_heard else job.exception()

    def _all(self, step: Callable[[], None] | None) -> None:
        """Does a step, and raises if it fails on any rank."""
        error: BaseException | None = None
        try:
            if step is not None:
                step()
        except Exception as raised:
            error = raised
        self._ranks.agree(error)

    def _divide(self) -> None:
        """The division into shards: that of the head, or the one that the chain begins with."""
        number = self._of
        error: BaseException | None = None
        try:
            if self._ranks.rank == 0 and number is None:
                head = self._native.head()
                number = (self._shards or usual_shards(self._ranks.size)) if head is None else head[2]
        except Exception as raised:
            error = raised
        of = int(self._ranks.agree(error, str(number).encode())[0])
        if of == self._of:
            return
        if of > 1 and self._like is None:
            raise UsageError(
                f"USAGE: the chain has {of} shards: give like=, from which is known which tensors each has"
            )
        if self._like is not None:
            sizes = {name: expected.nbytes for name, expected in self._like.tensors.items()}
            self._places = divide(sizes, of) if of > 1 else {}
        self._of = of

    def _take(self, weights: Any, metadata: Mapping[str, Any] | None) -> tuple[Any, dict[str, str]]:
        """Copies this rank's part of the tensors, and the notes. A stream is read to its end, whatever happens."""
        self._divide()
        snapshot = self._native.snapshot()
        rank, size = self._ranks.rank, self._ranks.size
        places = self._places

        # Tensors of a mapping stay as they are meanwhile, those of a stream until it goes on.
        at_once = _AT_ONCE if isinstance(weights, Mapping) else 1
        rows: list[Any] = []
        held = 0

        def keep(name: str, value: Any, expected: Expected | None) -> None:
            nonlocal held
            shard = places.get(name, 0)
            if shard % size == rank:
                rows.append((shard, name, value, expected and expected[:2]))
                held += expected.nbytes if expected else getattr(value, "nbytes", 0)
                if len(rows) >= at_once or held >= _HELD:
                    copy()

        def copy() -> None:
            nonlocal held
            snapshot.add(rows)
            rows.clear()
            held = 0

        def same(name: str, value: Any) -> bool:
            copy()
            shard = places.get(name, 0)
            return shard % size != rank or bool(snapshot.is_same(shard, name, value))

        taking = Taking(self._like, self._transform, keep, same)
        noted: dict[str, str] = {}
        error: BaseException | None = None
        try:
            noted = {str(key): str(value) for key, value in (metadata or {}).items()}
            for name, value in self._ranks.agreed(weights):
                try:
                    # All ranks do this together, so that it goes on after an error.
                    value = self._ranks.whole(value, self._owners(name))
                    if error is None:
                        taking.add(name, value)
                except Exception as raised:
                    error = error or raised
            if error is None:
                copy()
                taking.finish()
        except BaseException as raised:
            error = error or raised
        try:
            self._ranks.agree(error)
        except BaseException:
            self._native.discard(snapshot)
            raise
        return snapshot, noted

    def _owners(self, name: Any) -> set[int]:
        """The ranks that need a tensor."""
        if self._ranks.size == 1:
            return {0}
        if self._like is None or self._transform is not None or not isinstance(name, str):
            # What becomes of it, and where that belongs, is known when it has been transformed.
            return set(range(self._ranks.size))
        places = [self._places[place] for place in self._like.places(name) if place in self._places]
        return {place % self._ranks.size for place in places}

    def _run(self, job: _Job, snapshot: Any, metadata: dict[str, str], before: tuple[float, float]) -> None:
        try:
            published = self._publish(job, snapshot, metadata, before)
        except BaseException as error:
            job.set_exception(error)
        else:
            self._seen = published
            self._made_in = job.call
            job.set_result(published)

    def _publish(self, job: _Job, snapshot: Any, metadata: dict[str, str], before: tuple[float, float]) -> Published:
        ranks, native = self._ranks, self._native
        assert self._of is not None
        numbers = list(range(ranks.rank, self._of, ranks.size))

        def progress(phase: str, done: int, total: int) -> None:
            if self._progress is not None:
                self._progress(phase, done, total)
            if job.is_stopped:
                raise CancelledError("it was asked to end")

        def store() -> bytes:
            commits = ranks.rank == 0
            parts = native.store(snapshot, numbers, self._of, commits, self._threads, progress, job.ends_waiting)
            return "\n".join(parts).encode()

        def commit() -> bytes:
            if ranks.rank != 0:
                return b""
            if job.is_stopped:
                raise CancelledError("it was asked to end")
            return json.dumps(native.commit(parts, metadata, job.ends_waiting)).encode()

        began = time.monotonic()
        try:
            stored = ranks.together(store, job.stop)
            parts = [part for texts in stored for part in texts.decode().split("\n") if part]
            ended = time.monotonic()
            told = json.loads(ranks.together(commit, lambda: None)[0])
        except BaseException as error:
            # What was given up and still goes on forgets itself when it begins anew.
            if not ranks.is_busy:
                native.forget()
            if job.is_cancelled and isinstance(error, IoError):
                raise CancelledError("it was asked to end") from error
            raise
        if ranks.rank != 0:
            native.committed(told["version"], told["commit"])
        return Published(**told, times=PublishTimes(*before, ended - began, time.monotonic() - ended))


def _group_of(group: Any) -> Group:
    if group is None:
        return Alone()
    if hasattr(group, "exchange"):
        own: Group = group
        return own
    if type(group).__module__.startswith("torch."):
        return TorchGroup(group)
    raise TypeError(
        f"group= is a process group of torch.distributed, or a deltachain.Group, not {type(group).__name__}"
    )


_open: weakref.WeakSet[Publisher] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    # Threads have been waited for; nobody will ask any more.
    for publisher in list(_open):
        job = publisher._job
        if job is not None and publisher._process == os.getpid() and job.done() and not job.is_heard:
            error = job.exception()
            if error is not None:
                _logger.error("%r ended with a version that was not published: %s", publisher, error)
