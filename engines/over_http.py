"""Servers of vLLM over HTTP, updated as a trainer or a follower does it. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

# Longer than a block of the prefix cache (128 tokens on CPUs), so that there is something to keep.
PROMPTS = [[2 + 7 * number % 500 for number in range(180)], [5, 6, 7, 8]]


class Server:
    """A server that runs while the block lasts.

    Args:
        model: what it starts with.
        log: a file for what it says.
        plain: see `plain.py`.
    """

    def __init__(self, model: Path, log: Path, *, plain: bool = True) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        settings = {"backend": "deltachain"}
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", "it"]
        command += ["--dtype", "bfloat16", "--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager"]
        command += ["--weight-transfer-config", json.dumps(settings)]
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "ENGINES_PLAIN": str(int(plain)),
        }
        self._process = subprocess.Popen(
            command, stdout=log.open("ab"), stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def __enter__(self) -> Server:
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.log.read_text()[-3000:]}")
            try:
                self.ask("GET", "/health")
                return self
            except OSError:
                # It takes half a minute.
                time.sleep(0.5)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGTERM)

    def end(self, how: signal.Signals) -> None:
        """Ends all its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """What it answers; urllib.error.HTTPError if it refuses."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read()
        found = json.loads(text) if text else {}
        assert isinstance(found, dict)
        return found

    def complete(self, prompt: list[int], tokens: int = 12) -> list[Any]:
        """Greedy tokens, and the log probability of each."""
        body = {"model": "it", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "logprobs": 1}
        (choice,) = self.ask("POST", "/v1/completions", {**body, "ignore_eos": True})["choices"]
        return [choice["text"], choice["logprobs"]["token_logprobs"]]

    def answers(self) -> list[Any]:
        """What it says to each prompt, one after the other."""
        return [self.complete(prompt) for prompt in PROMPTS]

    def shown(self) -> str:
        """The version that it says it has."""
        return str(self.ask("GET", "/weight_info")["weight_version"])

    def begin(self, chain: Path, **settings: Any) -> None:
        self.ask("POST", "/init_weight_transfer_engine", {"init_info": {"chain": str(chain), **settings}})

    def update(self, number: int, digest: str, pause: str = "/pause?mode=keep") -> float:
        """All that a driver asks; the seconds between pause and resume. What it refuses leaves it paused."""
        begin = time.monotonic()
        self.ask("POST", pause)
        self.ask("POST", "/start_weight_update", {})
        self.ask("POST", "/update_weights", {"update_info": {"version": number, "digest": digest}})
        self.ask("POST", "/finish_weight_update", {"weight_version": str(number)})
        self.ask("POST", "/resume")
        return time.monotonic() - begin


def fresh(folder: Path, number: int, plain: bool) -> list[Any]:
    """A server that starts with what the trainer has saved as this version."""
    with Server(folder / f"saved-{number}", folder / "server.log", plain=plain) as server:
        return server.answers()


def proof(folder: Path, mode: str, fresh_of: dict[int, list[Any]]) -> list[list[Any]]:
    """Rows of a name, whether it went as it should, and a text. `fresh_of` has versions 1, 3 and 4."""
    rows: list[list[Any]] = []
    digests = [row["digest"] for row in json.loads((folder / "versions.json").read_text())]
    chain = folder / "chain"
    plain = mode == "sparse"
    with Server(folder / "other", folder / "server.log", plain=plain) as server:
        start = server.answers()
        server.begin(chain, mode=mode, timeout=30.0)
        server.update(1, digests[1])
        found = server.answers()
        rows.append(["late start", found == fresh_of[1] != start, f"version {server.shown()} at once"])

        # The same prompts before and after: what was computed with older weights must not be used.
        seconds = server.update(3, digests[3])
        rows.append(["by 2 versions, prefix cache on", server.answers() == fresh_of[3], f"paused for {seconds:.3f} s"])

        try:
            server.update(4, "0" * 64)
            rows.append(["wrong digest", False, "it was not refused"])
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            server.ask("POST", "/resume")
            good = server.answers() == fresh_of[3] and server.shown() == "3"
            rows.append(["wrong digest", good and "digest" in said, f"{error.code} {said[:200]}"])

        # A request that is being answered waits through the update.
        def talk() -> None:
            talked.append(server.complete(PROMPTS[1], tokens=200)[0])

        talked: list[str] = []
        thread = threading.Thread(target=talk)
        thread.start()
        seconds = server.update(4, digests[4])
        thread.join()
        rows.append(["requests wait", len(talked) == 1 and len(talked[0].split()) == 200, "200 tokens, none lost"])
        rows.append(["by 1 version", server.answers() == fresh_of[4], f"paused for {seconds:.3f} s"])
        # The backend has the newest version ready while the server serves the one before.
        server.update(3, digests[3])
        server.end(signal.SIGKILL)
    with Server(folder / "other", folder / "server.log", plain=plain) as server:
        started = server.shown()
        server.begin(chain, mode=mode, timeout=30.0)
        server.update(4, digests[4])
        rows.append(
            ["killed before it applied, started again", server.answers() == fresh_of[4], f"said version {started}"]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mode", required=True)
    given = parser.parse_args()
    fresh_of = {number: fresh(given.folder, number, given.mode == "sparse") for number in (1, 3, 4)}
    given.out.write_text(json.dumps(proof(given.folder, given.mode, fresh_of)))


if __name__ == "__main__":
    main()
