"""verl finds the checkpoint engine, and rollout workers have what the trainer sent, bit for bit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import as_bytes, model, write_model

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
verl = pytest.importorskip(
    "verl.checkpoint_engine", reason="SKIPPED: verl is not installed, or lacks what it needs"
)


def engine(url: Path, **settings: Any) -> Any:
    """Makes an engine as verl does: imports the module by its name, and finds the class in the
    registry."""
    from verl.utils.import_utils import import_external_libs

    import_external_libs("deltachain_integrations.verl")
    return verl.CheckpointEngineRegistry.new(
        "deltachain", bucket_size=1 << 20, chain=str(url), **settings
    )


def weights(step: int) -> dict[str, Any]:
    """The small model as tensors of torch, with NaN payloads, -0 and float8."""
    kinds = {
        "BF16": torch.bfloat16,
        "F32": torch.float32,
        "F8_E4M3": torch.float8_e4m3fn,
        "U8": torch.uint8,
    }
    return {
        name: torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kinds[dtype]).reshape(shape)
        for name, (dtype, shape, data) in model(step).items()
    }


def update(trainers: list[Any], rollouts: list[Any], step: int) -> list[dict[str, bytes]]:
    """Makes the calls of verl's `CheckpointEngineManager.update_weights`, in its order. Returns the
    tensors of each rollout worker."""
    metadata = [one.prepare() for one in trainers + rollouts]
    topology = type(trainers[0]).build_topology(len(trainers), len(rollouts), metadata)
    for group, kwargs in zip((trainers, rollouts), topology, strict=True):
        for number, one in enumerate(group):
            one.init_process_group(**{key: values[number] for key, values in kwargs.items()})

    async def received(one: Any) -> dict[str, bytes]:
        return {
            name: as_bytes(tensor) async for name, tensor in one.receive_weights(global_steps=step)
        }

    async def together() -> list[dict[str, bytes]]:
        sending = [
            one.send_weights(iter(weights(step).items()), global_steps=step) for one in trainers
        ]
        results = await asyncio.gather(*sending, *(received(one) for one in rollouts))
        return results[len(trainers) :]

    try:
        return asyncio.run(together())
    finally:
        for one in trainers + rollouts:
            one.finalize()


def expected(step: int) -> dict[str, bytes]:
    return {name: data for name, (_, _, data) in model(step).items()}


@pytest.mark.parametrize("shares", [False, True])
def test_rollout_workers_have_what_was_sent(tmp_path: Path, shares: bool) -> None:
    url = tmp_path / "chain"
    copy = {"host_copy": str(tmp_path / "copy"), "timeout": 60} if shares else {"timeout": 60}
    trainers = [engine(url, is_master=True, **copy), engine(url, is_master=False, **copy)]
    rollouts = [engine(url, **copy) for _ in range(3)]
    for step in range(3):
        assert update(trainers, rollouts, step) == [expected(step)] * 3
    # A restarted trainer continues, and a worker that joins late gets the whole version.
    trainers = [engine(url, is_master=True, **copy)]
    rollouts = [*rollouts[1:], engine(url, **copy)]
    assert update(trainers, rollouts, 3) == [expected(3)] * 3
    assert len(list((url / "commits").iterdir())) == 4
    if shares:
        assert dc.HostCopy(tmp_path / "copy").version == 3


def test_verl_s_own_manager_and_workers(tmp_path: Path) -> None:
    # Ray keeps a token in the home directory, and sends usage statistics.
    own = {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("verl_manager.py"), tmp_path],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 updates, the same bits in each of 2 rollout workers" in ran.stdout


def test_trainers_in_float32_publish_the_dtypes_of_the_checkpoint(tmp_path: Path) -> None:
    like = write_model(
        tmp_path / "like" / "model.safetensors", {"w": ("BF16", (4,), bytes(8))}
    ).parent
    trainer = engine(tmp_path / "chain", is_master=True, like=str(like))
    rollout = engine(tmp_path / "chain", timeout=60)
    trainer.init_process_group(version=trainer.prepare()["version"])
    rollout.init_process_group(version=0)
    weight = torch.tensor([1.0, -0.0, 1 / 3, 1e30])
    asyncio.run(trainer.send_weights(iter([("w", weight)])))

    async def received() -> dict[str, Any]:
        return {name: tensor async for name, tensor in rollout.receive_weights()}

    found = asyncio.run(received())["w"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.view(torch.int16), weight.bfloat16().view(torch.int16))


def test_what_fails_is_said(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    trainer = engine(
        url, is_master=True, store={"attempts": 1}, publisher={"guard": {"max_changed": 1}}
    )
    # Another process publishes meanwhile.
    trainer.init_process_group(version=trainer.prepare()["version"])
    with dc.Publisher(url) as other:
        other.publish(weights(0))
    with pytest.raises(dc.Error):
        asyncio.run(trainer.send_weights(iter(weights(1).items())))
    # A version that is never published.
    rollout = engine(url, timeout=0.01)
    rollout.init_process_group(version=5)

    async def received() -> list[Any]:
        return [name async for name, _ in rollout.receive_weights()]

    with pytest.raises(dc.TimeoutError):
        asyncio.run(received())
    # Duplicate tensors.
    with pytest.raises(dc.UsageError, match="duplicate"):
        asyncio.run(trainer.send_weights(iter([*weights(1).items(), *weights(1).items()])))
