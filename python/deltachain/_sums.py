"""Sums of memory (SPEC section 24): on devices by torch, with integers only; on the CPU by the
library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from . import _native

__all__ = ["KINDS", "MODULUS", "PIECE_BYTES", "of_bytes", "of_many", "of_storage"]

# The modulus of sums: a prime.
MODULUS = (1 << 31) - 1

PIECE_BYTES = 1 << 24

# Units of a row: their products are added before they are reduced.
_ROW = 4096

# Units that are taken at once: launching a kernel takes longer than it takes to compute a few.
_AT_ONCE = 1 << 18

# Bytes of small tensors that are summed together.
_MANY = 1 << 21

# Lanes of so many bytes, in torch.
KINDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers for places in a row, and those for rows; for each of the two sums."""
    numbers = torch.frombuffer(_native.sum_numbers().writable(), dtype=torch.int64)
    return numbers[: 2 * _ROW].view(2, -1).to(device), numbers[2 * _ROW :].view(2, -1).to(device)


def of_bytes(lanes: torch.Tensor, begin: int = 0) -> torch.Tensor:
    """The two sums of lanes in one row, the first of which has the number `begin` in its piece."""
    if lanes.device.type != "cpu":
        return _of_bytes(lanes, begin)
    lanes = lanes.contiguous()
    # Many times as fast as torch there, and also with many threads.
    return torch.tensor(_native.sums_of(lanes, begin * lanes.element_size()), dtype=torch.int64)


def of_many(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The two sums of each of several small tensors, one row for each tensor: lanes of one dtype,
    of one length and on one device, which begin their pieces. In tensors of several rows."""
    length = len(tensors[0])
    at_once = max(1, _MANY // max(length * tensors[0].element_size(), 1))
    stacks = (
        torch.stack(tuple(tensors[begin : begin + at_once]))
        for begin in range(0, len(tensors), at_once)
    )
    return [_of_rows_here(rows) if rows.device.type == "cpu" else _of_rows(rows) for rows in stacks]


def _of_rows_here(lanes: torch.Tensor) -> torch.Tensor:
    """The sums of rows on the CPU, as of `of_bytes`."""
    length = lanes.shape[1] * lanes.element_size()
    return torch.tensor(_native.sums_of_each(lanes, length), dtype=torch.int64)


def _of_rows(lanes: torch.Tensor) -> torch.Tensor:
    """The same by torch."""
    low, high = _tables(lanes.device)
    if lanes.element_size() == 1 and lanes.shape[1] % 2:
        lanes = torch.nn.functional.pad(lanes, (0, 1))
    units = _units(lanes.reshape(-1)).view(len(lanes), -1)
    rows = -(-units.shape[1] // _ROW)
    padded = torch.nn.functional.pad(units, (0, rows * _ROW - units.shape[1]))
    products = (padded.view(len(lanes), rows, 1, _ROW) * low).sum(3).remainder_(MODULUS)
    products *= high[:, :rows].t()
    return products.remainder_(MODULUS).sum(1).remainder_(MODULUS)


def of_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The length of a tensor's storage, and the sums of each 16 MiB of it, as of the pieces of a
    tensor."""
    storage = tensor.untyped_storage()
    # Lanes of two bytes are quicker than single bytes.
    kind = torch.int8 if storage.nbytes() % 2 else torch.int16
    lanes = torch.empty(0, dtype=kind, device=storage.device).set_(storage)
    pieces = [of_bytes(piece) for piece in lanes.split(PIECE_BYTES // lanes.element_size())]
    return torch.stack([torch.full_like(pieces[0], storage.nbytes()), *pieces])


def _of_bytes(lanes: torch.Tensor, begin: int) -> torch.Tensor:
    """The same by torch.

    A unit times a number is below 2^47, and a row's products together below 2^59.
    """
    low, high = _tables(lanes.device)
    lanes = lanes.contiguous()
    in_row = 2 * _ROW // lanes.element_size()
    row, lead = divmod(begin, in_row)
    total = torch.zeros(2, dtype=torch.int64, device=lanes.device)
    count = _AT_ONCE // _ROW * in_row
    while lanes.numel():
        # After the first time, rows are whole.
        part, lanes = lanes[: count - lead], lanes[count - lead :]
        units = _units(torch.nn.functional.pad(part, (lead, 0)) if lead else part)
        rows = -(-units.numel() // _ROW)
        padded = torch.nn.functional.pad(units, (0, rows * _ROW - units.numel())).view(
            rows, 1, _ROW
        )
        products = (padded * low).sum(2).remainder_(MODULUS) * high[:, row : row + rows].t()
        total += products.remainder_(MODULUS).sum(0)
        row, lead = row + rows, 0
    return total.remainder_(MODULUS)


def _units(lanes: torch.Tensor) -> torch.Tensor:
    """The units of lanes that begin with one."""
    if lanes.element_size() > 1:
        return lanes.view(torch.int16).long() & 0xFFFF
    # Not every row of bytes can be seen as numbers of two.
    pairs = torch.nn.functional.pad(lanes, (0, lanes.numel() % 2)).view(-1, 2).long() & 0xFF
    return pairs[:, 0] | pairs[:, 1] << 8
