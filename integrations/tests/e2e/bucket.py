"""A chain in a bucket of s3s-fs: a trainer that is killed while it publishes, and a server of vLLM
that continues.

python bucket.py DIR OUT --s3 PROGRAM"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
from pathlib import Path
from typing import Any

import deltachain as dc
from models import tensors_of
from server import Server, fresh
from store import Store, surroundings

CHAIN = "s3://models/run"


class Gate:
    """A proxy of the bucket, on a free port, in threads that end with the process. After `shuts` is
    set, it forwards nothing from the first upload of a link on."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.shuts = False
        self.is_shut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_asked: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                line = data.partition(b"\r\n")[0]
                if is_asked and self.shuts and line.startswith(b"PUT ") and b"/files/" in line:
                    self.is_shut.set()
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One of the two connections is closed.
            pass


def train(folder: Path, first: int, last: int) -> None:
    """The trainer: publishes saved versions."""
    with dc.Publisher(CHAIN, like=folder / "base") as publisher:
        for number in range(first, last + 1):
            print(
                publisher.publish_async(tensors_of(folder / f"saved-{number}")).result().version,
                flush=True,
            )


def proof(folder: Path, s3: Path) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    rows: list[list[Any]] = []
    digests = [row["digest"] for row in json.loads((folder / "versions.json").read_text())]
    fresh_of = {number: fresh(folder, number, plain=False) for number in (3, 4)}
    with Store(s3, folder / "buckets") as store:
        gate = Gate(store.port)

        def trainer(first: int, last: int) -> subprocess.Popen[str]:
            words = [sys.executable, __file__, str(folder), "--train", str(first), str(last)]
            return subprocess.Popen(
                words,
                env={**os.environ, **surroundings(gate.port)},
                stdout=subprocess.PIPE,
                text=True,
            )

        said, _ = (begun := trainer(0, 1)).communicate()
        rows.append(["published to the bucket", begun.returncode == 0, f"versions {said.split()}"])
        configuration = {"chain": CHAIN, "timeout": 30.0}
        there = surroundings(store.port)
        with Server(
            folder / "other", folder / "server.log", configuration, plain=False, surroundings=there
        ) as server:
            start = server.answers()
            server.update(1, digests[1])
            rows.append(["first version", server.answers() != start, f"version {server.shown()}"])

            # Versions 2 and 3 are published. Then the trainer is killed during the upload of
            # version 4's link.
            trainer(2, 3).communicate()
            gate.shuts = True
            killed = trainer(4, 4)
            gate.is_shut.wait(120)
            killed.kill()
            killed.wait()
            server.update(3, digests[3])
            rows.append(
                [
                    "trainer killed while it publishes",
                    server.answers() == fresh_of[3],
                    f"version {server.shown()}",
                ]
            )
            try:
                server.update(4, digests[4])
                rows.append(["the version that it did not publish", False, "it was not refused"])
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")
                server.ask("POST", "/resume")
                good = (
                    "no version 4" in text
                    and server.answers() == fresh_of[3]
                    and server.shown() == "3"
                )
                rows.append(
                    ["the version that it did not publish", good, f"{error.code} {text[:200]}"]
                )

            gate.shuts = False
            again = trainer(4, 4)
            said, _ = again.communicate()
            server.update(4, digests[4])
            good = said.split() == ["4"] and server.answers() == fresh_of[4]
            rows.append(["trainer started again", good, f"version {server.shown()}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--s3", type=Path)
    parser.add_argument("--train", type=int, nargs=2)
    given = parser.parse_args()
    if given.train:
        train(given.folder, *given.train)
    else:
        given.out.write_text(json.dumps(proof(given.folder, given.s3)))


if __name__ == "__main__":
    main()
