"""A small server that stands in for vLLM with the backend `deltachain`: it records its requests,
refuses what vLLM refuses, and fails where the test says so.

The rules below come from vLLM 0.32.0:

- `v1/worker/gpu_worker.py`: `start_weight_update` is refused while an update is open,
  `update_weights` and `finish_weight_update` where none is. An update that fails is closed; a
  finish that fails is not.
- `deltachain/_vllm_engine.py`: no finish without a version received, no update before the copy is
  known. A request gives `host_copy`, or the configuration names one; a chain in a request is
  refused.
- `v1/engine/core.py`: a pause is a state that any client sets and clears, and that a restart
  forgets. The version is the last text that a client set, "default" at first, whatever the weights
  are.
- `entrypoints/serve/dev/rpc/api_router.py`: `/collective_rpc` passes texts, answers with a text if
  a method returns neither an object nor a list, and fails for a missing method.
- uvicorn closes the connection after a request that raised an exception, without announcing it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

# A request: its path, and its body or None. Calls of workers have the path
# `/collective_rpc METHOD`.
Call = tuple[str, Any]

# Requests to a server for one version, up to the one before `/resume`.
UPDATE = [
    "/collective_rpc deltachain_state",
    "/weight_info",
    "/init_weight_transfer_engine",
    "/pause?mode=keep",
    "/collective_rpc deltachain_end_update",
    "/update_weight_version",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
]

# Request before these, if the server may download versions itself.
READY = "/collective_rpc deltachain_is_ready"

# Questions that only other replicas answer with errors. This server has none, and does not record
# these questions.
REPLICAS = ("/collective_rpc deltachain_agrees", "/collective_rpc deltachain_are_ready")

# State of the workers: the version and its digest, "other" or "torn".
Holds = tuple[int, str] | str


class Refused(Exception):
    """The error of a request that vLLM answers with 500."""


class StandIn:
    """The server, on a free port of this machine, while the block lasts.

    Attributes:
        calls: its requests, in order, without `/health`.
        fails: paths that the server answers with an error of the engine.
        fails_once: paths that it answers so once.
        tears: whether an update that fails has touched the weights.
        breaks: paths whose first request loses its connection.
        chain: the digest of each version that the server can download; None: any.
        seen: called with each request, before it is answered.
        pause_mode: the mode of the last pause, for running requests.
        owner: the follower that has the lease.
        preparing: how often it still answers that it has not prepared a version, which it downloads
            itself.
        owner_asks: how often another owner still renews the lease; None: always.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fails: set[str] = set()
        self.fails_once: set[str] = set()
        self.tears = True
        self.breaks: set[str] = set()
        self.chain: dict[int, str] | None = None
        self.seen: Callable[[Call], None] = lambda call: None
        self.owner: str | None = None
        self.preparing = 0
        self.owner_asks: int | None = None
        self.restart()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                self.answer(json.loads(self.rfile.read(length)) if length else None)

            def answer(self, body: Any) -> None:
                if self.path in server.breaks:
                    server.breaks.discard(self.path)
                    self.close_connection = True
                    return
                try:
                    code, told = 200, server.asked(self.path, body)
                except Refused as refused:
                    code, told = 500, {"error": str(refused)}
                    self.close_connection = True
                text = json.dumps(told).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def restart(self) -> None:
        """Forgets its state, as a new process would."""
        self.version = "default"
        self.holds: Holds = "other"
        self.pause_mode: str | None = None
        self.is_paused = self.knows_chain = self.is_open = self.has_received = False

    def asked(self, path: str, body: Any) -> Any:
        """Returns the answer to a request.

        Raises:
            Refused: if vLLM would refuse it.
        """
        if path == "/health":
            return {}
        if path == "/collective_rpc":
            path = f"{path} {body['method']}"
        if path in REPLICAS:
            return {"results": [None]}
        self.calls.append((path, body))
        self.seen((path, body))
        if path in self.fails | self.fails_once:
            self.fails_once.discard(path)
            if path == "/update_weights":
                self.is_open = False
                self.holds = "torn" if self.tears else self.holds
            raise Refused("the engine says why")
        return self._done(path, body)

    def _done(self, path: str, body: Any) -> Any:
        if path == "/weight_info":
            return {"weight_version": self.version}
        if path == "/is_paused":
            return {"is_paused": self.is_paused}
        if path == "/collective_rpc deltachain_state":
            return {"results": [self._state(**body["kwargs"])]}
        if path == READY:
            self.preparing = max(0, self.preparing - 1)
            return {"results": [{"ready": self.preparing == 0}]}
        if path == "/collective_rpc deltachain_end_update":
            self.is_open = self.has_received = False
            return {"results": [None]}
        if path == "/init_weight_transfer_engine":
            if body["init_info"].get("chain") is not None:
                raise Refused("a request cannot make this server open a chain")
            self.knows_chain = True
        elif path in {f"/pause?mode={mode}" for mode in ("keep", "wait", "abort")}:
            self.is_paused, self.pause_mode = True, path.partition("=")[2]
        elif path == "/resume":
            self.is_paused = False
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path == "/start_weight_update":
            if self.is_open:
                raise Refused("start_weight_update called while a weight update is already active")
            self.is_open, self.has_received = True, False
        elif path == "/update_weights":
            self._update(**body["update_info"])
        elif path == "/finish_weight_update":
            if not self.is_open:
                raise Refused("finish_weight_update called without a matching start_weight_update")
            if not self.has_received:
                raise Refused("no version has been received")
            self.is_open = False
            self.version = body.get("weight_version", self.version)
        else:
            raise Refused(f"there is no {path}")
        return {}

    def _state(self, follower: str, lease: str) -> dict[str, Any]:
        assert isinstance(lease, str)
        is_other = self.owner not in (None, follower) and self.owner_asks != 0
        if is_other and self.owner_asks is not None:
            self.owner_asks -= 1
        if not is_other:
            self.owner = follower if float(lease) > 0 else None
        state, version, digest = (
            (self.holds, None, None) if isinstance(self.holds, str) else ("held", *self.holds)
        )
        owner = self.owner if is_other else None
        return {
            "protocol": 2,
            "state": state,
            "version": version,
            "digest": digest,
            "owner": owner,
            "owner_seconds": 0.01 if is_other else None,
        }

    def _update(
        self, version: int | None = None, digest: str = "", follower: str | None = None
    ) -> None:
        if not self.is_open:
            raise Refused("start_weight_update must be called before update_weights")
        if version is None:
            self.is_open = False
            raise Refused("an update names a version")
        if not self.knows_chain or self.owner not in (None, follower):
            self.is_open = False
            raise Refused(
                "the backend has no chain yet"
                if not self.knows_chain
                else f"{self.owner} brings it"
            )
        if self.chain is not None and self.chain.get(version) != digest:
            self.is_open = False
            raise Refused(f"version {version} has another digest")
        self.holds, self.has_received = (version, digest), True

    def taken(self) -> list[Call]:
        """Returns the requests since the last call."""
        calls, self.calls = self.calls, []
        return calls

    def die(self) -> None:
        """Closes the port, as if the server had died."""
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def __enter__(self) -> StandIn:
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.die()
