"""Servers of vLLM that take a version when they are told to, over HTTP: those with the backend `deltachain`, started
with `VLLM_SERVER_DEV_MODE=1`. What is asked of them, and what follows from a failure: docs/integrations.md, "What is
asked of a server of vLLM"."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ._errors import IoError, TimeoutError

__all__ = ["Server", "all_of", "update"]

_logger = logging.getLogger("deltachain")

# Seconds between two questions to a server that does not answer yet.
_POLL = 0.5

# Seconds for which this process alone brings the server versions, from the last question on.
_LEASE = 90.0

# Seconds for a question that costs the server nothing.
_QUESTION = 5.0

# Bytes of an answer that an error quotes.
_QUOTED = 500

# Digits of a state digest in the name of a version.
_DIGITS = 12

# What a server says while its weights change, and when nobody knows what they are.
_CHANGING, _UNKNOWN = "changing", "unknown"

# What must not be sent twice.
_ONCE = ("/start_weight_update", "/update_weights", "/finish_weight_update")


class _Taken(IoError):
    """Another process brings the server versions, and may for these seconds more."""

    seconds: float


class Server:
    """One server.

    Args:
        url: `http://HOST:PORT`.
        backend: settings for the server's backend: `init_info`.
        timeout: seconds for each request, and for the server to answer at first.
    """

    def __init__(self, url: str, backend: Mapping[str, Any], timeout: float) -> None:
        self.url = url.rstrip("/")
        self._backend = dict(backend)
        self._timeout = timeout
        self._follower = f"{socket.gethostname()}:process {os.getpid()}"
        self._may_resume = False

    def begin(self) -> None:
        """Waits until the server is there, and tells its backend where the chain is.

        Raises:
            TimeoutError: if it is not there in time.
            IoError: if it refuses, or another process goes on bringing it versions.
        """
        end = time.monotonic() + self._timeout
        while True:
            try:
                self._ask("GET", "/health", within=min(_QUESTION, self._timeout))
                break
            except IoError as error:
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.url} does not answer: {error}", file=self.url) from error
            time.sleep(_POLL)
        try:
            self._states()
        except _Taken as taken:
            # It may be one that was killed, such as this trainer before it was started again.
            _logger.warning("%s; waiting", taken)
            time.sleep(taken.seconds)
            self._states()
        self._ask("POST", "/init_weight_transfer_engine", {"init_info": self._backend})

    def end(self) -> None:
        """Another process may bring the server versions."""
        with suppress(IoError):
            self._states(lease=0.0)

    def update(self, version: int, digest: str) -> None:
        """Pauses the server and brings it to a version. It stays paused until `resume`.

        Raises:
            IoError: if it refuses or does not answer. If it may hold parts of two versions, it stays paused, and
                `resume` does nothing.
        """
        self._may_resume = False
        # Nothing else is asked of a server that another process brings.
        self._states()
        before = str(self._ask("GET", "/weight_info").get("weight_version"))
        info = {"version": version, "digest": digest, "follower": self._follower}
        try:
            self._ask("POST", "/init_weight_transfer_engine", {"init_info": self._backend})
            self._ask("POST", "/pause?mode=keep")
            self._end_update()
            self._name(_CHANGING)
            self._ask("POST", "/start_weight_update", {})
            self._ask("POST", "/update_weights", {"update_info": info})
            self._ask("POST", "/finish_weight_update", {"weight_version": _name_of(version, digest)})
        except IoError as error:
            try:
                self._end_update(within=_QUESTION)
                self._name(self._whole(before))
                self._may_resume = True
            except IoError as other:
                error.add_note(f"{self.url} stays paused: it may hold parts of two versions ({other})")
            raise
        self._may_resume = True

    def resume(self) -> None:
        """Lets it go on after an update, if it holds a whole version."""
        if self._may_resume:
            self._ask("POST", "/resume")
            self._may_resume = False

    def _states(self, lease: float = _LEASE, within: float | None = None) -> list[dict[str, Any]]:
        """What each worker holds, and from now on this process brings the server versions.

        Raises:
            IoError: if another one does.
        """
        call = {"method": "deltachain_state", "kwargs": {"follower": self._follower, "lease": str(lease)}}
        states: list[dict[str, Any]] = self._ask("POST", "/collective_rpc", call, within).get("results") or []
        owner = states[0].get("owner") if states else None
        if owner is not None:
            seconds = float(states[0].get("owner_seconds") or 0.0)
            text = f"IO: {owner} brings {self.url} versions, and may for {seconds:.0f} s more: end one of the two"
            taken = _Taken(text, file=self.url, retryable=True)
            taken.seconds = seconds
            raise taken
        return states

    def _whole(self, before: str) -> str:
        """The name of what all workers hold.

        Raises:
            IoError: if it is not one version.
        """
        states = self._states(within=_QUESTION)
        found: list[tuple[Any, Any, Any]]
        found = [(state.get("state"), state.get("version"), state.get("digest")) for state in states]
        if not found or found[0][0] not in ("held", "other") or any(one != found[0] for one in found):
            raise IoError(f"IO: its workers hold {found}", file=self.url)
        state, version, digest = found[0]
        if state == "held":
            return _name_of(int(version), str(digest))
        # It is not the version that it may have named.
        return _UNKNOWN if before == _CHANGING or "@" in before else before

    def _end_update(self, within: float | None = None) -> None:
        """Ends an update that somebody has begun and not finished."""
        self._ask("POST", "/collective_rpc", {"method": "deltachain_end_update"}, within)

    def _name(self, version: str) -> None:
        """Lets the server say that it has this version."""
        self._ask("POST", "/update_weight_version", {"new_version": version})

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, within: float | None = None
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        # Each request has a connection of its own. It may break all the same.
        for is_last in (path in _ONCE, True):
            try:
                with urllib.request.urlopen(request, timeout=within or self._timeout) as response:
                    text = response.read()
                break
            except urllib.error.HTTPError as error:
                said = error.read(_QUOTED).decode(errors="replace").strip()
                raise IoError(
                    f"IO: {self.url} refused {path.partition('?')[0]}: {error.code} {said}", file=self.url
                ) from error
            except (OSError, ValueError) as error:
                # urllib gives some errors inside of others.
                if is_last or not isinstance(getattr(error, "reason", error), ConnectionError):
                    asked = path.partition("?")[0]
                    raise IoError(
                        f"IO: {self.url} does not answer {asked}: {error}", file=self.url, retryable=True
                    ) from error
        try:
            answer = json.loads(text or b"{}")
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


def _name_of(version: int, digest: str) -> str:
    """What a server says that it has: `12@9417bf72d3e1`."""
    return f"{version}@{digest[:_DIGITS]}"


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
