"""The processes of one training run: the shards of each rank, and agreement between ranks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from . import _native
from ._errors import CLASSES, Error, IoError, UsageError
from ._interrupts import start
from ._like import pairs
from ._settings import number
from ._tensors import known, name_of

__all__ = ["Group", "Ranks", "TorchGroup", "ranks_of", "started", "usual_shards"]

_T = TypeVar("_T")

_logger = logging.getLogger("deltachain")

# Seconds between heartbeats.
_BEAT = 1.0

# Seconds of silence between log messages about the silence.
_REMARK = 25.0

# Bytes of a message that are sent together with its length. Longer messages need a second step.
_AT_FIRST = 248

_UNKNOWN = "this version was aborted, but it may have been published"


class Processes(Protocol):
    """Processes that work together, from the view of one: its number, and the number of
    processes."""

    rank: int
    size: int

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        """Gives each process the messages of all, by rank. Called in the same order by all, by one
        thread at a time.

        Raises:
            TimeoutError: if a process takes longer than `timeout` seconds. The exchange continues
                with this message: the next call waits for it and returns its result; the next
                call's own message is not sent.
            Exception: if a process has ended. No further exchange is possible.
        """
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that publish or follow a chain together, for `Publisher(group=)` and
    `Subscriber(group=)`. These also take `processes` alone.

    dc.Group(dist.group.WORLD, timeout=60)

    Args:
        processes: a process group of torch.distributed. Or an object with `rank`, this process's
            number, `size`, and `exchange(message, timeout)`, which gives each process the messages
            (bytes) of all, in a list by rank. All call it in the same order, by one thread at a
            time. If a process takes longer than `timeout` seconds (None: no limit), it raises
            `TimeoutError`; the next call then waits for the same messages and returns them. If a
            process has ended, it raises another exception.
        timeout: maximum seconds to wait for a silent rank (stopped, or its interpreter blocked)
            while a version is stored or loaded. After that, all ranks abort the version with a
            retryable `IoError`; once the rank is back, the next call works again. A call with a
            `timeout=` of its own waits for the other ranks for both times together. The first step
            of any other call has no timeout, as in every collective, unless the previous version
            was aborted like this. If a rank's process ends, the others notice at once and cannot
            continue.

    Raises:
        UsageError: if the timeout is below 0.001.
    """

    processes: Any
    timeout: float = 300.0

    def __post_init__(self) -> None:
        number("timeout", self.timeout, 0.001)


class Alone:
    """A single process."""

    rank = 0
    size = 1

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        """Returns the message."""
        return [message]


class TorchGroup:
    """The processes of a group of torch.distributed. Messages use a separate gloo group of the same
    processes."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.members: list[int] = dist.get_process_group_ranks(group)
        # The end of a dead process is noticed at once, since its connections end. Work that reaches
        # this limit ends them, too.
        limit = timedelta(days=7)
        self._group = dist.new_group(
            self.members, backend="gloo", timeout=limit, use_local_synchronization=True
        )
        # The message of the current exchange, and the one or two steps that have started.
        self._message = b""
        self._steps: list[tuple[list[Any], Any]] = []

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        """Same as `Processes.exchange`."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        if not self._steps:
            self._message = message
            first = len(message).to_bytes(8, "little") + message[:_AT_FIRST]
            self._steps.append(self._begun(first, 8 + _AT_FIRST))
        firsts = self._gathered(0, until)
        lengths = [int.from_bytes(first[:8], "little") for first in firsts]
        rests = [b""] * self.size
        if max(lengths) > _AT_FIRST:
            if len(self._steps) == 1:
                self._steps.append(self._begun(self._message[_AT_FIRST:], max(lengths) - _AT_FIRST))
            rests = self._gathered(1, until)
        self._steps = []
        return [
            (first[8:] + rest)[:length]
            for first, rest, length in zip(firsts, rests, lengths, strict=True)
        ]

    def _begun(self, message: bytes, length: int) -> tuple[list[Any], Any]:
        import torch
        import torch.distributed as dist

        padded = torch.frombuffer(bytearray(message.ljust(length, b"\0")), dtype=torch.uint8)
        out = [torch.empty_like(padded) for _ in range(self.size)]
        return out, dist.all_gather(out, padded, group=self._group, async_op=True)

    def _gathered(self, step: int, until: float) -> list[bytes]:
        out, work = self._steps[step]
        try:
            if until == math.inf:
                work.wait()
            else:
                # Zero would mean no timeout.
                work.wait(timedelta(seconds=max(until - time.monotonic(), 0.001)))
        except RuntimeError as error:
            # After a timeout the work continues.
            if not work.is_completed():
                raise TimeoutError("another rank is silent") from error
            work.wait()
        return [bytes(text.numpy()) for text in out]


