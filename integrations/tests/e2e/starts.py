"""Servers of vLLM that start with the newest version, and requests that must have no effect.
`run.py` starts this."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import deltachain as dc
from follow import Follow
from models import tensors_of
from server import Server, fresh, refused
from store import Store, surroundings


class Trap:
    """A port on which no connection must arrive, while the block lasts."""

    def __enter__(self) -> Trap:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/chain"
        return self

    def is_untouched(self) -> bool:
        self.listener.setblocking(False)
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return True
        return False

    def __exit__(self, *_: object) -> None:
        self.listener.close()


def states(server: Server) -> set[tuple[Any, ...]]:
    """The states that the server's workers report."""
    return {
        (state["version"], state["digest"])
        for state in server.call("deltachain_state", follower="", lease="0")
    }


def proof(folder: Path, workers: int) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    rows: list[list[Any]] = []
    chain, log = folder / "started", folder / "server.log"
    shutil.rmtree(chain, ignore_errors=True)
    fresh_of = {number: fresh(folder, number, plain=False, workers=workers) for number in (3, 4)}

    def publish(number: int) -> dc.reports.PublishReport:
        with dc.Publisher(chain, like=folder / "base") as publisher:
            return publisher.publish(tensors_of(folder / f"saved-{number}"))

    def begin(**more: Any) -> Server:
        configuration = {"chain": str(chain), "start": "newest", "timeout": 120.0, **more}
        return Server(folder / "other", log, configuration, plain=False, workers=workers)

    # The chain is created while the server waits for it.
    found: list[dc.reports.PublishReport] = []
    server = begin()
    timer = threading.Timer(20, lambda: found.append(publish(3)))
    timer.start()
    with server, Trap() as trap:
        # The answer to the first request after /health is 200.
        good = server.answers() == fresh_of[3] and states(server) == {(0, found[0].digest)}
        rows.append(
            [
                "starts with the newest version, of a chain that came later",
                good,
                f"{states(server)}",
            ]
        )
        for name, info in (
            ("another chain", {"chain": str(folder / "chain")}),
            ("an address", {"chain": trap.url}),
            ("a bucket", {"chain": "s3://bucket/chain"}),
            ("another directory", {"host_copy": str(folder)}),
        ):
            said = refused(lambda info=info: server.begin(**info))
            good = (
                "--additional-config" in said
                and trap.is_untouched()
                and server.answers() == fresh_of[3]
            )
            rows.append([f"a request names {name}", good, said[:300]])
        said = refused(lambda: server.begin(chain=str(chain), kv=None))
        rows.append(["a request repeats the configuration", said == "", said])
        newer = publish(4)
        server.update(newer.version, newer.digest)
        rows.append(
            ["an update without init", server.answers() == fresh_of[4], f"version {server.shown()}"]
        )
        server.end(signal.SIGKILL)
    with begin() as server:
        good = server.answers() == fresh_of[4] and states(server) == {(1, newer.digest)}
        rows.append(["killed, and started again", good, f"{states(server)}"])
    return rows


def late(folder: Path) -> list[list[Any]]:
    """A server that waits for a version in vain."""
    shutil.rmtree(folder / "empty", ignore_errors=True)
    configuration = {"chain": str(folder / "empty"), "start": "newest", "timeout": 1.0}
    try:
        with Server(folder / "other", folder / "late.log", configuration, plain=False):
            return [["no version comes", False, "the server serves"]]
    except RuntimeError:
        said = [
            line
            for line in (folder / "late.log").read_text().splitlines()
            if "does not start" in line
        ]
        return [
            ["no version comes", len(said) == 1, said[0][-300:] if said else "no reason in the log"]
        ]


def without_credentials(folder: Path, s3: Path) -> list[list[Any]]:
    """A chain in a bucket for which only the follower has credentials."""
    rows: list[list[Any]] = []
    copy = folder / "bucket-copy"
    shutil.rmtree(copy, ignore_errors=True)
    fresh_of = {number: fresh(folder, number, plain=False) for number in (3, 4)}
    with Store(s3, folder / "buckets") as store:
        there = surroundings(store.port)
        # The server starts without the credentials.
        configuration = {"host_copy": str(copy), "start": "newest", "timeout": 120.0}
        server = Server(folder / "other", folder / "server.log", configuration, plain=False)
        os.environ.update(there)
        with dc.Publisher("s3://models/run", like=folder / "base") as publisher:
            publisher.publish(tensors_of(folder / "saved-3"))
            with (
                Follow("s3://models/run", copy, server.url, "--engine", "vllm") as following,
                server,
            ):
                rows.append(
                    ["starts with the follower's version", server.answers() == fresh_of[3], ""]
                )
                seconds = following.until(lambda: server.shown() == "0")
                rows.append(
                    ["the follower names it", server.answers() == fresh_of[3], f"{seconds:.1f} s"]
                )
                publisher.publish(tensors_of(folder / "saved-4"))
                seconds = following.until(lambda: server.shown() == "1")
                rows.append(
                    ["and brings the next", server.answers() == fresh_of[4], f"{seconds:.1f} s"]
                )
                said = refused(lambda: server.ask("POST", "/start_weight_update", {}))
                said += refused(
                    lambda: server.ask("POST", "/update_weights", {"update_info": {"version": 0}})
                )
                good = "updates this server" in said or "give the version's digest" in said
                rows.append(["an update without a digest", good, said[:300]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--s3", type=Path)
    given = parser.parse_args()
    rows = proof(given.folder, given.workers)
    if given.workers == 1:
        rows += late(given.folder)
    if given.s3 is not None:
        rows += without_credentials(given.folder, given.s3)
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
