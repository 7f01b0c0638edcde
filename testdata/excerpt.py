#!/usr/bin/env python3
"""Cuts the excerpts in this directory out of full checkpoints, and writes their checksums to MANIFEST.

    python3 excerpt.py CHECKPOINTS        make the excerpts from the full files in the directory CHECKPOINTS
    python3 excerpt.py --check            compare the excerpts with MANIFEST

Only whole tensors are copied, byte for byte. The header is written as the safetensors crate writes it, so that a tool
that rebuilds an excerpt from its tensors alone must give the same bytes. Needs only the standard library.
"""

import hashlib
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
ATTENTION = "encoder.layer.0.attention."

# Files of one kind of state, and the tensors that are copied from each.
EXCERPTS = [
    (
        ["rl3e6_step0", "rl3e6_step1", "rl3e6_step2", "rl3e6_step3"],
        [
            ATTENTION + "self.query.weight",
            ATTENTION + "self.query.bias",
            ATTENTION + "output.LayerNorm.weight",
            ATTENTION + "output.LayerNorm.bias",
            "encoder.layer.0.intermediate.dense.bias",
            "embeddings.LayerNorm.weight",
        ],
    ),
    (
        ["fp8_step0", "fp8_step1"],
        [
            ATTENTION + "self.query.weight",
            ATTENTION + "self.query.weight_scale_inv",
            ATTENTION + "self.query.bias",
            ATTENTION + "output.LayerNorm.weight",
            ATTENTION + "output.LayerNorm.bias",
        ],
    ),
    (
        ["f32_step0", "f32_step1"],
        [
            ATTENTION + "self.query.weight",
            ATTENTION + "self.query.bias",
            ATTENTION + "output.LayerNorm.weight",
            ATTENTION + "output.LayerNorm.bias",
        ],
    ),
]

# The safetensors crate sorts by dtype, widest first, and then by name.
ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}


def read(path, names):
    """Returns the `__metadata__` of a safetensors file, and (dtype, shape, data) of the named tensors."""
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        tensors = {}
        for name in names:
            start, end = header[name]["data_offsets"]
            file.seek(8 + header_bytes + start)
            data = file.read(end - start)
            assert len(data) == end - start, f"{path} is cut short"
            tensors[name] = (header[name]["dtype"], header[name]["shape"], data)
    return header.get("__metadata__"), tensors


def write(path, metadata, tensors):
    """Writes a safetensors file as the safetensors crate does."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = dict(sorted(metadata.items()))
    for name in sorted(tensors, key=lambda name: (-ELEMENT_BYTES[tensors[name][0]], name)):
        dtype, shape, tensor_data = tensors[name]
        offsets = [len(data), len(data) + len(tensor_data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += tensor_data
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def manifest():
    """Returns one line for each excerpt, as `sha256sum` writes it."""
    files = sorted(HERE.glob("*.safetensors"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    return "".join(lines)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        if manifest() != (HERE / "MANIFEST").read_text():
            sys.exit("the excerpts are not those of MANIFEST")
        return
    for files, names in EXCERPTS:
        for file in files:
            metadata, tensors = read(pathlib.Path(sys.argv[1]) / f"{file}.safetensors", names)
            write(HERE / f"{file}.safetensors", metadata, tensors)
    (HERE / "MANIFEST").write_text(manifest())


if __name__ == "__main__":
    main()
