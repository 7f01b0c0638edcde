"""A trainer in bfloat16 whose checkpoint is quantised: weights as float8 e4m3 with a scale for each
block of 128x128, as in DeepSeek-V3 and similar checkpoints.

    with dc.Publisher(url, like=dc.Like("DeepSeek-V3/", Fp8Blocks("DeepSeek-V3/"))) as pub: ...

Needs torch. `python fp8_blocks.py` publishes a small model in this way, and reads it back.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import deltachain as dc

BLOCK = 128
LARGEST = torch.finfo(torch.float8_e4m3fn).max  # 448


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a weight as float8 e4m3, and the float32 factors by which the blocks are multiplied
    to get it back. The last block of a row or column may be smaller."""
    rows, columns = weight.shape
    down, across = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.nn.functional.pad(
        weight.float(), (0, across * BLOCK - columns, 0, down * BLOCK - rows)
    )
    blocks = padded.view(down, BLOCK, across, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / LARGEST
    # A block of zeros can have any scale.
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    shrunk = blocks / scale[:, None, :, None]
    # A quotient may be rounded up to more than the largest number, which would become NaN in e4m3.
    fp8 = shrunk.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    whole = fp8.view(torch.uint8).view(padded.shape)[:rows, :columns].contiguous()
    return whole.view(torch.float8_e4m3fn), scale


class Fp8Blocks:
    """Quantises the weights that are quantised in a checkpoint; for `Like(transform=...)`."""

    def __init__(self, checkpoint: str | Path) -> None:
        self.names: set[str] = set()
        for file in Path(checkpoint).glob("*.safetensors"):
            with file.open("rb") as opened:
                (length,) = struct.unpack("<Q", opened.read(8))
                self.names.update(json.loads(opened.read(length)))

    def __call__(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        if f"{name}_scale_inv" in self.names:
            weight, scale = quantised(tensor.detach())
            yield name, weight
            yield f"{name}_scale_inv", scale
        else:
            yield name, tensor


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Same as `safetensors.torch.save_file`."""
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        own = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        offsets = [len(data), len(data) + len(own)]
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        data += own
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 200).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, chain = Path(folder) / "checkpoint", Path(folder) / "chain"
        weight, scale = quantised(model.weight.detach())
        write_checkpoint(
            checkpoint, {"weight": weight, "weight_scale_inv": scale, "bias": model.bias.detach()}
        )
        with dc.Publisher(chain, like=dc.Like(checkpoint, Fp8Blocks(checkpoint))) as pub:
            for step in range(3):
                with torch.no_grad():
                    model.weight[step] += 0.01
                made = pub.publish(model, metadata={"step": step})
                print(
                    f"version {made.version}: {made.changed} of {made.elements} elements, "
                    f"{made.bytes} bytes"
                )
        subscriber = dc.Subscriber(chain, kind="torch")
        subscriber.prepare().apply()
        found = dict(subscriber.state())
        weight, scale = quantised(model.weight.detach())
        assert torch.equal(found["weight"].view(torch.uint8), weight.view(torch.uint8))
        assert torch.equal(found["weight_scale_inv"], scale)
        assert torch.equal(found["bias"], model.bias.detach())
    print("what was read back is what the quantisation gives, bit for bit")


if __name__ == "__main__":
    main()
