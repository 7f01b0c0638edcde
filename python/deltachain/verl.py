"""A checkpoint engine for verl: trainers publish each version to a chain, and rollout workers take it from there.

    actor_rollout_ref.rollout.checkpoint_engine.backend=deltachain
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=deltachain.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.deltachain.url=s3://models/run7
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.deltachain.like=/models/base

Needs verl.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from ._errors import ChainError, InUseError, TimeoutError
from ._host_copy import HostCopy
from ._publisher import Publisher
from ._subscriber import Subscriber

__all__ = ["DeltachainCheckpointEngine"]

# Seconds between two looks at a directory that another process of the machine keeps.
_POLL = 0.1


@CheckpointEngineRegistry.register("deltachain")
class DeltachainCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """What verl calls in its trainers (one of them publishes) and in its rollout workers.

    Args:
        bucket_size: verl gives it; nothing is made of it.
        is_master: verl gives it: whether this is the trainer that publishes. The others bring their parts of the
            tensors, which the master has whole, one at a time.
        url: the chain.
        like: the checkpoint that versions are like, as for `Publisher`. Trainers in F32 need it.
        host_copy: a directory on each rollout machine that is kept at the version, and which its workers share: one
            of them fetches, the others read its files. Without it, each worker has a copy of the model in its memory.
        timeout: seconds that rollout workers wait for a version.
        publisher, subscriber: what else `Publisher` and `Subscriber` take.
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
        """The master says which version comes next."""
        if self._publisher is None:
            return {}
        head = self._publisher.head
        return {"version": 0 if head is None else head + 1}

    @classmethod
    def build_topology(
        cls, trainers: int, rollouts: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Everybody is told of the version; there is no other group than those who know the chain."""
        version = metadata[0]["version"]
        return {"version": [version] * trainers}, {"version": [version] * rollouts}

    def init_process_group(self, version: int) -> None:
        """Takes note of the version."""
        self._version = version

    def finalize(self) -> None:
        """Copies are kept: the next version is made from them."""

    async def send_weights(self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None) -> None:
        """Publishes the weights, and waits until rollout workers can see them.

        Raises:
            Error: if that fails.
            ChainError: if another version has come of it than was announced, since somebody else publishes.
        """
        if self._publisher is None:
            for _ in weights:
                pass
            return
        job = self._publisher.publish_async(weights, metadata={} if global_steps is None else {"step": global_steps})
        published = await asyncio.wrap_future(job)
        if published.version != self._version:
            raise ChainError(
                f"CHAIN: version {published.version} was published where {self._version} was announced: somebody else "
                "publishes to the chain",
                advice="give each run a chain of its own",
            )

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """All tensors of the version, proven, on this worker's device.

        Raises:
            TimeoutError: if there is no such version in time.
        """
        import torch

        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        for name, tensor in await asyncio.to_thread(self._fetched):
            yield name, tensor.to(device)

    def _fetched(self) -> Iterable[tuple[str, Any]]:
        """Brings the copy to the version: its tensors, one at a time."""
        assert self._version is not None
        end = time.monotonic() + self._timeout
        while not self._keeps():
            copy = HostCopy(str(self._host_copy), kind="torch")
            if copy.version == self._version:
                return copy.tensors().items()
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self._host_copy} is at version {copy.version}, and not yet at {self._version}: see why the "
                    "process that keeps it does not go on"
                )
            time.sleep(_POLL)
        assert self._subscriber is not None
        self._subscriber.prepare(self._version, timeout=max(0.0, end - time.monotonic())).apply()
        return self._subscriber.state()

    def _keeps(self) -> bool:
        """Whether this process keeps the copy: the first one that tries, until it ends."""
        if self._subscriber is not None:
            return True
        try:
            self._subscriber = Subscriber(self._url, host_copy=self._host_copy, kind="torch", **self._settings)
        except InUseError:
            return False
        return True
