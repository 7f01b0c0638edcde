"""Updates inference servers to each version of a chain: `deltachain follow --engine`, from Python."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from . import _native
from ._settings import Stop, ending

__all__ = ["follow_engine"]

_logger = logging.getLogger("deltachain")


def follow_engine(
    chain: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    engine: str,
    servers: str | Sequence[str],
    until: int | None = None,
    once: bool = False,
    options: Sequence[str] = (),
    on_event: Callable[[dict[str, Any]], None] | None = None,
    stop: Stop | None = None,
) -> None:
    """Keeps a directory and inference servers at the newest version of a chain, until `stop` or Ctrl-C. It then waits
    for running updates, so that no server stays paused.

    docs/integrations.md describes the updates and their failures.

    Args:
        chain: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`, `http(s)://`. Credentials come from the
            environment.
        directory: where to keep the model.
        engine: `"vllm"`, `"sglang"` or `"vllm-lora"`.
        servers: addresses of the servers, such as `"http://127.0.0.1:8000"`.
        until: return when the directory and all servers have this version or a later one.
        once: poll once, update the servers that do not have the version, and return.
        options: other options of `deltachain follow`, such as `["--server-timeout", "120"]`.
        on_event: called with each event, a dict as `deltachain follow --json` prints it. By default, events are logged.
            An exception from it ends the call.
        stop: an event, or a function that returns whether to stop; the call then returns.

    Raises:
        UsageError: if an argument is invalid.
        IoError: with `once`, if a server was not updated, or the store cannot be reached.
        Error: with `once`, if the chain has a fault.
    """
    urls = [servers] if isinstance(servers, str) else list(servers)
    arguments = ["--engine", engine, *(word for url in urls for word in ("--server", url))]
    arguments += [] if until is None else ["--until", str(until)]
    arguments += ["--once"] if once else []

    def happened(event: str) -> None:
        if on_event is None:
            _logger.info("%s", event)
        else:
            on_event(json.loads(event))

    _native.follow([os.fspath(chain), os.fspath(directory), *arguments, *options], happened, ending(stop))
