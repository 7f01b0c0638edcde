"""Several processes publish one chain as if they were one, whatever their number, and all learn of
each failure."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import model, write_model
from ranks_worker import Sockets
from stalling_store import StallingStore
from test_publisher import assert_version, followed, tensors, versions

import deltachain as dc

KINDS = [
    "sockets",
    pytest.param(
        "torch",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("torch") is None, reason="SKIPPED: torch is not installed"
        ),
    ),
]


@pytest.fixture
def like(tmp_path: Path) -> Path:
    folder = tmp_path / "like"
    write_model(folder / "model.safetensors", model(0))
    (folder / "config.json").write_text("{}")
    return folder


def ran(
    kind: str, size: int, url: Path, like: Path, *steps: object, limit: float = 3.0
) -> list[list[dict[str, Any]]]:
    """Runs the ranks and returns what each printed for each step. Stopped ranks are killed when the
    first rank has ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    meeting = url.parent / f"meeting {os.urandom(4).hex()}"
    processes = []
    with socket.create_server(("127.0.0.1", 0), backlog=size) as listener:
        for rank in range(size):
            own = (
                {0: str(listener.fileno())}.get(rank, str(listener.getsockname()[1]))
                if kind == "sockets"
                else str(meeting)
            )
            command = [
                sys.executable,
                Path(__file__).with_name("ranks_worker.py"),
                kind,
                rank,
                size,
                own,
                limit,
                url,
                like,
                *steps,
            ]
            processes.append(
                subprocess.Popen(
                    [str(word) for word in command],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                    pass_fds=[listener.fileno()] if kind == "sockets" and rank == 0 else [],
                )
            )
    said = []
    try:
        for rank, process in enumerate(processes):
            if rank == 1 and "halt" in steps:
                process.kill()
            out, errors = process.communicate(timeout=120)
            gone = rank == 1 and {"die", "halt"} & set(steps)
            assert gone or process.returncode == 0, errors
            said.append([json.loads(line) for line in out.splitlines()])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_goes_on_with_one_chain(tmp_path: Path, like: Path, kind: str) -> None:
    url, single = tmp_path / "chain", tmp_path / "single"
    for size, steps in ((4, (0, 1)), (2, (2, 3)), (3, (4, 5))):
        said = ran(kind, size, url, like, *steps)
        assert all(other == said[0] for other in said)
        assert [made["version"] for made in said[0]] == list(steps)
        assert [made["snapshot"] for made in said[0]] == [step == 0 for step in steps]
    with dc.Publisher(single, like=like) as pub:
        for step in range(6):
            pub.publish(tensors(step))
    ours, others = versions(url), versions(single)
    assert [version["state"] for version in ours] == [version["state"] for version in others]
    assert [len(version["shards"]) for version in ours] == [24] * 6
    # A single process can continue the chain, too.
    with dc.Publisher(url, like=like, routes=dc.RoutePlan(snapshot_cost=math.inf)) as pub:
        made = pub.publish(tensors(6))
        assert (made.version, made.snapshot) == (6, False)
    for version in (0, 3, 6):
        assert_version(url, version, version)
    assert followed(url)["files"] == b"config.json,model.safetensors"