class Ranks:
    """Collective operations of the processes of a group.

    Each process makes the same calls of its publisher, and counts them. Each message carries the
    call's number, so messages of an aborted call are never mixed with those of a later one: a rank
    that sees a higher number aborts its call, and a rank that sees a lower one repeats its message
    until all have the same number.

    Args:
        group: the processes.
        limit: maximum seconds to wait for a rank without a heartbeat.
    """

    def __init__(self, group: Processes, limit: float) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size
        self._members = getattr(group, "members", None)
        self.limit = limit
        self._call = 0
        # The error that ended this call, and whether it ends all later calls, too.
        self._over: BaseException | None = None
        self._is_broken = False
        # True if an exchange is unfinished; true if the last one timed out.
        self._is_open = self._is_late = False
        self._work: Future[bytes] | None = None

    def begin(
        self, call: int, what: str, error: BaseException | None, timeout: float | None = None
    ) -> None:
        """Does the first exchange of a call.

        Args:
            call: its number.
            what: its name and history. If ranks differ here, they are out of step for good.
            error: the error of the previous call, if it has not been raised yet.
            timeout: seconds of the call itself, if it has a limit. The other ranks have these, and
                the limit of a silent rank, to make the same call.
        """
        self._call = call
        if not self._is_broken:
            self._over = None
        limit = None if timeout is None else max(timeout, 0.0) + self.limit
        calls = self.agree(error, what.encode(), limit)
        other = next((rank for rank, told in enumerate(calls) if told != calls[0]), None)
        if other is not None:
            self._is_broken = True
            raise self._ended(
                UsageError(
                    "USAGE: all ranks must make the same calls: rank 0 calls "
                    f"{calls[0].decode()}, and rank {other} {calls[other].decode()}",
                    advice="restart the run",
                )
            )

    def exchange(self, message: bytes, timeout: float | None = None) -> list[bytes]:
        """Gives each rank the messages of all. By default there is no timeout, as in every
        collective, except after a rank was silent for too long.

        Raises:
            IoError: if a rank has ended; or, `retryable`, if this rank or another one has aborted
                this call.
        """
        if self.size == 1:
            return [message]
        if self._over is not None:
            raise self._over
        if timeout is None and self._is_late:
            timeout = self.limit
        while True:
            if self._is_open:
                # Finishes the exchange that timed out before.
                self._met(b"", timeout)
            texts = self._met(self._call.to_bytes(8, "little") + message, timeout)
            calls = [int.from_bytes(text[:8], "little") for text in texts]
            if max(calls) > self._call:
                raise self._ended(
                    IoError(
                        f"IO: other ranks did not wait for this one: {_UNKNOWN}", retryable=True
                    )
                )
            if min(calls) == self._call:
                self._is_late = False
                return [text[8:] for text in texts]

    def _met(self, text: bytes, timeout: float | None) -> list[bytes]:
        # Counted in pauses, since the other ranks are not silent while this process is stopped.
        pause = _BEAT if timeout is None else min(_BEAT, timeout)
        waited = remarked = 0.0
        self._is_open = True
        while True:
            try:
                texts = self._group.exchange(text, pause)
            except TimeoutError as error:
                waited += pause
                if timeout is not None and waited >= timeout:
                    self._is_late = True
                    reason = f"IO: another rank has been silent for {waited:g} s: {_UNKNOWN}"
                    raise self._ended(IoError(reason, retryable=True)) from error
                if waited >= remarked + _REMARK:
                    remarked = waited
                    _logger.warning("waiting for another rank: silent for %d s", waited)
            except Exception as error:
                self._is_broken = True
                # torch raises a RuntimeError if the connection to a process is lost.
                said = (
                    f"a rank has ended: {error}"
                    if isinstance(error, RuntimeError)
                    else f"ranks cannot exchange messages: {type(error).__name__}: {error}"
                )
                raise self._ended(IoError(f"IO: {said}", advice="restart the run")) from error
            else:
                self._is_open = False
                return texts

    def _ended(self, error: BaseException) -> BaseException:
        """Records that this call is over, and that the other ranks raise, too."""
        self._over = self._over or error
        return error

    def agree(
        self, error: BaseException | None = None, word: bytes = b"", timeout: float | None = None
    ) -> list[bytes]:
        """Returns the words of all ranks. If any rank has an error, all raise: their own error, or
        that of the lowest rank with one."""
        try:
            told = self.exchange(b"!" + noted(error) if error else b" " + word, timeout)
        except Exception:
            if error is None:
                raise
            told = []
        if error is None:
            failed = (
                heard(rank, note[1:]) for rank, note in enumerate(told) if note.startswith(b"!")
            )
            error = next(failed, None)
        if error is not None:
            raise self._ended(error)
        return [word[1:] for word in told]

    def tell(self, work: Callable[[], bytes | None]) -> list[bytes]:
        """Same as `agree`, for a word whose computation may fail."""
        word, error = None, None
        try:
            word = work()
        except Exception as raised:
            error = raised
        return self.agree(error, word or b"")

    def vote(
        self, error: BaseException | None, timeout: float | None = None
    ) -> BaseException | None:
        """Tells all ranks this rank's error. Returns it, or the error of the lowest rank with one,
        which every rank then knows.

        Raises:
            Exception: if a rank has ended, or was silent for too long, so that the other ranks may
                not know.
        """
        if self.size == 1:
            return error
        told = self.exchange(noted(error), timeout)
        return error or next((heard(rank, note) for rank, note in enumerate(told) if note), None)

    def same(self, what: str, forms: Mapping[str, str], error: BaseException | None = None) -> bool:
        """Checks that all ranks have the same names and forms. Returns whether their order is the
        same, too.

        Args:
            what: the subject, for the error message.
            forms: a text for each name.
            error: this rank's error, as for `agree`.

        Raises:
            UsageError: on all ranks, with the first difference.
        """
        if self.size == 1:
            return True
        listed = [(str(name), form) for name, form in forms.items()]
        by_name, as_given = json.dumps(sorted(listed)).encode(), json.dumps(listed).encode()
        told = self.agree(
            error, hashlib.sha256(by_name).digest() + hashlib.sha256(as_given).digest()
        )
        if len({word[:32] for word in told}) == 1:
            return len(set(told)) == 1
        lists = [dict(json.loads(word)) for word in self.agree(word=by_name)]
        names = sorted(set().union(*lists))
        name = next(name for name in names if len({forms.get(name) for forms in lists}) > 1)
        found = [forms.get(name, "missing") for forms in lists]
        other = next(rank for rank, form in enumerate(found) if form != found[0])
        text = f"{name!r} is {found[0]} on rank 0 and {found[other]} on rank {other}"
        raise self._ended(
            UsageError(f"USAGE: all ranks must have the same {what}: {text}", tensor=name)
        )

    def agreed(self, weights: Any) -> Iterator[tuple[Any, Any]]:
        """Yields names and tensors of a trainer's weights. Before any tensor is gathered, all ranks
        check that they have the same names in the same order. A mapping is compared as a whole
        (each tensor is looked up twice), a stream tensor by tensor.

        Raises:
            Exception: on all ranks, if they differ or one of them fails. A stream is read to its
                end first, because producing it may involve collectives.
        """
        if self.size == 1:
            yield from pairs(weights)
            return
        error: BaseException | None = None
        mapping: Mapping[Any, Any] | None = None
        stream: Iterator[tuple[Any, Any]] = iter(())
        forms: dict[Any, str] = {}
        try:
            mapping = known(weights)
            if mapping is None:
                stream = pairs(weights)
            else:
                forms = {name: _form(mapping[name]) for name in mapping}
        except Exception as raised:
            error = raised
        self.same(
            "kind of weights", {"weights": "a stream" if mapping is None else "a mapping"}, error
        )
        if mapping is None:
            yield from self._stream(stream)
            return
        is_ordered = self.same("tensors", forms)
        for name in mapping if is_ordered else sorted(mapping, key=str):
            yield name, mapping[name]

    def _stream(self, stream: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        while True:
            error: BaseException | None = None
            pair, line = None, "no more tensors"
            try:
                for name, value in stream:
                    pair, line = (name, value), f"{name!r}, {_form(value)}"
                    break
            except Exception as raised:
                error = raised
            try:
                lines = [word.decode() for word in self.agree(error, line.encode())]
                other = next((rank for rank, line in enumerate(lines) if line != lines[0]), None)
                if other is not None:
                    text = f"rank 0 gives {lines[0]}, and rank {other} {lines[other]}"
                    raise self._ended(
                        UsageError(f"USAGE: streams must have the same order on all ranks: {text}")
                    )
            except Exception:
                with contextlib.suppress(Exception):
                    deque(stream, maxlen=0)
                raise
            if pair is None:
                return
            yield pair

    def whole(self, value: Any, owners: set[int]) -> Any:
        """Gathers a tensor that is sharded over the processes (DTensor): all of them call this, for
        the same tensor. Other tensors are returned unchanged.

        Args:
            value: the tensor.
            owners: the ranks that need it. Others get None if that saves a transfer.
        """
        if not hasattr(value, "full_tensor"):
            return value
        import torch
        import torch.distributed as dist

        value = value.detach()
        mesh, placements = value.device_mesh, value.placements
        group = mesh.get_group() if mesh.ndim == 1 else None
        are_rows = type(placements[0]).__name__ == "Shard" and placements[0].dim == 0
        if (
            group is None
            or not are_rows
            or len(owners) != 1
            or dist.get_process_group_ranks(group) != self._members
        ):
            return value.full_tensor()
        (owner,) = owners
        # FSDP2 gives each rank the same number of rows, and the last ones fewer or none. They are
        # sent as bytes, since not every backend supports every dtype.
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
        """Runs work on each rank, however long it takes, and returns the results of all. The ranks
        exchange a heartbeat every second. `stop` is called if another rank has failed, to end the
        work early."""
        if self.size == 1:
            return [work()]
        # Not a daemon: the interpreter waits for it when it ends.
        self._work = done = started(work, "deltachain-work", daemon=False, stop=stop)
        pause = 0.005
        try:
            while True:
                has_ended = bool(wait((done,), pause).done)
                pause = min(2 * pause, _BEAT)
                # `+` is done, empty is still working.
                if all(
                    self.agree(
                        done.exception() if has_ended else None,
                        b"+" if has_ended else b"",
                        self.limit,
                    )
                ):
                    break
        except BaseException:
            stop()
            # Requests to a store that does not answer may take longer: see `wait`.
            wait((done,), 5)
            raise
        return self.agree(word=done.result(), timeout=self.limit)

    def results(self, work: Callable[[], _T], stop: Callable[[], None] | None = None) -> list[_T]:
        """Returns the results of all ranks, as `together` runs the work, or `tell` if there is no
        `stop`. Results cross between processes as JSON. A single process gets its own result
        unchanged."""
        if self.size == 1:
            return [work()]

        def word() -> bytes:
            return json.dumps(work()).encode()

        words = self.tell(word) if stop is None else self.together(word, stop)
        return [json.loads(one) for one in words]

    @property
    def is_busy(self) -> bool:
        """Whether aborted work is still running."""
        return self._work is not None and not self._work.done()

    def wait(self) -> None:
        """Waits for work that was aborted because another rank failed."""
        if self._work is not None:
            wait((self._work,))


def started(
    work: Callable[[], _T],
    name: str,
    *,
    daemon: bool = True,
    stop: Callable[[], None] | None = None,
) -> Future[_T]:
    """Runs work in a thread of its own. If an interrupt comes as the thread starts, `stop` ends the
    work."""
    done: Future[_T] = Future()
    # The thread does the work, or the caller who was interrupted.
    claim = _native.Claim()

    def run() -> None:
        if not claim.belongs_to("thread"):
            return
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    try:
        start(threading.Thread(target=run, name=name, daemon=daemon))
    except BaseException:
        if not claim.belongs_to("caller") and stop is not None:
            stop()
            # Requests to a store that does not answer may take longer.
            wait((done,), 5)
        raise
    return done


def _form(value: Any) -> str:
    """Returns the properties of a tensor that must be the same on all ranks."""
    if not hasattr(value, "dtype"):
        return type(value).__name__
    text = f"{name_of(value)} {list(value.shape)}"
    if not hasattr(value, "full_tensor"):
        return text
    placements = ", ".join(map(repr, value.placements))
    return f"{text} as {placements} on {' x '.join(map(str, value.device_mesh.shape))} ranks"


def noted(error: BaseException | None) -> bytes:
    """Returns an error as a message to other ranks."""
    if error is None:
        return b""
    name = next((name for name, kind in CLASSES.items() if type(error) is kind), "")
    rule = getattr(error, "rule", None) or ""
    retryable = "1" if getattr(error, "retryable", False) else ""
    return "\n".join((name, rule, retryable, str(error) or type(error).__name__)).encode(
        errors="replace"
    )


def heard(rank: int, note: bytes) -> Error:
    """Returns the error in a message of another rank."""
    name, rule, retryable, text = note.decode().split("\n", 3)
    return CLASSES.get(name, Error)(
        f"rank {rank} failed: {text}", rule=rule or None, retryable=bool(retryable)
    )


def ranks_of(group: Any) -> Ranks:
    """Returns the processes of a `group=`."""
    given = group if isinstance(group, Group) else Group(group)
    own = Alone() if given.processes is None else given.processes
    if not hasattr(own, "exchange"):
        if not type(own).__module__.startswith("torch."):
            raise TypeError(
                "group= must be a process group of torch.distributed, or a deltachain.Group, not "
                f"{type(own).__name__}"
            )
        own = TorchGroup(own)
    return Ranks(own, given.timeout)


def usual_shards(ranks: int) -> int:
    """Returns the number of shards of a new chain with this many processes: a number with many
    divisors."""
    return 1 if ranks == 1 else -(-ranks // 24) * 24
