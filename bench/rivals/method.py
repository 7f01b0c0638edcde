"""The interface of a method, which encodes a pair of checkpoints and decodes the result. Each file of `methods/` has
some, listed in its `METHODS`; README.md says how to write one.
"""

import importlib.util
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from checkpoint import Tensor, parse


@dataclass(frozen=True)
class Facts:
    """Facts about a method that tables show beside its figures."""

    # The code that runs: a package, a program, or a layout that is written in the method's file.
    what: str
    # The checks that its times contain, besides coding.
    checks: str = "none"
    # The check that finds a wrong result, or "". Methods without one are compared with those that verify nothing.
    proof: str = ""
    # The check that finds a wrong base before it is used, or "".
    base: str = ""
    # The weights that change during decoding.
    place: str = "a second copy"
    # True if the method takes BF16 only.
    bf16_only: bool = False
    # True if tensors may be added, removed and reshaped.
    reshapes: bool = False


class Method:
    """A method in a Python process. `base` and `target` are mapped files; `threads` is the maximum of threads."""

    facts: Facts

    def __init__(self, base: memoryview, target: memoryview, threads: int):
        self.base_file, self.target_file, self.threads = base, target, threads
        self.base, _ = parse(base)
        self.target, _ = parse(target)
        # Reads all pages, so that the memory of encoding and decoding can be measured without the inputs.
        for file in (base, target):
            np.frombuffer(file, np.uint8).max()
        self.setup()

    def setup(self) -> None:
        """Prepares the state that a follower of the model holds before a step; not timed."""

    def encode(self) -> bytes:
        """Returns the delta, with everything that is transferred."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Undoes the changes of decoding in place; not timed."""

    def decode(self, blob: bytes) -> object:
        """Applies the delta to the base. Returns arrays or tensors of torch by name, unless `exact` takes another
        type."""
        raise NotImplementedError

    def exact(self, result: object) -> bool:
        """True if the result equals the target bit for bit; not timed."""
        return set(result) == set(self.target) and all(
            np.array_equal(as_bytes(result[name]), tensor.data) for name, tensor in self.target.items()
        )


class Program:
    """A method that is a program, run on files in memory. Its result is a file, compared with the target's."""

    facts: Facts

    @staticmethod
    def encode(base: Path, target: Path, blob: Path, threads: int) -> list:
        """Returns the command that writes the delta."""
        raise NotImplementedError

    @staticmethod
    def decode(base: Path, blob: Path, result: Path, threads: int) -> list:
        """Returns the command that writes the result."""
        raise NotImplementedError


class Layout(Method):
    """A layout without a package: tensors are coded one by one, in a thread pool, and decoded in place."""

    def setup(self) -> None:
        self.pool = ThreadPoolExecutor(self.threads)

    def prepare(self) -> None:
        self.state = {name: tensor.data.copy() for name, tensor in self.base.items()}

    def each(self, work, names) -> list:
        return list((self.pool.map if self.threads > 1 else map)(work, names))


def as_bytes(tensor: object) -> np.ndarray:
    """Returns the bytes of an array, or of a tensor of torch."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8)
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy()


def torch_tensors(tensors: dict[str, Tensor]) -> dict:
    """Returns tensors of torch of these bytes, with their shapes and dtypes."""
    import torch

    types = {
        "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return {
        name: torch.from_numpy(tensor.data).view(types[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }


def load(more: Iterable[Path] = ()) -> dict[str, type[Method] | type[Program]]:
    """Returns the methods of `methods/`, and of more files and folders, by the names that tables give them."""
    methods: dict[str, type[Method] | type[Program]] = {}
    for place in [Path(__file__).with_name("methods"), *more]:
        for file in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            # Not imported by the file's name: `zipnn.py` is not the package.
            spec = importlib.util.spec_from_file_location(f"method_{file.stem}", file)
            if spec is None or not file.is_file():
                raise SystemExit(f"{file}: no Python file, and no folder of them")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            own = getattr(module, "METHODS", None)
            if not own:
                raise SystemExit(f"{file}: it has no METHODS, {{name in tables: class}}")
            for name, method in own.items():
                if name in methods or name.startswith("deltachain"):
                    raise SystemExit(f"{file}: there is a method `{name}` already")
                if not isinstance(getattr(method, "facts", None), Facts):
                    raise SystemExit(f"{file}: `{name}` has no `facts = Facts(...)`")
            methods |= own
    return methods
