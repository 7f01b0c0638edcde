"""What links change in place, made from states without the library: the slow and obvious twin of its plans and sums."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from deltachain import _native
from deltachain._in_place import Piece, Step, Sums
from deltachain._sums import MODULUS
from deltachain._tensors import BITS, PACKED, SIGNED

# Name to dtype, shape and bytes.
State = Mapping[str, tuple[str, tuple[int, ...], bytes]]


class Numbers:
    """As `_native.Buffer`."""

    def __init__(self, data: bytes, width: int) -> None:
        self._data, self._width = bytearray(data), width

    def __len__(self) -> int:
        return len(self._data) // self._width

    def writable(self) -> bytearray:
        return self._data


def sums(begin: int, data: bytes) -> Sums:
    """The sums of bytes from a place in a piece on."""
    numbers = struct.unpack("<12288q", bytes(memoryview(_native.sum_numbers()).cast("B")))
    low, high = (numbers[:4096], numbers[4096:8192]), (numbers[8192:10240], numbers[10240:])
    found = [0, 0]
    for place, byte in enumerate(data, begin):
        for k in (0, 1):
            found[k] += byte * 256 ** (place % 2) * low[k][(place >> 1) % 4096] * high[k][place >> 13]
    return found[0] % MODULUS, found[1] % MODULUS


def of_lanes(width: int, values: Mapping[int, bytes]) -> Sums:
    found = [sums(lane * width, value) for lane, value in values.items()]
    return sum(one[0] for one in found) % MODULUS, sum(one[1] for one in found) % MODULUS


def width_of(dtype: str) -> int:
    return 1 if dtype in PACKED else BITS[dtype] // 8


def cut(data: bytes, width: int) -> list[bytes]:
    return [data[at : at + width] for at in range(0, len(data), width)]


def key(lane: bytes, dtype: str) -> int:
    bits = 8 * len(lane)
    number = int.from_bytes(lane, "little")
    return number ^ ((1 << (bits - 1)) - 1) if dtype in SIGNED and number >> (bits - 1) else number


def plans(states: Sequence[State], piece_bytes: int, draw: random.Random) -> list[Piece]:
    """The changes from the first state through all others, of each piece that a link lists. How lanes are coded is
    drawn: sparse or dense, absolute or relative; now and then a lane is coded that does not change."""
    made = []
    for name, (dtype, _, data) in states[0].items():
        width = width_of(dtype)
        count = piece_bytes // width
        all_lanes = [cut(state[name][2], width) for state in states]
        for number in range(-(-len(data) // piece_bytes)):
            own = [lanes[number * count : (number + 1) * count] for lanes in all_lanes]
            if all(before == after for before, after in pairwise(own)) and draw.random() < 0.8:
                continue
            made.append(_piece(name, number, number * count, dtype, own, draw))
    return made


def _piece(name: str, number: int, first: int, dtype: str, states: list[list[bytes]], draw: random.Random) -> Piece:
    width, total = width_of(dtype), len(states[0])
    coded = []
    for before, after in pairwise(states):
        more = draw.random() * 0.1
        lanes = [lane for lane in range(total) if before[lane] != after[lane] or draw.random() < more]
        is_dense = draw.random() < 0.2
        coded.append(list(range(total)) if is_dense else lanes)
    union = sorted(set().union(*coded))
    steps = []
    for link, (lanes, (before, after)) in enumerate(zip(coded, pairwise(states), strict=True)):
        is_relative = draw.random() < 0.5
        values = b"".join(
            ((key(after[lane], dtype) - key(before[lane], dtype)) % (1 << 8 * width)).to_bytes(width, "little")
            if is_relative
            else after[lane]
            for lane in lanes
        )
        is_all = lanes == union and draw.random() < 0.5
        places = None if is_all else Numbers(struct.pack(f"<{len(lanes)}i", *map(union.index, lanes)), 4)
        steps.append(
            Step(
                link,
                places,
                is_relative,
                Numbers(values, 1),
                sums(0, b"".join(before)),
                of_lanes(width, {lane: after[lane] for lane in lanes}),
                sums(0, b"".join(after)),
            )
        )
    is_whole = len(union) == total and draw.random() < 0.8
    return Piece(
        name, number, first, total, None if is_whole else Numbers(struct.pack(f"<{len(union)}i", *union), 4), steps
    )


def table(state: State, piece_bytes: int) -> dict[str, list[Sums]]:
    """The sums of all pieces."""
    return {
        name: [sums(0, data[at : at + piece_bytes]) for at in range(0, len(data), piece_bytes)]
        for name, (_, _, data) in state.items()
    }


def changed(state: State, share: float, draw: random.Random) -> dict[str, Any]:
    """Another state, some lanes of which have other bits."""
    made = {}
    for name, (dtype, shape, data) in state.items():
        lanes = cut(data, width_of(dtype))
        of_tensor = draw.choice([0, share, share, 1.0 if draw.random() < 0.1 else share])
        for lane in range(len(lanes)):
            if draw.random() < of_tensor:
                lanes[lane] = draw.choice([draw.randbytes(len(lanes[lane])), _next(lanes[lane])])
        made[name] = (dtype, shape, b"".join(lanes))
    return made


def _next(lane: bytes) -> bytes:
    return ((int.from_bytes(lane, "little") + 1) % (1 << 8 * len(lane))).to_bytes(len(lane), "little")
