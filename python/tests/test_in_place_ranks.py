"""Tensors that are divided among four processes: all switch to a version, or all go back, or the living say torn."""

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


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chain") / "chain"
    with dc.Publisher(path, profile="local") as publisher:
        for version in range(4):
            publisher.publish(model(version))
    return path


def ran(tmp_path: Path, url: Path, *steps: str, dies: bool = False) -> list[list[dict[str, Any]]]:
    """Runs the ranks: what each of them said of each step. Of rank 1 nothing, if it dies."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
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
    return {"error": None, "version": version, "torn": False, "proof": proof, "holds": version, **other}


def test_all_switch(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "apply 1", "check", "apply 3")
    expected = [line(0, "memory"), line(1, "changed_lanes"), line(1, "memory"), line(3, "changed_lanes")]
    assert said == [expected] * SIZE


def test_a_wrong_lane_of_one_rank_means_a_whole_load_on_all(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "flip", "apply 1", "apply 2")
    assert said == [[line(0, "memory"), line(1, "memory"), line(2, "changed_lanes")]] * SIZE


def test_a_tensor_that_one_rank_has_moved(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "move", "apply 1", "moved", "apply 2", "apply 2", "apply 3")
    for rank, own in enumerate(said):
        # All ranks refuse what one refuses, and nothing was written.
        failed = line(None if rank == 1 else 1, None if rank == 1 else "memory", holds=1)
        assert own == [
            line(0, "memory"),
            line(1, "memory"),
            {**failed, "error": "StateMismatchError" if rank == 1 else own[2]["error"]},
            line(2, "memory"),
            line(3, "changed_lanes"),
        ]
        assert own[2]["error"] is not None


def test_a_lane_that_no_link_has_coded_is_found_by_the_check(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "unproven", "check", "apply 1")
    for rank, own in enumerate(said):
        failed = line(None, None, error="StateMismatchError", holds=None if rank == 1 else 0)
        assert own == [line(0, "memory"), failed, line(1, "memory")]


def test_a_write_between_proof_and_switch_on_one_rank(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "write", "apply 1", "apply 1")
    for rank, own in enumerate(said):
        # All have gone back; what other code has written is still there.
        failed = line(None, None, error="StateMismatchError", holds=None if rank == 1 else 0)
        assert own == [line(0, "memory"), failed, line(1, "memory")]


def test_all_go_back_after_an_exception_of_one(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "raise", "apply 1", "check", "apply 1")
    for rank, own in enumerate(said):
        failed = line(0, "memory", error="ValueError" if rank == 1 else "Error")
        assert own == [line(0, "memory"), failed, line(0, "memory"), line(1, "changed_lanes")]


def test_nothing_is_written_if_a_rank_dies_before_the_vote(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "before", "apply 1", dies=True)
    assert said == [[line(0, "memory"), line(0, "memory", error="IoError")]] * (SIZE - 1)


def test_the_others_say_torn_if_a_rank_dies_while_it_writes(tmp_path: Path, url: Path) -> None:
    said = ran(tmp_path, url, "apply 0", "after", "apply 1", dies=True)
    torn = line(None, None, error="TornError", torn=True, holds=1)
    assert said == [[line(0, "memory"), torn]] * (SIZE - 1)
