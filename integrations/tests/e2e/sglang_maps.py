"""Maps of real models of SGLang: versions that are written in place equal the models that SGLang's
own loader loads from the trainer's files, by each tensor of each module, in each worker. `run.py`
starts this, once for each model and number of workers; this program starts itself for each
worker."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


class Worker:
    """A worker's models, without a scheduler.

    Args:
        folder: the folder that `models.py` has made.
        rank, size: which worker, and how many there are.
        meeting: the file through which they find each other.
    """

    def __init__(self, folder: Path, rank: int, size: int, meeting: Path) -> None:
        from sglang.srt.distributed.parallel_state import (
            init_distributed_environment,
            initialize_model_parallel,
        )
        from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
        from sglang.srt.server_args import ServerArgs

        self.folder = folder
        path = str(folder / "other")
        # Attention by torch, since there are no requests.
        more: dict[str, Any] = {"attention_backend": "torch_native", "disable_cuda_graph": True}
        self.arguments = ServerArgs(model_path=path, device="cpu", tp_size=size, **more)
        publish(self.arguments, role="weight_cache_daemon", ranks=SpawnRanks(rank, gpu_id=0))
        init_distributed_environment(size, rank, f"file://{meeting}", rank, "gloo")
        initialize_model_parallel(backend="gloo")
        self.model, config = self.load(folder / "other")
        os.environ["DELTACHAIN_SGLANG"] = json.dumps({"chain": str(folder / "chain")})
        from deltachain_integrations._sglang_engine import SglangWorker

        runner = SimpleNamespace(
            model=self.model, device="cpu", model_config=config, server_args=self.arguments
        )
        runner.weight_updater = SimpleNamespace(_assert_weight_cache_inactive=lambda what: None)
        group = get_parallel().tp_group.cpu_group
        manager = SimpleNamespace(
            tp_worker=SimpleNamespace(model_runner=runner), tp_cpu_group=group
        )
        self.follower = SglangWorker(manager)

    def load(self, path: Path) -> tuple[Any, Any]:
        """Loads a model as a server does that starts with this path. Returns it with its
        configuration."""
        from sglang.srt.configs.device_config import DeviceConfig
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.model_loader import get_model

        config = ModelConfig(str(path))
        load = LoadConfig()
        return get_model(
            model_config=config, load_config=load, device_config=DeviceConfig("cpu")
        ), config

    def update(self, number: int, digest: str) -> str:
        """Updates to a version, and returns what was loaded."""
        self.follower._receive(number, digest, None)
        self.follower._preparer.go_on()
        return self.follower.how


def tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a model: parameters, buffers, and other attributes of modules, also in
    lists."""
    for place, module in model.named_modules():
        own = {**vars(module), **module._parameters, **module._buffers}
        for name, value in own.items():
            for at, one in enumerate(value if isinstance(value, list | tuple) else [value]):
                if isinstance(one, torch.Tensor):
                    yield f"{place}.{name}.{at}", one


def bits(model: Any) -> dict[str, bytes]:
    """The bytes of all tensors of a model."""
    return {
        name: one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name, one in tensors(model)
    }


def proof(folder: Path, rank: int, size: int, meeting: Path) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    worker = Worker(folder, rank, size, meeting)
    versions = json.loads((folder / "versions.json").read_text())
    fresh = [bits(worker.load(folder / f"saved-{number}")[0]) for number in range(len(versions))]
    places = {name: one.data_ptr() for name, one in tensors(worker.model)}
    rows: list[list[Any]] = []
    last = len(versions) - 1
    # One by one, then back, for which there are no links, then several versions at once.
    sequence = [*range(last + 1), 1, last]
    for at, number in enumerate(sequence):
        how = worker.update(number, versions[number]["digest"])
        is_in_place = at > 0 and number > sequence[at - 1]
        own = bits(worker.model)
        other = sorted(
            name
            for name in own.keys() | fresh[number].keys()
            if own.get(name) != fresh[number].get(name)
        )
        good = not other and how.startswith("in place" if is_in_place else "all tensors")
        found = worker.follower._map
        into = {} if found is None else found.into()
        reload = [] if found is None else sorted(found.reload.items())
        told = f"{len(into)} tensors mapped, {len(reload)} by the loader"
        rows.append([f"version {number}, {how}", good, f"{told}; {other[:3]}{reload[:3]}"])
    rows.append(
        [
            "versions differ",
            len({json.dumps(sorted(map(repr, one.items()))) for one in fresh}) == last + 1,
            "",
        ]
    )
    moved = [name for name, one in tensors(worker.model) if places.get(name) != one.data_ptr()]
    rows.append(["tensors stay where they are", not moved, str(moved[:3])])
    worker.follower.shutdown()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rank", type=int)
    given = parser.parse_args()
    meeting = given.out.with_suffix(".meeting").resolve()
    if given.rank is not None:
        rows = proof(given.folder, given.rank, given.workers, meeting)
        given.out.with_suffix(f".{given.rank}").write_text(json.dumps(rows))
        return
    meeting.unlink(missing_ok=True)
    stubs = str(Path(__file__).resolve().parent / "stubs")
    # SGLang would find a library for GPUs.
    more = {
        "PYTHONPATH": stubs,
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_NCCL_SO_PATH": "none",
        "OMP_NUM_THREADS": "1",
    }
    environment = {**os.environ, **more}
    words = [
        sys.executable,
        __file__,
        given.folder,
        given.out,
        "--workers",
        given.workers,
        "--rank",
    ]
    started = [
        subprocess.Popen(
            [*map(str, words), str(rank)], env={**environment, "LOCAL_RANK": str(rank)}
        )
        for rank in range(given.workers)
    ]
    codes = [one.wait() for one in started]
    if any(codes):
        sys.exit(1)
    of = [
        json.loads(given.out.with_suffix(f".{rank}").read_text()) for rank in range(given.workers)
    ]
    # Joins the rows of all workers.
    rows = [[one[0][0], all(good for _, good, _ in one), one[0][2]] for one in zip(*of)]
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
