"""Publishes chains in a directory with the tool of the package."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import deltachain as dc


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kit",
        type=Path,
        help="the archive of the conformance kit, for the tutorial about readers",
    )


def write_model(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """Writes a safetensors file of tensors, given by dtype, shape and bytes."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())
    )
    return path


def tool(*arguments: object) -> str:
    """Runs the tool of the package and returns what it prints."""
    command = [sys.executable, "-m", "deltachain", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


class Chain:
    """A chain, with the models of its versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder / "the chain")
        self.versions: list[dict[str, tuple[str, tuple[int, ...], bytes]]] = []
        tool("init", self.url)

    def publish(self, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> int:
        number = len(self.versions)
        model = write_model(self.folder / f"model {number}" / "model.safetensors", tensors)
        base = ["--base", self.folder / f"model {number - 1}"] if number else []
        tool("publish", self.url, model.parent, *base)
        self.versions.append(dict(tensors))
        return number


def model(step: int, lanes: int = 3000) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """A small model of several dtypes; a few lanes change with each step."""
    bf16 = bytearray(struct.pack(f"<{lanes}H", *((7 * lane) % 0x7F00 for lane in range(lanes))))
    f32 = bytearray(struct.pack("<8f", *range(8)))
    fp8 = bytearray(range(256))
    for past in range(1, step + 1):
        struct.pack_into("<H", bf16, 2 * ((past * 617) % lanes), 0x8000)
        struct.pack_into("<I", f32, 4 * (past % 8), 0x7FC00000 + past)
        fp8[past % 256] ^= 0x80
    return {
        "a.weight": ("BF16", (lanes // 10, 10), bytes(bf16)),
        "b.bias": ("F32", (2, 4), bytes(f32)),
        "c.quantised": ("F8_E4M3", (16, 16), bytes(fp8)),
        "d.steady": ("U8", (3,), b"abc"),
    }


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


@pytest.fixture
def writer() -> Callable[[Path, Mapping[str, tuple[str, tuple[int, ...], bytes]]], Path]:
    return write_model


def as_bytes(tensor: Any) -> bytes:
    """The raw bytes of a tensor of any kind."""
    if isinstance(tensor, dc.Tensor):
        return bytes(tensor.data)
    if type(tensor).__module__.startswith("torch"):
        import torch

        return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    if hasattr(tensor, "tobytes"):
        return tensor.tobytes()
    return bytes(tensor)