def test_a_step_is_published_once_by_all_ranks(tmp_path: Path, like: Path) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url, like=like, shards=24) as pub:
        pub.publish(tensors(0), metadata={"step": 0})
    # If one rank skipped and the others did not, they would wait for it.
    said = ran("sockets", 3, url, like, "once", 0, 1, 1, "rival", 2, "late", 3, 4)
    assert all(other == said[0] for other in said)
    assert [(made["version"], "skipped" in made) for made in said[0]] == [
        (0, True),
        (1, False),
        (1, True),
        (2, True),
        (3, True),
        (4, False),
    ]
    assert [version["metadata"]["step"] for version in versions(url)] == ["0", "1", "2", "3", "4"]
    for version in range(5):
        assert_version(url, version, version)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_fails_is_an_error_on_all_ranks(tmp_path: Path, like: Path, kind: str) -> None:
    url = tmp_path / "chain"
    said = ran(kind, 4, url, like, 0, "break", 1, "mend", 1)
    for rank in said:
        assert [made.get("version") for made in rank] == [0, None, 1]
        assert rank[1]["error"] == "IoError"
        assert not rank[2]["snapshot"]
    assert_version(url, None, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fate", ["die", "halt"])
def test_a_rank_that_goes_leaves_the_chain_as_it_was(
    tmp_path: Path, like: Path, kind: str, fate: str
) -> None:
    url = tmp_path / "chain"
    said = ran(kind, 4, url, like, 0, fate, 1)
    for rank in (0, 2, 3):
        assert said[rank][1]["error"] == "IoError", said[rank]
    assert len(versions(url)) == 1
    again = ran(kind, 3, url, like, 1)
    assert [(made["version"], made["snapshot"]) for made in again[0]] == [(1, False)]
    assert_version(url, None, 1)


# Differences on one rank, and the error that all ranks get.
FLAWS = {
    "lack": "tensors: 'b.bias' is F32 [2, 4]{} on rank 0 and missing on rank 2",
    "dtype": "tensors: 'b.bias' is F32 [2, 4]{} on rank 0 and BF16 [2, 4]{} on rank 2",
    "shape": "tensors: 'b.bias' is F32 [2, 4]{} on rank 0 and F32 [4, 2]{} on rank 2",
    "placement": "tensors: 'b.bias' is F32 [2, 4]{} on rank 0 "
    "and F32 [2, 4] as Replicate() on 4 ranks on rank 2",
    "stream": "kind of weights: 'weights' is a mapping on rank 0 and a stream on rank 2",
    "reverse": "rank 0 gives 'a.weight', BF16 [300, 10]{}, and rank 1 'd.steady', U8 [3]{}",
    "raise": "this one breaks off",
}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_differ_are_told_before_anything_is_gathered(
    tmp_path: Path, like: Path, kind: str
) -> None:
    url = tmp_path / "chain"
    flaws = [flaw for flaw in FLAWS if kind == "torch" or flaw != "placement"]
    said = ran(kind, 4, url, like, 0, *(step for flaw in flaws for step in (flaw, 1)), 1, limit=60)
    for rank, made in enumerate(said):
        assert [one.get("version") for one in made] == [0, *(None for _ in flaws), 1]
        for flaw, one in zip(flaws, made[1:], strict=False):
            text = FLAWS[flaw].replace(
                "{}", " as Shard(dim=0) on 4 ranks" if kind == "torch" else ""
            )
            assert one["text"].endswith(text)
            if flaw != "raise":
                assert one["error"] == "UsageError"
            else:
                assert one["error"] == ("ValueError" if rank == 1 else "Error")
                assert one["text"].startswith("rank 1 failed: ") == (rank != 1)
    assert_version(url, 1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_mappings_may_have_any_order(tmp_path: Path, like: Path, kind: str) -> None:
    url = tmp_path / "chain"
    said = ran(kind, 4, url, like, "shuffle", 0, "shuffle", 1, limit=60)
    assert all([one.get("version") for one in made] == [0, 1] for made in said)
    for version in (0, 1):
        assert_version(url, version, version)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_was_silent_for_too_long_comes_back(
    tmp_path: Path, like: Path, kind: str
) -> None:
    url = tmp_path / "chain"
    said = ran(kind, 4, url, like, 0, "stop", 1, 2, "before", 3, 4, "after", 5, 6)
    for made in said:
        # A commit that rank 0 began becomes a version, although all ranks have given up on it.
        assert [one.get("version") for one in made] == [0, None, 1, None, 3, None, 5]
        for one in made[1::2]:
            assert one["error"] == "IoError"
            assert "may have been published" in one["text"]
        assert not any(one["snapshot"] for one in made[2::2])
    assert len(versions(url)) == 6
    for version, step in enumerate((0, 2, 3, 4, 5, 6)):
        assert_version(url, version, step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_silent_for_a_while_is_waited_for(
    tmp_path: Path, like: Path, kind: str
) -> None:
    url = tmp_path / "chain"
    said = ran(kind, 4, url, like, 0, "doze", 1, limit=60)
    assert all([one.get("version") for one in made] == [0, 1] for made in said)
    assert_version(url, 1, 1)


def test_a_call_with_a_timeout_does_not_wait_for_a_rank_that_never_calls(tmp_path: Path) -> None:
    """Both limits together hold, counted in the time that this rank waits."""

    class Pair:
        """Rank 0, whose neighbour sends the same message until it falls silent."""

        rank, size = 0, 2
        is_silent = False
        waited = 0.0

        def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
            if self.is_silent:
                assert timeout is not None
                self.waited += timeout
                if self.waited > 1000:
                    raise ConnectionError("the test would wait for ever")
                raise TimeoutError("silent")
            return [message, message]

    url, pair = tmp_path / "chain", Pair()
    with dc.Publisher(url, profile=["compact", "local"]) as publisher:
        publisher.publish({"a": numpy.zeros(4, "u1")})
    memory = {"a": numpy.ones(4, "u1")}
    with dc.Subscriber(url, into=memory, group=dc.Group(pair, timeout=6)) as subscriber:
        pair.is_silent = True
        with pytest.raises(dc.IoError, match="silent for 11 s") as caught:
            subscriber.prepare(timeout=5)
        assert caught.value.retryable
        assert pair.waited == 11
        # Once the neighbour answers again, the subscriber works.
        pair.is_silent = False
        assert subscriber.prepare(timeout=5).version == 0


def test_a_group_that_gives_nothing_proves_nothing(tmp_path: Path) -> None:
    """A proof that covers no memory does not count."""

    class Twin:
        """Rank 0, whose neighbour sends the same message."""

        rank, size = 0, 2

        def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
            return [message, message]

    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish({"a": numpy.zeros(4, "u1")})
    settings: dict[str, Any] = {"group": Twin(), "strict": False}
    with dc.Subscriber(tmp_path / "chain", into={}, **settings) as subscriber:
        with pytest.raises(dc.UsageError, match="on any rank"):
            subscriber.prepare().apply()
        assert subscriber.proof is None


def test_ranks_that_make_other_calls_are_stopped(tmp_path: Path, like: Path) -> None:
    url = tmp_path / "chain"
    said = ran("sockets", 3, url, like, 0, "wait", 1, 2, limit=60)
    for made in said:
        assert [one.get("error") for one in made] == [None, "UsageError", "UsageError"]
        assert made[1]["text"].endswith(
            "rank 0 calls wait() after version 0, and rank 1 publish() after version 0"
        )
    assert len(versions(url)) == 1


def test_ranks_need_the_same_checkpoint(tmp_path: Path, like: Path) -> None:
    other = tmp_path / "other.safetensors"
    write_model(other, {**model(0), "b.bias": ("F32", (4, 2), bytes(32))})
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def opened(rank: int, meeting: int, like: Path) -> None:
        dc.Publisher(tmp_path / "chain", like=like, group=Sockets(rank, 2, str(meeting)))

    with ThreadPoolExecutor() as threads:
        ranks = [
            threads.submit(opened, 0, listener.detach(), like),
            threads.submit(opened, 1, port, other),
        ]
    for rank in ranks:
        with pytest.raises(
            dc.UsageError, match=r"same like=: 'b.bias' is F32 \[2, 4\] on rank 0 and F32 \[4, 2\]"
        ):
            rank.result()


def test_few_requests_whatever_the_number_of_shards(like: Path) -> None:
    ranks, shards = 4, 24
    with (
        socket.create_server(("127.0.0.1", 0), backlog=ranks) as listener,
        StallingStore() as store,
    ):
        port = listener.getsockname()[1]

        def opened(rank: int) -> dc.Publisher:
            group = Sockets(rank, ranks, str(listener.detach() if rank == 0 else port))
            return dc.Publisher(
                store.chain(), like=like, group=group, routes=dc.RoutePlan(snapshot_cost=math.inf)
            )

        with ThreadPoolExecutor(ranks) as threads:
            publishers = list(threads.map(opened, range(ranks)))
            for step in range(4):
                store.requests.clear()
                made = list(
                    threads.map(
                        lambda publisher, step=step: publisher.publish(tensors(step)), publishers
                    )
                )
                assert {one.version for one in made} == {step}
                # Each link is one request, whichever rank stores it.
                links = [
                    request
                    for request in store.requests
                    if request.startswith("PUT") and "/files/" in request
                ]
                assert len(links) == shards
                others = sorted(request for request in store.requests if request not in links)
                assert step == 0 or len(others) <= 7 + 4 * (ranks - 1), others
            list(threads.map(dc.Publisher.close, publishers))


def test_ranks_need_a_checkpoint(tmp_path: Path) -> None:
    class Two:
        rank, size = 0, 2

        def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
            return [message] * 2

    with pytest.raises(dc.UsageError, match="need like="):
        dc.Publisher(tmp_path / "chain", group=Two())
    with pytest.raises(TypeError, match="not str"):
        dc.Publisher(tmp_path / "chain", group="world")
    with pytest.raises(dc.UsageError, match="timeout= must be a number"):
        dc.Group(Two(), timeout=0)
    with pytest.raises(dc.UsageError, match="need like="):
        dc.Publisher(tmp_path / "chain", group=dc.Group(Two(), timeout=1))


def test_shards_of_a_chain_that_a_single_process_begins(tmp_path: Path, like: Path) -> None:
    with dc.Publisher(
        tmp_path / "chain", like=like, shards=3, routes=dc.RoutePlan(snapshot_cost=math.inf)
    ) as pub:
        pub.publish(tensors(0))
        assert not pub.publish(tensors(1)).snapshot
    assert [len(version["shards"]) for version in versions(tmp_path / "chain")] == [3, 3]
    with dc.Publisher(tmp_path / "chain") as pub, pytest.raises(dc.UsageError, match="3 shards"):
        pub.publish(tensors(2))
