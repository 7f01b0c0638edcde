"""The client with which a trainer updates servers of vLLM, for `trl` and `vllm`. It does not import
vLLM."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol

from deltachain import UsageError
from deltachain.adapters import Servers, version_name
from deltachain.reports import PublishReport

__all__ = ["DeltachainWeightSyncClient", "SyncClient", "end_update", "send"]


class SyncClient(Protocol):
    """vLLM's `VLLMWeightSyncClient`."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


def send(client: SyncClient, published: PublishReport) -> None:
    """Updates the servers of a client to a version. The code that pauses them also resumes them.
    After a failure no update is open."""
    if isinstance(client, DeltachainWeightSyncClient):
        client.prepare(published.version)
    try:
        client.start_weight_update()
        client.update_weights({"version": published.version, "digest": published.digest})
        client.finish_weight_update(version_name(published.version, published.digest))
    except BaseException:
        end_update(client)
        raise


def end_update(client: SyncClient) -> None:
    """Ends an open update: vLLM ends an update that fails, and this one fails because it names no
    version. Without an open update, vLLM refuses the call."""
    with suppress(Exception):
        client.update_weights({})


class DeltachainWeightSyncClient:
    """Servers of vLLM with the backend `deltachain`, which one trainer updates, all at the same
    time.

        with DeltachainWeightSyncClient(["http://gpu-1:8000", "http://gpu-2:8000"]) as client:
            engine = WeightTransferTrainerFactory.trainer_init(init_info, client=client)
            engine.send_weights(model)
            client.resume()

    It has the methods of vLLM's `VLLMWeightSyncClient`. It also pauses and resumes the servers,
    keeps other processes from updating them, asks their workers for their version, and recovers
    after a failure: docs/engines.md, "What is asked of a server of vLLM".

    A server that fails drops out of the update, and resumes with the version that it holds; one
    that may hold parts of two versions stays paused until an update succeeds. The error is raised
    by `finish_weight_update`, or as soon as no server is left. If several servers fail, the errors
    of the others are its notes.

    Args:
        servers: `http://HOST:PORT` of servers in developer mode (`VLLM_SERVER_DEV_MODE=1`).
        pause: the fate of requests that a server is answering when an update begins.

            `"keep"`: they are kept, and continue with the new weights. One answer is then made of
            two versions.

            `"wait"`: they end first, within `timeout`.

            `"abort"`: they end at once, with what they have.
        timeout: maximum seconds for a request, a day at most, and for a server to answer at the
            beginning.

    It belongs to the process that has called `init_weight_transfer_engine`.

    Raises:
        UsageError: if a setting is invalid.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        pause: Literal["keep", "wait", "abort"] = "keep",
        timeout: float = 1800.0,
    ) -> None:
        if isinstance(servers, str):
            raise TypeError("servers= must be a list")
        if pause not in ("keep", "wait", "abort"):
            raise UsageError(f"USAGE: pause= must be 'keep', 'wait' or 'abort', not {pause!r:.60}")
        if not (isinstance(timeout, int | float) and 0 <= timeout < math.inf):
            raise UsageError(f"USAGE: timeout= must be a number of 0 or more, not {timeout!r:.60}")
        self._urls, self._pause, self._timeout = list(servers), pause, timeout
        self._told: str | None = None
        self._servers: Servers | None = None
        # The name of the version that is being loaded.
        self._name: str | None = None

    def __enter__(self) -> DeltachainWeightSyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Waits until all servers answer and no other process updates them, and gives their
        backends these settings: see `init_info` in docs/integrations.md. Does nothing if they have
        them already: each update gives them again, to servers that were restarted.

        Raises:
            UsageError: if a URL is invalid, or the settings are not JSON.
            TimeoutError: if a server does not answer in time.
            IoError: if a server refuses, or another process updates it.
        """
        try:
            told = json.dumps(dict(init_info))
        except (TypeError, ValueError) as error:
            raise UsageError(f"USAGE: init_info must be JSON: {error}") from error
        if self._servers is not None and told == self._told:
            return
        name = f"{socket.gethostname()}:process {os.getpid()}"
        servers = Servers(self._urls, told, name, float(self._timeout), self._pause)
        servers.begin()
        self._servers, self._told = servers, told

    def prepare(self, version: int) -> None:
        """Waits until the servers can load a version without waiting for it, or until waiting would
        not help. A server that downloads the chain itself prepares versions while it serves, so the
        pause is short.

        Raises:
            UsageError: before `init_weight_transfer_engine`.
        """
        self._begun().prepare(version)

    def start_weight_update(self) -> None:
        """Pauses the servers, and begins an update.

        Raises:
            UsageError: before `init_weight_transfer_engine`.
            IoError: if all servers fail.
        """
        servers, self._name = self._begun(), None
        servers.start()

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Loads a version into the servers.

        Args:
            update_info: `version`, its number, and `digest`, all 64 digits of its state digest.

        Raises:
            UsageError: if no update was started, or `version` or `digest` is missing: then the
                update ends, and the servers resume with the version that they hold.
            IoError: if all servers fail.
        """
        servers = self._begun()
        given = update_info if isinstance(update_info, Mapping) else {}
        version, digest = given.get("version"), given.get("digest")
        if not isinstance(version, int) or not isinstance(digest, str):
            servers.resume()
            raise UsageError(
                f"USAGE: update_info must have a version and its digest, not {update_info!r:.60}"
            )
        self._name = version_name(version, digest)
        servers.update(version, digest)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends the update. The servers stay paused until `resume`. If one has failed, all others
        resume.

        Args:
            weight_version: the name that `/weight_info` reports from then on; by default number and
                12 digits of the version's digest, which followers expect.

        Raises:
            UsageError: if no version was loaded.
            IoError: if a server has failed since the update began.
        """
        servers = self._begun()
        name = weight_version or self._name
        if name is None:
            raise UsageError("USAGE: call update_weights() before finish_weight_update()")
        servers.finish(name)

    def resume(self) -> None:
        """Resumes the servers after an update. An unfinished update ends, and servers with a whole
        version resume with that version.

        Raises:
            IoError: if a server stays paused.
        """
        if self._servers is not None:
            self._servers.resume()

    def close(self) -> None:
        """Allows other processes to update the servers; without this call they may after 90 s.
        Paused servers stay paused."""
        servers, self._servers = self._servers, None
        if servers is not None:
            servers.end()

    def _begun(self) -> Servers:
        if self._servers is None:
            raise UsageError("USAGE: call init_weight_transfer_engine() first")
        return self._servers
