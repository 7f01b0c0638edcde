"""A chain whose versions can be told apart, and waiting for what a thread does ahead. Needs
torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import deltachain as dc

LONG = 60.0


def published(folder: Path, versions: int, profile: Any = "compact") -> list[str]:
    """Publishes versions in FOLDER/chain, each with one more lane that differs. Returns their
    digests."""
    weight = torch.zeros(1000, dtype=torch.bfloat16)
    digests = []
    with dc.Publisher(folder / "chain", profile=profile) as publisher:
        for number in range(versions):
            weight[number] = 1.0
            digests.append(
                publisher.publish_async({"weight": weight, "bias": torch.ones(8)}).result().digest
            )
    return digests


def tells_why(folder: Path, copy: Any) -> None:
    """Asserts that the preparer reports why it finds no newer version in FOLDER/chain."""
    newer = (copy.ready or 0) + 100
    commits = folder / "chain/commits"
    commits.rename(folder / "away")
    until(lambda: "commits" in (copy.failure(newer) or ""))
    (folder / "away").rename(commits)
    until(lambda: copy.failure(newer) is None)


def until(condition: Callable[[], bool]) -> None:
    """Waits until a thread makes the condition true."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
