"""Ctrl-C that the standard library turns into another exception.

`Condition` leaves its lock while it waits. An interrupt that comes just then makes its exit raise
`RuntimeError: release unlocked lock`, and the KeyboardInterrupt is only the context of that.
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
        IoError: if there is no room for another thread.
        BaseException: what a handler of a signal has raised meanwhile. The thread may run then.
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
    """Raises an interrupt of the block itself, and not the error that has taken its place."""
    handled = sys.exception()
    try:
        yield
    except RuntimeError as error:
        first = _first(error, handled)
        if not isinstance(first, Exception):
            raise first from None
        raise


def _first(error: BaseException, handled: BaseException | None) -> BaseException:
    """The exception during which all others were raised, after the one that the caller handles."""
    while (before := error.__context__) is not None and before is not handled:
        error = before
    return error
