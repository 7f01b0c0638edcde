"""Servers of vLLM over HTTP, updated as by a trainer or a follower. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

from server import PROMPTS, Server, fresh


def proof(folder: Path, mode: str, workers: int) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    rows: list[list[Any]] = []
    fresh_of = {
        number: fresh(folder, number, plain=mode == "sparse", workers=workers) for number in (3, 4)
    }
    digests = [row["digest"] for row in json.loads((folder / "versions.json").read_text())]
    chain = folder / "chain"
    plain = mode == "sparse"
    host = folder / "host"
    shutil.rmtree(host, ignore_errors=True)
    configuration = {"chain": str(chain), "mode": mode, "timeout": 30.0}
    if mode == "reload":
        configuration["host_copy"] = str(host)
    with Server(
        folder / "other", folder / "server.log", configuration, plain=plain, workers=workers
    ) as server:
        start = server.answers()
        server.update(3, digests[3])
        rows.append(
            [
                "late start",
                server.answers() == fresh_of[3] != start,
                f"version {server.shown()} at once",
            ]
        )
        server.update(1, digests[1])
        rows.append(
            [
                "an older version",
                server.answers() not in (fresh_of[3], start),
                f"version {server.shown()}",
            ]
        )

        # The prompts are the same before and after: cached results of older weights must not be
        # used.
        seconds = server.update(3, digests[3])
        rows.append(
            [
                "by 2 versions, prefix cache on",
                server.answers() == fresh_of[3],
                f"paused for {seconds:.3f} s",
            ]
        )

        try:
            server.update(4, "0" * 64)
            rows.append(["wrong digest", False, "it was not refused"])
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            server.ask("POST", "/resume")
            good = server.answers() == fresh_of[3] and server.shown() == "3"
            rows.append(["wrong digest", good and "digest" in said, f"{error.code} {said[:200]}"])

        # A running request waits during the update, and continues.
        def talk() -> None:
            talked.append(server.complete(PROMPTS[1], tokens=200)[0])

        talked: list[str] = []
        thread = threading.Thread(target=talk)
        thread.start()
        seconds = server.update(4, digests[4])
        thread.join()
        rows.append(
            [
                "requests wait",
                len(talked) == 1 and len(talked[0].split()) == 200,
                "200 tokens, none lost",
            ]
        )
        rows.append(
            ["by 1 version", server.answers() == fresh_of[4], f"paused for {seconds:.3f} s"]
        )
        # Back to the previous version: the backend stages the newest one while the server serves
        # this one.
        server.update(3, digests[3])
        if mode == "reload":
            wait_for(host, 4)
        server.end(signal.SIGKILL)
    with Server(
        folder / "other", folder / "server.log", configuration, plain=plain, workers=workers
    ) as server:
        started = server.shown()
        server.update(4, digests[4])
        rows.append(
            [
                "killed between stage and apply" if mode == "reload" else "killed",
                server.answers() == fresh_of[4],
                f"started again, said version {started}",
            ]
        )
    return rows


def wait_for(host: Path, number: int) -> None:
    """Waits until a version is staged."""
    end = time.monotonic() + 60
    while True:
        held = host / "current" / ".." / "held.json"
        if json.loads(held.read_text())["record"]["version"] == number:
            return
        if time.monotonic() > end:
            raise RuntimeError(f"{host} is not at version {number}")
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    given.out.write_text(json.dumps(proof(given.folder, given.mode, given.workers)))


if __name__ == "__main__":
    main()
