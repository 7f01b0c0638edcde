"""Servers of vLLM and SGLang over HTTP, with the requests of a trainer or a follower."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Longer than a block of the prefix cache (128 tokens on CPUs), so that the server caches something.
PROMPTS = [[2 + 7 * number % 500 for number in range(180)], [5, 6, 7, 8]]


class Running:
    """A server that runs while the block lasts.

    Args:
        log: the file for its output.
        command, environment: the command with its environment; `{port}` stands for the port.
    """

    def __init__(self, log: Path, command: list[str], environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._process = subprocess.Popen(
            [word.replace("{port}", str(port)) for word in command],
            stdout=log.open("ab"),
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.log.read_text()[-3000:]}")
            try:
                self.ask("GET", "/health")
                return self
            except OSError:
                # The start takes half a minute.
                time.sleep(0.5)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(signal.SIGTERM)

    def end(self, how: signal.Signals) -> None:
        """Ends all processes of the server."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Sends a request, and returns the answer. Raises urllib.error.HTTPError if the server
        refuses."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
        found = json.loads(text) if is_json and text else {}
        assert isinstance(found, dict)
        return found


class Server(Running):
    """A server of vLLM.

    Args:
        model: the model that it starts with.
        log: the file for its output.
        configuration: the backend's settings in the server's configuration.
        plain: see `plain.py`.
        workers: processes among which the model is divided.
        surroundings: further environment variables.
        words: further arguments of its command.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        configuration: dict[str, Any] | None = None,
        *,
        plain: bool = True,
        workers: int = 1,
        surroundings: dict[str, str] | None = None,
        words: Sequence[str] = (),
    ) -> None:
        python = os.environ.get("ENGINES_PYTHON", sys.executable)
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
            "--model",
            str(model),
            "--served-model-name",
            "it",
        ]
        command += [
            "--dtype",
            "bfloat16",
            "--max-model-len",
            "256",
            "--max-num-seqs",
            "4",
            "--enforce-eager",
        ]
        command += [
            "--weight-transfer-config",
            '{"backend": "deltachain"}',
            "--tensor-parallel-size",
            str(workers),
        ]
        command += ["--additional-config", json.dumps({"deltachain": configuration or {}})]
        command += words
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "ENGINES_PLAIN": str(int(plain)),
            **(surroundings or {}),
        }
        if workers > 1:
            # Otherwise each worker binds processors of its own.
            environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        super().__init__(log, command, environment)

    def complete(self, prompt: list[int], tokens: int = 12, model: str = "it") -> list[Any]:
        """Greedy tokens, and the log probability of each token."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0.0,
            "logprobs": 1,
        }
        (choice,) = self.ask("POST", "/v1/completions", {**body, "ignore_eos": True})["choices"]
        return [choice["text"], choice["logprobs"]["token_logprobs"]]

    def answers(self, model: str = "it") -> list[Any]:
        """The answers to the prompts, one request after the other."""
        return [self.complete(prompt, model=model) for prompt in PROMPTS]

    def shown(self) -> str:
        """The number of the version that the server reports, or another text."""
        return self.named().partition("@")[0]

    def named(self) -> str:
        """The name of the version that the server reports."""
        return str(self.ask("GET", "/weight_info")["weight_version"])

    def call(self, method: str, **words: str) -> list[Any]:
        """Calls a method of the server's workers, and returns the result of each."""
        found = self.ask("POST", "/collective_rpc", {"method": method, "kwargs": words})["results"]
        assert isinstance(found, list)
        return found

    def begin(self, **settings: Any) -> None:
        """Sends settings by a request."""
        self.ask("POST", "/init_weight_transfer_engine", {"init_info": settings})

    def update(self, number: int, digest: str, pause: str = "/pause?mode=keep") -> float:
        """Sends all requests of an update, and returns the seconds between pause and resume. If the
        server refuses, it stays paused."""
        begin = time.monotonic()
        self.ask("POST", pause)
        self.ask("POST", "/start_weight_update", {})
        self.ask("POST", "/update_weights", {"update_info": {"version": number, "digest": digest}})
        self.ask("POST", "/finish_weight_update", {"weight_version": f"{number}@{digest[:12]}"})
        self.ask("POST", "/resume")
        return time.monotonic() - begin


class Sglang(Running):
    """A server of SGLang, with the kernels of torch.

    Args:
        model: the model that it starts with.
        log: the file for its output.
        words: further arguments of its command.
        chain: the chain that the server itself downloads, or None.
        settings: further settings of the plugin.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        *words: str,
        chain: Path | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        command = [
            os.environ["SGLANG_PYTHON"],
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(model),
        ]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
            "--device",
            "cpu",
            "--attention-backend",
            "torch_native",
        ]
        command += ["--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup"]
        command += ["--mem-fraction-static", "0.4", "--max-total-tokens", "2048", *words]
        stubs = str(Path(__file__).resolve().parent / "stubs")
        environment = {"PYTHONPATH": stubs, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
        if chain is not None:
            given = {"chain": str(chain), **(settings or {})}
            environment["DELTACHAIN_SGLANG"] = json.dumps(given)
        super().__init__(log, command, environment)

    def generate(self, prompt: list[int], tokens: int = 12) -> dict[str, Any]:
        """Greedy tokens, with their metadata."""
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        return self.ask(
            "POST",
            "/generate",
            {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True},
        )

    def answers(self) -> list[Any]:
        """The answers to the prompts, one request after the other: tokens and log probabilities,
        without the cache."""
        found = []
        for prompt in PROMPTS:
            # The server may not have dropped the request that has just ended.
            self.ask("POST", "/flush_cache?timeout=30")
            found.append(self.generate(prompt)["meta_info"]["output_token_logprobs"])
        return found

    def named(self) -> str:
        """The name of the version that the server reports."""
        return str(self.ask("GET", "/model_info")["weight_version"])


def refused(act: Callable[[], object]) -> str:
    """The text of the server's refusal; empty if it does not refuse."""
    try:
        act()
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")
    return ""


def fresh(folder: Path, number: int, *, plain: bool, workers: int = 1) -> list[Any]:
    """The answers of a server that starts with the version that the trainer saved. They are
    computed once, and kept in FOLDER."""
    kept = folder / f"fresh-http-{number}-{'plain' if plain else 'packed'}-{workers}.json"
    if not kept.is_file():
        with Server(
            folder / f"saved-{number}", folder / "server.log", plain=plain, workers=workers
        ) as server:
            said = server.answers()
        kept.write_text(json.dumps(said))
    found = json.loads(kept.read_text())
    assert isinstance(found, list)
    return found
