"""The cost of the binding: `diff` and `apply` of tensors in memory, and `prepare` of a chain's next
version for a copy in memory, through Python and in Rust, on the same pair.

    cargo build --release -p deltachain-bench --bin worker python python/benchmarks/overhead.py
    --worker target/release/worker [--mib 512] [--threads 2] [--tensors 64]

Makes a pair of BF16 states of which 1 % of the lanes differ, in a temporary directory. Each side
holds both in memory and takes turns with the other; medians of five rounds are printed. Both hash
the base in `apply`, and make a new state.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy

import deltachain as dc

ROUNDS = 5
WHAT = ("diff", "apply", "prepare")


def write(path: Path, tensors: dict[str, numpy.ndarray]) -> None:
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.data)


def pair(mib: int, tensors: int) -> tuple[dict[str, numpy.ndarray], dict[str, numpy.ndarray]]:
    generator = numpy.random.default_rng(1)
    lanes = (mib << 20) // 2 // tensors
    base, target = {}, {}
    for number in range(tensors):
        values = generator.normal(0, 0.02, lanes).astype(numpy.float32).view(numpy.uint32) >> 16
        old = values.astype(numpy.uint16)
        new = old.copy()
        new[generator.random(lanes) < 0.01] += 1
        base[f"layer.{number:05}"], target[f"layer.{number:05}"] = old, new
    return base, target


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", type=Path, required=True)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tensors", type=int, default=64)
    options = parser.parse_args()
    arrays = pair(options.mib, options.tensors)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("base.safetensors", "target.safetensors")]
        for path, tensors in zip(paths, arrays, strict=True):
            write(path, tensors)
        command = [options.worker, "compact", *paths, str(options.threads)]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()

        def ask(request: str) -> float:
            print(request, file=worker.stdin, flush=True)
            return json.loads(worker.stdout.readline()).get("seconds", 0.0)  # type: ignore[union-attr]

        base, target = (
            {
                name: dc.Tensor("BF16", tensor.shape, tensor.view(numpy.uint8))
                for name, tensor in tensors.items()
            }
            for tensors in arrays
        )
        times: dict[str, list[float]] = {
            name: [] for name in (f"{what} {side}" for what in WHAT for side in ("Rust", "Python"))
        }
        chain = Path(folder) / "chain"
        with dc.Publisher(chain) as publisher:
            for tensors in (base, target):
                publisher.publish(tensors)

        def follow() -> float:
            with dc.Subscriber(chain, kind="numpy", threads=options.threads) as subscriber:
                with subscriber.prepare(0).applying() as patches:
                    for _ in patches:
                        pass
                return timed(lambda: subscriber.prepare(1))

        link = dc.diff(base, target, threads=options.threads)
        for _ in range(ROUNDS):
            times["diff Rust"].append(ask("encode"))
            times["diff Python"].append(
                timed(lambda: dc.diff(base, target, threads=options.threads))
            )
            times["apply Rust"].append(ask("apply"))
            times["apply Python"].append(
                timed(lambda: dc.apply(base, [link], threads=options.threads))
            )
            times["prepare Rust"].append(ask(f"follow {chain}"))
            times["prepare Python"].append(follow())
        worker.stdin.close()
        worker.wait()
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in medians.items():
        print(
            f"{name:14} {seconds:7.3f} s  "
            f"({', '.join(f'{value:.3f}' for value in sorted(times[name]))})"
        )
    for what in WHAT:
        print(
            f"{what}: Python takes {medians[f'{what} Python'] / medians[f'{what} Rust'] - 1:+.1%} "
            "of Rust's time more"
        )


if __name__ == "__main__":
    main()
