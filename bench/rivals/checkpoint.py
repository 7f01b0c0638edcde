"""Safetensors files as views of their bytes, and files written from such views."""

import json
import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
    """A tensor; `data` are its bytes, of any dtype."""

    dtype: str
    shape: list[int]
    data: np.ndarray


def map_file(path: Path) -> memoryview:
    """Maps the bytes of a file privately: all workers share its pages."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def parse(file: memoryview | bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors of a safetensors file, by name, and its metadata."""
    begin = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(bytes(file[8:begin]))
    metadata = header.pop("__metadata__", {})
    data = np.frombuffer(file, np.uint8, offset=begin)
    tensors = {
        name: Tensor(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in sorted(header.items())
    }
    return tensors, metadata


def write(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Returns the bytes of a safetensors file."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(tensor.data for tensor in tensors.values())])
