"""Servers of vLLM that take a version when they are told to, over HTTP: those with the backend `deltachain`, started
with `VLLM_SERVER_DEV_MODE=1`."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ._errors import IoError, TimeoutError

__all__ = ["Server", "all_of", "update"]

# Seconds between two questions to a server that does not answer yet.
_POLL = 0.5

# Bytes of an answer that an error quotes.
_QUOTED = 500


class Server:
    """One server.

    Args:
        url: `http://HOST:PORT`.
        backend: settings for the server's backend, sent once before the first update: `init_info`.
        timeout: seconds for each request, and for the server to answer at first.
    """

    def __init__(self, url: str, backend: Mapping[str, Any], timeout: float) -> None:
        self.url = url.rstrip("/")
        self._backend = dict(backend)
        self._timeout = timeout
        self._version: str | None = None
        self._is_paused = False
        self._is_touched = False

    def begin(self) -> None:
        """Waits until the server is there, and tells its backend where the chain is.

        Raises:
            TimeoutError: if it is not there in time.
            IoError: if it refuses.
        """
        end = time.monotonic() + self._timeout
        while True:
            try:
                self._ask("GET", "/health", within=min(5.0, self._timeout))
                break
            except IoError as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.url} does not answer: {error}", file=self.url) from error
            time.sleep(_POLL)
        self._introduce()

    def _introduce(self) -> None:
        self._ask("POST", "/init_weight_transfer_engine", {"init_info": self._backend})
        self._version = self._shown()

    def _shown(self) -> str | None:
        """The version that the server says it has: what `finish_weight_update` told it, until it is started again."""
        version = self._ask("GET", "/weight_info").get("weight_version")
        return None if version is None else str(version)

    def update(self, version: int, digest: str) -> None:
        """Pauses the server and brings it to a version. It stays paused until `resume`.

        Raises:
            IoError: if it refuses or does not answer. If it may hold parts of two versions, it stays paused, and
                `resume` does nothing.
        """
        if self._shown() != self._version:
            # It has been started again since.
            self._introduce()
        self._ask("POST", "/pause?mode=keep")
        self._is_paused = True
        self._is_touched = True
        try:
            self._ask("POST", "/start_weight_update", {})
            self._ask("POST", "/update_weights", {"update_info": {"version": version, "digest": digest}})
            self._ask("POST", "/finish_weight_update", {"weight_version": str(version)})
        except IoError as error:
            error.add_note(f"{self.url} stays paused: it may hold parts of two versions")
            try:
                # Otherwise it would refuse the update that can mend it.
                self._ask("POST", "/finish_weight_update", {})
            except IoError as other:
                error.add_note(f"the update was not ended either: {other}")
            raise
        self._version = str(version)
        self._is_touched = False

    def resume(self) -> None:
        """Lets it go on, if it was paused here and holds a whole version."""
        if self._is_paused and not self._is_touched:
            self._ask("POST", "/resume")
            self._is_paused = False

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, within: float | None = None
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=within or self._timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            said = error.read(_QUOTED).decode(errors="replace").strip()
            raise IoError(
                f"IO: {self.url} refused {path.partition('?')[0]}: {error.code} {said}", file=self.url
            ) from error
        except (OSError, ValueError) as error:
            raise IoError(
                f"IO: {self.url} does not answer {path.partition('?')[0]}: {error}", file=self.url, retryable=True
            ) from error
        try:
            answer = json.loads(text or b"{}")
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


def all_of(servers: Sequence[Server], step: Callable[[Server], None]) -> None:
    """Does a step with all servers at once, and raises if it fails with any.

    Raises:
        Error: that of the first server that failed; notes say what the others said.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(servers)), thread_name_prefix="deltachain-server") as threads:
        errors = [done.exception() for done in [threads.submit(step, server) for server in servers]]
    failed = [error for error in errors if error is not None]
    if failed:
        for other in failed[1:]:
            for note in (str(other), *getattr(other, "__notes__", ())):
                failed[0].add_note(note)
        raise failed[0]


def update(servers: Sequence[Server], version: int, digest: str) -> None:
    """Brings all servers to a version; they are paused afterwards. If that fails with some, those that hold a whole
    version go on.

    Raises:
        IoError: see `Server.update`.
    """
    try:
        all_of(servers, lambda server: server.update(version, digest))
    except IoError as error:
        try:
            all_of(servers, Server.resume)
        except IoError as other:
            error.add_note(str(other))
        raise
