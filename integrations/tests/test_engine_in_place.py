"""An engine's tensors that follow a chain in place: versions that are prepared ahead, refused, or
loaded as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

import ahead  # noqa: E402
from ahead import LONG, until  # noqa: E402
from deltachain_integrations._engine_in_place import EngineInPlace  # noqa: E402

published = partial(ahead.published, profile="local")


class Engine:
    """Tensors of an engine, and their loader."""

    def __init__(self, folder: Path, is_mapped: bool = True) -> None:
        self.tensors = {"weight": torch.zeros(1000, dtype=torch.bfloat16), "bias": torch.zeros(8)}
        self.loads = 0
        self.is_mapped = is_mapped
        self.follower = EngineInPlace(
            str(folder / "chain"), self.load, None, lambda own: own, lambda own: own.number
        )

    def load(self, given: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any] | None:
        self.loads += 1
        for name, tensor in given():
            self.tensors[name].copy_(tensor)
        return self.tensors if self.is_mapped else None

    def update(self, number: int | None, digest: str | None = None) -> bool:
        """Updates to a version. Returns True if it was written in place."""
        version = self.follower.take(number, digest, LONG)
        assert version.sums == version.number
        version.update.apply()
        self.follower.taken(version)
        self.follower.go_on()
        return version.update.changes() is not None

    def holds(self) -> int:
        return int(self.tensors["weight"].float().sum()) - 1


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    published(tmp_path, 4)
    made = Engine(tmp_path)
    yield made
    made.follower.close()


def test_goes_ahead_and_writes_in_place(engine: Engine) -> None:
    until(lambda: engine.follower.ready == 3)
    # A version older than the newest.
    assert not engine.update(0) and engine.holds() == 0 and engine.loads == 1
    until(lambda: engine.follower.ready == 3)
    assert engine.holds() == 0
    # Forward by one version and by several at once. There are no links back.
    assert [engine.update(number) for number in (1, 3, 1, 2)] == [True, True, False, True]
    assert engine.holds() == 2 and engine.loads == 2 and engine.follower.is_found
    assert engine.follower.check() >= 0


def test_says_whether_a_version_is_ready_and_looks_again_for_a_newer_one(tmp_path: Path) -> None:
    weight = torch.zeros(1000, dtype=torch.bfloat16)
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:

        def publish() -> None:
            weight[0] += 1
            publisher.publish_async({"weight": weight, "bias": torch.ones(8)}).result()

        publish()
        engine = Engine(tmp_path)
        try:
            until(lambda: engine.follower.is_ready(0))
            assert engine.follower.ready == 0
            publish()
            # The thread has found a version, so it polls again only when asked.
            until(lambda: engine.follower.is_ready(1))
            assert engine.follower.ready == 1 and engine.follower.is_ready(0)
            engine.update(1)
            # Waiting for the held version, or an older one, would not help: after other code has
            # written, the version is loaded again.
            assert engine.follower.is_ready(1) and engine.follower.is_ready(0)
            engine.follower.lost()
            assert engine.follower.is_ready(1) and not engine.update(1)
            assert not engine.follower.is_ready(2)
            publish()
            until(lambda: engine.follower.is_ready(2))
            assert engine.update(2)
        finally:
            engine.follower.close()


def test_tells_why_it_finds_no_newer_version(tmp_path: Path, engine: Engine) -> None:
    until(lambda: engine.follower.ready == 3)
    assert engine.follower.shapes == {"weight": [1000], "bias": [8]}
    engine.update(3)
    ahead.tells_why(tmp_path, engine.follower)


def test_what_cannot_be_prepared_is_tried_again_when_an_attempt_begins(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = engine.follower
    until(lambda: follower.chain == dc.Store(tmp_path / "chain").chain_digest())
    # Errors that waiting does not mend end a poll.
    calls = []

    def refused(**settings: Any) -> Iterator[dc.Update]:
        calls.append(settings)
        raise dc.UsageError("USAGE: as the test said")

    with monkeypatch.context() as patch:
        patch.setattr(follower._subscriber, "follow", refused)
        engine.update(2)
        until(lambda: follower.is_ready(3))
        assert follower.failure(3) == "USAGE: as the test said" and follower.failure(2) is None
        # Only the first question of an attempt begins another poll.
        assert follower.is_ready(3) and len(calls) == 1
        assert not follower.is_ready(3, begins=True)
        until(lambda: follower.is_ready(3))
        assert follower.failure(3) is not None and len(calls) == 2
    assert not follower.is_ready(3, begins=True)
    until(lambda: follower.is_ready(3))
    assert follower.failure(3) is None and engine.update(3) and engine.holds() == 3


def test_what_is_refused_leaves_what_is_held(engine: Engine) -> None:
    engine.update(0)
    with pytest.raises(dc.WrongBaseError, match="was expected"):
        engine.follower.take(1, "0" * 64, LONG)
    with pytest.raises(dc.ChainError, match="no version 7"):
        engine.follower.take(7, None, LONG)
    assert engine.follower.version == 0 and engine.holds() == 0
    engine.follower.go_on()
    assert engine.update(1) and engine.holds() == 1


def test_what_other_code_has_written_is_loaded_as_a_whole(engine: Engine) -> None:
    engine.update(0)
    engine.tensors["weight"].zero_()
    engine.follower.lost()
    assert not engine.update(2) and engine.holds() == 2 and engine.loads == 2
    assert engine.update(3) and engine.holds() == 3


def test_the_newest_is_taken_without_a_number(engine: Engine) -> None:
    assert not engine.update(None) and engine.holds() == 3


def test_a_loader_that_does_not_know_where_loads_all(tmp_path: Path) -> None:
    published(tmp_path, 2)
    engine = Engine(tmp_path, is_mapped=False)
    try:
        assert not engine.update(0) and not engine.follower.is_found
        assert not engine.update(1) and engine.loads == 2 and engine.holds() == 1
    finally:
        engine.follower.close()


def test_links_without_sums_are_taken_by_digests(tmp_path: Path) -> None:
    published(tmp_path, 2, profile="compact")
    engine = Engine(tmp_path)
    try:
        assert (
            [engine.update(0), engine.update(1)] == [False, True]
            and engine.loads == 1
            and engine.holds() == 1
        )
        # All memory is hashed, so the change is noticed. The thread finds the version afterwards.
        engine.tensors["weight"][999] = 1
        with dc.Publisher(tmp_path / "chain") as publisher:
            weight = (torch.arange(1000) < 3).to(torch.bfloat16)
            publisher.publish({"weight": weight, "bias": torch.ones(8)})
        assert not engine.update(2) and engine.loads == 2 and engine.holds() == 2
    finally:
        engine.follower.close()


def test_links_that_cannot_be_taken_in_place_are_loaded_as_a_whole(tmp_path: Path) -> None:
    published(tmp_path, 2, profile="compact")
    engine = Engine(tmp_path)
    # A tensor in two parts cannot be hashed.
    weight = torch.zeros(2, 500, dtype=torch.bfloat16)

    def load(given: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
        engine.loads += 1
        for name, tensor in given():
            (weight.view(-1) if name == "weight" else engine.tensors[name]).copy_(tensor)
        parts = [dc.Part(half, slice(500 * at, 500 * at + 500)) for at, half in enumerate(weight)]
        return {**engine.tensors, "weight": parts}

    engine.follower.close()
    engine.follower = EngineInPlace(
        str(tmp_path / "chain"), load, None, lambda own: own, lambda own: own.number
    )
    try:
        assert [engine.update(0), engine.update(1)] == [False, False] and engine.loads == 2
        assert weight.sum() == 2
    finally:
        engine.follower.close()


def test_a_chain_that_fails_ahead_fails_when_it_is_asked_for(tmp_path: Path) -> None:
    published(tmp_path, 1)
    for path in (tmp_path / "chain" / "files").iterdir():
        path.write_bytes(b"damaged")
    engine = Engine(tmp_path)
    try:
        with pytest.raises(dc.Error, match="R-"):
            engine.follower.take(0, None, LONG)
    finally:
        engine.follower.close()


def test_a_chain_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(dc.Error):
        Engine(tmp_path)
