"""A fix for the way vLLM reads its workers' replies.

A server with several workers asks all of them and reads their replies in order. vLLM 0.32 stops at the first failure
and leaves the remaining replies in their queues: each later request then reads an old reply from these workers. After
a refused update, the server could report a version that one worker has not loaded yet."""

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
        """This worker's reply. Reading the first one reads all."""
        if not self._found:
            self._found.extend([queue.dequeue(timeout=timeout) for queue in self._queues])
        return self._found[self._index]

    def shutdown(self) -> None:
        self._queues[self._index].shutdown()


class Replies(list[Any]):
    """The queues of all workers. Iterating over them reads one request's replies."""

    def __iter__(self) -> Iterator[Any]:
        queues = [self[index] for index in range(len(self))]
        found: list[Any] = []
        return iter([_Reply(queues, index, found) for index in range(len(queues))])


def mend() -> None:
    """Applies the fix to servers with the backend `deltachain`. vLLM calls this in each of its processes."""
    # Other versions of vLLM may have neither; the backend refuses untested versions.
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
