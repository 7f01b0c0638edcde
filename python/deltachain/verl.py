"""A checkpoint engine for verl: trainers publish each version to a chain, and rollout workers follow it.

    actor_rollout_ref.rollout.checkpoint_engine.backend=deltachain
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=deltachain.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.deltachain.url=s3://models/run7
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.deltachain.like=/models/base

Needs verl.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from ._async_subscriber import in_thread
from ._errors import CancelledError, ChainError, InUseError, TimeoutError
from ._host_copy import HostCopy
from ._publisher import Publisher
from ._subscriber import Subscriber

__all__ = ["DeltachainCheckpointEngine"]

# Seconds between polls of a directory that another process of the machine manages.
_POLL = 0.1


@CheckpointEngineRegistry.register("deltachain")
class DeltachainCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """The engine that verl calls in its trainers (one of them publishes) and in its rollout workers.

    Args:
        bucket_size: given by verl, unused.
        is_master: given by verl: whether this is the trainer that publishes. The others take part in gathering the
            tensors, one at a time.
        url: the chain.
        like: the reference checkpoint, as for `Publisher`. Trainers in F32 need it.
        host_copy: a directory on each rollout machine that its workers share: one of them downloads, the others read
            its files. Without it, each worker has a copy of the model in its memory.
        timeout: maximum seconds that rollout workers wait for a version.
        publisher, subscriber: other arguments of `Publisher` and `Subscriber`.
    """

    def __init__(
        self,
        bucket_size: int,
        url: str,
        is_master: bool = False,
        like: str | None = None,
        host_copy: str | None = None,
        timeout: float = 1800.0,
        publisher: Mapping[str, Any] | None = None,
        subscriber: Mapping[str, Any] | None = None,
    ) -> None:
        self._url, self._host_copy, self._timeout = url, host_copy, timeout
        self._settings = dict(subscriber or {})
        self._publisher = Publisher(url, like=like, **(publisher or {})) if is_master else None
        self._subscriber: Subscriber | None = None
        self._version: int | None = None

    def prepare(self) -> dict[str, Any]:
        """The master announces the next version."""
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
        """Records the version."""
        self._version = version

    def finalize(self) -> None:
        """Does nothing: the next version is built from the copies."""

    async def send_weights(self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None) -> None:
        """Publishes the weights, and waits until rollout workers can see them.

        Raises:
            Error: if that fails.
            ChainError: if the version's number is not the announced one, because another process publishes too.
        """
        if self._publisher is None:
            for _ in weights:
                pass
            return
        job = self._publisher.publish_async(weights, metadata={} if global_steps is None else {"step": global_steps})
        published = await job
        if published.version != self._version:
            raise ChainError(
                f"CHAIN: version {published.version} was published, but {self._version} was announced: another process "
                "publishes to the chain",
                advice="give each run its own chain",
            )

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """All tensors of the version, verified, on this worker's device.

        Raises:
            TimeoutError: if there is no such version in time.
        """
        import torch

        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        for name, tensor in await in_thread(self._fetched):
            yield name, tensor.to(device)

    def _fetched(self, *, until: Callable[[], bool]) -> Iterable[tuple[str, Any]]:
        """Updates the copy to the version. Returns its tensors, one at a time."""
        assert self._version is not None
        end = time.monotonic() + self._timeout
        while not self._keeps():
            copy = HostCopy(str(self._host_copy), kind="torch")
            if copy.version == self._version:
                return copy.tensors().items()
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self._host_copy} is at version {copy.version}, not yet at {self._version}: check the process "
                    "that manages it"
                )
            if until():
                raise CancelledError("stopped")
            time.sleep(_POLL)
        assert self._subscriber is not None
        left = max(0.0, end - time.monotonic())
        self._subscriber.prepare(self._version, timeout=left, stop=until).apply()
        return self._subscriber.state()

    def _keeps(self) -> bool:
        """Whether this process manages the copy: the first one that opens it does, until it ends."""
        if self._subscriber is not None:
            return True
        try:
            self._subscriber = Subscriber(self._url, host_copy=self._host_copy, kind="torch", **self._settings)
        except InUseError:
            return False
        return True
