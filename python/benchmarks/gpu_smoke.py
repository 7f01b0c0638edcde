"""Publishes tensors of a GPU, and updates two other copies on the GPU: one by patches, one in
place. Compares all copies bit for bit, and at the end by their digests.

    python gpu_smoke.py [--device cuda] [--mib 1024] [--versions 3]

Needs torch. With `--device cpu`, every line is marked as a stand-in: a function then reads the
tensors piece by piece, and torch patches them, as on a GPU, but nothing crosses a bus.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import deltachain as dc
from deltachain import _tensor_follower
from deltachain._device import reader
from deltachain._device_memory import DeviceMemory

TENSORS = 16


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, including the work that the device still had to do, and the result."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    result = work()
    wait()
    return time.perf_counter() - began, result


def weights(model: dict[str, torch.Tensor], device: torch.device) -> Iterator[tuple[str, Any]]:
    """Yields the stream to publish."""
    for name, tensor in model.items():
        # The stand-in for a device: the reader of GPU memory reads CPU memory.
        yield (
            name,
            tensor
            if device.type == "cuda"
            else dc.Tensor("BF16", tuple(tensor.shape), reader(name, tensor)),
        )


def load(held: dict[str, torch.Tensor], patches: Any, device: torch.device) -> int:
    """Applies patches, and returns how many elements they have."""
    elements = 0
    for patch in patches:
        elements += patch.count
        values = patch.values.to(device)
        if patch.indices is None:
            held[patch.name] = values.clone()
        else:
            held[patch.name].view(-1).index_copy_(0, patch.indices.to(device).long(), values)
    return elements


def in_place(url: str, tensors: dict[str, torch.Tensor], device: torch.device) -> dc.Subscriber:
    """Follows with these tensors as the only copy, which torch reads and writes."""
    if device.type == "cpu":
        # The stand-in for a device.
        _tensor_follower._torch_for = lambda _: DeviceMemory()
    return dc.Subscriber(url, into=tensors | {"twin": tensors["layers.0.weight"]})


def equal(model: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> None:
    for name, tensor in model.items():
        assert torch.equal(tensor.view(torch.int16), held[name].view(torch.int16)), (
            f"{name} differs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--versions", type=int, default=3)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("SKIPPED: torch has no CUDA device here: give --device cpu for the stand-in")
        return
    mark = torch.cuda.get_device_name() if device.type == "cuda" else "STAND-IN ON THE CPU"
    print(
        f"{mark}; torch {torch.__version__}; deltachain {dc.__version__}; a model of {options.mib} "
        "MiB"
    )
    torch.manual_seed(0)
    lanes = (options.mib << 20) // 2 // TENSORS
    shape = (lanes // 64, 64)
    random = ((torch.randn(shape, device=device) / 50).bfloat16() for _ in range(TENSORS))
    model = {f"layers.{number}.weight": tensor for number, tensor in enumerate(random)}
    if device.type == "cpu":
        model["twin"] = model["layers.0.weight"]
    held: dict[str, torch.Tensor] = {}
    own = {name: torch.zeros_like(tensor) for name, tensor in model.items() if name != "twin"}
    with (
        tempfile.TemporaryDirectory() as folder,
        dc.Publisher(folder, profile=["compact", "local"]) as publisher,
        dc.Subscriber(folder, kind="torch") as subscriber,
        in_place(folder, own, device) as patched,
    ):
        for version in range(options.versions + 1):
            for tensor in model.values():
                changed = torch.randperm(tensor.numel(), device=device)[: tensor.numel() // 100]
                tensor.view(-1)[changed] *= 1.01
            taking, job = timed(device, lambda: publisher.publish_async(weights(model, device)))
            storing, published = timed(device, job.result)
            print(
                f"{mark}: version {version}, {published.bytes / (1 << 20):.1f} MiB: copied from "
                f"the device in {taking:.3f} s, links made and stored in {storing:.3f} s"
            )
            preparing, update = timed(device, subscriber.prepare)

            def apply(update: Any = update) -> int:
                with update.applying() as patches:
                    return load(held, patches, device)

            pause, elements = timed(device, apply)
            equal(model, held)
            print(
                f"{mark}: version {version} by patches: prepared in {preparing:.3f} s, {elements} "
                f"elements loaded in {pause:.3f} s, equal bit for bit"
            )
            preparing, update = timed(device, patched.prepare)
            pause, _ = timed(device, update.apply)
            equal(model, own | ({"twin": own["layers.0.weight"]} if device.type == "cpu" else {}))
            assert patched.proof == ("memory" if version == 0 else "changed_lanes"), patched.proof
            print(
                f"{mark}: version {version} in place: proven in {preparing:.3f} s, written in "
                f"{pause:.3f} s ({patched.proof}), equal bit for bit"
            )
        checking, _ = timed(device, patched.check)
        hashing, _ = timed(device, patched.verify)
        print(
            f"{mark}: the sums of all memory compared in {checking:.3f} s, its digests on the host "
            f"in {hashing:.3f} s: version {patched.version}, {patched.digest}"
        )
        assert patched.digest == published.digest


if __name__ == "__main__":
    main()
