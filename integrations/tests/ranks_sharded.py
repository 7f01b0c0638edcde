"""One of several processes that have parts of each tensor (FSDP2), and call the callback as a
trainer does: `ranks_sharded.py BASE CHAIN`. The rank is in the environment, as torchrun sets it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from deltachain_integrations.transformers import PublishCallback, as_saved
from small_model import transformers, version


def main(base: str, chain: str) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded, whole = (
        transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        for _ in range(2)
    )
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    arguments = SimpleNamespace(load_best_model_at_end=False)
    callback = PublishCallback(chain, like=base)
    callback.on_train_begin(arguments, SimpleNamespace(global_step=0), None)
    for step in (1, 2):
        with torch.no_grad():
            for parameter in (*sharded.parameters(), *whole.parameters()):
                parameter.mul_(1.1)
        callback.on_step_end(arguments, SimpleNamespace(global_step=step), None, model=sharded)
    callback.on_train_end(arguments, SimpleNamespace(global_step=2), None, model=sharded)
    found, expected = version(chain), as_saved(whole)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(
            found[name].view(torch.int16), tensor.detach().bfloat16().view(torch.int16)
        ), name
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
