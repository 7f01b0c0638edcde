"""Sums of memory (SPEC section 24): on devices by torch, with integers only; on the CPU by the library."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING

from . import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["AT_ONCE", "MODULUS", "PIECE_BYTES", "as_lanes", "extent", "of_bytes", "of_lanes", "of_storage"]

# What sums are taken modulo: a prime.
MODULUS = (1 << 31) - 1

PIECE_BYTES = 1 << 24

# Units of a row: their products are added before they are reduced.
_ROW = 4096

# Lanes and units that are taken at once: launching a kernel takes longer than it takes to compute a few lanes.
AT_ONCE = 1 << 18


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first to the last of a tensor, which is not empty."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def as_lanes(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """The memory from the first to the last element of a tensor, as numbers of `width` bytes, in one row."""
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.is_contiguous():
        return tensor.detach().reshape(-1).view(kinds[width])
    lanes: torch.Tensor = tensor.detach().view(kinds[width])
    return lanes.as_strided((extent(tensor.shape, tensor.stride()),), (1,))


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers for places in a row, and those for rows; for each of the two sums."""
    import torch

    numbers = torch.frombuffer(_native.sum_numbers().writable(), dtype=torch.int64)
    return numbers[: 2 * _ROW].view(2, -1).to(device), numbers[2 * _ROW :].view(2, -1).to(device)


def _folded(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers below 2^63, less a multiple of the modulus: a few bits longer than it, and quicker than a division."""
    return (numbers & MODULUS).add_(numbers >> 31)


def of_bytes(lanes: torch.Tensor, begin: int = 0) -> torch.Tensor:
    """The two sums of lanes in one row, the first of which has the number `begin` in its piece."""
    import torch

    if lanes.device.type != "cpu":
        return _of_bytes(lanes, begin)
    # Many times as fast as torch there, and also with many threads.
    return torch.tensor(_native.sums_of(lanes, begin * lanes.element_size()), dtype=torch.int64)


def of_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The length of a tensor's storage, and the sums of each 16 MiB of it, as of the pieces of a tensor."""
    import torch

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
    import torch

    low, high = _tables(lanes.device)
    in_row = 2 * _ROW // lanes.element_size()
    row, lead = divmod(begin, in_row)
    total = torch.zeros(2, dtype=torch.int64, device=lanes.device)
    count = AT_ONCE // _ROW * in_row
    while lanes.numel():
        # After the first time, rows are whole.
        part, lanes = lanes[: count - lead], lanes[count - lead :]
        units = _units(torch.nn.functional.pad(part, (lead, 0)) if lead else part)
        rows = -(-units.numel() // _ROW)
        padded = torch.nn.functional.pad(units, (0, rows * _ROW - units.numel())).view(rows, 1, _ROW)
        products = (padded * low).sum(2).remainder_(MODULUS) * high[:, row : row + rows].t()
        total += products.remainder_(MODULUS).sum(0)
        row, lead = row + rows, 0
    return total.remainder_(MODULUS)


def _units(lanes: torch.Tensor) -> torch.Tensor:
    """The units of lanes that begin with one."""
    import torch

    if lanes.element_size() > 1:
        return lanes.view(torch.int16).long() & 0xFFFF
    # Not every row of bytes can be seen as numbers of two.
    pairs = torch.nn.functional.pad(lanes, (0, lanes.numel() % 2)).view(-1, 2).long() & 0xFF
    return pairs[:, 0] | pairs[:, 1] << 8


def of_lanes(numbers: torch.Tensor, ends: list[int], *values: torch.Tensor) -> list[torch.Tensor]:
    """The sums of some lanes of some pieces.

    Args:
        numbers: of the lanes, each in its piece, and once.
        ends: where the lanes of one piece end and those of the next begin; the last is the number of lanes.
        values: of the lanes, several times.

    Returns:
        For each of `values` two sums of each piece.
    """
    import torch

    if numbers.device.type != "cpu":
        return _of_lanes(numbers, ends, *values)
    numbers = numbers.int()
    sums = [_native.sums_of_lanes(numbers, ends, value, value.element_size()) for value in values]
    return [torch.tensor(own, dtype=torch.int64).view(-1, 2) for own in sums]


def _of_lanes(numbers: torch.Tensor, ends: list[int], *values: torch.Tensor) -> list[torch.Tensor]:
    """The same by torch."""
    import torch

    device = numbers.device
    found = [torch.zeros(len(ends) + 1, 2, dtype=torch.int64, device=device) for _ in values]
    before = [torch.zeros(2, 1, dtype=torch.int64, device=device) for _ in values]
    done = 0
    while done < len(ends) and ends[done] == 0:
        done += 1
    for begin in range(0, numbers.numel(), AT_ONCE):
        end = min(begin + AT_ONCE, numbers.numel())
        next_done = bisect_right(ends, end)
        places = torch.tensor([place - begin - 1 for place in ends[done:next_done]], dtype=torch.int64, device=device)
        for at, shares in enumerate(_shares(numbers[begin:end], [value[begin:end] for value in values])):
            # A share is below 2^34, and pieces have 2^24 lanes: nothing overflows.
            running = shares.cumsum(1).add_(before[at])
            found[at][done + 1 : next_done + 1] = running.index_select(1, places).t()
            before[at] = running[:, -1:]
        done = next_done
    return [(running[1:] - running[:-1]).remainder_(MODULUS) for running in found]


def _shares(numbers: torch.Tensor, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What lanes add to the two sums, for each of the values that they have."""
    low, high = _tables(numbers.device)
    width = values[0].element_size()
    firsts = (numbers.long() * width) >> 1
    shares: list[torch.Tensor] = []
    for part in range(max(1, width // 2)):
        units = firsts + part
        weights = _folded(low.index_select(1, units & (_ROW - 1)) * high.index_select(1, units >> 12))
        for at, value in enumerate(values):
            unit = (value.long() & 0xFF) << ((numbers & 1) * 8) if width == 1 else (value.long() >> 16 * part) & 0xFFFF
            share = _folded(weights * unit)
            if part:
                shares[at] += share
            else:
                shares.append(share)
    return shares
