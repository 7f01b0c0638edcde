"""The memory of tensors: sums of it, and random samples, which show that other code has written to
it. Launching a kernel on a device takes longer than reading some MiB, so both read much at once."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from deltachain.adapters import piece_sums

__all__ = ["Piece", "Sample", "Sums", "batches_of", "lanes_of", "sums_of"]

_Key = TypeVar("_Key", bound=Hashable)

# Bytes that have sums of their own (SPEC section 24), and that are read at once.
_PIECE_BYTES = 1 << 24

# Number of lanes of a storage that one comparison reads, and the number of such draws with known
# values.
_LANES = 64
_DRAWS = 64

# Maximum distance of a sample's lanes: torch gathers with 32-bit indices.
_SPAN = 1 << 30

# A storage, and the number of 16 MiB pieces before this one.
Piece = tuple[_Key, int]
Sums = dict[tuple[_Key, int], tuple[int, int]]

# A generator of its own, so that the server's use of `random` is not affected.
_draw = random.Random()


def lanes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of a storage as integers: of two bytes, which are faster, if possible."""
    kind = torch.int8 if storage.nbytes() % 2 else torch.int16
    return torch.empty(0, dtype=kind, device=storage.device).set_(storage)


def batches_of(lanes: Mapping[_Key, torch.Tensor]) -> list[list[Piece[_Key]]]:
    """All pieces of storages, in batches of at most 16 MiB whose sums are computed together."""
    alike: dict[tuple[torch.device, torch.dtype, int], list[Piece[_Key]]] = {}
    for key, own in lanes.items():
        longest = _PIECE_BYTES // own.element_size()
        for number, begin in enumerate(range(0, len(own), longest)):
            form = (own.device, own.dtype, min(longest, len(own) - begin))
            alike.setdefault(form, []).append((key, number))
    batches = []
    for (_, dtype, length), pieces in alike.items():
        at_once = _PIECE_BYTES // (length * dtype.itemsize)
        batches += [pieces[begin : begin + at_once] for begin in range(0, len(pieces), at_once)]
    return batches


def sums_of(
    lanes: Mapping[_Key, torch.Tensor], batches: Sequence[Sequence[Piece[_Key]]]
) -> Sums[_Key]:
    """The two sums of each piece. Waits for the devices, and copies from each of them once."""
    computed: dict[torch.device, list[torch.Tensor]] = {}
    pieces: dict[torch.device, list[Piece[_Key]]] = {}
    with torch.inference_mode():
        for batch in batches:
            rows = piece_sums([_piece(lanes[key], number) for key, number in batch])
            computed.setdefault(rows.device, []).append(rows)
            pieces.setdefault(rows.device, []).extend(batch)
        found: Sums[_Key] = {}
        for device, tensors in computed.items():
            rows = torch.cat(tensors).tolist()
            found.update(zip(pieces[device], map(tuple, rows), strict=True))
    return found


def _piece(lanes: torch.Tensor, number: int) -> torch.Tensor:
    longest = _PIECE_BYTES // lanes.element_size()
    return lanes[number * longest : (number + 1) * longest]


@dataclass(frozen=True, slots=True)
class _Span(Generic[_Key]):
    """Lanes of a storage at equal distances.

    Attributes:
        key: the storage.
        first: the number of the first lane.
        step: the distance between two lanes.
        count: the number of lanes.
    """

    key: _Key
    first: int
    step: int
    count: int

    def view(self, lanes: torch.Tensor) -> torch.Tensor:
        return lanes.as_strided((self.count,), (self.step,), self.first)

    def draw(self) -> tuple[slice, _Span[_Key]]:
        """Draws some of the lanes: returns their numbers within the span, and the span of their
        places."""
        distance = max(1, self.count // _LANES)
        first = _draw.randrange(distance)
        count = len(range(first, self.count, distance))
        place = self.first + first * self.step
        own = _Span(self.key, place, self.step * distance, count)
        return slice(first, None, distance), own


class Sample(Generic[_Key]):
    """Values of lanes at random places of each storage. Each comparison reads a new random choice
    of these lanes again.

    All lanes on a device are gathered by one call of torch, which launches a kernel for each 64
    storages there, and copied to the host by another one.

    Args:
        lanes: all lanes of each storage.
    """

    def __init__(self, lanes: Mapping[_Key, torch.Tensor]) -> None:
        self._spans = [span for key, own in lanes.items() for span in _drawn(key, len(own))]
        self._values = _gathered(lanes, self._spans)

    def fits(self, lanes: Mapping[_Key, torch.Tensor]) -> bool:
        """True if the lanes of a new draw still have their values."""
        if not self._spans:
            return True
        draws = [span.draw() for span in self._spans]
        found = _gathered(lanes, [span for _, span in draws])
        known = [values[numbers] for values, (numbers, _) in zip(self._values, draws, strict=True)]
        is_same: bool = torch.equal(torch.cat(found), torch.cat(known))
        return is_same


def _drawn(key: _Key, length: int) -> list[_Span[_Key]]:
    """Draws spans of lanes of a storage that has this number of lanes."""
    spans = []
    for begin in range(0, length, _SPAN):
        room = min(_SPAN, length - begin)
        count = min(room, _LANES * _DRAWS)
        longest = (room - 1) // max(1, count - 1)
        # A fixed step could equal the length of a matrix's rows, and would read a single column of
        # it.
        step = _draw.randint(longest // 2 + 1, longest) if longest > 1 else 1
        first = begin + _draw.randrange(room - (count - 1) * step)
        spans.append(_Span(key, first, step, count))
    return spans


def _gathered(
    lanes: Mapping[_Key, torch.Tensor], spans: Sequence[_Span[_Key]]
) -> list[torch.Tensor]:
    """Copies these lanes to host memory."""
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, span in enumerate(spans):
        own = lanes[span.key]
        alike.setdefault((own.device, own.dtype), []).append(number)
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode():
        for numbers in alike.values():
            together = torch.cat(
                [spans[number].view(lanes[spans[number].key]) for number in numbers]
            )
            counts = [spans[number].count for number in numbers]
            found.update(zip(numbers, together.cpu().split(counts), strict=True))
    return [found[number] for number in range(len(spans))]
