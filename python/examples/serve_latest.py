"""A server that answers with the newest weights: they are switched between two requests, and each
answer names its version.

    python serve_latest.py [--numpy]

Meanwhile it publishes a few versions of a small model to a temporary directory, sends requests to
the server, and checks that each answer is that of the version that it names.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import deltachain as dc

LANES = 10_000
VERSIONS = 6


class Engine:
    """Weights in memory, and a lock that separates requests from switches."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.version: int | None = None
        self.paused = threading.Lock()

    def load(self, patch: dc.Patch) -> None:
        """Applies a patch: some values of a tensor, or all."""
        if patch.indices is None:
            # Arrays of a patch are read-only.
            self.weights[patch.name] = copy.deepcopy(patch.values)
        else:
            self.weights[patch.name].reshape(-1)[patch.indices] = patch.values

    def answer(self, question: int) -> dict[str, Any]:
        """Returns the value of the requested weight, and the sum of all, which belong to one
        version."""
        with self.paused:
            weight = self.weights["weight"]
            return {
                "version": self.version,
                "value": float(weight[question]),
                "sum": float(weight.sum()),
            }


def follow(engine: Engine, chain: str, kind: str, stop: threading.Event) -> None:
    """Updates the engine to each new version."""
    subscriber = dc.Subscriber(chain, kind=kind)
    for update in subscriber.follow(stop=stop, poll=0.05, poll_longest=0.05):
        # Everything has been downloaded and proven; requests wait only while values are switched.
        with engine.paused, update.applying() as patches:
            for patch in patches:
                engine.load(patch)
            engine.version = update.version


def server(engine: Engine) -> ThreadingHTTPServer:
    """Answers `GET /NUMBER` on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(engine.answer(int(self.path[1:]))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def weights(kind: str, version: int) -> dict[str, Any]:
    """Returns version `version` of the model: ones, some of which have become numbers."""
    if kind == "torch":
        import torch

        weight = torch.ones(LANES, dtype=torch.float32)
    else:
        import numpy

        weight = numpy.ones(LANES, "float32")
    for number in range(1, version + 1):
        weight[number * 100] = number * 0.5
    return {"weight": weight}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument(
        "--numpy", action="store_true", help="use numpy even if torch is installed"
    )
    kind = (
        "torch"
        if importlib.util.find_spec("torch") and not arguments.parse_args().numpy
        else "numpy"
    )
    engine, stop = Engine(), threading.Event()
    with tempfile.TemporaryDirectory() as folder, server(engine) as web:
        chain = str(Path(folder) / "chain")
        with dc.Publisher(chain) as pub:
            pub.publish(weights(kind, 0))
            threads = [
                threading.Thread(target=follow, args=(engine, chain, kind, stop)),
                threading.Thread(target=web.serve_forever),
            ]
            for thread in threads:
                thread.start()
            try:
                seen: set[int] = set()
                published = 0
                while VERSIONS - 1 not in seen:
                    if engine.version is None:
                        stop.wait(0.01)
                        continue
                    question = 100 * min(published, VERSIONS - 1)
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{web.server_port}/{question}"
                    ) as response:
                        answer = json.load(response)
                    expected = weights(kind, answer["version"])["weight"]
                    assert (answer["value"], answer["sum"]) == (
                        float(expected[question]),
                        float(expected.sum()),
                    ), answer
                    if answer["version"] not in seen:
                        print(
                            f"version {answer['version']}: weight {question} is {answer['value']}"
                        )
                        seen.add(answer["version"])
                    if answer["version"] == published < VERSIONS - 1:
                        published += 1
                        pub.publish_async(weights(kind, published))
            finally:
                stop.set()
                web.shutdown()
                for thread in threads:
                    thread.join()
    print(f"every answer was that of the version that it named ({kind}, {len(seen)} versions)")


if __name__ == "__main__":
    main()
