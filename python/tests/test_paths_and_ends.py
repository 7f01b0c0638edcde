"""Paths stay right if the process changes its directory, `~` is the home directory, and closed
objects leave no threads and no handles behind."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Chain, model

import deltachain as dc

STATE = {"w": dc.Tensor("U8", (3,), b"abc")}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Starts in one directory, and returns a function that changes to another one."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(here))
    return lambda: os.chdir(there)


def test_relative_paths_are_those_of_the_beginning(
    tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    Path("scratch").mkdir()
    publisher = dc.Publisher("chain", scratch="scratch")
    subscriber = dc.Subscriber("./chain", host_copy="copy")
    memory = dc.Subscriber("chain", cache="cache")
    publisher.publish(STATE)
    subscriber.prepare().apply()
    memory.prepare().apply()
    copy = dc.HostCopy("copy")
    store = dc.Store("chain", copies=["chain"])
    elsewhere()
    publisher.publish({"w": dc.Tensor("U8", (3,), b"abd")})
    subscriber.prepare().apply()
    memory.prepare().apply()
    assert copy.version == 1 == memory.version == subscriber.version
    assert len(dc.log(store)) == 2
    for one in (publisher, subscriber, memory):
        one.close()
    assert not list((tmp_path / "there").iterdir())


def test_the_home_directory(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    home = tmp_path / "here"
    (home / "scratch").mkdir()
    elsewhere()
    key = dc.new_key("trainer")
    (home / "key").write_text(key)
    (home / "key").chmod(0o600)
    (home / "key.pub").write_text(dc.public_key(key))
    assert dc.public_key("~/key") == dc.public_key(key)
    dc.diff(STATE, STATE, "~/link.dcf")
    with dc.open("~/link.dcf") as link:
        link.save("~/again.dcf")
    with dc.Publisher("~/chain", sign_key="~/key", scratch="~/scratch") as publisher:
        publisher.publish(STATE)
    with dc.Subscriber("~/chain", host_copy="~/copy", trust="~/key.pub") as subscriber:
        subscriber.prepare().apply()
    with dc.Subscriber("~/chain", cache="~/cache", trust=["~/key.pub"]) as subscriber:
        subscriber.prepare().apply()
    dc.pull("~/chain", Path("~/pulled"), trust=dc.Trust("~/key.pub"))
    dc.fsck("~/chain", deep=True, scratch="~/scratch")
    dc.mirror("~/chain", "~/mirrored")
    assert dc.adapters.find_version("~/copy") is not None and dc.HostCopy("~/copy").version == 0
    assert dc.status("~/copy").version == 0
    current = "~/copy/current"
    assert dc.digest(current).digest == dc.digest(STATE).digest
    assert dc.diff(current, STATE).report is not None
    dc.apply(current, ["~/link.dcf"], "~/applied")
    with dc.Publisher("~/liked", like="~/copy/current") as publisher:
        publisher.publish(STATE)
    assert not list((tmp_path / "there").iterdir())


def test_a_link_that_is_switched_is_followed(tmp_path: Path, elsewhere: Callable[[], None]) -> None:
    for number in range(2):
        with dc.Publisher(tmp_path / f"chain {number}") as publisher:
            for byte in (b"a", b"b")[: number + 1]:
                publisher.publish({"w": dc.Tensor("U8", (1,), byte)})
        dc.pull(tmp_path / f"chain {number}", tmp_path / f"copy {number}")
    Path("latest").symlink_to(tmp_path / "copy 0")
    copy = dc.HostCopy("latest")
    elsewhere()
    assert copy.version == 0
    link = tmp_path / "here" / "latest"
    link.unlink()
    link.symlink_to(tmp_path / "copy 1")
    assert copy.version == 1


def test_a_current_directory_that_was_removed(
    tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    os.rmdir(tmp_path / "here")
    with pytest.raises(dc.IoError, match="the current directory does not exist any more"):
        dc.Publisher("chain")
    elsewhere()


# Closing.


def threads() -> list[str]:
    """Returns the names of the process's threads. Threads that wait for stores are called
    "store"."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


