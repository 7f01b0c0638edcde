"""Inference servers that are brought to each version of a chain: `deltachain follow --engine`, from Python."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from . import _native

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
) -> None:
    """Keeps a directory at the newest version of a chain and brings inference servers to it, until this call is
    interrupted. Servers that are being changed are waited for, so that they do not stay paused.

    docs/integrations.md says what happens to the servers, also when one fails.

    Args:
        chain: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`, `http(s)://`. Credentials come from the
            environment.
        directory: where to keep the model.
        engine: `"vllm"`, `"sglang"` or `"vllm-lora"`.
        servers: where the servers are, such as `"http://127.0.0.1:8000"`.
        until: return when this version, or a later one, has been reached and all servers have it.
        once: look once, bring the servers to the version if they do not have it, and return.
        options: other options of `deltachain follow`, such as `["--server-timeout", "120"]`.
        on_event: called with each event, a dict as `deltachain follow --json` prints it. Without it, events are logged.
            What it raises ends the call.

    Raises:
        UsageError: if an argument is wrong.
        IoError: with `once`, if a server was not brought to the version, or the store cannot be reached.
        Error: with `once`, if the chain is at fault.
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

    _native.follow([os.fspath(chain), os.fspath(directory), *arguments, *options], happened)
