"""`dc.follow_engine`, with a server that records what it is asked."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from conftest import Chain, model

import deltachain as dc


class Server(ThreadingHTTPServer):
    """A stand-in for a server of SGLang."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.calls: list[tuple[str, Any]] = []
        self.info: dict[str, str] = {}
        self.refuses = False
        self.seen: Callable[[str], None] = lambda path: None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200, self.server.info)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, body))
        self.server.seen(self.path)
        refused = self.server.refuses and self.path == "/update_weights_from_disk"
        if self.path == "/update_weights_from_disk" and not refused:
            self.server.info = {"model_path": body["model_path"], "weight_version": body["weight_version"]}
        self._answer(400 if refused else 200, {"message": "not today"})

    def _answer(self, status: int, body: dict[str, str]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    chain = Chain(tmp_path)
    chain.publish(model(0))
    chain.publish(model(1))
    return chain


def test_servers_are_brought_to_a_version(
    chain: Chain, server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    events: list[dict[str, Any]] = []
    directory = tmp_path / "the model"
    dc.follow_engine(
        chain.url, directory, engine="sglang", servers=server.url, until=1, options=["--poll", "0.01"],
        on_event=events.append,
    )  # fmt: skip
    assert [path for path, _ in server.calls] == [
        "/pause_generation", "/update_weights_from_disk", "/continue_generation",
    ]  # fmt: skip
    assert server.calls[1][1]["model_path"] == str((directory / "current").resolve())
    (updated,) = [event for event in events if event["event"] == "server"]
    assert (updated["server"], updated["version"], updated["result"]) == (server.url, 1, "updated")
    assert [event["event"] for event in events if event["event"] != "server"] == ["switched", "readiness"]
    # What the tool prints belongs to the caller here.
    assert capfd.readouterr() == ("", "")


def test_what_fails_is_an_error_of_its_class(chain: Chain, server: Server, tmp_path: Path) -> None:
    server.refuses = True
    with pytest.raises(dc.IoError, match="not today"):
        dc.follow_engine(chain.url, tmp_path / "model", engine="sglang", servers=[server.url], once=True)
    assert server.calls[-1][0] == "/update_weights_from_disk", "it stays paused"
    with pytest.raises(dc.UsageError, match="engine"):
        dc.follow_engine(chain.url, tmp_path / "model", engine="steam", servers=[server.url], once=True)
    with pytest.raises(dc.UsageError) as raised:
        dc.follow_engine(tmp_path / "nowhere", tmp_path / "model", engine="sglang", servers=[server.url], once=True)
    assert "nowhere" in str(raised.value.file)


def test_an_error_in_on_event_ends_it(chain: Chain, server: Server, tmp_path: Path) -> None:
    def fail(event: dict[str, Any]) -> None:
        raise RuntimeError(event["event"])

    with pytest.raises(RuntimeError):
        dc.follow_engine(chain.url, tmp_path / "model", engine="sglang", servers=server.url, on_event=fail)


def test_ctrl_c_ends_it_when_the_servers_go_on(chain: Chain, server: Server, tmp_path: Path) -> None:
    is_interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        is_interrupted.set()
        raise KeyboardInterrupt

    def seen(path: str) -> None:
        if path == "/update_weights_from_disk":
            signal.raise_signal(signal.SIGINT)
            assert is_interrupted.wait(60)

    before = signal.signal(signal.SIGINT, interrupt)
    server.seen = seen
    try:
        with pytest.raises(KeyboardInterrupt):
            dc.follow_engine(chain.url, tmp_path / "model", engine="sglang", servers=server.url)
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    assert server.calls[-1][0] == "/continue_generation"
    # It has not failed, and the directory is free.
    status = json.loads((tmp_path / "model" / "status.json").read_text())
    assert (status["failing"], status["last_error"]) == (False, None)
    dc.follow_engine(chain.url, tmp_path / "model", engine="sglang", servers=server.url, once=True)


def test_nothing_shows_metrics_any_more_when_it_has_ended(chain: Chain, server: Server, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    port = "0"
    for _ in range(2):
        dc.follow_engine(
            chain.url, tmp_path / "model", engine="sglang", servers=server.url, until=1,
            options=["--poll", "0.01", "--metrics", port], on_event=events.append,
        )  # fmt: skip
        # The second one gets the port of the first.
        (text,) = {event["text"] for event in events if event["event"] == "remark"}
        port = str(urlsplit(text.rpartition(" ")[2]).port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


def test_it_ends_by_stop(chain: Chain, server: Server, tmp_path: Path) -> None:
    stop = threading.Event()
    dc.follow_engine(
        chain.url, tmp_path / "model", engine="sglang", servers=server.url, options=["--poll", "0.01"],
        on_event=lambda event: stop.set() if event["event"] == "server" else None, stop=stop,
    )  # fmt: skip
    assert [path for path, _ in server.calls][-1] == "/continue_generation"
