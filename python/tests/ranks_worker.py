"""One rank of a training run, for test_ranks.py: publishes the given steps, and prints the result
of each.

    python ranks_worker.py KIND RANK SIZE MEETING LIMIT URL LIKE STEP...

KIND is `sockets` (no torch: whole tensors on each rank) or `torch` (gloo, rows of each tensor on
each rank). A step is a number, or an event at the next number:

- `break`, `mend`: the store breaks, or works again;
- `die`, `halt`: rank 1 is killed, or stopped for good, when it starts to compare;
- `stop`, `doze`: rank 1 is stopped there, until rank 0 has given up, or until rank 0 notices the
  silence;
- `before`, `after`: rank 0 is stopped before or after it commits, until rank 1 has given up;
- `shuffle`: mappings, in a different order on each rank;
- `lack`, `dtype`, `shape`, `placement`, `stream`: a mapping in which one tensor of rank 2 differs;
- `reverse`, `raise`: a stream that differs on rank 1;
- `wait`: rank 0 makes a different call from the other ranks;
- `rival`, `late`: another process publishes the step, before this one reads the head, or before it
  commits.

With the word `once` each step is published once, as the metadata of rank 0 says.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conftest import model

import deltachain as dc
from deltachain import _ranks


class Sockets:
    """A group over sockets of this machine. Rank 0 has the listening socket, and forwards the
    messages of all ranks."""

    def __init__(self, rank: int, size: int, meeting: str) -> None:
        self.rank, self.size = rank, size
        self._read: dict[socket.socket, bytes] = {}
        if rank == 0:
            listener = socket.socket(fileno=int(meeting))
            lines = [listener.accept()[0] for _ in range(size - 1)]
            self._lines = {
                struct.unpack("<Q", self._receive(line, None))[0]: line for line in lines
            }
        else:
            line = socket.create_connection(("127.0.0.1", int(meeting)))
            self._send(line, struct.pack("<Q", rank))
            self._lines = {0: line}
        # Messages that the current exchange has sent and received.
        self._sent: bytes | None = None
        self._received: dict[int, bytes] = {}

    @staticmethod
    def _send(line: socket.socket, message: bytes) -> None:
        line.settimeout(None)
        line.sendall(struct.pack("<Q", len(message)) + message)

    def _receive(self, line: socket.socket, until: float | None) -> bytes:
        while True:
            read = self._read.get(line, b"")
            end = 8 + struct.unpack("<Q", read[:8])[0] if len(read) >= 8 else 8
            if len(read) >= end > 8:
                self._read[line] = read[end:]
                return read[8:end]
            line.settimeout(None if until is None else max(until - time.monotonic(), 0.001))
            part = line.recv(1 << 16)
            if not part:
                raise ConnectionError("a rank has gone")
            self._read[line] = read + part

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        until = None if timeout is None else time.monotonic() + timeout
        if self._sent is None:
            self._sent = message
            if self.rank != 0:
                self._send(self._lines[0], message)
        others = range(1, self.size) if self.rank == 0 else range(self.size)
        for rank in others:
            if rank not in self._received:
                self._received[rank] = self._receive(
                    self._lines[rank if self.rank == 0 else 0], until
                )
        messages = [self._received.get(rank, self._sent) for rank in range(self.size)]
        for line in self._lines.values() if self.rank == 0 else ():
            for text in messages:
                self._send(line, text)
        self._sent, self._received = None, {}
        return messages


class Stopping:
    """The native publisher of a rank that stops during its commit."""

    def __init__(self, native: Any, stop: Callable[[str], None]) -> None:
        self._native, self._stop = native, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def commit(self, *arguments: Any) -> Any:
        self._stop("before")
        made = self._native.commit(*arguments)
        self._stop("after")
        return made


def main() -> None:
    kind, number, count, meeting, limit, url, like, *steps = sys.argv[1:]
    rank, size = int(number), int(count)
    stopped = Path(url).with_name("stopped")
    told: set[str] = set()
    group: Any
    if kind == "torch":
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard

        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
        mesh = init_device_mesh("cpu", (size,))
        group = dist.group.WORLD
        dtypes = {
            "BF16": torch.bfloat16,
            "F32": torch.float32,
            "U8": torch.uint8,
            "F8_E4M3": torch.float8_e4m3fn,
        }
    else:
        group = Sockets(rank, size, meeting)

    def spread(whole: Any) -> Any:
        if "placement" in flaws:
            return DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
        rows = -(-len(whole) // size)
        local = whole[rank * rows : (rank + 1) * rows]
        return DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )

    def tensor(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
        if name != "b.bias":
            flaws.clear()
        if "dtype" in flaws:
            dtype, data = "BF16", data[:16]
        if "shape" in flaws:
            shape = shape[::-1]
        if kind == "torch":
            return spread(torch.frombuffer(bytearray(data), dtype=dtypes[dtype]).reshape(shape))
        return dc.Tensor(dtype, shape, data)

    def stream(step: int) -> Iterator[tuple[str, Any]]:
        rows = list(model(step).items())
        for name, row in reversed(rows) if rank == 1 and "reverse" in told else rows:
            flaws[:] = told if rank == 2 else ()
            yield name, tensor(name, *row)
            if rank == 1 and "raise" in told:
                raise ValueError("this one breaks off")

    def weights(step: int) -> Any:
        if not told & {"shuffle", "lack", "dtype", "shape", "placement", "stream"} or (
            "stream" in told and rank == 2
        ):
            return stream(step)
        rows = list(stream(step))
        if "shuffle" in told:
            random.Random(rank).shuffle(rows)
        return {
            name: row for name, row in rows if rank != 2 or name != "b.bias" or "lack" not in told
        }

    flaws: list[str] = []

    def rival() -> None:
        with dc.Publisher(url, like=like) as other:
            other.publish(dict(stream(int(step))), metadata={"step": step})

    def stop(when: str) -> None:
        if when == "before" and "late" in told:
            rival()
        if when in told:
            stopped.write_text(str(os.getpid()))
            # Signals this thread: a signal to the process is delivered to any thread, and this one
            # could continue until then.
            signal.pthread_kill(
                threading.get_ident(), signal.SIGKILL if when == "die" else signal.SIGSTOP
            )

    def go_on() -> None:
        os.kill(int(stopped.read_text()), signal.SIGCONT)
        stopped.unlink()

    def progress(*_: object) -> None:
        for when in ("die", "halt", "stop", "doze") if rank == 1 else ():
            stop(when)
            told.discard(when)

    class Remarks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if rank == 0 and "doze" in told and "waiting for another rank" in record.getMessage():
                told.remove("doze")
                go_on()

    _ranks._REMARK = 1.0
    logging.getLogger("deltachain").addHandler(Remarks())
    if rank == 0 and "TEST_KEY_OF_RANK_0" in os.environ:
        os.environ["DELTACHAIN_SIGNING_KEY"] = os.environ["TEST_KEY_OF_RANK_0"]
    files = Path(url) / "files"
    with dc.Publisher(
        dc.Store(url, attempts=3),
        like=like,
        group=dc.Group(group, timeout=float(limit)),
        routes=dc.RoutePlan(snapshot_cost=math.inf),
        progress=progress,
        once="step" if "once" in steps else None,
    ) as pub:
        if rank == 0:
            pub._native = Stopping(pub._native, stop)
        for step in steps:
            if not step.isdigit():
                told.add(step)
                if step == "break" and rank == 0:
                    files.rename(files.with_name("away"))
                    files.write_text("in the way")
                elif step == "mend" and rank == 0:
                    files.unlink()
                    files.with_name("away").rename(files)
                elif step == "wait" and rank == 0:
                    with contextlib.suppress(dc.UsageError):
                        pub.wait()
                if step in ("break", "mend"):
                    pub.wait()
                continue
            if "rival" in told and rank == 0:
                rival()
            try:
                metadata = {"step": step} if rank == 0 or "once" not in steps else None
                made = pub.publish(weights(int(step)), metadata=metadata)
                said: Any = {
                    "version": made.version,
                    "digest": made.digest,
                    "snapshot": made.snapshot,
                }
                said |= {"skipped": True} if not made.is_new else {}
            except (dc.Error, ValueError) as error:
                said = {"error": type(error).__name__, "text": str(error)}
                if (told & {"stop"} and rank == 0) or (told & {"before", "after"} and rank == 1):
                    go_on()
            print(json.dumps(said), flush=True)
            if told & {"die", "halt"}:
                # The other rank does not return, so a regular shutdown would wait for it.
                os._exit(0)
            told.clear()
    if kind == "torch":
        # Threads of gloo that still run when the group or the interpreter ends can abort the
        # process.
        os._exit(0)


if __name__ == "__main__":
    main()
