"""One rank that follows a chain with its parts of the tensors, for test_in_place_ranks.py.

    python in_place_worker.py RANK SIZE MEETING URL STEP...

A step is `apply N`, `check`, or an event at the next `apply`, on rank 1 unless the list says
otherwise:

- `flip`: a bit of a lane that changes is wrong before the proof, unreported;
- `write`: other code writes to such a lane between proof and switch;
- `raise`: an exception while the tensors are written;
- `before`, `after`: the process dies before the vote, or while the tensors are written;
- `move`, `moved`: torch gives a tensor other memory, before `prepare` or between it and `apply`;
- `unproven`: a bit of a lane that does not change is wrong, for `check`.

`new` starts over with new tensors and a new subscriber. With `IN_PLACE_BY=device` in the
environment torch reads and writes the tensors, as on a device; `raise` and `after` need this
setting.

For each `apply` and `check` the worker prints a line: the class of the error or null, the version,
whether the subscriber is torn, the proof, and the version that the tensors equal bit for bit, or
null.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

import deltachain as dc
from deltachain import _tensor_follower
from deltachain._device_memory import DeviceMemory, Lanes

EXPERTS, ROWS, COLUMNS = 4, 12, 20


def model(version: int) -> dict[str, Any]:
    """Returns the tensors of one version. A few lanes change with each version."""
    generator = torch.Generator().manual_seed(0)
    made = {
        f"experts.{number}.w": torch.randn(6, 10, generator=generator).bfloat16()
        for number in range(EXPERTS)
    }
    for name, shape in {
        "by_rows": (ROWS, COLUMNS),
        "by_columns": (ROWS, COLUMNS),
        "by_both": (ROWS, COLUMNS),
        "uneven": (7, 3),
        "norm": (COLUMNS,),
        "embed": (ROWS, COLUMNS),
        "bytes": (ROWS, 3),
    }.items():
        made[name] = torch.randn(shape, generator=generator).to(
            torch.float8_e4m3fn if name == "bytes" else torch.bfloat16
        )
    made["wide"] = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    made["head"] = made["embed"]
    for step in range(version):
        draw = torch.Generator().manual_seed(step + 1)
        for tensor in dict.fromkeys(made.values()):
            raw = tensor.view(torch.uint8).view(-1, tensor.element_size())
            raw[torch.randperm(len(raw), generator=draw)[: len(raw) // 8], 0] ^= 1
    return made


def parts(rank: int, size: int, weights: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Returns copies of the parts that a rank holds."""

    def rows(tensor: Any) -> slice:
        each = len(tensor) // size
        return slice(rank * each, (rank + 1) * each)

    def part(name: str, *index: slice) -> dc.Part:
        return dc.Part(weights[name][index].contiguous().clone(), index)

    def spread(name: str, placement: Any) -> Any:
        return DTensor.from_local(
            local_of(weights[name], placement, rank, size), mesh, [placement], run_check=False,
            shape=weights[name].shape, stride=weights[name].stride(),
        )  # fmt: skip

    everything = slice(None)
    own = weights["by_columns"].t()
    embed = weights["embed"][rows(weights["embed"])].clone()
    half, other = rank % 2, rank // 2
    fused = torch.stack([weights[f"experts.{number}.w"] for number in range(rank, EXPERTS, size)])
    return {
        "by_rows": part("by_rows", rows(weights["by_rows"])),
        "by_columns": part("by_columns", everything, rows(own)),
        # Columns by halves: each half is on two ranks.
        "by_both": part("by_both", everything, slice(10 * half, 10 * half + 10)),
        "uneven": spread("uneven", Shard(0)),
        "norm": spread("norm", Replicate()),
        "wide": [part("wide", slice(4 * half, 4 * half + 4), slice(4 * other, 4 * other + 4))],
        "bytes": part("bytes", rows(weights["bytes"])),
        "embed": dc.Part(embed, rows(weights["embed"])),
        "head": dc.Part(embed, rows(weights["embed"])),
        # Views of one tensor.
        **{
            f"experts.{number}.w": fused[at] for at, number in enumerate(range(rank, EXPERTS, size))
        },
    }


