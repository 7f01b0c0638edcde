"""Trains a network, and publishes each step as a version. A second process follows the versions, in
memory and on disk, and computes the same logits, bit for bit.

    python train_and_follow.py [--steps 5] [--numpy] [CHAIN]

Uses torch if that is installed, otherwise numpy, which is the only requirement.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import deltachain as dc

SIZES = (2, 64, 64, 3)  # points of the plane, two hidden layers, three spirals


def spirals() -> tuple[list[list[float]], list[int]]:
    """Returns points of three spirals, and the spiral of each."""
    from math import cos, sin

    arms = [(step / 100, arm) for step in range(1, 101) for arm in range(3)]
    points = [[r * cos(5 * r + 2.1 * arm), r * sin(5 * r + 2.1 * arm)] for r, arm in arms]
    return points, [arm for _, arm in arms]


class TorchNetwork:
    """A network trained in float32 and served in bfloat16, like large models."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers: list[Any] = []
        for inputs, outputs in pairwise(SIZES):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
        self.model = torch.nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=3e-3)
        points, arms = spirals()
        self.points, self.arms = torch.tensor(points), torch.tensor(arms)

    def train(self) -> float:
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(self.points), self.arms)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def stream(self) -> Any:
        """Yields names and tensors, one after another, like trainers that gather them from many
        processes."""
        for name, parameter in self.model.state_dict().items():
            yield name, parameter.to(self.torch.bfloat16)

    def logits(self, weights: Any) -> bytes:
        served = {name: tensor.float() for name, tensor in weights.items()}
        with self.torch.no_grad():
            return (
                self.torch.func.functional_call(self.model, served, (self.points,))
                .numpy()
                .tobytes()
            )


class NumpyNetwork:
    """The same network, in float32."""

    def __init__(self) -> None:
        import numpy as np

        self.np = np
        random = np.random.default_rng(0)
        self.weights = {}
        for number, (inputs, outputs) in enumerate(pairwise(SIZES)):
            weight = random.normal(0, inputs**-0.5, (inputs, outputs))
            self.weights[f"{number}.weight"] = weight.astype("float32")
            self.weights[f"{number}.bias"] = np.zeros(outputs, "float32")
        points, arms = spirals()
        self.points, self.arms = np.array(points, "float32"), np.array(arms)

    def activations(self, weights: Any) -> list[Any]:
        layers = [self.points]
        for number in range(len(SIZES) - 1):
            layer = layers[-1] @ weights[f"{number}.weight"] + weights[f"{number}.bias"]
            layers.append(layer if number == len(SIZES) - 2 else self.np.tanh(layer))
        return layers

    def train(self) -> float:
        layers = self.activations(self.weights)
        chances = self.np.exp(layers[-1] - layers[-1].max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        rows = self.np.arange(len(self.arms))
        loss = float(-self.np.log(chances[rows, self.arms]).mean())
        chances[rows, self.arms] -= 1
        slope = chances / len(self.arms)
        for number in reversed(range(len(SIZES) - 1)):
            weight = self.weights[f"{number}.weight"]
            below = (slope @ weight.T) * (1 - layers[number] ** 2)
            # Changes only few weights, as with a small learning rate and few bits.
            step = layers[number].T @ slope
            weight -= self.np.where(abs(step) > self.np.quantile(abs(step), 0.9), 0.1 * step, 0)
            self.weights[f"{number}.bias"] -= 0.1 * slope.sum(0)
            slope = below
        return loss

    def stream(self) -> Any:
        yield from self.weights.items()

    def logits(self, weights: Any) -> bytes:
        return self.activations(weights)[-1].tobytes()


def network(name: str) -> Any:
    return TorchNetwork() if name == "torch" else NumpyNetwork()


def short(logits: bytes) -> str:
    return hashlib.sha256(logits).hexdigest()[:16]


def train(chain: str, name: str, steps: int) -> list[str]:
    """Publishes a version after each step. Returns the digests of the logits of each."""
    net, expected = network(name), []
    with dc.Publisher(chain) as pub:
        for step in range(steps):
            loss = net.train()
            job = pub.publish_async(net.stream(), metadata={"step": step})
            # Training could go on here; `net.stream()` has been copied.
            expected.append(short(net.logits(dict(net.stream()))))
            made = job.result()
            changed = f"{made.changed} of {made.elements} elements"
            print(
                f"version {made.version}: loss {loss:.4f}, {changed}, {made.bytes} bytes, logits "
                f"{expected[-1]}"
            )
    return expected


def follow(chain: str, name: str, steps: int, folder: str) -> None:
    """Prints the digests of each version's logits, from memory and from files."""
    net = network(name)
    served: dict[str, Any] = {}
    memory = dc.Subscriber(chain, kind=name)
    disk = dc.Subscriber(chain, host_copy=Path(folder) / "on disk")
    for version in range(steps):
        update = memory.prepare(version, timeout=60)
        with update.applying() as patches:
            for patch in patches:
                if patch.indices is None:
                    served[patch.name] = (
                        patch.values.clone() if name == "torch" else patch.values.copy()
                    )
                else:
                    served[patch.name].reshape(-1)[patch.indices] = patch.values
        disk.prepare(version, timeout=60).apply()
        files = dc.HostCopy(Path(folder) / "on disk", kind=name).tensors()
        print(
            json.dumps([update.version, short(net.logits(served)), short(net.logits(files))]),
            flush=True,
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument(
        "chain", nargs="?", help="the chain; by default, one in a temporary directory"
    )
    arguments.add_argument("--steps", type=int, default=5)
    arguments.add_argument(
        "--numpy", action="store_true", help="use numpy even if torch is installed"
    )
    arguments.add_argument("--follow", metavar="FOLDER", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    name = "torch" if importlib.util.find_spec("torch") and not given.numpy else "numpy"
    if given.follow:
        follow(given.chain, name, given.steps, given.follow)
        return
    with tempfile.TemporaryDirectory() as folder:
        chain = given.chain or str(Path(folder) / "chain")
        expected = train(chain, name, given.steps)
        command = [sys.executable, __file__, chain, "--steps", str(given.steps), "--follow", folder]
        follower = subprocess.run(
            [*command, *["--numpy"] * given.numpy], stdout=subprocess.PIPE, text=True, check=True
        )
        for version, line in enumerate(follower.stdout.splitlines()):
            assert json.loads(line) == [version, expected[version], expected[version]], line
        assert len(follower.stdout.splitlines()) == given.steps
    print(
        f"the follower's logits are the same for all {given.steps} versions, in memory and on disk "
        f"({name})"
    )


if __name__ == "__main__":
    main()
