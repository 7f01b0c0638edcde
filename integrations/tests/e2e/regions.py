"""Four followers in four simulated regions, and a fifth that joins late: measures the time from
publishing a version until each follower has it.

    python regions.py DIR OUT --s3 PROGRAM

The chain is in a bucket of s3s-fs. Each follower is a process of its own that reaches the bucket
through a proxy, another process, which delays all bytes by half a round trip in each direction, and
limits their rate to that of the line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import torch

import deltachain as dc
from store import Store, surroundings

CHAIN = "s3://models/run"

# Round-trip time in milliseconds, and megabits per second.
REGIONS = {
    "same city": (5, 1000),
    "next country": (43, 400),
    "same continent": (58, 400),
    "overseas": (145, 200),
}
VERSIONS = 6
ELEMENTS = 64 << 20
CHANGED = 0.01

# Seconds of idle time that a line may make up for: timers of this machine are not more precise.
SLACK = 0.005


class Line:
    """A proxy on a free port, which it prints.

    Args:
        target: the port of the server.
        round_trip: seconds.
        rate: bytes per second.
    """

    def __init__(self, target: int, round_trip: float, rate: float) -> None:
        self._target, self._delay, self._rate = target, round_trip / 2, rate
        self._free_at = 0.0

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The handshake of a real connection costs a round trip, too.
        await asyncio.sleep(2 * self._delay)
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            self._pump(reader, their_writer, capped=False),
            self._pump(their_reader, writer, capped=True),
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, capped: bool
    ) -> None:
        # Bytes in flight: a long line holds many.
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                due, data = await on_the_way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                try:
                    if not data:
                        writer.close()
                        return
                    writer.write(data)
                    await writer.drain()
                except ConnectionError:
                    return

        arriving = asyncio.create_task(arrive())
        while True:
            try:
                data = await reader.read(1 << 16)
            except ConnectionError:
                data = b""
            now = time.monotonic()
            if capped:
                self._free_at = max(now - SLACK, self._free_at) + len(data) / self._rate
                await asyncio.sleep(max(0.0, self._free_at - now))
            await on_the_way.put((time.monotonic() + self._delay, data))
            if not data:
                break
        await arriving


def follow(folder: str, last: int) -> None:
    """A follower: prints for each version when it has it, and the number of bytes that it
    downloaded."""
    with dc.Subscriber(CHAIN, host_copy=folder) as subscriber:
        while subscriber.version != last:
            update = subscriber.prepare(timeout=600, poll=0.25)
            update.apply()
            assert update.times is not None
            row = [
                update.version,
                time.time(),
                update.downloaded,
                update.times.switch,
                update.times.download,
            ]
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--s3", type=Path, required=True)
    given = parser.parse_args()
    folder = given.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    # Tensors of 8 Mi elements, with the spread of real weights.
    model = {
        f"layer.{number}.weight": (torch.randn(8 << 20, generator=generator) * 0.02).bfloat16()
        for number in range(ELEMENTS // (8 << 20))
    }
    with contextlib.ExitStack() as open_things:
        store = open_things.enter_context(Store(given.s3, folder / "buckets"))
        os.environ |= surroundings(store.port)
        publisher = open_things.enter_context(dc.Publisher(CHAIN))
        followers: dict[str, subprocess.Popen[str]] = {}
        found: dict[str, dict[int, list[Any]]] = {}
        threads = []

        def join(name: str, round_trip: float, bits: float) -> None:
            words = [
                sys.executable,
                __file__,
                "--line",
                str(store.port),
                str(round_trip / 1000),
                str(bits / 8 * 1e6),
            ]
            line = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            open_things.callback(line.wait)
            open_things.callback(line.kill)
            assert line.stdout is not None
            environment = {**os.environ, **surroundings(int(line.stdout.readline()))}
            words = [sys.executable, __file__, "--follow", str(folder / name), str(VERSIONS - 1)]
            followers[name] = subprocess.Popen(
                words, stdout=subprocess.PIPE, text=True, env=environment
            )
            found[name] = {}

            def listen() -> None:
                stdout = followers[name].stdout
                assert stdout is not None
                for text in stdout:
                    version, *row = json.loads(text)
                    found[name][version] = row

            threads.append(threading.Thread(target=listen))
            threads[-1].start()

        published: list[tuple[float, dc.reports.PublishReport]] = []
        for number in range(VERSIONS):
            if number:
                for tensor in model.values():
                    lanes = torch.randperm(tensor.numel(), generator=generator)[
                        : int(CHANGED * tensor.numel())
                    ]
                    # Each value becomes the next larger number.
                    tensor.view(torch.int16)[lanes] += 1
            done = publisher.publish_async(model, metadata={"step": number}).result()
            published.append((time.time(), done))
            if number == 0:
                for name, (round_trip, bits) in REGIONS.items():
                    join(name, round_trip, bits)
            # A trainer also trains between versions: the next version is published when all
            # followers have this one.
            while any(
                number not in found[name] and follower.poll() is None
                for name, follower in followers.items()
            ):
                time.sleep(0.02)
        joined = time.time()
        join("joins late", 145, 200)
        for thread in threads:
            thread.join()
        for name, follower in followers.items():
            if follower.wait() != 0 or VERSIONS - 1 not in found[name]:
                raise RuntimeError(f"{name} has not come to the end")
    given.out.write_text(json.dumps(table(published, found, joined)))


def table(
    published: list[tuple[float, Any]], found: dict[str, dict[int, Any]], joined: float
) -> list[str]:
    """Returns the lines of a table, with an extrapolation to a large model."""
    numbers = range(1, VERSIONS)
    head = " | ".join(f"version {number}" for number in numbers)
    lines = [
        f"| follower | round trip, line | {head} | switch |",
        "|---|---|" + "---|" * (len(numbers) + 1),
    ]
    for name, (round_trip, bits) in REGIONS.items():
        seconds = " | ".join(
            f"{found[name][number][0] - published[number][0]:.2f} s" for number in numbers
        )
        switch = max(found[name][number][2] for number in numbers)
        lines.append(f"| {name} | {round_trip} ms, {bits} Mbit/s | {seconds} | {switch:.3f} s |")
    at, downloaded, switch, download = found["joins late"][VERSIONS - 1]
    late = (
        f"{at - joined:.2f} s after its process began, of which {download:.2f} s for "
        f"{downloaded / 1e6:.0f} MB"
    )
    lines.append(
        f"| joins late | 145 ms, 200 Mbit/s | {'| ' * (len(numbers) - 1)}{late} | {switch:.3f} s |"
    )
    last = published[-1][1]
    share = last.bytes / (2 * ELEMENTS)
    terabyte = share * 1e12
    measured = (
        f"Measured with {2 * ELEMENTS / 1e6:.0f} MB of BF16, of which "
        f"{last.changed / last.elements:.1%} changes: a link has {last.bytes / 1e6:.2f} MB, "
        f"{share:.2%} of the model. **Computed** from that share, not run: for 1 TB a link has "
        f"{terabyte / 1e9:.1f} GB, which a line of 10 Gbit/s carries in {terabyte * 8 / 1e10:.0f} "
        f"s and one of 1 Gbit/s in {terabyte * 8 / 1e9:.0f} s. Building overlaps with that and "
        "depends on cores and disks: [scaling.md](../../docs/scaling.md) has measured it."
    )
    lines += ["", *textwrap.wrap(measured, 120, break_on_hyphens=False)]
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["--follow"]:
        follow(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["--line"]:
        asyncio.run(Line(int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])).serve())
    else:
        main()
