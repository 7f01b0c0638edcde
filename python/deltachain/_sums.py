"""Sums of memory (SPEC section 24): on devices by torch, with integers only; on the CPU by the
library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from . import _native

__all__ = ["KINDS", "MODULUS", "PIECE_BYTES", "of_bytes", "of_many", "of_pieces"]

# The modulus of sums: a prime.
MODULUS = (1 << 31) - 1

PIECE_BYTES = 1 << 24

# Number of units in a row: their products are added before they are reduced.
_ROW = 4096

# Number of units that are summed at once, and bytes of small tensors that are summed together:
# launching a kernel takes longer than a small computation. On an H200, 2^18 units took 0.31 s for a
# GiB, and 2^23 units 0.020 s.
_AT_ONCE = 1 << 23
_MANY = PIECE_BYTES

# Dtypes of torch for lanes, by their bytes.
KINDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers for places in a row, and the numbers for rows, for each of the two
    sums."""
    numbers = torch.frombuffer(_native.sum_numbers().writable(), dtype=torch.int64)
    return numbers[: 2 * _ROW].view(2, -1).to(device), numbers[2 * _ROW :].view(2, -1).to(device)


def of_bytes(lanes: torch.Tensor, begin: int = 0) -> torch.Tensor:
    """Returns the two sums of contiguous lanes, the first of which has the number `begin` in its
    piece."""
    if lanes.device.type != "cpu":
        return _of_bytes(lanes, begin)
    lanes = lanes.contiguous()
    # Much faster than torch on the CPU, even with many threads.
    return torch.tensor(_native.sums_of(lanes, begin * lanes.element_size()), dtype=torch.int64)


def of_many(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the two sums of each of several small tensors, one row for each tensor, in tensors of
    several rows. The tensors have lanes of one dtype, one length, and one device, and begin their
    pieces."""
    length = len(tensors[0])
    at_once = max(1, _MANY // max(length * tensors[0].element_size(), 1))
    stacks = (
        # One tensor is not copied.
        torch.stack(tuple(own)) if len(own) > 1 else own[0].unsqueeze(0)
        for own in (tensors[begin : begin + at_once] for begin in range(0, len(tensors), at_once))
    )
    return [_of_rows_here(rows) if rows.device.type == "cpu" else _of_rows(rows) for rows in stacks]


def of_pieces(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Does the same as `of_many`, with one tensor as the result."""
    sums = of_many(pieces)
    return sums[0] if len(sums) == 1 else torch.cat(sums)


def _of_rows_here(lanes: torch.Tensor) -> torch.Tensor:
    """Returns the sums of rows on the CPU, like `of_bytes`."""
    length = lanes.shape[1] * lanes.element_size()
    return torch.tensor(_native.sums_of_each(lanes, length), dtype=torch.int64)


def _of_rows(lanes: torch.Tensor) -> torch.Tensor:
    """Returns the sums of rows, with torch."""
    low, high = _tables(lanes.device)
    if lanes.element_size() == 1 and lanes.shape[1] % 2:
        lanes = torch.nn.functional.pad(lanes, (0, 1))
    units = _units(lanes.reshape(-1)).view(len(lanes), -1)
    rows = -(-units.shape[1] // _ROW)
    padded = _padded(units, rows * _ROW).view(len(lanes), rows, 1, _ROW)
    products = (padded * low).sum(3).remainder_(MODULUS)
    products *= high[:, :rows].t()
    return products.remainder_(MODULUS).sum(1).remainder_(MODULUS)


def _of_bytes(lanes: torch.Tensor, begin: int) -> torch.Tensor:
    """Returns the same as `of_bytes`, with torch.

    A unit times a number is below 2^47, and a row's products together below 2^59.
    """
    low, high = _tables(lanes.device)
    lanes = lanes.contiguous()
    in_row = 2 * _ROW // lanes.element_size()
    row, lead = divmod(begin, in_row)
    total = torch.zeros(2, dtype=torch.int64, device=lanes.device)
    count = _AT_ONCE // _ROW * in_row
    while lanes.numel():
        # After the first part, rows are whole.
        part, lanes = lanes[: count - lead], lanes[count - lead :]
        units = _units(torch.nn.functional.pad(part, (lead, 0)) if lead else part)
        rows = -(-units.numel() // _ROW)
        padded = _padded(units, rows * _ROW).view(rows, 1, _ROW)
        products = (padded * low).sum(2).remainder_(MODULUS) * high[:, row : row + rows].t()
        total += products.remainder_(MODULUS).sum(0)
        row, lead = row + rows, 0
    return total.remainder_(MODULUS)


def _padded(units: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the units as rows of this many, padded with zeros at the end."""
    missing = count - units.shape[-1]
    # Even padding by nothing would copy them, and 16 MiB take 64 MiB here.
    return torch.nn.functional.pad(units, (0, missing)) if missing else units


def _units(lanes: torch.Tensor) -> torch.Tensor:
    """Returns the units of lanes whose first lane begins a unit."""
    if lanes.element_size() > 1:
        return lanes.view(torch.int16).long().bitwise_and_(0xFFFF)
    # Not every row of bytes can be viewed as 16-bit numbers.
    pairs = torch.nn.functional.pad(lanes, (0, lanes.numel() % 2)).view(-1, 2).long() & 0xFF
    return pairs[:, 0] | pairs[:, 1] << 8
