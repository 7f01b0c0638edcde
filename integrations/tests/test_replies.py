"""The fix for vLLM's queues of replies."""

from __future__ import annotations

from collections import deque

from deltachain_integrations._vllm_replies import Replies, _needs_mending


class Queue:
    """A worker's replies."""

    def __init__(self, *replies: str) -> None:
        self.replies = deque(replies)

    def dequeue(self, timeout: float | None = None) -> str:
        return self.replies.popleft()


def first_that_failed(queues: list[Queue]) -> list[str]:
    """Reads one worker's reply after the other, up to the first failure, as vLLM does."""
    found = []
    for queue in queues:
        found.append(queue.dequeue(timeout=None))
        if found[-1].endswith("failed"):
            break
    return found


def test_no_reply_is_left_for_the_next_request():
    queues = [
        Queue("a0 failed", "b0", "c0"),
        Queue("a1 failed", "b1", "c1"),
        Queue("a2", "b2 failed", "c2"),
    ]
    replies = Replies(queues)
    assert first_that_failed(replies) == ["a0 failed"]
    assert first_that_failed(replies) == ["b0", "b1", "b2 failed"]
    assert first_that_failed(replies) == ["c0", "c1", "c2"]
    assert [len(queue.replies) for queue in queues] == [0, 0, 0]


def test_one_worker_is_asked_alone():
    queues = [Queue("a0"), Queue("a1")]
    replies = Replies(queues)
    assert replies[1].dequeue() == "a1"
    assert len(queues[0].replies) == 1


class Executor:
    """An executor like vLLM's: asks all workers, and stops at the first failure."""

    def collective_rpc(self, method: str) -> list[str]:
        self.rpc_broadcast_mq.enqueue(method)
        assert not self.is_failed and not self.vllm_config.parallel_config.enable_fault_tolerance
        found = []
        for queue in self.response_mqs:
            status, reply = queue.dequeue(timeout=None)
            if status == "failure":
                self.failed()
                raise RuntimeError(reply)
            found.append(reply)
        return found

    def failed(self) -> None:
        """Does nothing."""


class Reading(Executor):
    """An executor that reads the other replies before it raises."""

    def failed(self) -> None:
        for queue in self.response_mqs[1:]:
            queue.dequeue()


class Closing(Executor):
    """An executor that serves no request after a failure."""

    def failed(self) -> None:
        self.is_failed = True


class Unknown:
    """An executor that cannot be tried."""


def test_it_is_mended_only_where_it_must_be():
    mended = {
        kind: _needs_mending(kind, "failure", "success")
        for kind in (Executor, Reading, Closing, Unknown)
    }
    assert mended == {Executor: True, Reading: False, Closing: False, Unknown: True}
