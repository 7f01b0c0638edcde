"""Tensors on devices, read piece by piece through a small pinned buffer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["reader"]

_buffers = threading.local()


def reader(name: str, tensor: Any) -> Callable[[int, int], Any]:
    """Returns a function that reads bytes of a torch tensor that is not on the CPU."""
    import torch

    from ._errors import UsageError

    if tensor.device.type == "meta":
        raise UsageError(
            f"USAGE: the tensor is on the device meta, so it has no data (tensor {name!r})",
            tensor=name,
        )
    if not tensor.is_contiguous():
        raise UsageError(
            f"USAGE: the tensor is not contiguous: use tensor.contiguous() (tensor {name!r})",
            tensor=name,
        )
    flat = tensor.detach().reshape(-1).view(torch.uint8)

    def read(offset: int, length: int) -> Any:
        # One buffer per thread, of the longest piece that the thread has read (at most 16 MiB).
        buffer = getattr(_buffers, "buffer", None)
        if buffer is None or buffer.numel() < length:
            buffer = torch.empty(length, dtype=torch.uint8, pin_memory=tensor.device.type == "cuda")
            _buffers.buffer = buffer
        piece = buffer[:length]
        piece.copy_(flat[offset : offset + length])
        return piece.numpy()

    return read
