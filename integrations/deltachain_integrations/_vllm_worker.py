"""Methods that followers call on vLLM's workers, beside vLLM's own: docs/engines.md, "What is asked
of a server of vLLM"."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

__all__ = ["add_to"]


def _deltachain_state(worker: Any, follower: str, lease: str) -> Any:
    # vLLM passes strings.
    return worker.weight_transfer_engine.state(follower, float(lease))


def _deltachain_is_ready(worker: Any, follower: str, version: str, begins: str) -> Any:
    # vLLM turns a result that is neither an object nor a list into a string.
    engine = worker.weight_transfer_engine
    return engine.readiness(follower, int(version), begins=begins == "1")


def _deltachain_agrees(worker: Any, states: str) -> None:
    worker.weight_transfer_engine.agrees(json.loads(states))


def _deltachain_are_ready(worker: Any, follower: str, version: str) -> None:
    worker.weight_transfer_engine.is_ready(follower, int(version))


def _deltachain_end_update(worker: Any) -> None:
    # vLLM ends an update that fails, and this one fails because it names no version. Without an
    # open update, vLLM refuses the call.
    with suppress(Exception):
        worker.update_weights({})


def add_to(worker: type) -> None:
    """Adds the methods to a class of workers."""
    worker.deltachain_state = _deltachain_state  # type: ignore[attr-defined]
    worker.deltachain_is_ready = _deltachain_is_ready  # type: ignore[attr-defined]
    worker.deltachain_agrees = _deltachain_agrees  # type: ignore[attr-defined]
    worker.deltachain_are_ready = _deltachain_are_ready  # type: ignore[attr-defined]
    worker.deltachain_end_update = _deltachain_end_update  # type: ignore[attr-defined]
