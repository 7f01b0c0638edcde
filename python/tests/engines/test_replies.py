"""What is done to vLLM's queues of replies."""

from __future__ import annotations

from collections import deque

from deltachain._vllm_replies import Replies


class Queue:
    """A worker's replies."""

    def __init__(self, *replies: str) -> None:
        self.replies = deque(replies)

    def dequeue(self, timeout: float | None = None) -> str:
        return self.replies.popleft()


def first_that_failed(queues: list[Queue]) -> list[str]:
    """What vLLM does: it reads one worker's reply after the other, up to the first that failed."""
    found = []
    for queue in queues:
        found.append(queue.dequeue(timeout=None))
        if found[-1].endswith("failed"):
            break
    return found


def test_no_reply_is_left_for_the_next_request():
    queues = [Queue("a0 failed", "b0", "c0"), Queue("a1 failed", "b1", "c1"), Queue("a2", "b2 failed", "c2")]
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
