"""Publishes tensors of a GPU and brings another copy on the GPU forward by patches, and compares both bit for bit.

    python gpu_smoke.py [--mib 1024] [--versions 3]

Needs torch. Without a GPU the same is done on the CPU, and every line is marked so: the tensors are then read piece by
piece by a function, as those of a GPU are, but nothing crosses a bus.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import deltachain as dc

TENSORS = 16


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, with what the device still had to do, and the result."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    result = work()
    wait()
    return time.perf_counter() - began, result


def weights(model: dict[str, torch.Tensor], device: torch.device) -> Iterator[tuple[str, Any]]:
    """The stream that is published."""
    from deltachain._device import reader

    for name, tensor in model.items():
        # The stand-in for a device: what reads a GPU's memory reads that of the CPU.
        yield name, tensor if device.type == "cuda" else dc.Tensor("BF16", tuple(tensor.shape), reader(name, tensor))


def load(held: dict[str, torch.Tensor], patches: Any, device: torch.device) -> int:
    """Puts patches where they belong; how many elements they have."""
    elements = 0
    for patch in patches:
        elements += patch.count
        values = patch.values.to(device)
        if patch.indices is None:
            held[patch.name] = values.clone()
        else:
            held[patch.name].view(-1).index_copy_(0, patch.indices.to(device).long(), values)
    return elements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--versions", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mark = torch.cuda.get_device_name() if device.type == "cuda" else "STAND-IN ON THE CPU"
    print(f"{mark}; torch {torch.__version__}; deltachain {dc.__version__}; a model of {options.mib} MiB")
    torch.manual_seed(0)
    lanes = (options.mib << 20) // 2 // TENSORS
    shape = (lanes // 64, 64)
    random = ((torch.randn(shape, device=device) / 50).bfloat16() for _ in range(TENSORS))
    model = {f"layers.{number}.weight": tensor for number, tensor in enumerate(random)}
    held: dict[str, torch.Tensor] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        dc.Publisher(folder) as publisher,
        dc.Subscriber(folder, kind="torch") as subscriber,
    ):
        for version in range(options.versions + 1):
            for tensor in model.values():
                changed = torch.randperm(tensor.numel(), device=device)[: tensor.numel() // 100]
                tensor.view(-1)[changed] *= 1.01
            taking, job = timed(device, lambda: publisher.publish_async(weights(model, device)))
            storing, published = timed(device, job.result)
            preparing, update = timed(device, subscriber.prepare)

            def apply(update: Any = update) -> int:
                with update.applying() as patches:
                    return load(held, patches, device)

            pause, elements = timed(device, apply)
            for name, tensor in model.items():
                same = torch.equal(tensor.view(torch.int16), held[name].view(torch.int16))
                assert same, f"{name} differs at version {version}"
            print(
                f"{mark}: version {version}, {published.bytes / (1 << 20):.1f} MiB: copied from the device in "
                f"{taking:.3f} s, link made and stored in {storing:.3f} s, prepared in {preparing:.3f} s, {elements} "
                f"elements loaded in {pause:.3f} s, equal bit for bit"
            )


if __name__ == "__main__":
    main()
