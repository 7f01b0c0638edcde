"""A small server that stands for one of vLLM: it records what it is asked, and fails where it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

# A request: its path, and its body if it has one.
Call = tuple[str, Any]


class StandIn:
    """The server, on a free port of this machine, while the block lasts.

    Attributes:
        calls: what it was asked, in order, but for `/health`.
        fails: paths that it answers with an error of the engine.
        seen: called with each request, before it is answered.
        version: what it says that its weights are.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fails: set[str] = set()
        self.seen: Callable[[Call], None] = lambda call: None
        self.version = "default"
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                self.answer(json.loads(self.rfile.read(length)) if length else None)

            def answer(self, body: Any) -> None:
                code, told = server.asked(self.path, body)
                text = json.dumps(told).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def asked(self, path: str, body: Any) -> tuple[int, Any]:
        """What it answers."""
        if path != "/health":
            self.calls.append((path, body))
            self.seen((path, body))
        if path in self.fails:
            return 500, {"error": "the engine says why"}
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/finish_weight_update" and "weight_version" in body:
            self.version = body["weight_version"]
        return 200, {}

    def taken(self) -> list[Call]:
        """What it was asked since this was called last."""
        calls, self.calls = self.calls, []
        return calls

    def __enter__(self) -> StandIn:
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
