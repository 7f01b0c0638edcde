"""A fleet: what members hold, by digest, members in this process, and promoted versions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import deltachain as dc


def tensors(value: int) -> dict[str, dc.Tensor]:
    return {"w": dc.Tensor("U8", (3,), bytes([value] * 3))}


@pytest.fixture
def chain(tmp_path: Path) -> str:
    url = str(tmp_path / "chain")
    with dc.Publisher(url) as publisher:
        for number in range(3):
            publisher.publish(tensors(number))
    return url


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a server, and the status that it gives at /status."""
    status: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(status).encode()
            self.send_response(200 if self.path == "/status" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}", status
        server.shutdown()
        thread.join()


def test_subscribers_and_directories_are_members(
    chain: str, tmp_path: Path, served: tuple[str, dict[str, Any]]
) -> None:
    address, status = served
    directory = str(tmp_path / "model")
    dc.pull(chain, directory, version=1)
    newest = dc.show(chain)
    with dc.Subscriber(chain) as subscriber:
        status.update(subscriber.status())
        assert not status["healthy"]
        (empty,) = dc.fleet(chain, [address]).members
        assert (empty.condition, empty.version) == ("empty", None)
        subscriber.prepare().apply()
        status.update(subscriber.status())
    report = dc.fleet(chain, [address, directory])
    assert (report.head, report.commit, report.healthy) == (2, newest.commit, True)
    own, other = report.members
    assert (own.version, own.commit, own.digest) == (2, newest.commit, newest.digest)
    assert (own.condition, own.proof, own.behind, own.server) == ("holds", "hashed", 0, None)
    assert own.since is not None and own.since.tzinfo is not None
    assert (other.version, other.behind, other.signed) == (1, 1, None)
    # A version that was taken in place is as new as any other.
    into = {"w": bytearray(3)}
    with dc.Subscriber(chain, into=into) as subscriber:
        subscriber.prepare(1).apply()
        first = subscriber.status()
        subscriber.prepare(2).apply()
        second = subscriber.status()
        assert first["switched"] < second["switched"]
    # An engine that was left half way is not healthy.
    with dc.Subscriber(chain) as subscriber:
        with pytest.raises(KeyError), subscriber.prepare().full():
            raise KeyError("as the test said")
        assert subscriber.torn and not subscriber.status()["healthy"]
        status.update(subscriber.status())
        (torn,) = dc.fleet(chain, [address]).problems
        assert torn.problem is not None and "parts of two versions" in torn.problem
    # A version that the chain does not have.
    status["commit"] = "0" * 64
    report = dc.fleet(chain, [address])
    assert [one.condition for one in report.problems] == ["foreign"]


def test_a_script_waits_for_a_version(
    chain: str, tmp_path: Path, served: tuple[str, dict[str, Any]]
) -> None:
    address, _ = served
    directory = str(tmp_path / "model")
    dc.pull(chain, directory, version=1)
    name = f"1@{dc.show(chain, 1).commit[:12]}"
    assert dc.fleet(chain, [directory], wait=name).healthy
    with pytest.raises(dc.TimeoutError, match="after 0 s"):
        dc.fleet(chain, [directory, address], wait=name, member_timeout=0.5, timeout=0)
    with pytest.raises(dc.TimeoutError):
        dc.fleet(chain, [directory], wait=name, expect=2, timeout=0)
    for wrong in ("1", "1@abc", f"1@{'0' * 12}", f"1@{dc.show(chain, 1).digest}"):
        with pytest.raises(dc.UsageError):
            dc.fleet(chain, [directory], wait=wrong)
    with pytest.raises(dc.ChainError):
        dc.fleet(chain, [directory], wait=f"9@{'0' * 12}")
    for members in ([], ["model"], [directory, directory], directory):
        with pytest.raises(dc.UsageError):
            dc.fleet(chain, members)


def test_a_version_is_promoted(chain: str, tmp_path: Path) -> None:
    stable = str(tmp_path / "stable")
    second = dc.show(chain, 1)
    report = dc.mirror(chain, stable, up_to=(1, second.commit))
    assert report.version == 1 and not report.problems
    assert [one.version for one in dc.log(stable)] == [1, 0]
    with pytest.raises(dc.ChainError, match="at version 1"):
        dc.mirror(chain, stable, up_to=(0, dc.show(chain, 0).commit))
    with pytest.raises(dc.ChainError, match="has the commit"):
        dc.mirror(chain, stable, up_to=(2, second.commit))
    with pytest.raises(dc.UsageError, match="excludes"):
        dc.mirror(chain, stable, up_to=(2, dc.show(chain).commit), restore=True)
    for wrong in ((-1, second.commit), (2, "abc")):
        with pytest.raises(dc.UsageError):
            dc.mirror(chain, stable, up_to=wrong)
    dc.mirror(chain, stable, up_to=(2, dc.show(chain).commit))
    assert dc.show(stable).version == 2
