"""Programs, followers and a restarted trainer read back what was published."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import model, tool, write_model
from stalling_store import StallingStore

import deltachain as dc


def tensors(value: int) -> dict[str, dc.Tensor]:
    return {"w": dc.Tensor("U8", (3,), bytes([value] * 3))}


@pytest.fixture
def chain(tmp_path: Path) -> str:
    """Versions 0 to 2, of steps 100, 200 and 300."""
    url = str(tmp_path / "a chain")
    with dc.Publisher(url) as pub:
        for number in range(3):
            pub.publish(tensors(number), metadata={"step": 100 * (number + 1), "run": "wörter"})
    return url


def test_versions_are_listed(chain: str) -> None:
    versions = dc.log(chain)
    assert [(version.version, version.metadata) for version in versions] == [
        (2, {"step": "300", "run": "wörter"}),
        (1, {"step": "200", "run": "wörter"}),
        (0, {"step": "100", "run": "wörter"}),
    ]
    assert (
        versions == [dc.show(chain, number) for number in (2, 1, 0)]
        and dc.show(chain) == versions[0]
    )
    for version, entry in zip(
        versions, json.loads(tool("--json", "log", chain))["versions"], strict=True
    ):
        assert (version.digest, version.commit, version.parent) == (
            entry["state"],
            entry["commit"],
            entry["parent"],
        )
        assert [(route.base, route.bytes) for route in version.routes] == [
            (route["from"], sum(file["size"] for file in route["files"]))
            for route in entry["routes"]
        ]
        assert version.stored is not None and version.stored.tzinfo is not None
        assert abs(datetime.now(UTC) - version.stored) < timedelta(hours=1)
    assert versions[0].parent == versions[1].commit and versions[0].shards == (versions[0].digest,)
    assert versions[0].digest == dc.digest(tensors(2)).digest
    assert dc.log(chain, last=2) == versions[:2] and dc.log(chain, last=None) == versions
    assert (
        dc.log(dc.Store(chain, stall=5.0, attempts=2), last=1) == versions[:1]
        and dc.log(chain, last=0) == []
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        versions[0].version = 7  # type: ignore[misc]


def test_what_is_not_there_is_said(tmp_path: Path, chain: str) -> None:
    with pytest.raises(dc.ChainError) as missing:
        dc.show(chain, 7)
    assert missing.value.rule == "R-CHN-03"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(dc.ChainError):
        dc.log(empty)
    tool("init", empty)
    assert dc.log(empty) == []
    with dc.Publisher(empty) as pub:
        assert pub.newest is None
    none = tmp_path / "none"
    for refused in (lambda: dc.log(none), lambda: dc.show(chain, -1), lambda: dc.status(none)):
        with pytest.raises(dc.UsageError):
            refused()
    # A path that looks like an option is a path.
    with pytest.raises(dc.UsageError, match="--help"):
        dc.log("--help")


def test_assets_are_listed(tmp_path: Path) -> None:
    like = tmp_path / "like"
    write_model(like / "model.safetensors", model(0))
    (like / "config.json").write_text("{}")
    with dc.Publisher(tmp_path / "chain", like=like) as pub:
        pub.publish(
            {name: dc.Tensor(dtype, shape, data) for name, (dtype, shape, data) in model(1).items()}
        )
        newest = pub.newest
    assert newest is not None and [(asset.name, asset.size) for asset in newest.assets] == [
        ("config.json", 2)
    ]


def test_a_subscriber_knows_the_step_of_its_version(tmp_path: Path, chain: str) -> None:
    versions = {version.version: version for version in dc.log(chain)}
    place = tmp_path / "copy"
    for subscriber in (
        dc.Subscriber(chain),
        dc.Subscriber(chain, into={"w": bytearray(3)}),
        dc.Subscriber(chain, host_copy=place),
    ):
        assert (subscriber.commit, subscriber.metadata, subscriber.stored) == (None, {}, None)
        assert "no version yet" in repr(subscriber)
        for number in (0, 2):
            update = subscriber.prepare(number)
            # The update has them before it is applied, too.
            assert (update.commit, update.metadata) == (
                versions[number].commit,
                versions[number].metadata,
            )
            assert (
                update.stored is not None
                and update.stored.replace(microsecond=0) == versions[number].stored
            )
            update.apply()
            assert (subscriber.commit, subscriber.metadata) == (
                versions[number].commit,
                versions[number].metadata,
            )
            assert subscriber.stored == update.stored
        same = subscriber.prepare(2)
        assert (same.commit, same.metadata) == (versions[2].commit, versions[2].metadata)
        assert f"version 2, {subscriber.digest[:12]}" in repr(subscriber)  # type: ignore[index]
        subscriber.close()
        assert "not open" in repr(subscriber)
    # The copy has them after a restart and in other processes, without the chain.
    shutil.rmtree(chain)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with dc.Subscriber(elsewhere, host_copy=place) as subscriber:
        assert (subscriber.version, subscriber.metadata["step"]) == (2, "300")
    assert dc.HostCopy(place).metadata == {"step": "300", "run": "wörter"}
    assert dc.status(place).metadata["step"] == "300"


def test_a_host_copy_says_what_its_process_holds(tmp_path: Path, chain: str) -> None:
    place = tmp_path / "copy"
    with dc.Subscriber(chain, host_copy=place) as subscriber:
        copy = dc.HostCopy(place)
        assert copy.metadata == {}
        subscriber.prepare(0).apply()
        assert copy.metadata["step"] == "100"
        list(copy.full())
        subscriber.prepare(1).apply()
        # This process still has the older version.
        assert (copy.version, copy.metadata["step"]) == (1, "100")
        with copy.applying() as patches:
            list(patches)
        assert copy.metadata["step"] == "200"


def test_a_directory_tells_its_status(tmp_path: Path, chain: str) -> None:
    place = tmp_path / "model"
    place.mkdir()
    nothing = dc.status(place)
    assert (
        not nothing.healthy
        and nothing.problems
        and nothing.version is None
        and nothing.metadata == {}
    )
    place.rmdir()
    tool("follow", chain, place, "--once")
    status = dc.status(place, max_lag="10m")
    assert status.healthy and status.problems == () and status.proof == "hashed"
    assert (status.version, status.head, status.lag_versions) == (2, 2, 0)
    assert (status.digest, status.commit) == (dc.show(chain).digest, dc.show(chain).commit)
    assert status.directory is not None and Path(status.directory).name == "model"
    for moment in (status.switched, status.stored, status.last_look, status.last_success):
        assert moment is not None and moment.tzinfo is not None
    assert not status.following and status.command is None and status.servers == ()
    assert not dc.status(place, max_lag="1ms").healthy
    assert dc.status(place, max_lag=0).healthy
    with pytest.raises(dc.UsageError, match="max_lag"):
        dc.status(place, max_lag="soon")


def test_a_chain_and_a_directory_are_checked(tmp_path: Path, chain: str) -> None:
    report = dc.fsck(chain)
    assert isinstance(report, dc.reports.FsckReport)
    assert report.healthy and (report.versions, report.rebuilt, report.problems) == (3, 0, ())
    phases = set()
    deep = dc.fsck(
        chain, deep=True, scratch=tmp_path, threads=1, progress=lambda phase, *_: phases.add(phase)
    )
    assert isinstance(deep, dc.reports.FsckReport) and deep.healthy and deep.rebuilt == 3 and phases
    tool("pull", chain, tmp_path / "model")
    directory = dc.fsck(tmp_path / "model")
    assert isinstance(directory, dc.reports.DirectoryReport)
    assert directory.healthy and (directory.version, directory.tensors) == (2, 1)

    file = next(Path(chain, "files").rglob("*.dcf"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    damaged = dc.fsck(chain)
    assert not damaged.healthy
    assert all(isinstance(problem, dc.Error) for problem in damaged.problems)
    assert any(
        problem.file and file.name in problem.file and file.name in str(problem)
        for problem in damaged.problems
    )
    next((tmp_path / "model/current").glob("*.safetensors")).write_bytes(b"")
    assert not dc.fsck(tmp_path / "model").healthy
    with pytest.raises(dc.UsageError):
        dc.fsck(tmp_path / "model", deep=True)


def test_a_place_is_examined(tmp_path: Path) -> None:
    report = dc.doctor(tmp_path)
    assert report.healthy and report.problems == ()
    assert {"put if absent", "lock"} <= {finding.tried for finding in report.findings}
    assert list(tmp_path.iterdir()) == []
    without = dataclasses.replace(report.findings[0], works=False)
    assert not dc.reports.DoctorReport((without,)).healthy


def test_old_versions_are_pruned_and_new_ones_compacted(chain: str) -> None:
    before = sorted(Path(chain).rglob("*"))
    plan = dc.prune(chain, keep_last=1, keep_every=2, keep=[0, 2], dry_run=True)
    assert (plan.done, plan.kept, plan.withdrawn) == (False, (0, 2), ())
    made = dc.compact(chain, snapshot=True, bases=[0])
    assert (made.version, [route.base for route in made.routes]) == (2, [None, 0])
    plan = dc.prune(chain, keep_last=1, dry_run=True)
    assert plan.withdrawn == (0, 1)
    done = dc.prune(chain, keep_last=1)
    assert done.done and (done.kept, done.withdrawn, done.removed) == ((2,), (0, 1), ())
    assert done.young > 0 and set(before) <= set(Path(chain).rglob("*")), "files go a day later"
    assert dc.show(chain, 0).routes == () and dc.fsck(chain).healthy
    assert dc.undo_prune(chain) == (0, 1, 2) and dc.show(chain, 0).routes
    with pytest.raises(dc.ChainError, match="20 hours"):
        dc.undo_prune(chain)
    left = Path(chain, "files", f"{'0' * 64}.dcf")
    left.write_bytes(b"not a link")
    os.utime(left, (time.time() - 25 * 3600,) * 2)
    report = dc.fsck(chain)
    assert isinstance(report, dc.reports.FsckReport) and (report.unnamed, report.unnamed_bytes) == (
        1,
        10,
    )
    kept = dc.prune(chain, keep_last=3)
    assert (kept.unnamed, kept.unnamed_bytes, left.exists()) == (1, 10, True)
    assert dc.prune(chain, abandoned=True).removed == (f"files/{left.name}",) and not left.exists()
    commits = {path: path.read_bytes() for path in Path(chain, "commits").iterdir()}
    for path in commits:
        path.unlink()
    with pytest.raises(dc.ChainError, match="R-RET-05"):
        dc.prune(chain, keep_last=3)
    for path, content in commits.items():
        path.write_bytes(content)
    with pytest.raises(dc.UsageError):
        dc.compact(chain)
    with pytest.raises(dc.UsageError, match="keep_last"):
        dc.prune(chain, keep_last=0)
    with pytest.raises(KeyError):
        dc.fsck(chain, deep=True, progress=lambda *_: {}["x"])


def test_ctrl_c_ends_reports() -> None:
    program = """
