"""Publishing from trainers of TRL that generate during training: AsyncGRPOTrainer,
AsyncDistillationTrainer.

    from deltachain_integrations.trl import WeightTransfer

    trainer = AsyncGRPOTrainer(..., weight_transfer=WeightTransfer("s3://models/run7",
    like="base/"))

TRL's other trainers take `deltachain_integrations.transformers.PublishCallback`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from deltachain import HostCopy, Like, Publisher, Store, TimeoutError, UsageError
from deltachain.reports import PublishReport

from ._vllm_client import DeltachainWeightSyncClient, send

__all__ = ["WeightTransfer"]

# Seconds between polls of a host copy.
_POLL = 0.2


class WeightTransfer:
    """TRL's interface for updating servers (`WeightTransferProtocol`): each sync publishes a
    version to a chain.

    Args:
        chain: the chain: a directory, `s3://BUCKET/PREFIX`, `gs://`, `az://`, or a
            `deltachain.Store`.
        like: a reference checkpoint, usually the one that training started from, or a
            `deltachain.Like`. Versions take its names, dtypes and assets; with `Like(fill=True)`
            also the tensors that TRL does not send: parameters that are not trained, such as those
            of a vision tower, and buffers. TRL trains in F32 by default; weights are cast to the
            checkpoint's dtypes. See `Publisher`.
        wait: the event that a sync waits for.

            `"published"`: nothing. The weights are copied, and training continues while they are
            stored. Servers follow the chain on their own, without the trainer's knowledge. Only one
            version is published at a time.

            `"staged"`: until the version is stored, and each of `host_copies` has it.

            `"applied"`: until each of `servers` has it. Servers are paused only when the version is
            stored and all `host_copies` have it.
        host_copies: directories of followers (`deltachain follow URL DIR`), as mounted on this
            machine.
        servers: `http://HOST:PORT` of servers of vLLM with the backend `deltachain`. No other
            process may update them.
        pause: the fate of requests that a server is answering when an update begins: as in
            `deltachain_integrations.vllm.DeltachainWeightSyncClient`.
        backend: settings for the servers' backend: `{"mode": "reload"}`; `{"host_copy": DIR}` for
            servers whose configuration names no chain.
        timeout: maximum seconds for a host copy or a request to a server.
        publisher: other arguments of `Publisher`, such as `keep_last`. In TRL one process publishes
            for all, so there is no `group`.

    A sync raises a failure that it waits for; with `"published"`, the next sync raises it, or the
    end of training.

    Raises:
        UsageError: if settings contradict each other.
    """

    def __init__(
        self,
        chain: str | os.PathLike[str] | Store,
        *,
        like: str | os.PathLike[str] | Like | None = None,
        wait: Literal["published", "staged", "applied"] = "published",
        host_copies: Sequence[str | os.PathLike[str]] = (),
        servers: Sequence[str] = (),
        pause: Literal["keep", "wait", "abort"] = "keep",
        backend: Mapping[str, Any] | None = None,
        timeout: float = 1800.0,
        **publisher: Any,
    ) -> None:
        if wait not in ("published", "staged", "applied"):
            raise UsageError(
                f"USAGE: wait must be 'published', 'staged' or 'applied', not {wait!r}"
            )
        if isinstance(host_copies, str) or isinstance(servers, str):
            raise TypeError("host_copies= and servers= must be lists")
        if (wait == "applied") != bool(servers):
            raise UsageError("USAGE: servers= and wait='applied' need each other")
        if wait == "staged" and not host_copies:
            raise UsageError("USAGE: wait='staged' needs host_copies=")
        if wait == "published" and host_copies:
            raise UsageError("USAGE: host_copies= needs wait='staged' or wait='applied'")
        if pause != "keep" and not servers:
            raise UsageError("USAGE: pause= needs servers=")
        if backend is not None and not servers:
            raise UsageError("USAGE: backend= needs servers=")
        if "group" in publisher:
            raise UsageError("USAGE: group= is not supported: in TRL one process publishes")
        self._chain, self._like = chain, like
        self._wait = wait
        self._host_copies = [os.fspath(copy) for copy in host_copies]
        self._backend = dict(backend or {})
        self._client = (
            DeltachainWeightSyncClient(servers, pause=pause, timeout=timeout) if servers else None
        )
        self._timeout = timeout
        self._settings = publisher
        self._publisher: Publisher | None = None
        # The publisher of the last training.
        self._before: Publisher | None = None

    @property
    def last(self) -> PublishReport | None:
        """The version that was published last. It stays after training has ended."""
        publisher = self._publisher or self._before
        return None if publisher is None else publisher.last

    def init_weight_transfer(self) -> None:
        """Opens or creates the chain, and waits for the servers.

        Raises:
            Error: if the chain can neither be read nor created, or a server does not answer in
                time.
        """
        self._opened()

    def pause(self) -> None:
        """Does nothing: TRL calls this before it sends weights. With `wait="applied"`, servers are
        paused later, when the version is ready."""

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        """Publishes a version, and waits as `wait` says.

        Raises:
            UsageError: if names are missing or unexpected, or a tensor does not fit.
            TimeoutError: if host copies do not get the version in time. The version is published
                all the same.
            IoError: if a server fails; the others resume. A server that may hold parts of two
                versions stays paused.
            Error: if publishing this version fails, or the previous one failed and that error was
                not raised yet.
        """
        publisher = self._opened()
        job = publisher.publish_async(iterator)
        if self._wait == "published":
            return
        published = job.result()
        self._stage(published.version)
        if self._client is not None:
            send(self._client, published)

    def resume(self) -> None:
        """With `wait="applied"`, resumes the servers.

        Raises:
            IoError: if a server fails to resume.
        """
        if self._client is not None:
            self._client.resume()

    def destroy(self) -> None:
        """Waits for the running publish.

        Raises:
            Error: if publishing the last version failed, and that error was not raised yet.
        """
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            self._before = publisher
            try:
                publisher.close()
            finally:
                if self._client is not None:
                    self._client.close()

    def _opened(self) -> Publisher:
        # TRL does not call `init_weight_transfer` again if the same trainer trains twice.
        if self._publisher is None:
            publisher = Publisher(self._chain, like=self._like, **self._settings)
            try:
                if self._client is not None:
                    self._client.init_weight_transfer_engine(self._backend)
            except BaseException:
                publisher.close()
                raise
            self._publisher = publisher
        return self._publisher

    def _stage(self, version: int) -> None:
        """Waits for the host copies."""
        end = time.monotonic() + self._timeout
        for path in self._host_copies:
            while True:
                held = HostCopy(path).version if os.path.isdir(path) else None
                if held is not None and held >= version:
                    break
                if time.monotonic() > end:
                    state = "has no version yet" if held is None else f"is at version {held}"
                    raise TimeoutError(
                        f"version {version} was published, but a host copy {state} (file {path})",
                        file=path,
                        advice="check that its follower runs",
                    )
                time.sleep(_POLL)
