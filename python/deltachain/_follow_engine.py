"""Inference servers that are brought to each version of a chain: `deltachain follow --engine`, from Python."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ._errors import CLASSES, Error, IoError

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
    """Keeps a directory at the newest version of a chain and brings inference servers to it, in a process of its own,
    until this call is interrupted.

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

    Raises:
        UsageError: if an argument is wrong.
        IoError: with `once`, if a server was not brought to the version, or the store cannot be reached.
        Error: with `once`, if the chain is at fault.
    """
    urls = [servers] if isinstance(servers, str) else list(servers)
    command = [sys.executable, "-m", "deltachain", "follow", os.fspath(chain), os.fspath(directory), "--json"]
    command += ["--engine", engine, *(word for url in urls for word in ("--server", url))]
    command += [] if until is None else ["--until", str(until)]
    command += ["--once"] if once else []
    failure: dict[str, Any] | None = None
    last = ""
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            last = line.strip()
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if "error" in event:
                failure = event["error"]
            elif on_event is not None:
                on_event(event)
            else:
                _logger.info("%s", last)
        code = process.wait()
    except BaseException:
        # A server that is being changed is waited for, so that it does not stay paused.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    finally:
        process.stdout.close()
    if failure is not None:
        raise _error(failure)
    if code != 0:
        raise IoError(f"IO: `deltachain follow` ended with {code}: {last}")


def _error(told: dict[str, Any]) -> Error:
    """The error that the tool has told of."""
    rule, message = told.get("rule"), told.get("message", "")
    text = f"{told['class']}{f' {rule}' if rule else ''}: {message}"
    fields: dict[str, Any] = {key: told.get(key) for key in ("rule", "section", "offset", "tensor", "file")}
    return CLASSES[told["class"]](text, advice=told.get("advice") or "", **fields)
