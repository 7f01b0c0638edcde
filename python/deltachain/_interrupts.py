"""Ctrl-C that the standard library turns into another exception.

`Condition` releases its lock while it waits. An interrupt at that moment makes its exit raise
`RuntimeError: release unlocked lock`, with the KeyboardInterrupt only as its context.
`Thread.start`, `Future.result` and `concurrent.futures.wait` all use a `Condition`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ._errors import IoError

__all__ = ["start", "unmasked"]


def start(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        IoError: if no more threads can be started.
        BaseException: from a signal handler. The thread may be running then.
    """
    handled = sys.exception()
    try:
        thread.start()
    except RuntimeError as error:
        first = _first(error, handled)
        if first is not error:
            raise first from None
        raise IoError(f"IO: no thread can be started: {error}", retryable=True) from error


@contextmanager
def unmasked() -> Iterator[None]:
    """Raises an interrupt of the block itself, instead of the error that replaced it."""
    handled = sys.exception()
    try:
        yield
    except RuntimeError as error:
        first = _first(error, handled)
        if not isinstance(first, Exception):
            raise first from None
        raise


def _first(error: BaseException, handled: BaseException | None) -> BaseException:
    """Returns the exception during which all others were raised, except the one that the caller
    handles."""
    while (before := error.__context__) is not None and before is not handled:
        error = before
    return error