CLOSED = """
import asyncio, os, sys, time
from pathlib import Path
import deltachain as dc

url, folder, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
state = {"w": dc.Tensor("U8", (3,), b"abc")}

def published(**settings):
    with dc.Publisher(folder / "other", **settings) as publisher:
        publisher.publish(state)
    return publisher

def subscribed(**settings):
    with dc.Subscriber(url, **settings) as subscriber:
        subscriber.prepare(0).apply()
        subscriber.find(0)
    return subscriber

def followed():
    with dc.Subscriber(url) as subscriber:
        next(subscriber.follow()).apply()
    return subscriber

kinds = {
    "publisher": published,
    "publisher that prunes": lambda: published(keep_last=2),
    "subscriber": subscribed,
    "subscriber with a host copy": lambda: subscribed(host_copy=folder / "copy"),
    "subscriber into memory": lambda: subscribed(into={"d.steady": bytearray(3)}, strict=False),
    "subscriber that follows": followed,
    "log": lambda: dc.log(url),
}

def used_up():
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return "store" in threads, len(threads), len(os.listdir("/proc/self/fd"))

def settled(bound=(False, 1000, 1000)):
    # Threads that read files end a second after they had something to do.
    for _ in range(1200):
        found = used_up()
        if all(one <= most for one, most in zip(found, bound)):
            break
        time.sleep(0.05)
    return found

# The pools of threads that compute stay.
for make in kinds.values():
    make()
before, kept = settled(), []
print("before", *before[1:])
for name, make in kinds.items():
    kept += [make() for _ in range(rounds)]
    after = settled(before)
    print(name, *after[1:])
    assert all(one <= most for one, most in zip(after, before)), (name, before, after)
"""
# Number of objects of each kind.
ROUNDS = os.environ.get("DELTACHAIN_CLOSED", "10")


@pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: there is no /proc")
def test_what_is_closed_leaves_nothing(chain: Chain, tmp_path: Path) -> None:
    chain.publish(model(0))
    command = [sys.executable, "-c", CLOSED, chain.url, str(tmp_path), ROUNDS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    print(ran.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: there is no /proc")
def test_open_objects_share_their_threads(chain: Chain) -> None:
    chain.publish(model(0))
    first = dc.Subscriber(chain.url, threads=1)
    first.prepare().apply()
    before = handles()
    more = [dc.Subscriber(chain.url, threads=1) for _ in range(50)]
    # Two threads wait for answers; the number of threads that read files has a limit for the
    # process. Each object has a lock.
    assert threads().count("store") <= 2 + 32 and handles() <= before + len(more)
    for one in (*more, first):
        one.close()


FORKED = """
import os, sys
import deltachain as dc
kept = dc.Subscriber(sys.argv[1])
kept.prepare().apply()
child = os.fork()
if child == 0:
    with dc.Subscriber(sys.argv[1]) as subscriber:
        subscriber.prepare().apply()
    os._exit(0)
_, status = os.waitpid(child, 0)
kept.poll()
assert status == 0, status
print("both")
"""


def test_a_child_that_was_forked_has_threads_of_its_own(chain: Chain) -> None:
    chain.publish(model(0))
    command = [sys.executable, "-c", FORKED, chain.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "both\n"), ran.stderr


def test_a_store_that_was_given_stays_open(chain: Chain) -> None:
    chain.publish(model(0))
    store = dc.Store(chain.url)
    for _ in range(2):
        with dc.Subscriber(store) as subscriber:
            subscriber.prepare().apply()
    with dc.Publisher(store) as publisher:
        assert publisher.head == 0
    assert len(dc.log(store)) == 1


def test_what_was_closed_says_so(chain: Chain) -> None:
    chain.publish(model(0))
    subscriber = dc.Subscriber(chain.url)
    update = subscriber.prepare()
    subscriber.close()
    subscriber.close()
    for call in (subscriber.poll, lambda: subscriber.prepare(0, timeout=1), lambda: update.lag):
        with pytest.raises(dc.UsageError, match="has been closed") as raised:
            call()
        assert raised.value.advice == "open another one"
    assert "not open" in repr(subscriber)


# A store that does not answer.


@pytest.fixture
def silent() -> str:
    """The URL of a chain whose server refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/chain"


def test_a_store_that_does_not_answer_is_named_in_the_timeout(
    silent: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "deltachain"), dc.Subscriber(silent) as subscriber:
        for call in (subscriber.prepare, subscriber.poll):
            with pytest.raises(dc.TimeoutError, match="onnection refused"):
                call(timeout=2)
        assert subscriber.failure is not None and "refused" in subscriber.failure
    said = [record.getMessage() for record in caplog.records]
    assert any("does not answer" in line and silent in line for line in said), said


def test_the_reason_is_known_while_it_is_tried_again(silent: str) -> None:
    with dc.Subscriber(silent) as subscriber:
        reasons: list[str] = []

        def stop() -> bool:
            if subscriber.failure is not None:
                reasons.append(subscriber.failure)
            return bool(reasons)

        assert list(subscriber.follow(stop=stop)) == []
        assert "refused" in reasons[0]
        # A stop is no failure.
        assert "stopped" not in (subscriber.failure or "")


def test_a_store_that_answers_has_no_failure(chain: Chain) -> None:
    chain.publish(model(0))
    with dc.Subscriber(chain.url) as subscriber:
        subscriber.prepare().apply()
        assert subscriber.failure is None
