"""A fix for the way vLLM reads its workers' replies, for versions of vLLM that do not fix it
themselves.

A server with several workers asks all of them and reads their replies in order. vLLM 0.33 stops at
the first failure and leaves the remaining replies in their queues: each later request then reads an
old reply from these workers. After a refused update, the server could report a version that one
worker has not loaded yet. See vllm#57846."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

__all__ = ["Replies", "are_whole", "mend"]

_logger = logging.getLogger("vllm.deltachain")


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


class _Queue(list[Any]):
    """The replies of a worker, for a trial."""

    def dequeue(self, timeout: float | None = None) -> Any:
        return self.pop(0)


def _needs_mending(executor: type, failure: object, success: object) -> bool:
    """True if this class of executors leaves replies behind. Tries two requests, of which the first
    fails at the first of two workers. Also true if the trial is not possible: the fix does no
    harm."""
    trial: Any = object.__new__(executor)
    trial.rpc_broadcast_mq = SimpleNamespace(enqueue=lambda _: None)
    trial.vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(enable_fault_tolerance=False)
    )
    trial.futures_queue = deque()
    trial.is_failed = False
    trial.response_mqs = [
        _Queue([(failure, ""), (success, "new")]),
        _Queue([(success, "old"), (success, "new")]),
    ]
    with suppress(Exception):
        trial.collective_rpc("trial")
    # The executor did not read any reply.
    if len(trial.response_mqs[0]) == 2:
        return True
    replies: Any = None
    # An executor that serves no request after a failure is correct, too.
    with suppress(Exception):
        replies = trial.collective_rpc("trial")
    return replies is not None and "old" in replies


def mend() -> None:
    """Applies the fix to servers with the backend `deltachain`. vLLM calls this in each of its
    processes."""
    # If vLLM has neither class, the backend reports that.
    with suppress(ImportError, AttributeError):
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

        begin = MultiprocExecutor._init_executor
        status = WorkerProc.ResponseStatus
        if hasattr(begin, "is_mended") or not _needs_mending(
            MultiprocExecutor, status.FAILURE, status.SUCCESS
        ):
            return

        def _init_executor(self: Any) -> None:
            begin(self)
            config = self.vllm_config.weight_transfer_config
            if config is not None and config.backend == "deltachain":
                self.response_mqs = Replies(self.response_mqs)
                _logger.info(
                    "deltachain reads the replies of all workers, since this vLLM lacks vllm#57846"
                )

        _init_executor.is_mended = True  # type: ignore[attr-defined]
        MultiprocExecutor._init_executor = _init_executor


def are_whole() -> bool:
    """True if vLLM, or the fix, reads the replies of all workers."""
    with suppress(ImportError, AttributeError):
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

        status = WorkerProc.ResponseStatus
        is_mended = hasattr(MultiprocExecutor._init_executor, "is_mended")
        return is_mended or not _needs_mending(MultiprocExecutor, status.FAILURE, status.SUCCESS)
    return False
