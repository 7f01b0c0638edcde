"""The cost of following for a process whose tensors are the only copy: its peak memory, and
seconds.

    python following.py [--size MIB] [--threads N] [--change FRACTION] [--by library|torch]

Makes a chain with one link of the profile local, in which the given fraction of all elements
changes. One process follows it as users do, and another one with torch reading and writing the
tensors, as on devices. `memcpy`, `check` and `sums` cover all tensors, with the same number of
threads. Needs torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from publishing import MIB, reset_peak, status, timed

import deltachain as dc
from deltachain import _tensor_follower
from deltachain._device_memory import DeviceMemory
from deltachain._sums import of_bytes

TENSORS = 16


def publish(url: Path, size: int, change: float, threads: int | None) -> None:
    torch.manual_seed(0)
    lanes = size * MIB // 2 // TENSORS
    tensors = {
        f"layers.{number}.weight": torch.randn(lanes).mul_(0.02).bfloat16()
        for number in range(TENSORS)
    }
    with dc.Publisher(url, profile="local", threads=threads) as publisher:
        publisher.publish(tensors)
        for tensor in tensors.values():
            changes = torch.rand(lanes) < change
            tensor.view(torch.int16)[changes] += 1
        print(f"the link has {publisher.publish(tensors).bytes / MIB:.1f} MiB", flush=True)


def follow(url: str, size: int, by: str, threads: int | None) -> None:
    """Follows in this process, and prints the seconds and the memory."""
    torch.set_num_threads(threads or torch.get_num_threads())
    lanes = size * MIB // 2 // TENSORS
    tensors = {
        f"layers.{number}.weight": torch.zeros(lanes, dtype=torch.bfloat16)
        for number in range(TENSORS)
    }
    for tensor in tensors.values():
        # Touches all pages.
        tensor.fill_(1)
    if by == "torch":
        _tensor_follower._torch_for = lambda _: DeviceMemory()
    print(f"{by}:")
    with dc.Subscriber(url, into=tensors, threads=threads) as subscriber:
        measured("loads version 0", lambda: subscriber.prepare(0).apply())
        update = measured("proves version 1", lambda: subscriber.prepare(1))
        measured("the pause", update.apply)
        assert subscriber.proof == "changed_lanes", subscriber.proof
        measured("check", subscriber.check)
    if by == "torch":
        measured(
            "sums", lambda: [of_bytes(tensor.view(torch.int16)) for tensor in tensors.values()]
        )
    copies = {name: torch.empty_like(tensor).fill_(1) for name, tensor in tensors.items()}
    measured("memcpy", lambda: [copies[name].copy_(tensor) for name, tensor in tensors.items()])


def measured(what: str, work: Callable[[], Any]) -> Any:
    reset_peak()
    before = status("VmRSS")
    took, result = timed(work)
    print(
        f"  {what}: {1000 * took:.1f} ms, {(status('VmHWM') - before) / MIB:.0f} MiB beyond the "
        "tensors",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="size of the model in MiB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--change", type=float, default=0.01, help="fraction of the elements that change"
    )
    parser.add_argument("--by", choices=("library", "torch"), help="only this executor")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of is not None:
        follow(options.of, options.size, options.by, options.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder) / "chain"
        publish(url, options.size, options.change, options.threads)
        for by in [options.by] if options.by else ["library", "torch"]:
            command = [sys.executable, __file__, "--of", url, "--by", by]
            command += ["--size", str(options.size), "--threads", str(options.threads)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
