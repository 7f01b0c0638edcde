"""A checkpoint engine for verl: trainers publish each version to a chain, and rollout workers
follow it.

    actor_rollout_ref.rollout.checkpoint_engine.backend=deltachain
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=deltachain_integrations.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.deltachain.chain=s3://models/run7
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.deltachain.like=/models/base

Needs verl.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar

from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from deltachain import (
    ChainError,
    Guard,
    InUseError,
    Publisher,
    RoutePlan,
    Store,
    Subscriber,
    TimeoutError,
    Trust,
)
from deltachain.adapters import find_version

__all__ = ["DeltachainCheckpointEngine"]

_T = TypeVar("_T")

# Seconds between polls of a directory that another process of the machine manages.
_POLL = 0.1


# Settings whose values are objects of a class.
_KINDS = {"guard": Guard, "routes": RoutePlan, "trust": Trust}


def _made(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Converts settings of a configuration, which has no classes, to arguments."""
    given = dict(settings or {})
    return given | {
        name: kind(**given[name])
        for name, kind in _KINDS.items()
        if isinstance(given.get(name), Mapping)
    }


@CheckpointEngineRegistry.register("deltachain")
class DeltachainCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """The engine that verl calls in its trainers (one of them publishes) and in its rollout
    workers.

    Args:
        bucket_size: given by verl, unused.
        is_master: given by verl: whether this is the trainer that publishes. The others take part
            in gathering the tensors, one at a time.
        chain: the chain: a directory or a URL.
        like: the reference checkpoint, as for `Publisher`. Trainers in F32 need it.
        host_copy: a directory on each rollout machine that its workers share: one of them
            downloads, the others read its files. Without it, each worker has a copy of the model in
            its memory.
        timeout: maximum seconds that rollout workers wait for a version.
        store: other arguments of `Store`.
        publisher, subscriber: other arguments of `Publisher` and `Subscriber`; those of a `Guard`,
            `Routes` or `Trust` as a mapping.
    """

    def __init__(
        self,
        bucket_size: int,
        chain: str,
        is_master: bool = False,
        like: str | None = None,
        host_copy: str | None = None,
        timeout: float = 1800.0,
        store: Mapping[str, Any] | None = None,
        publisher: Mapping[str, Any] | None = None,
        subscriber: Mapping[str, Any] | None = None,
    ) -> None:
        self._store, self._host_copy, self._timeout = (
            Store(chain, **(store or {})),
            host_copy,
            timeout,
        )
        self._settings = _made(subscriber)
        self._publisher = (
            Publisher(self._store, like=like, **_made(publisher)) if is_master else None
        )
        self._subscriber: Subscriber | None = None
        self._version: int | None = None

    def prepare(self) -> dict[str, Any]:
        """Announces the next version, on the master."""
        if self._publisher is None:
            return {}
        head = self._publisher.head
        return {"version": 0 if head is None else head + 1}

    @classmethod
    def build_topology(
        cls, trainers: int, rollouts: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Gives the version to all processes; the chain needs no process group."""
        version = metadata[0]["version"]
        return {"version": [version] * trainers}, {"version": [version] * rollouts}

    def init_process_group(self, version: int) -> None:
        """Notes the version."""
        self._version = version

    def finalize(self) -> None:
        """Does nothing: the next version is built from the copies."""

    async def send_weights(
        self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None
    ) -> None:
        """Publishes the weights, and waits until rollout workers can see them.

        Raises:
            Error: if publishing fails.
            ChainError: if the version's number is not the announced one, because another process
                publishes too.
        """
        if self._publisher is None:
            for _ in weights:
                pass
            return
        job = self._publisher.publish_async(
            weights, metadata={} if global_steps is None else {"step": global_steps}
        )
        published = await job
        if published.version != self._version:
            raise ChainError(
                f"CHAIN: version {published.version} was published, but {self._version} was "
                "announced: another process publishes to the chain",
                advice="give each run its own chain",
            )

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, Any]]:
        """All tensors of the version, verified, on this worker's device.

        Raises:
            TimeoutError: if there is no such version in time.
        """
        import torch

        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        for name, tensor in await self._fetched():
            yield name, tensor.to(device)

    async def _fetched(self) -> Iterable[tuple[str, Any]]:
        """Updates the copy to the version. Returns its tensors, one at a time."""
        assert self._version is not None
        end = time.monotonic() + self._timeout
        while not self._keeps():
            if found := find_version(str(self._host_copy), self._version):
                return found.tensors("torch").items()
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self._host_copy} has no version {self._version}: check its follower"
                )
            await asyncio.sleep(_POLL)
        assert self._subscriber is not None
        left = max(0.0, end - time.monotonic())
        update = await _in_thread(self._subscriber.prepare, self._version, timeout=left)
        await asyncio.to_thread(update.apply)
        return self._subscriber.state()

    def _keeps(self) -> bool:
        """True if this process manages the copy: the first process that opens it manages it until
        it ends."""
        if self._subscriber is not None:
            return True
        try:
            self._subscriber = Subscriber(
                self._store, host_copy=self._host_copy, kind="torch", **self._settings
            )
        except InUseError:
            return False
        return True


async def _in_thread(work: Callable[..., _T], *arguments: Any, **settings: Any) -> _T:
    """Calls `work(*arguments, stop=..., **settings)` in a thread. If the task is cancelled, stops
    the work and waits until it has ended: only one thread at a time may use a subscriber."""
    stop = threading.Event()
    call = functools.partial(work, *arguments, stop=stop, **settings)
    # A future and not a task: the end of the loop cancels all tasks.
    done = asyncio.get_running_loop().run_in_executor(None, call)
    while not done.done():
        try:
            await asyncio.wait((done,))
        except asyncio.CancelledError:
            stop.set()
    if stop.is_set():
        # The result of the work is not needed any more.
        done.exception()
        raise asyncio.CancelledError
    return done.result()
