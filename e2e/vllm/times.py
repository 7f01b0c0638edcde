"""How long updates take with a model of about half a billion parameters, part by part, beside a reload of the whole
model from disk in the same run. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import deltachain as dc
from in_process import Updated
from models import tensors_of


def forget(folder: Path) -> None:
    """Drops the files of a model from the system's cache, so that they are read from the disk."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mode", required=True)
    given = parser.parse_args()
    folder = given.folder
    shutil.rmtree(folder / "chain", ignore_errors=True)
    engine = Updated(folder, plain=given.mode == "sparse")
    rows = []
    with dc.Publisher(str(folder / "chain"), like=folder / "base", profile="local") as publisher:
        for number in range(len(engine.rows)):
            published = publisher.publish_async(tensors_of(folder / f"saved-{number}")).result()
            begin = time.monotonic()
            if number == 0:
                engine.begin(given.mode)
            # The engine serves meanwhile.
            while engine.engine(lambda backend: backend._copy.ready) != number:
                time.sleep(0.01)
            staged = time.monotonic() - begin
            # As clients do before the pause: it reads all weights.
            engine.states()
            times = engine.update(number, digest=published.digest)
            share = f"{published.changed / published.elements:.1%} changed"
            rows.append([f"{number}, {share}", staged, times["wait"], times["load"], times["pause"]])
    lines = []
    for number, (name, *parts) in enumerate(rows):
        # Afterwards, since the backend then loads all tensors.
        forget(folder / f"saved-{number}")
        begin = time.monotonic()
        engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder / f"saved-{number}")})
        seconds = " | ".join(f"{part:.3f} s" for part in (*parts, time.monotonic() - begin))
        lines.append(f"| {given.mode} | {name} | {seconds} |")
        print(lines[-1], flush=True)
    engine.llm.collective_rpc("shutdown_weight_transfer_engine")
    given.out.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
