"""Maps of real models of vLLM: versions that are written in place equal the ones that vLLM's own
loader loads from disk, bit for bit, in each worker. `run.py` starts this, once for each model and
number of workers."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import deltachain as dc
import served
from in_process import Updated

# Models whose loaders cast some tensors or compute with them, and have to do so for each version.
# Some of these tensors change in each version.
COMPUTED = frozenset({"FalconH1ForCausalLM", "Glm4MoeForCausalLM", "Qwen3NextForCausalLM"})


def checksums(engine: Updated) -> list[dict[str, str]]:
    """Checksums of each tensor, in each worker."""
    found = engine.llm.collective_rpc("compute_weight_checksums")
    assert isinstance(found, list)
    return found


def mapped(worker: Any) -> list[Any]:
    """Facts about a worker's map."""
    backend = worker.weight_transfer_engine
    found = backend._map
    if found is None:
        return [type(backend.model).__name__, backend.how, 0, 0, 0]
    into = found.into()
    # Without mapped parts nothing would be compared.
    parts = sum(len(own) for own in into.values())
    return [type(backend.model).__name__, backend.how, len(into), parts, len(backend._rest)]


def addresses(worker: Any) -> list[tuple[str, int]]:
    """The addresses of a worker's tensors."""
    return [(name, tensor.data_ptr()) for name, tensor in worker.weight_transfer_engine._tensors()]


def check(worker: Any) -> float:
    """Compares the sums of all of a worker's memory with those of the version that it holds."""
    seconds = worker.weight_transfer_engine._preparer.check()
    assert isinstance(seconds, float)
    return seconds


def proof(folder: Path, workers: int, is_packed: bool) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text. With packed experts, these
    layers are loaded."""
    os.environ |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    more: dict[str, Any] = {}
    if workers > 1:
        # Otherwise each worker binds processors of its own.
        os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        more["tensor_parallel_size"] = workers
    engine = Updated(folder, plain=2 if is_packed else 1, **more)
    places = engine.llm.collective_rpc(addresses)
    engine.begin("sparse")
    found, last = {}, len(engine.rows) - 1
    # One by one, then back, for which there are no links, then several versions at once.
    sequence = [*range(last + 1), 1, last // 2, last]
    rows: list[list[Any]] = []
    for at, number in enumerate(sequence):
        engine.update(number)
        told = engine.llm.collective_rpc(mapped)
        is_in_place = at > 0 and number > sequence[at - 1]
        good = all(
            how.startswith("in place" if is_in_place else "all tensors") for _, how, *_ in told
        )
        for name, how, *_, rest in told:
            is_computed = is_packed or name in COMPUTED
            good = (
                good
                and bool(rest) == is_computed
                and (" by the loader" in how) == (is_computed and is_in_place)
            )
        own = [checksums(engine), served.answers(engine.llm)]
        good = good and found.setdefault(number, own) == own
        what = "; ".join(
            f"{name}: {tensors} tensors in {parts} parts"
            + (f", {rest} by the loader" if rest else "")
            for name, _, tensors, parts, rest in told
        )
        rows.append([f"version {number}, {told[0][1]}", good, what])
    rows.append(
        ["versions differ", len({json.dumps(own) for own in found.values()}) == len(found), ""]
    )
    checked = engine.llm.collective_rpc(check)
    rows.append(["all memory has the version's sums", None not in checked, ""])
    for number, own in found.items():
        if is_packed:
            # A reload of vLLM leaves experts unpacked.
            engine.begin("reload")
            engine.llm.collective_rpc(lambda worker: worker.weight_transfer_engine._forget())
            engine.update(number)
        else:
            saved = str(folder / f"saved-{number}")
            engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": saved})
            engine.llm.reset_prefix_cache()
        good = [checksums(engine), served.answers(engine.llm)] == own
        by = "the backend" if is_packed else "vLLM, from disk,"
        rows.append(
            [
                f"version {number} equals what {by} loads as a whole",
                good,
                f"{len(own[0][0])} tensors",
            ]
        )
    rows.append(["tensors stay where they are", engine.llm.collective_rpc(addresses) == places, ""])
    if not is_packed:
        engine.update(last)
        told = engine.llm.collective_rpc(mapped)
        good = (
            all(how == "all tensors" for _, how, *_ in told) and checksums(engine) == found[last][0]
        )
        rows.append(["after a reload behind the backend, all is loaded", good, ""])
    engine.llm.collective_rpc("shutdown_weight_transfer_engine")
    return rows


def refusal(folder: Path) -> list[list[Any]]:
    """A model whose loader copies tensors itself, which vLLM's reload loses. Same rows as
    `proof`."""
    engine = Updated(folder, plain=True)
    before, saved = checksums(engine)[0], str(folder / "saved-0")
    engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": saved})
    kept = [
        name
        for name, own in checksums(engine)[0].items()
        if "experts" in name and before[name] == own
    ]
    rows: list[list[Any]] = [
        ["vLLM's own reload leaves experts as they were", bool(kept), f"{len(kept)} tensors"]
    ]
    for mode in ("sparse", "reload"):
        engine.begin(mode)
        try:
            engine.update(0)
            rows.append([f"{mode} is refused", False, "it was not"])
        except dc.TornError as error:
            rows.append([f"{mode} is refused", "loses tensors" in str(error), str(error)])
    engine.llm.collective_rpc("shutdown_weight_transfer_engine")
    return rows


def stranded(folder: Path) -> list[list[Any]]:
    """A model that keeps a view of a parameter that vLLM packs here. Same rows as `proof`."""
    engine = Updated(folder, plain=False)
    start = engine.shows()
    rows: list[list[Any]] = []
    for mode in ("auto", "reload"):
        try:
            engine.begin(mode)
            rows.append([f"{mode} is refused", False, "it was not"])
        except dc.UnsupportedError as error:
            rows.append(
                [
                    f"{mode} is refused",
                    "conv_weights" in str(error) and engine.shows() == start,
                    str(error),
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--refused", action="store_true")
    parser.add_argument("--stranded", action="store_true")
    given = parser.parse_args()
    if given.stranded:
        rows = stranded(given.folder)
    else:
        rows = (
            refusal(given.folder)
            if given.refused
            else proof(given.folder, given.workers, given.packed)
        )
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
