"""`deltachain follow --engine` as a process of a program, with a server that records its
requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Chain, model, tool, write_model

import deltachain as dc

ROOT = Path(__file__).resolve().parent.parent.parent


class Server(ThreadingHTTPServer):
    """A stand-in for a server of SGLang."""

    def __init__(self, first: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.calls: list[tuple[str, Any]] = []
        # The version that the server was started with.
        self.info: dict[str, str] = {"model_path": str(first), "weight_version": "default"}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(self.server.info)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/get_weights_by_name":
            # The server has no plugin.
            self.send_error(400)
            return
        self.server.calls.append((self.path, body))
        if self.path == "/update_weights_from_disk":
            self.server.info = {
                "model_path": body["model_path"],
                "weight_version": body["weight_version"],
            }
        self._answer({})

    def _answer(self, body: dict[str, str]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    first = write_model(tmp_path / "first", model(0))
    with Server(first) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    chain = Chain(tmp_path)
    chain.publish(model(0))
    chain.publish(model(1))
    return chain


def test_the_program_of_the_page(chain: Chain, server: Server, tmp_path: Path) -> None:
    text = (ROOT / "integrations/docs/integrations.md").read_text()
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if '"follow"' in block
    )
    directory = tmp_path / "the model"
    for said, here in (
        ("s3://models/run7", chain.url),
        ("/dev/shm/run7", str(directory)),
        ("vllm", "sglang"),
        ("http://127.0.0.1:8000", server.url),
    ):
        assert said in program
        program = program.replace(said, here)
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        [sys.executable, "-c", program + "\nprint(follower.returncode)"],
        env=os.environ | {"PATH": tools},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == f"{server.url} has version 1\n0\n", ran.stderr
    assert [path for path, _ in server.calls] == [
        "/pause_generation", "/update_weights_from_disk", "/continue_generation",
    ]  # fmt: skip
    assert server.calls[1][1]["model_path"] == str((directory / "current").resolve())
    # The follower has not failed, and the directory is free.
    status = dc.status(directory)
    assert (status.failing, status.last_error, status.following) == (False, None, False)
    assert [(found["url"], found["version"], found["paused"]) for found in status.servers] == [
        (server.url, 1, False)
    ]
    tool("follow", chain.url, directory, "--once")
