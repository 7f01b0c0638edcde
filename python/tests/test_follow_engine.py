"""`dc.follow_engine`, with a server that records what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200, self.server.info)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, body))
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


def test_servers_are_brought_to_a_version(chain: Chain, server: Server, tmp_path: Path) -> None:
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


def test_what_fails_is_an_error_of_its_class(chain: Chain, server: Server, tmp_path: Path) -> None:
    server.refuses = True
    with pytest.raises(dc.IoError, match="not today"):
        dc.follow_engine(chain.url, tmp_path / "model", engine="sglang", servers=[server.url], once=True)
    assert server.calls[-1][0] == "/update_weights_from_disk", "it stays paused"
    with pytest.raises(dc.UsageError, match="engine"):
        dc.follow_engine(chain.url, tmp_path / "model", engine="steam", servers=[server.url], once=True)


def test_an_error_in_on_event_ends_it(chain: Chain, server: Server, tmp_path: Path) -> None:
    def fail(event: dict[str, Any]) -> None:
        raise RuntimeError(event["event"])

    with pytest.raises(RuntimeError):
        dc.follow_engine(chain.url, tmp_path / "model", engine="sglang", servers=server.url, on_event=fail)
