"""Tensors that are divided among four processes: all switch to a version, or all return to the old
one, or the surviving ones are torn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from in_place_worker import model  # noqa: E402

import deltachain as dc  # noqa: E402

SIZE = 4

# Steps of the ranks in one run, one scenario after another, each with new tensors and a new
# subscriber, because starting processes takes longer. Scenarios in which a process dies have runs
# of their own.
SCENARIOS: dict[str, list[str]] = {
    "switch": ["apply 0", "apply 1", "check", "apply 3"],
    "flip": ["apply 0", "flip", "apply 1", "apply 2"],
    "move": ["apply 0", "move", "apply 1", "moved", "apply 2", "apply 2", "apply 3"],
    "unproven": ["apply 0", "unproven", "check", "apply 1"],
    "write": ["apply 0", "write", "apply 1", "apply 1"],
}

# These faults are injected into the writes of torch.
BY_DEVICE: dict[str, list[str]] = {"raise": ["apply 0", "raise", "apply 1", "check", "apply 1"]}

# The lines of each rank, one for each step.
Said = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chain") / "chain"
    with dc.Publisher(path, profile="local") as publisher:
        for version in range(4):
            publisher.publish(model(version))
    return path


@pytest.fixture(scope="module", params=["library", "device"])
def by(request: pytest.FixtureRequest) -> str:
    """Whether the library or torch, as on a device, reads and writes the tensors."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def said(by: str, url: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """Runs each scenario, and returns the lines of its ranks."""
    scenarios = {**SCENARIOS, **(BY_DEVICE if by == "device" else {})}
    steps = [step for own in scenarios.values() for step in [*own, "new"]]
    all_said = ran(tmp_path_factory.mktemp("ranks"), url, by, *steps)
    found: dict[str, Said] = {}
    for name, own in scenarios.items():
        count = sum(step.startswith(("apply", "check")) for step in own)
        found[name] = [rank[:count] for rank in all_said]
        all_said = [rank[count:] for rank in all_said]
    assert not any(all_said)
    return found


def ran(tmp_path: Path, url: Path, by: str, *steps: str, dies: bool = False) -> Said:
    """Runs the ranks and returns what each printed for each step. If rank 1 dies, it has no
    lines."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IN_PLACE_BY": by}
    worker = Path(__file__).with_name("in_place_worker.py")
    processes = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), str(SIZE), tmp_path / "meeting", url, *steps],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(SIZE)
    ]
    said = []
    try:
        for rank, process in enumerate(processes):
            out, errors = process.communicate(timeout=180)
            assert process.returncode == 0 or (dies and rank == 1), errors
            said.append([json.loads(line) for line in out.splitlines()])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [own for rank, own in enumerate(said) if not (dies and rank == 1)]


def line(version: int | None, proof: str | None, **other: Any) -> dict[str, Any]:
    return {
        "error": None,
        "version": version,
        "torn": False,
        "proof": proof,
        "holds": version,
        **other,
    }


def test_all_switch(said: dict[str, Said]) -> None:
    expected = [
        line(0, "memory"),
        line(1, "changed_lanes"),
        line(1, "memory"),
        line(3, "changed_lanes"),
    ]
    assert said["switch"] == [expected] * SIZE


def test_a_wrong_lane_of_one_rank_means_a_whole_load_on_all(said: dict[str, Said]) -> None:
    assert said["flip"] == [[line(0, "memory"), line(1, "memory"), line(2, "changed_lanes")]] * SIZE


def test_a_tensor_that_one_rank_has_moved(said: dict[str, Said]) -> None:
    for rank, own in enumerate(said["move"]):
        # All ranks refuse what one refuses, and nothing is written.
        failed = line(None if rank == 1 else 1, None if rank == 1 else "memory", holds=1)
        assert own == [
            line(0, "memory"),
            line(1, "memory"),
            {**failed, "error": "StateMismatchError" if rank == 1 else own[2]["error"]},
            line(2, "memory"),
            line(3, "changed_lanes"),
        ]
        assert own[2]["error"] is not None


def test_a_lane_that_no_link_has_coded_is_found_by_the_check(said: dict[str, Said]) -> None:
    for rank, own in enumerate(said["unproven"]):
        failed = line(None, None, error="StateMismatchError", holds=None if rank == 1 else 0)
        assert own == [line(0, "memory"), failed, line(1, "memory")]


def test_a_write_between_proof_and_switch_on_one_rank(said: dict[str, Said]) -> None:
    for rank, own in enumerate(said["write"]):
        # All ranks have rolled back. The other code's write remains.
        failed = line(None, None, error="WrongBaseError", holds=None if rank == 1 else 0)
        assert own == [line(0, "memory"), failed, line(1, "memory")]


@pytest.mark.parametrize("by", ["device"], indirect=True)
def test_all_go_back_after_an_exception_of_one(said: dict[str, Said]) -> None:
    for rank, own in enumerate(said["raise"]):
        failed = line(0, "memory", error="ValueError" if rank == 1 else "Error")
        assert own == [line(0, "memory"), failed, line(0, "memory"), line(1, "changed_lanes")]


def test_nothing_is_written_if_a_rank_dies_before_the_vote(
    tmp_path: Path, url: Path, by: str
) -> None:
    said = ran(tmp_path, url, by, "apply 0", "before", "apply 1", dies=True)
    assert said == [[line(0, "memory"), line(0, "memory", error="IoError")]] * (SIZE - 1)


@pytest.mark.parametrize("by", ["device"], indirect=True)
def test_the_others_say_torn_if_a_rank_dies_while_it_writes(
    tmp_path: Path, url: Path, by: str
) -> None:
    said = ran(tmp_path, url, by, "apply 0", "after", "apply 1", dies=True)
    torn = line(None, None, error="TornError", torn=True, holds=1)
    assert said == [[line(0, "memory"), torn]] * (SIZE - 1)
