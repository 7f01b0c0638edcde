"""verl's own manager and rollout workers, in Ray processes on this machine, without an engine
behind them: `verl_manager.py FOLDER`. The tensors of each rollout worker are compared with the ones
that were sent, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
import torch
from verl.checkpoint_engine import (
    CheckpointEngineManager,
    CheckpointEngineRegistry,
    CheckpointEngineWorker,
)
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

STEPS = 3


def weights(step: int) -> dict[str, torch.Tensor]:
    """A few tensors. One of them changes in a few places with each step."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"{layer}.weight": torch.randn(64, 64, generator=generator).bfloat16() for layer in range(4)
    }
    for past in range(step + 1):
        tensors["1.weight"][past, 7] = float("nan")
        tensors["2.weight"][past, 7] = -0.0
    return tensors


class Trainer(Worker):
    """A trainer like verl's own `ActorRolloutRefWorker`, which needs a GPU."""

    def __init__(self, config: CheckpointEngineConfig) -> None:
        super().__init__()
        import_external_libs(config.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend,
            is_master=self.rank == 0,
            bucket_size=config.update_weights_bucket_megabytes << 20,
            **config.engine_kwargs[config.backend],
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int, mode: str = "auto") -> Any:
        return await self.checkpoint_engine.send_weights(
            iter(weights(global_steps).items()), global_steps=global_steps
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


class Adapter:
    """Stands in for an engine: keeps the tensors that it gets."""

    async def update_weights(self, given: Any, wire_format: str, **_: Any) -> None:
        assert wire_format == "named_tensors"
        self.given = {name: tensor.clone() async for name, tensor in given}


class Rollout(CheckpointEngineWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def given(self) -> Any:
        return self.server_adapter.given


class Replica:
    """Stands in for a server that has these workers."""

    def __init__(self, workers: Any) -> None:
        self.workers = workers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def called(**_: Any) -> None:
            self.calls.append(name)

        return called


def group(size: int, kind: type, **arguments: Any) -> RayWorkerGroup:
    return RayWorkerGroup(
        resource_pool=RayResourcePool([size], use_gpu=False, max_colocate_count=1),
        ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(kind), **arguments),
        device_name="cpu",
    )


def main(folder: str) -> None:
    place = Path(folder)
    backend = {"chain": str(place / "chain"), "host_copy": str(place / "copy"), "timeout": 120}
    config = CheckpointEngineConfig(
        backend="deltachain",
        custom_backend_module="deltachain_integrations.verl",
        engine_kwargs={"deltachain": backend},
    )
    ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    trainers = group(1, Trainer, config=config)
    rollout = RolloutConfig(name="vllm", checkpoint_engine=config)
    rollouts = group(
        2, Rollout, rollout_config=rollout, model_config=None, server_adapter=Adapter()
    )
    replica = Replica(rollouts.workers)
    manager = CheckpointEngineManager(config, trainers, [replica])
    for step in range(STEPS):
        manager.update_weights(global_steps=step)
        expected = weights(step)
        for given in rollouts.given():
            assert set(given) == set(expected)
            for name, tensor in expected.items():
                assert torch.equal(given[name].view(torch.int16), tensor.view(torch.int16)), name
    assert replica.calls == STEPS * [
        "abort_all_requests",
        "release_kv_cache",
        "resume_kv_cache",
        "resume_generation",
    ]
    ray.shutdown()
    print(f"{STEPS} updates, the same bits in each of 2 rollout workers")


if __name__ == "__main__":
    main(*sys.argv[1:])
