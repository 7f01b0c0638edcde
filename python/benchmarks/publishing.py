"""The cost of publishing for the training process: memory, time, and whether a stalled store is
noticed.

    python publishing.py memory|stall|many|rounds|restart [--size MIB] [--threads N] [--seconds S]

Each command prints its measurements with the bound for them. Needs numpy.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy

import deltachain as dc

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from stalling_store import StallingStore

MIB = 1 << 20


def status(field: str) -> int:
    """A field of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Model:
    """Tensors of bfloat16, as bytes. One lane in a hundred changes with each step."""

    def __init__(self, size: int, tensors: int) -> None:
        self.random = numpy.random.default_rng(0)
        lanes = size // tensors // 2
        weights = self.random.normal(0, 0.02, lanes).astype("float32").view("uint32") >> 16
        self.tensors = {
            f"layers.{number}.weight": weights.astype("uint16") for number in range(tensors)
        }

    def step(self) -> None:
        for tensor in self.tensors.values():
            places = self.random.integers(0, len(tensor), max(1, len(tensor) // 100))
            tensor[places] ^= 1

    def stream(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.tensors.items():
            yield name, dc.Tensor("BF16", tensor.shape, tensor)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def memory(size: int, threads: int | None, folder: Path) -> None:
    """Measures the peak of resident memory beyond the model, the copy of the head and one snapshot.
    With MALLOC_MMAP_THRESHOLD_=1048576 glibc returns freed memory at once, which shows how much is
    really needed."""
    model = Model(size * MIB, 16)
    # Version 0 is a snapshot, for which every element is compressed. That memory is not returned at
    # once, so another process makes the snapshot.
    child = os.fork()
    if child == 0:
        with dc.Publisher(folder / "chain", threads=threads) as pub:
            pub.publish(model.stream())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    model.step()
    base = status("VmRSS")
    largest = max(tensor.nbytes for tensor in model.tensors.values())
    with dc.Publisher(folder / "chain", threads=threads) as pub:
        for version in range(1, 5):
            reset_peak()
            made = pub.publish(model.stream())
            beyond = status("VmHWM") - base - 2 * model.nbytes
            bound = largest + (threads or os.cpu_count() or 1) * 64 * MIB
            print(
                f"version {version}: {beyond / MIB:.0f} MiB beyond model, head copy and snapshot "
                f"of {model.nbytes / MIB:.0f} MiB each; bound {bound / MIB:.0f} MiB; link "
                f"{made.bytes / MIB:.2f} MiB"
            )
            model.step()


def stall(seconds: float, folder: Path) -> None:
    """Measures the steps of a trainer while uploads stall."""
    work = numpy.random.default_rng(1).normal(size=(300, 300)).astype("float32")

    def steps(length: float) -> list[float]:
        end, times = time.perf_counter() + length, []
        while time.perf_counter() < end:
            times.append(timed(lambda: [work @ work for _ in range(10)])[0])
        return times

    # Each link is one request, without multipart uploads.
    model = Model(8 * MIB, 16)
    with (
        StallingStore() as store,
        dc.Publisher(store.chain(stall=4 * seconds)) as pub,
    ):
        pub.publish(model.stream())
        model.step()
        before = steps(seconds / 2)
        store.stall = seconds
        began = time.perf_counter()
        taken, job = timed(lambda: pub.publish_async(model.stream()))
        beside = steps(seconds / 2)
        assert not job.done(), "the store has not stalled"
        made = job.result()
        took = time.perf_counter() - began
        after = steps(seconds / 2)
    for name, times in (("before", before), ("while an upload stalls", beside), ("after", after)):
        print(f"{name}: {len(times)} steps, median {1000 * statistics.median(times):.2f} ms")
    print(
        f"publish_async returned after {1000 * taken:.0f} ms; version {made.version} was there "
        f"after {took:.0f} s"
    )


def many(count: int, folder: Path) -> None:
    """Measures the cost of each of many small tensors in the binding, compared with the diff."""
    lanes = 7_000
    random = numpy.random.default_rng(0)
    old = {
        f"experts.{number}.w": random.integers(0, 1 << 16, lanes, "uint16")
        for number in range(count)
    }
    new = {name: tensor.copy() for name, tensor in old.items()}
    for tensor in new.values():
        tensor[::100] ^= 1
    copied = min(timed(lambda: [tensor.copy() for tensor in new.values()])[0] for _ in range(3))
    diffs = [timed(lambda: dc.diff(old, new))[0] for _ in range(3)]
    with dc.Publisher(folder / "chain") as pub:
        pub.publish(old)
        times = []
        for tensors in (new, old, new):
            times.append(pub.publish(tensors).times)
    taken = statistics.median(time.snapshot for time in times)
    stored = statistics.median(time.store for time in times)
    print(
        f"{count} tensors of {2 * lanes} bytes: numpy copies them in {copied:.2f} s; the snapshot "
        f"took {taken:.2f} s, {1e6 * (taken - copied) / count:.1f} us for each more; diff "
        f"{statistics.median(diffs):.2f} s, link made and stored {stored:.2f} s"
    )


def rounds(count: int, folder: Path) -> None:
    """Measures resident memory after a number of versions, published and followed in this
    process."""
    model = Model(32 * MIB, 16)
    sizes = {}
    with dc.Publisher(folder / "chain") as pub:
        subscriber = dc.Subscriber(folder / "chain", kind="numpy")
        for version in range(count + 20):
            pub.publish(model.stream())
            model.step()
            with subscriber.prepare().applying() as patches:
                for _ in patches:
                    pass
            gc.collect()
            sizes[version] = status("VmRSS")
            if version % 20 == 19:
                print(f"after version {version}: {sizes[version] / MIB:.1f} MiB", flush=True)
    growth = sizes[count + 19] - sizes[19]
    print(f"growth in {count} rounds: {growth / MIB:.2f} MiB; bound 1 MiB")


def restart(size: int, folder: Path) -> None:
    """Measures the first version after a restart, whose base is built from the chain, and the next
    one."""
    model = Model(size * MIB, 16)
    with dc.Publisher(folder / "chain") as pub:
        pub.publish(model.stream())
    with dc.Publisher(folder / "chain") as pub:
        for name in ("first", "second"):
            model.step()
            made = pub.publish(model.stream())
            print(
                f"{name} version after a restart: {made.times.store:.2f} s, link "
                f"{made.bytes / MIB:.2f} MiB"
            )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("what", choices=["memory", "stall", "many", "rounds", "restart"])
    arguments.add_argument("--size", type=int, default=1024, help="size of the model in MiB")
    arguments.add_argument("--threads", type=int, help="by default, as many as processors")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--count", type=int, help="number of tensors or rounds")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        match given.what:
            case "memory":
                memory(given.size, given.threads, folder)
            case "stall":
                stall(given.seconds, folder)
            case "many":
                many(given.count or 70_000, folder)
            case "rounds":
                rounds(given.count or 100, folder)
            case "restart":
                restart(given.size, folder)
    assert threading.active_count() == 1, "a thread is left"
    sys.stdout.flush()


if __name__ == "__main__":
    main()
