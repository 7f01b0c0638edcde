"""Mends how vLLM reads what its workers reply.

A server with several workers asks all of them, and reads their replies one after the other. vLLM 0.32 stops at the
first that says that it failed, and leaves the others where they are: each later request then reads, of these workers,
the reply to the request before it. A server whose update was refused would take one worker's old reply for the new
one, and say that it has a version which that worker has not loaded yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

__all__ = ["Replies", "mend"]


class _Reply:
    """A worker's queue, for one request."""

    def __init__(self, queues: list[Any], index: int, found: list[Any]) -> None:
        self._queues, self._index, self._found = queues, index, found

    def dequeue(self, timeout: float | None = None) -> Any:
        """This worker's reply. All replies are read when the first one is asked for."""
        if not self._found:
            self._found.extend([queue.dequeue(timeout=timeout) for queue in self._queues])
        return self._found[self._index]

    def shutdown(self) -> None:
        self._queues[self._index].shutdown()


class Replies(list[Any]):
    """The queues of all workers. To walk through them is to read one request's replies."""

    def __iter__(self) -> Iterator[Any]:
        queues = [self[index] for index in range(len(self))]
        found: list[Any] = []
        return iter([_Reply(queues, index, found) for index in range(len(queues))])


def mend() -> None:
    """Does it for servers with the backend `deltachain`. vLLM calls this in each of its processes."""
    # Other versions of vLLM may have neither; the backend refuses versions that it has not been tried with.
    with suppress(ImportError, AttributeError):
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        begin = MultiprocExecutor._init_executor
        if getattr(begin, "is_mended", False):
            return

        def _init_executor(self: Any) -> None:
            begin(self)
            config = self.vllm_config.weight_transfer_config
            if config is not None and config.backend == "deltachain":
                self.response_mqs = Replies(self.response_mqs)

        _init_executor.is_mended = True  # type: ignore[attr-defined]
        MultiprocExecutor._init_executor = _init_executor
