"""Tensors that another thread moves while a follower reads or writes them, which the follower's
documentation excludes: prints a table of the outcomes, and promises nothing. Each row runs in a
process of its own, since some may crash.

    python benchmarks/moved_meanwhile.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections import Counter

import torch

import deltachain as dc
from deltachain import _tensor_follower
from deltachain._device_memory import DeviceMemory

VERSIONS = 40
SHAPE = (64, 4096)
WAYS = {
    "share_memory_": lambda tensor: tensor.detach().share_memory_(),
    "storage.resize_, and back": lambda tensor: [
        tensor.untyped_storage().resize_(size) for size in (8 * tensor.nbytes, tensor.nbytes)
    ],
    ".data =": lambda tensor: setattr(tensor, "data", tensor.detach().clone()),
    "set_": lambda tensor: tensor.set_(tensor.detach().clone()),
}


def values(version: int) -> dict[str, torch.Tensor]:
    """Returns tensors of which a few lanes change with each version."""
    lanes = torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.int16)
    for step in range(version):
        lanes[step::97] += 1
    return {f"w{number}": (lanes + number).view(torch.bfloat16).view(SHAPE) for number in range(8)}


def follow(way: str, route: str) -> Counter[str]:
    """Follows a chain while a thread moves one tensor after another."""
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as url:
        with dc.Publisher(url, profile="local") as publisher:
            for version in range(VERSIONS):
                publisher.publish(values(version))
        into = {name: torch.zeros_like(tensor) for name, tensor in values(0).items()}
        stop = threading.Event()

        def move() -> None:
            while not stop.is_set():
                for tensor in into.values():
                    WAYS[way](tensor)

        thread = threading.Thread(target=move)
        if route == "torch":
            _tensor_follower._torch_for = lambda _: DeviceMemory()
        with dc.Subscriber(url, into=into) as subscriber:
            subscriber.prepare(0).apply()
            thread.start()
            for version in range(1, VERSIONS):
                try:
                    subscriber.prepare(version).apply()
                    expected = values(version)
                    is_right = all(
                        torch.equal(into[name].view(torch.int16), expected[name].view(torch.int16))
                        for name in into
                    )
                    said["right" if is_right else "wrong"] += 1
                except dc.Error as error:
                    said[type(error).__name__ + (" torn" if subscriber.torn else "")] += 1
            stop.set()
            thread.join()
    return said


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(", ".join(f"{what} {count}" for what, count in follow(*sys.argv[1:]).most_common()))
        sys.exit()
    print("| another thread does | by | versions taken |\n|---|---|---|")
    for way in WAYS:
        for route in ("the library", "torch"):
            ran = subprocess.run(
                [sys.executable, __file__, way, route], capture_output=True, text=True, check=False
            )
            print(
                f"| `{way}` | {route} | "
                f"{ran.stdout.strip() or f'the process died: {ran.returncode}'} |",
                flush=True,
            )
