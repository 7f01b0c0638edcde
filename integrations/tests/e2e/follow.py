"""Servers of vLLM that `deltachain follow --engine` updates: weights, and adapters. `run.py` starts
this."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors.torch import save_file

import deltachain as dc
from models import SIZES, tensors_of
from server import Server, fresh

RANK = 8


class Follow:
    """The command, while the block lasts."""

    def __init__(self, chain: Path, directory: Path, url: str, *words: str) -> None:
        command = [
            sys.executable,
            "-m",
            "deltachain",
            "follow",
            str(chain),
            str(directory),
            "--server",
            url,
        ]
        self.code: int | None = None
        self._process = subprocess.Popen([*command, "--poll", "0.5", *words])

    def __enter__(self) -> Follow:
        return self

    def until(self, condition: Callable[[], bool]) -> float:
        """Waits for a condition, and returns the seconds that it took."""
        begin = time.monotonic()
        while not condition():
            if self._process.poll() is not None or time.monotonic() - begin > 120:
                raise RuntimeError("`deltachain follow` has not brought the server there")
            time.sleep(0.05)
        return time.monotonic() - begin

    def kill(self) -> None:
        """Kills the process, without a chance to clean up."""
        self._process.kill()
        self._process.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self.code = self._process.wait(60)


def weights(folder: Path) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    rows: list[list[Any]] = []
    chain = folder / "followed"
    copy = folder / "followed-copy"
    for made in (chain, copy):
        shutil.rmtree(made, ignore_errors=True)
    numbers = (3, 4)
    fresh_of = {number: fresh(folder, number, plain=False) for number in numbers}
    with Server(folder / "other", folder / "server.log", plain=False) as server:
        start = server.answers()
        with (
            dc.Publisher(chain, like=folder / "base") as publisher,
            Follow(chain, copy, server.url, "--engine", "vllm") as following,
        ):
            for version, number in enumerate(numbers):
                publisher.publish_async(tensors_of(folder / f"saved-{number}")).result()
                seconds = following.until(lambda version=version: server.shown() == str(version))
                good = server.answers() == fresh_of[number] != start
                rows.append([f"version {version}", good, f"{seconds:.1f} s after it was published"])
        rows.append(
            ["SIGTERM ends the command", following.code == 0, f"exit code {following.code}"]
        )
        rows.append(["the server goes on", server.answers() == fresh_of[numbers[-1]], "as before"])
    return rows


def in_place(folder: Path, workers: int) -> list[list[Any]]:
    """A server that downloads the chain itself and writes in place, so the command keeps no model.
    Same rows as `weights`."""
    rows: list[list[Any]] = []
    chain, directory = folder / "followed", folder / "followed-names"
    for made in (chain, directory):
        shutil.rmtree(made, ignore_errors=True)
    numbers = (2, 3, 4)
    fresh_of = {number: fresh(folder, number, plain=True, workers=workers) for number in numbers}
    configuration = {"chain": str(chain)}
    words = ["--engine", "vllm", "--no-tensors"]
    with dc.Publisher(chain, like=folder / "base", profile="local") as publisher:
        log = folder / "server.log"
        served = Server(folder / "other", log, configuration, workers=workers)
        with served as server, Follow(chain, directory, server.url, *words) as it:
            begin = log.stat().st_size
            for version, number in enumerate(numbers):
                publisher.publish_async(tensors_of(folder / f"saved-{number}")).result()
                seconds = it.until(lambda version=version: server.shown() == str(version))
                said = log.read_bytes()[begin:].decode(errors="replace").splitlines()
                lines = [line for line in said if f"deltachain: version {version}, " in line]
                how = lines[0].partition("loaded ")[2]
                good = server.answers() == fresh_of[number] and len(lines) == workers
                good = good and all(
                    ("in place" if version else "all tensors") in line for line in lines
                )
                rows.append(
                    [f"version {version}", good, f"{seconds:.1f} s after it was published: {how}"]
                )
        rows.append(["SIGTERM ends the command", it.code == 0, f"exit code {it.code}"])
    kept = [path.name for path in directory.rglob("*.safetensors")]
    rows.append(["it keeps no tensors", not kept, ", ".join(kept)])
    return rows


def adapter(folder: Path, number: int) -> Path:
    """Saves a random adapter of the small model, as PEFT does."""
    saved = folder / f"adapter-{number}"
    saved.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(number)
    hidden = SIZES["hidden_size"]
    heads = {"q_proj": SIZES["num_attention_heads"], "v_proj": SIZES["num_key_value_heads"]}
    tensors = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for name, count in heads.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (RANK, hidden)), ("B", (count * SIZES["head_dim"], RANK))):
                values = torch.randn(shape, generator=generator) * 0.3
                tensors[f"{place}.lora_{part}.weight"] = values.bfloat16()
    save_file(tensors, saved / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 16,
        "bias": "none",
    }
    (saved / "adapter_config.json").write_text(
        json.dumps({**config, "target_modules": sorted(heads)})
    )
    return saved


def adapters(folder: Path) -> list[list[Any]]:
    """Adapters. Same rows as `weights`."""
    rows: list[list[Any]] = []
    chain, copy = folder / "adapters", folder / "adapters-copy"
    for made in (chain, copy):
        shutil.rmtree(made, ignore_errors=True)
    saved = [adapter(folder, number) for number in range(3)]
    allowed = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    words = ["--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "4"]
    with Server(
        folder / "base", folder / "server.log", plain=False, surroundings=allowed, words=words
    ) as server:

        def names() -> set[str]:
            return {model["id"] for model in server.ask("GET", "/v1/models")["data"]}

        said = [server.answers()]
        with (
            dc.Publisher(chain, like=saved[0]) as publisher,
            Follow(
                chain, copy, server.url, "--engine", "vllm-lora", "--adapter", "tuned"
            ) as following,
        ):
            for version, directory in enumerate(saved):
                publisher.publish_async(tensors_of(directory)).result()
                seconds = following.until(lambda version=version: f"tuned@{version}" in names())
                said.append(server.answers(f"tuned@{version}"))
                # The trainer's adapter, loaded by hand.
                path = {"lora_name": f"by-hand-{version}", "lora_path": str(directory)}
                server.ask("POST", "/v1/load_lora_adapter", path)
                good = (
                    said[-1] == server.answers(f"by-hand-{version}") and said[-1] not in said[:-1]
                )
                rows.append(
                    [f"adapter tuned@{version}", good, f"{seconds:.1f} s after it was published"]
                )
            following.until(lambda: "tuned@0" not in names())
            kept = {"it", "tuned@1", "tuned@2", *(f"by-hand-{version}" for version in range(3))}
            rows.append(
                ["older adapters are unloaded", names() == kept, ", ".join(sorted(names()))]
            )
            rows.append(
                ["the one before still answers", server.answers("tuned@1") == said[2], "as before"]
            )
            try:
                server.complete([5, 6], model="tuned@0")
                rows.append(["one that was unloaded", False, "it answers"])
            except urllib.error.HTTPError as error:
                rows.append(["one that was unloaded", error.code == 404, f"{error.code}"])
            rows.append(["the model without adapters", server.answers() == said[0], "as before"])
    return rows


def meanwhile(folder: Path) -> list[list[Any]]:
    """Another client loads adapters into a server that is followed, and the disk under the server's
    files fills up. Same rows as `weights`."""
    rows: list[list[Any]] = []
    chain, room = folder / "followed", folder / "room"
    shutil.rmtree(chain, ignore_errors=True)
    tuned = adapter(folder, 0)
    path = {"lora_name": "tuned", "lora_path": str(tuned)}
    words = ["--enable-lora", "--max-lora-rank", str(RANK)]
    more: dict[str, Any] = {"plain": False, "words": words}
    more["surroundings"] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    fresh_of = {}
    for number in (3, 4):
        with Server(folder / f"saved-{number}", folder / "server.log", **more) as server:
            server.ask("POST", "/v1/load_lora_adapter", path)
            fresh_of[number] = [server.answers(), server.answers("tuned")]
    room.mkdir(exist_ok=True)
    # Room for two versions and a link. Only root can mount this.
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(room)], capture_output=True
    )
    try:
        with (
            dc.Publisher(chain, like=folder / "base") as publisher,
            Server(folder / "other", folder / "server.log", **more) as server,
            Follow(chain, room / "copy", server.url, "--engine", "vllm") as following,
        ):

            def publish(number: int) -> int:
                return (
                    publisher.publish_async(tensors_of(folder / f"saved-{number}")).result().version
                )

            publish(3)
            following.until(lambda: server.shown() == "0")
            server.ask("POST", "/v1/load_lora_adapter", path)
            rows.append(
                [
                    "an adapter is loaded",
                    [server.answers(), server.answers("tuned")] == fresh_of[3],
                    "",
                ]
            )
            publish(4)
            following.until(lambda: server.shown() == "1")
            good = [server.answers(), server.answers("tuned")] == fresh_of[4]
            rows.append(["a version below an adapter", good, "the adapter stays, on the new model"])
            if mounted.returncode:
                print("SKIPPED: a disk that fills: only root can mount one")
                return rows
            junk = room / "junk"
            junk.write_bytes(bytes(shutil.disk_usage(room).free))
            publish(3)
            following.until(lambda: bool(dc.status(room / "copy").failing))
            status = dc.status(room / "copy")
            good = (
                server.shown() == "1" and [server.answers(), server.answers("tuned")] == fresh_of[4]
            )
            rows.append(
                [
                    "a disk that is full",
                    good,
                    str(status.last_error and status.last_error["message"])[:200],
                ]
            )
            junk.unlink()
            seconds = following.until(lambda: server.shown() == "2")
            good = [server.answers(), server.answers("tuned")] == fresh_of[3]
            rows.append(["a disk with room again", good, f"{seconds:.1f} s"])
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "--lazy", str(room)], check=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["weights", "in-place", "adapters", "meanwhile"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.what == "in-place":
        rows = in_place(given.folder, given.workers)
    else:
        rows = {"weights": weights, "adapters": adapters, "meanwhile": meanwhile}[given.what](
            given.folder
        )
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
