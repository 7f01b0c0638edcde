"""Four followers in four simulated regions, and a fifth that joins late: from publishing a version until each has it.

    python regions.py DIR OUT

The chain is shown by a small server that speaks S3. Each follower is a process of its own that reaches it through a
proxy, which holds back all bytes by half of a round trip in each direction, and lets through no more than its line
carries."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import deltachain as dc
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python" / "tests"))
from stalling_store import StallingStore  # noqa: E402

# Round trip in milliseconds, and millions of bits per second.
REGIONS = {"same city": (5, 1000), "next country": (43, 400), "same continent": (58, 400), "overseas": (145, 200)}
VERSIONS = 6
ELEMENTS = 64 << 20
CHANGED = 0.01


class Line:
    """A proxy on a free port, in a thread that ends with the process."""

    def __init__(self, target: int, round_trip: float, bits: float) -> None:
        self._target, self._delay, self._rate = target, round_trip / 2, bits / 8
        self._free_at = 0.0
        self._is_there = threading.Event()
        self.port = 0
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._is_there.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._is_there.set()
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The handshake of a connection over a real line costs a round trip as well.
        await asyncio.sleep(2 * self._delay)
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            self._pump(reader, their_writer, capped=False), self._pump(their_reader, writer, capped=True)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, capped: bool) -> None:
        # Bytes on their way: a line that is long holds many of them.
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
                self._free_at = max(now, self._free_at) + len(data) / self._rate
                await asyncio.sleep(max(0.0, self._free_at - now))
            await on_the_way.put((time.monotonic() + self._delay, data))
            if not data:
                break
        await arriving


def show(folder: Path, store: StallingStore) -> None:
    """Puts what is new in a directory where followers find it: commits last, since they are what makes a version. The
    server does not take files in parts, as a publisher would send large ones."""
    files = [path for path in folder.rglob("*") if path.is_file() and "probes" not in path.parts]
    for path in sorted(files, key=lambda path: "commits" in path.parts):
        name = f"/models/run/{path.relative_to(folder)}"
        if name not in store.objects:
            with store.lock:
                store.objects[name] = (path.read_bytes(), time.time())


def follow(port: int, folder: str, last: int) -> None:
    """A follower: says of each version when it has it, and how many bytes it took."""
    reached = {"endpoint": f"http://127.0.0.1:{port}", "region": "x", "access_key_id": "x", "secret_access_key": "x"}
    reached["allow_http"] = "true"
    with dc.Subscriber("s3://models/run", host_copy=folder, storage_options=reached) as subscriber:
        while subscriber.version != last:
            update = subscriber.prepare(timeout=600, poll=0.25)
            update.apply()
            assert update.times is not None
            row = [update.version, time.time(), update.downloaded, update.times.switch]
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    folder = given.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    # In tensors of 8 Mi elements, with the spread of real weights.
    model = {
        f"layer.{number}.weight": (torch.randn(8 << 20, generator=generator) * 0.02).bfloat16()
        for number in range(ELEMENTS // (8 << 20))
    }
    chain = folder / "chain"
    with StallingStore() as store, dc.Publisher(chain) as publisher:
        followers: dict[str, subprocess.Popen[str]] = {}
        found: dict[str, dict[int, Any]] = {}
        threads = []

        def join(name: str, round_trip: float, bits: float) -> None:
            line = Line(port_of(store), round_trip / 1000, bits * 1e6)
            words = [sys.executable, __file__, "--follow", str(line.port), str(folder / name), str(VERSIONS - 1)]
            followers[name] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            found[name] = {}

            def listen() -> None:
                stdout = followers[name].stdout
                assert stdout is not None
                for text in stdout:
                    version, at, downloaded, switch = json.loads(text)
                    found[name][version] = (at, downloaded, switch)

            threads.append(threading.Thread(target=listen))
            threads[-1].start()

        published: list[tuple[float, dc.Published]] = []
        for number in range(VERSIONS):
            if number:
                for tensor in model.values():
                    lanes = torch.randperm(tensor.numel(), generator=generator)[: int(CHANGED * tensor.numel())]
                    # A step to the next number.
                    tensor.view(torch.int16)[lanes] += 1
            done = publisher.publish_async(model, metadata={"step": number}).result()
            show(chain, store)
            published.append((time.time(), done))
            if number == 0:
                for name, (round_trip, bits) in REGIONS.items():
                    join(name, round_trip, bits)
            # A trainer has more to do than to publish: the next one comes when all have this one.
            while any(number not in found[name] and follower.poll() is None for name, follower in followers.items()):
                time.sleep(0.02)
        joined = time.time()
        join("joins late", 145, 200)
        for thread in threads:
            thread.join()
        for name, follower in followers.items():
            if follower.wait() != 0 or VERSIONS - 1 not in found[name]:
                raise RuntimeError(f"{name} has not come to the end")
    given.out.write_text(json.dumps(table(published, found, joined)))


def table(published: list[tuple[float, Any]], found: dict[str, dict[int, Any]], joined: float) -> list[str]:
    """The lines of a table, and what follows from them for a large model."""
    numbers = range(1, VERSIONS)
    head = " | ".join(f"version {number}" for number in numbers)
    lines = [f"| follower | round trip, line | {head} | switch |", "|---|---|" + "---|" * (len(numbers) + 1)]
    for name, (round_trip, bits) in REGIONS.items():
        seconds = " | ".join(f"{found[name][number][0] - published[number][0]:.2f} s" for number in numbers)
        switch = max(found[name][number][2] for number in numbers)
        lines.append(f"| {name} | {round_trip} ms, {bits} Mbit/s | {seconds} | {switch:.3f} s |")
    at, downloaded, switch = found["joins late"][VERSIONS - 1]
    late = f"{at - joined:.2f} s after its start, {downloaded / 1e6:.0f} MB"
    lines.append(f"| joins late | 145 ms, 200 Mbit/s | {'| ' * (len(numbers) - 1)}{late} | {switch:.3f} s |")
    last = published[-1][1]
    share = last.bytes / (2 * ELEMENTS)
    terabyte = share * 1e12
    lines += [
        "",
        f"Measured with {2 * ELEMENTS / 1e6:.0f} MB of BF16, of which {last.changed / last.elements:.1%} changes: a link "
        f"has {last.bytes / 1e6:.2f} MB, {share:.2%} of the model. **Computed** from that share, not run: for 1 TB a "
        f"link has {terabyte / 1e9:.1f} GB, which a line of 10 Gbit/s carries in {terabyte * 8 / 1e10:.0f} s and one of "
        f"1 Gbit/s in {terabyte * 8 / 1e9:.0f} s; building, which overlaps, is not in these figures.",
    ]
    return lines


def port_of(store: StallingStore) -> int:
    return int(store.url.rpartition(":")[2])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--follow"]:
        follow(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main()
