"""The processes of one training run: who has which shards, and how they agree."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

from ._errors import CLASSES, Error, IoError

__all__ = ["Alone", "Group", "Ranks", "TorchGroup", "divide", "usual_shards"]

# Seconds without a sign of life after which a rank is taken to be gone.
SILENCE = 25.0

# Seconds between two signs of life.
_BEAT = 1.0


class Group(Protocol):
    """Processes that publish one chain together. A process group of torch becomes one; others can be given to
    `Publisher(group=)`."""

    rank: int
    """Number of this process."""
    size: int
    """How many there are."""

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        """Gives each process the messages of all, by rank. Called in the same order by all, by one thread at a time.

        Raises:
            Exception: if a process is gone, or takes longer than `timeout` seconds.
        """
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        """The message."""
        return [message]


class TorchGroup:
    """The processes of a group of torch.distributed. A group of our own over the same processes, with gloo, carries
    the messages."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.members: list[int] = dist.get_process_group_ranks(group)
        # Who dies is noticed at once, since its connections end. The time limit is for each exchange.
        limit = timedelta(days=7)
        self._group = dist.new_group(self.members, backend="gloo", timeout=limit, use_local_synchronization=True)

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        """As `Group.exchange`."""
        import torch

        lengths = self._gather(torch.tensor([len(message)]), timeout)
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        if message:
            padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        if longest == 0:
            return [b""] * self.size
        messages = self._gather(padded, timeout)
        return [bytes(text[: int(length)].numpy()) for text, length in zip(messages, lengths, strict=True)]

    def _gather(self, tensor: Any, timeout: float | None) -> list[Any]:
        import torch
        import torch.distributed as dist

        out = [torch.empty_like(tensor) for _ in range(self.size)]
        work = dist.all_gather(out, tensor, group=self._group, async_op=True)
        if timeout is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=timeout))
        return out


class Ranks:
    """What the processes of a group do together."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size
        self._members = getattr(group, "members", None)
        self._broken: Error | None = None
        self._worker: threading.Thread | None = None

    def exchange(self, message: bytes, timeout: float | None = None) -> list[bytes]:
        """As `Group.exchange`.

        Raises:
            IoError: if a process is gone. Nothing can be done together any more.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._group.exchange(message, timeout)
        except Exception as error:
            self._broken = IoError(
                f"IO: a rank is gone, nothing was committed by this one: {error}", advice="start the run again"
            )
            raise self._broken from error

    def agree(self, error: BaseException | None) -> None:
        """Raises on all ranks if there is an error on any rank: the own error, or that of the lowest rank with one."""
        if self.size > 1:
            notes = self.exchange(noted(error))
            if error is None:
                for rank, note in enumerate(notes):
                    if note:
                        raise heard(rank, note)
        if error is not None:
            raise error

    def whole(self, value: Any, owners: set[int]) -> Any:
        """A tensor that is spread over the processes (DTensor), gathered from them: all of them call this. Other
        tensors are given back.

        Args:
            value: the tensor.
            owners: the ranks that need it. The others get None where that saves the way.
        """
        if not hasattr(value, "full_tensor"):
            return value
        import torch
        import torch.distributed as dist

        value = value.detach()
        mesh, placements = value.device_mesh, value.placements
        group = mesh.get_group() if mesh.ndim == 1 else None
        are_rows = type(placements[0]).__name__ == "Shard" and placements[0].dim == 0
        if group is None or not are_rows or len(owners) != 1 or dist.get_process_group_ranks(group) != self._members:
            return value.full_tensor()
        (owner,) = owners
        # As FSDP2 divides rows: as many for each rank, fewer or none for the last ones. Their bytes travel, since not
        # every backend carries every dtype.
        local = value.to_local().contiguous().reshape(-1).view(torch.uint8)
        row_bytes = math.prod(value.shape[1:]) * value.element_size()
        rows = local.new_zeros(-(-value.shape[0] // self.size) * row_bytes)
        rows[: local.numel()] = local
        parts = [torch.empty_like(rows) for _ in range(self.size)] if self.rank == owner else None
        dist.gather(rows, parts, dst=self._members[owner], group=group)
        if parts is None:
            return None
        return torch.cat(parts)[: value.shape[0] * row_bytes].view(value.dtype).reshape(value.shape)

    def together(self, work: Callable[[], bytes], stop: Callable[[], None]) -> list[bytes]:
        """Lets each rank work, however long it takes, and gives the results of all. Every second they tell each other
        that they live. `stop` is called if another rank has failed, to end the work early."""
        if self.size == 1:
            return [work()]
        result: list[Any] = [b"", None]
        done = threading.Event()

        def run() -> None:
            try:
                result[0] = work()
            except BaseException as error:
                result[1] = error
            finally:
                done.set()

        worker = threading.Thread(target=run, name="deltachain-work")
        worker.start()
        self._worker = worker
        try:
            self._watch(done, result)
        except BaseException:
            stop()
            # What is on its way to a store that does not answer may take longer: see `wait`.
            worker.join(5)
            raise
        worker.join()
        return self.exchange(result[0], SILENCE)

    @property
    def is_busy(self) -> bool:
        """Whether work that was given up goes on."""
        return self._worker is not None and self._worker.is_alive()

    def wait(self) -> None:
        """Waits for work that was given up because another rank failed."""
        if self._worker is not None:
            self._worker.join()

    def _watch(self, done: threading.Event, result: list[Any]) -> None:
        pause = 0.005
        while True:
            has_ended = done.wait(pause)
            pause = min(2 * pause, _BEAT)
            own = result[1] if has_ended else None
            # Done; or at work; or what went wrong.
            states = self.exchange(noted(own) if own else b"+" if has_ended else b"", SILENCE)
            if own is not None:
                raise own
            for rank, state in enumerate(states):
                if len(state) > 1:
                    raise heard(rank, state)
            if all(states):
                return


def noted(error: BaseException | None) -> bytes:
    """An error for other ranks."""
    if error is None:
        return b""
    name = next((name for name, kind in CLASSES.items() if type(error) is kind), "")
    rule = getattr(error, "rule", None) or ""
    retryable = "1" if getattr(error, "retryable", False) else ""
    return "\n".join((name, rule, retryable, str(error) or type(error).__name__)).encode(errors="replace")


def heard(rank: int, note: bytes) -> Error:
    """The error of another rank."""
    name, rule, retryable, text = note.decode().split("\n", 3)
    return CLASSES.get(name, Error)(f"rank {rank} failed: {text}", rule=rule or None, retryable=bool(retryable))


def divide(sizes: Mapping[str, int], shards: int) -> dict[str, int]:
    """The shard of each tensor. It depends only on names and bytes, so every process gets the same result, whatever
    their number: from the largest on, each tensor goes to the shard with the fewest bytes."""
    loads = [(0, shard) for shard in range(shards)]
    place: dict[str, int] = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        load, shard = loads[0]
        heapq.heapreplace(loads, (load + size, shard))
        place[name] = shard
    return place


def usual_shards(ranks: int) -> int:
    """The number of shards of a chain that begins with this many processes: a number with many divisors."""
    return 1 if ranks == 1 else -(-ranks // 24) * 24
