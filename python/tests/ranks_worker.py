"""One rank of a training run, for test_ranks.py: publishes the steps that it is told to, and prints what became of
each.

    python ranks_worker.py KIND RANK SIZE MEETING URL LIKE STEP...

KIND is `sockets` (no torch: whole tensors on each rank) or `torch` (gloo, rows of each tensor on each rank). A step
is a number, or one of `break`, `mend`, `die`, `halt`, `spoil`: what happens to the store, or to rank 1, with the next
step.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import model

import deltachain as dc
from deltachain import _ranks


class Sockets:
    """A group over sockets of this machine. Rank 0 has the listening socket, and passes on what all say."""

    def __init__(self, rank: int, size: int, meeting: str) -> None:
        self.rank, self.size = rank, size
        if rank == 0:
            listener = socket.socket(fileno=int(meeting))
            lines = [listener.accept()[0] for _ in range(size - 1)]
            self._lines = {struct.unpack("<I", self._read(line, 4))[0]: line for line in lines}
        else:
            line = socket.create_connection(("127.0.0.1", int(meeting)))
            line.sendall(struct.pack("<I", rank))
            self._lines = {0: line}

    @staticmethod
    def _read(line: socket.socket, length: int) -> bytes:
        read = b""
        while len(read) < length:
            part = line.recv(length - len(read))
            if not part:
                raise ConnectionError("a rank has gone")
            read += part
        return read

    def _receive(self, line: socket.socket) -> bytes:
        return self._read(line, struct.unpack("<Q", self._read(line, 8))[0])

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        for line in self._lines.values():
            line.settimeout(timeout)
        if self.rank != 0:
            line = self._lines[0]
            line.sendall(struct.pack("<Q", len(message)) + message)
            return [self._receive(line) for _ in range(self.size)]
        messages = [message] + [self._receive(self._lines[rank]) for rank in range(1, self.size)]
        for line in self._lines.values():
            line.sendall(b"".join(struct.pack("<Q", len(text)) + text for text in messages))
        return messages


def main() -> None:
    kind, rank, size, meeting, url, like, *steps = sys.argv[1:]
    group: Any
    if kind == "torch":
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
        mesh = init_device_mesh("cpu", (int(size),))
        group = dist.group.WORLD
        dtypes = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}
    else:
        group = Sockets(int(rank), int(size), meeting)

    def rows(whole: Any) -> Any:
        # By their bytes: gloo does not carry fp8.
        spread = distribute_tensor(whole.view(torch.uint8), mesh, [Shard(0)])
        local = spread.to_local().view(whole.dtype)
        return DTensor.from_local(local, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())

    def weights(step: int) -> Iterator[tuple[str, Any]]:
        for name, (dtype, shape, data) in model(step).items():
            if kind == "torch":
                whole = torch.frombuffer(bytearray(data), dtype=dtypes[dtype]).reshape(shape)
                yield name, rows(whole)
            else:
                yield name, dc.Tensor(dtype, shape, data)
            if spoiled and rank == "1":
                yield f"{name}.more", dc.Tensor("U8", (1,), b"a")

    # What happens to rank 1 when it begins to compare.
    signals = {"die": signal.SIGKILL, "halt": signal.SIGSTOP}
    fate: list[signal.Signals] = []
    spoiled = False

    def progress(*_: object) -> None:
        if fate and int(rank) == 1:
            os.kill(os.getpid(), fate[0])

    _ranks.SILENCE = 3.0
    files = Path(url) / "files"
    with dc.Publisher(url, like=like, group=group, snapshots=None, attempts=3, progress=progress) as pub:
        meet = pub._ranks.exchange
        for step in steps:
            if step in signals:
                fate.append(signals[step])
            elif step == "spoil":
                spoiled = True
            elif step == "break" and rank == "0":
                files.rename(files.with_name("away"))
                files.write_text("in the way")
            elif step == "mend" and rank == "0":
                files.unlink()
                files.with_name("away").rename(files)
            if step.isdigit():
                try:
                    made = pub.publish(weights(int(step)), metadata={"step": step})
                    said: Any = {"version": made.version, "digest": made.digest, "snapshot": made.snapshot}
                except dc.Error as error:
                    said = {"error": type(error).__name__, "text": str(error)}
                print(json.dumps(said), flush=True)
                spoiled = False
                if fate:
                    # The group is broken for good.
                    os._exit(0)
            else:
                meet(b"")
    if kind == "torch":
        # Threads of gloo that still run when the interpreter ends can abort the process.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