import os, signal, sys, threading
import deltachain as dc
from stalling_store import StallingStore
# Whatever started the tests may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    store.stands.wait()
    os.kill(os.getpid(), signal.SIGINT)

with StallingStore() as store:
    store.stall, store.methods, store.part = 3600, ("GET", "PUT"), ""
    threading.Thread(target=interrupt).start()
    try:
        getattr(dc, sys.argv[1])(store.chain())
    except KeyboardInterrupt:
        print("ended")
"""
    for name in ("log", "fsck", "doctor"):
        command = [sys.executable, "-c", program, name]
        ran = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (0, "ended\n"), ran.stderr


def test_a_step_is_published_once(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url, once="step") as pub:
        assert pub.newest is None and "nothing published yet" in repr(pub)
        first = pub.publish(tensors(0), metadata={"step": 7})
        assert first.is_new
        again = pub.publish(tensors(1), metadata={"step": 7})
        assert (again.is_new, again.version, again.commit, again.digest) == (
            False,
            0,
            first.commit,
            first.digest,
        )
        assert (again.changed, again.elements) == (0, 0)
        assert pub.last == again and f"version 0, {first.digest[:12]}" in repr(pub)
        newest = pub.newest
        assert newest is not None and (newest.commit, newest.metadata) == (
            first.commit,
            {"step": "7"},
        )
        assert pub.publish(tensors(2), metadata={"step": 8}).version == 1
    assert "closed" in repr(pub)
    with pytest.raises(dc.UsageError):
        _ = pub.newest
    with dc.Publisher(url, once="step") as pub:
        # The head decides, before anything is copied.
        reads: list[int] = []
        weights = {
            "w": dc.Tensor("U8", (3,), lambda offset, length: reads.append(length) or bytes(length))
        }
        job = pub.publish_async(weights, metadata={"step": 8})
        assert job.done() and not job.result().is_new and not reads
        assert pub.publish(weights, metadata={"step": 9}).is_new and reads
    assert [version.metadata["step"] for version in dc.log(url)] == ["9", "8", "7"]
    assert dc.fsck(url).orphans == 0  # type: ignore[union-attr]


def test_a_step_costs_no_request_more() -> None:
    with StallingStore() as store:
        routes, requests = dc.RoutePlan(snapshot_cost=math.inf), {}
        for once in (None, "step"):
            with dc.Publisher(store.chain(f"s3://bucket/{once}"), routes=routes, once=once) as pub:
                pub.publish(tensors(0), metadata={"step": 0})
                store.requests.clear()
                assert pub.publish(tensors(1), metadata={"step": 1}).is_new
                requests[once] = len(store.requests)
                store.requests.clear()
                if once:
                    assert not pub.publish(tensors(1), metadata={"step": 1}).is_new
                    assert store.requests == []
        assert requests["step"] == requests[None] <= 8


def test_a_step_that_is_skipped_reads_a_stream_to_its_end(tmp_path: Path) -> None:
    read = []

    def stream() -> Any:
        for name in ("a", "b"):
            read.append(name)
            yield name, dc.Tensor("U8", (1,), b"x")

    with dc.Publisher(tmp_path / "chain", once="step") as pub:
        pub.publish(stream(), metadata={"step": 0})
        assert not pub.publish(stream(), metadata={"step": 0}).is_new
        assert read == ["a", "b"] * 2

        def broken() -> Any:
            yield from stream()
            raise KeyError("x")

        with pytest.raises(KeyError):
            pub.publish(broken(), metadata={"step": 0})
        assert pub.publish(stream(), metadata={"step": 1}).version == 1


def test_a_run_that_counts_anew_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "step 0, the chain's newest is 500: skipped"
    with dc.Publisher(tmp_path / "chain", once="step") as pub:
        pub.publish(tensors(0), metadata={"step": 500})
        assert not pub.publish(tensors(1), metadata={"step": 500}).is_new
        assert not caplog.text
    # One warning when a run begins and one when it continues, however many steps are skipped.
    with dc.Publisher(tmp_path / "chain", once="step") as pub:
        for step in (0, 1, 2):
            job = pub.publish_async(tensors(1), metadata={"step": step})
            assert not job.result().is_new
            assert caplog.text.count(": skipped") == 1
        assert text in caplog.text
        assert pub.publish(tensors(1), metadata={"step": 501}).is_new
        assert not pub.publish(tensors(1), metadata={"step": 3}).is_new
    assert "step 3, the chain's newest is 501: skipped" in caplog.text


def test_a_version_without_a_step_is_refused(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain", once="step") as pub:
        for metadata in (None, {}, {"stop": 1}, {"step": 1.0}, {"step": "x"}, {"step": None}):
            with pytest.raises(dc.UsageError, match='"step"'):
                pub.publish(tensors(0), metadata=metadata)
        assert pub.head is None
    with dc.Publisher(tmp_path / "chain") as pub:
        pub.publish(tensors(0))
    with dc.Publisher(tmp_path / "chain", once="step") as pub:
        assert pub.publish(tensors(1), metadata={"step": -3}).is_new


def test_of_two_trainers_with_the_same_steps_each_step_is_published_once(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url) as pub:
        pub.publish(tensors(0), metadata={"step": 0})
    new: list[int] = []

    def train(pub: dc.Publisher) -> None:
        for step in range(1, 12):
            try:
                published = pub.publish(tensors(step), metadata={"step": step})
            except dc.ChainError:
                # The other trainer published this version first.
                continue
            if published.is_new:
                new.append(step)

    with dc.Publisher(url, once="step") as one, dc.Publisher(url, once="step") as other:
        threads = [threading.Thread(target=train, args=(pub,)) for pub in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    steps = [int(version.metadata["step"]) for version in reversed(dc.log(url))]
    assert steps == sorted(set(steps)) and sorted(new) == steps[1:]


def test_a_trainer_that_is_killed_ten_times_publishes_each_step_once(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    # Publishes steps 0 to 39. The trainer has no checkpoint of its own: it prints when a step
    # begins and when it is published.
    trainer = textwrap.dedent("""
        import deltachain as dc, sys
        say = lambda *words: print(*words, flush=True)
        state = lambda step: {"w": dc.Tensor("U32", (20_000,), step.to_bytes(4, "little") * 20_000)}

        with dc.Publisher(sys.argv[1], once="step") as pub:
            start = int(pub.newest.metadata["step"]) + 1 if pub.newest else 0
            for step in range(max(start - int(sys.argv[2]), 0), 40):
                say("begins", step)
                job = pub.publish_async(state(step), metadata={"step": step})
                say("published", step, job.result().is_new)
    """)
    rng = random.Random(7)
    skipped = 0
    for kill in range(11):
        command = [sys.executable, "-c", trainer, str(url), str(rng.randrange(4))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            # The trainer is killed right after a commit, or at some instant of the next step. The
            # last round runs to its end.
            left = 2 + rng.randrange(6) if kill < 10 else None
            for line in process.stdout:
                skipped += line.endswith("False\n")
                if left is not None and line.startswith(("published", "begins")):
                    left -= 1
                    if left <= 0:
                        time.sleep(rng.choice((0.0, rng.random() / 50)))
                        process.send_signal(signal.SIGKILL)
                        break
            process.wait(60)
            assert process.returncode == (-signal.SIGKILL if kill < 10 else 0)
    versions = list(reversed(dc.log(url, last=None)))
    assert [(version.version, version.metadata["step"]) for version in versions] == [
        (n, str(n)) for n in range(40)
    ]
    assert skipped > 0, "some steps were repeated"
    assert dc.fsck(url, deep=True).healthy
    for version in versions:
        data = version.version.to_bytes(4, "little") * 20_000
        assert version.digest == dc.digest({"w": dc.Tensor("U32", (20_000,), data)}).digest
