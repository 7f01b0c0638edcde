"""Measures how long updates of a model of about half a billion parameters take, part by part, and
how much memory, compared with a copy of its memory and reloads of the whole model in the same run.
`run.py` starts this."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch

import served
from in_process import Updated
from models import tensors_of


def forget(folder: Path) -> None:
    """Drops the files of a model from the page cache, so that they are read from disk."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def reset_peak() -> int:
    """Resets the peak of this process's memory, and returns its current bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """A value of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found) * 1024


def in_shared_memory() -> int:
    """Number of bytes in /dev/shm."""
    found = os.statvfs("/dev/shm")
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def memcpy(folder: Path) -> tuple[float, int]:
    """Seconds to copy all tensors to allocated memory, the best of five, and their bytes."""
    weights = list(tensors_of(folder).values())
    copies = [torch.empty_like(weight).copy_(weight) for weight in weights]
    best = float("inf")
    for _ in range(5):
        begin = time.monotonic()
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight)
        best = min(best, time.monotonic() - begin)
    return best, sum(weight.nbytes for weight in weights)


class Live:
    """A chain in which the versions of another chain appear one after the other, so that no trainer
    uses the processors."""

    def __init__(self, whole: Path, place: Path) -> None:
        self.whole, self.place = whole, place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place, ignore=shutil.ignore_patterns("commits"))
        (place / "commits").mkdir()

    def publish(self, number: int) -> None:
        """Does the last step of a publish: adds the commit."""
        name = f"{number:020d}.json"
        made = self.place / name
        shutil.copy(self.whole / "commits" / name, made)
        made.rename(self.place / "commits" / name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mode", required=True)
    given = parser.parse_args()
    folder = given.folder
    chain = Live(folder / "chain", folder / "live")
    engine = Updated(folder, plain=given.mode == "sparse")
    copied, size = memcpy(folder / "saved-0")
    rows = []
    for number, row in enumerate(engine.rows):
        shared = in_shared_memory()
        before = reset_peak()
        begin = time.monotonic()
        chain.publish(number)
        if number == 0:
            engine.begin(given.mode, "live")
        # The engine serves while the version is prepared.
        while engine.engine(lambda backend: backend._preparer.ready) != number:
            time.sleep(0.01)
        staged = time.monotonic() - begin
        # Clients do this before the pause: it reads all weights.
        engine.states()
        times = engine.update(number, digest=row["digest"])
        served.answers(engine.llm, tokens=1)
        whole = time.monotonic() - begin
        more = (memory("VmHWM") - before) / size
        shared = in_shared_memory() - shared
        parts = [
            f"{seconds:.3f} s" for seconds in (staged, times["wait"], times["load"], times["pause"])
        ]
        parts += [
            f"{times['pause'] / copied:.2f}",
            f"{whole:.3f} s",
            f"{more:.2f}",
            f"{shared / size:.2f}",
        ]
        rows.append([f"{number}, {row['changed'] / row['elements']:.1%} changed", *parts])
    lines = []
    for number, parts in enumerate(rows):
        # Measured last, since the backend loads all tensors after a reload.
        forget(folder / f"saved-{number}")
        for _ in range(2):
            begin = time.monotonic()
            engine.llm.collective_rpc(
                "reload_weights", kwargs={"weights_path": str(folder / f"saved-{number}")}
            )
            parts.append(f"{time.monotonic() - begin:.3f} s")
        lines.append(f"| {given.mode} | {' | '.join(parts)} |")
        print(lines[-1], flush=True)
    lines.append(
        f"| a copy of the model's {size / 1e6:.0f} MB in memory | | | | | {copied:.3f} s | 1.00 | "
        "| | | | |"
    )
    engine.llm.collective_rpc("shutdown_weight_transfer_engine")
    given.out.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