def local_of(tensor: Any, placement: Any, rank: int, size: int) -> Any:
    if isinstance(placement, Replicate):
        return tensor.clone()
    each = -(-len(tensor) // size)
    return tensor[rank * each : (rank + 1) * each].clone()


def local(given: Any) -> Any:
    one = given[0] if isinstance(given, list) else given
    one = one.tensor if isinstance(one, dc.Part) else one
    return one.to_local() if hasattr(one, "to_local") else one


def raw(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def failing(dies: bool) -> Any:
    """Returns a `put` whose third call fails or ends the process."""
    original, calls = Lanes.put, itertools.count(1)

    def put(lanes: Lanes, values: Any) -> None:
        if next(calls) == 3:
            if dies:
                os._exit(1)
            raise ValueError("a fault")
        original(lanes, values)

    return put


def main() -> None:
    rank, size, meeting, url, *steps = sys.argv[1:]
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (size,))
    if os.environ.get("IN_PLACE_BY") == "device":
        _tensor_follower._torch_for = lambda _: DeviceMemory()
    newest = max(int(step.split()[1]) for step in steps if step.startswith("apply"))
    expected = [parts(rank, size, model(version), mesh) for version in range(newest + 1)]
    zeros = {name: torch.zeros_like(tensor) for name, tensor in model(0).items()}
    tensors = parts(rank, size, zeros, mesh)

    def holds() -> int | None:
        for version, own in enumerate(expected):
            if all(raw(local(own[name])) == raw(local(tensors[name])) for name in own):
                return version
        return None

    def flip(version: int, changes: bool) -> None:
        """Flips a bit of one lane of this rank. `changes` chooses a lane that changes on the way to
        the version, or one that does not."""
        own, before = (local(expected[number]["by_columns"]) for number in (version, version - 1))
        lane = (
            ((own.view(torch.int16) != before.view(torch.int16)) == changes).nonzero()[0].tolist()
        )
        local(tensors["by_columns"]).view(torch.int16)[tuple(lane)] ^= 2

    def move() -> None:
        tensor = local(tensors["by_columns"])
        tensor.data = tensor.detach().clone()

    def told(error: BaseException | None) -> None:
        kind = None if error is None else type(error).__name__
        line = {
            "error": kind,
            "version": subscriber.version,
            "torn": subscriber.torn,
            "proof": subscriber.proof,
        }
        print(json.dumps({**line, "holds": holds()}), flush=True)

    group = dc.Group(dist.group.WORLD, timeout=20)
    subscriber = dc.Subscriber(url, into=tensors, group=group)
    original = Lanes.put
    event = ""
    for step in steps:
        word, *number = step.split()
        if word == "new":
            subscriber.close()
            tensors = parts(rank, size, zeros, mesh)
            subscriber = dc.Subscriber(url, into=tensors, group=group)
            continue
        if word not in ("apply", "check"):
            event = word
            if word == "unproven" and rank == 1:
                flip((subscriber.version or 0) + 1, False)
            continue
        error: BaseException | None = None
        try:
            if word == "check":
                subscriber.check()
            else:
                version = int(number[0])
                if event == "flip" and rank == 1:
                    flip(version, True)
                if event == "move" and rank == 1:
                    move()
                update = subscriber.prepare(version)
                if rank == 1:
                    if event == "moved":
                        move()
                    if event == "write":
                        flip(version, True)
                    if event == "before":
                        os._exit(1)
                    if event in ("raise", "after"):
                        Lanes.put = failing(event == "after")  # type: ignore[method-assign]
                update.apply()
        except Exception as raised:
            error = raised
            if os.environ.get("DEBUG"):
                import traceback

                traceback.print_exc()
        Lanes.put = original  # type: ignore[method-assign]
        event = ""
        told(error)
    os._exit(0)


if __name__ == "__main__":
    main()
