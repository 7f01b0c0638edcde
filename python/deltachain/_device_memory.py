"""Tensors of torch on devices, as rows of lanes that the library reads and writes (SPEC section
24.6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from ._sums import KINDS, MODULUS, PIECE_BYTES, of_bytes, of_many

__all__ = ["DeviceMemory"]

# Maximum bytes of tensors that are summed together.
_SMALL = 1 << 18

# Lanes of a row: the row's number, the number of a first lane, positions relative to that lane
# (None: all from there on), and a count.
Span = tuple[int, int, Any, int]

# For each dimension of a tensor: its length in lanes, begin and end of the part that is here, and
# the stride of the part.
Dimensions = Sequence[tuple[int, int, int, int]]


class Lanes(NamedTuple):
    """Lanes that have been proven, on their device.

    Attributes:
        row: the memory with the lanes.
        places: their positions in the row; None if they are all of it.
        old, new: their values.
    """

    row: torch.Tensor
    places: torch.Tensor | None
    old: torch.Tensor
    new: torch.Tensor

    def now(self) -> torch.Tensor:
        """The lanes as they are now."""
        return self.row if self.places is None else self.row.index_select(0, self.places)

    def put(self, values: torch.Tensor) -> None:
        """Writes the lanes."""
        if self.places is None:
            self.row.copy_(values)
        else:
            self.row.index_copy_(0, self.places.long(), values)


class DeviceMemory:
    """Storages of tensors, which the library calls in the caller's thread.

    Reads and writes are queued in the current stream of each device, after the kernels that are
    already there. Each call blocks until they are done. Kernels of other streams that use the
    tensors must have ended, and later ones must wait for the current stream.
    """

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []
        self._numbers: dict[tuple[Any, int, int], int] = {}

    def row(self, tensor: torch.Tensor, width: int) -> int:
        """Returns the number of the row for a tensor's storage, as lanes of `width` bytes."""
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr(), width)
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._rows.append(
                torch.empty(0, dtype=KINDS[width], device=storage.device).set_(storage)
            )
        return self._numbers[key]

    def gather(self, width: int, spans: Sequence[Span]) -> Any:
        """Returns the values of lanes, one after another."""
        with torch.inference_mode():
            # One transfer for consecutive spans on a device.
            parts = [
                torch.cat([self._of(row, places).now() for row, places in own]).cpu()
                for _, own in self._runs(spans)
            ]
            return torch.cat(parts).numpy()

    def stage(self, width: int, spans: Sequence[Span], old: Any, new: Any) -> list[Lanes]:
        """Copies proven lanes to their devices."""
        staged, done = [], 0
        with torch.inference_mode():
            values = [torch.frombuffer(one.writable(), dtype=KINDS[width]) for one in (old, new)]
            for device, run in self._runs(spans):
                own = list(run)
                counts = [len(row) if places is None else len(places) for row, places in own]
                places = _moved([places for _, places in own if places is not None], device)
                olds, news = (
                    one[done : done + sum(counts)].to(device).split(counts) for one in values
                )
                done += sum(counts)
                for (row, of_row), was, now in zip(own, olds, news, strict=True):
                    staged.append(Lanes(row, None if of_row is None else next(places), was, now))
        return staged

    def write(self, staged: Sequence[list[Lanes]]) -> tuple[int, int] | None:
        """Compares all lanes with their old values, and then writes the new ones. If a lane has
        another value, writes nothing, and returns the number of its list, and its number there."""
        lanes = [
            (at, number, one) for at, own in enumerate(staged) for number, one in enumerate(own)
        ]
        with torch.inference_mode():
            flags = [(one.now() != one.old).any() for *_, one in lanes]
            for device in {flag.device for flag in flags}:
                if bool(torch.stack([flag for flag in flags if flag.device == device]).any()):
                    return next(
                        (at, number)
                        for (at, number, _), flag in zip(lanes, flags, strict=True)
                        if flag
                    )
            for *_, one in lanes:
                one.put(one.new)
            _synchronize(one.row.device for *_, one in lanes)
        return None

    def put_back(self, staged: Sequence[list[Lanes]]) -> None:
        """Writes the old values."""
        with torch.inference_mode():
            for one in (lanes for own in staged for lanes in own):
                one.put(one.old)
            _synchronize(one.row.device for own in staged for one in own)

    def fill(self, width: int, span: Span, values: Any) -> None:
        """Writes lanes, whatever their values are."""
        with torch.inference_mode():
            row, places = self._located(span)
            own = torch.frombuffer(values.writable(), dtype=KINDS[width]).to(row.device)
            self._of(row, places).put(own)
            _synchronize([row.device])

    def sums(
        self, wanted: Sequence[tuple[tuple[int, int, Dimensions], int, int]]
    ) -> list[tuple[int, int]]:
        """Returns the sums of parts within pieces: for each, the row, first lane and dimensions of
        a part, the first lane of the piece, and the one after its last."""
        found: dict[int, tuple[int, int]] = {}
        with torch.inference_mode():
            large: dict[torch.device, dict[int, torch.Tensor]] = {}
            small: dict[tuple[torch.device, torch.dtype, int], dict[int, torch.Tensor]] = {}
            for number, ((row, first, dimensions), begin, end) in enumerate(wanted):
                lanes = _small(self._rows[row], first, dimensions, begin, end)
                if lanes is None:
                    total = self._sum(row, first, dimensions, begin, end)
                    large.setdefault(total.device, {})[number] = total
                else:
                    key = (lanes.device, lanes.dtype, len(lanes))
                    small.setdefault(key, {})[number] = lanes
            # One transfer for each device, after all its kernels.
            ready: dict[torch.device, list[torch.Tensor]] = {}
            numbers: dict[torch.device, list[int]] = {}
            for device, totals in large.items():
                ready[device] = [torch.stack(list(totals.values())).remainder(MODULUS)]
                numbers[device] = list(totals)
            for (device, _, _), same in small.items():
                ready.setdefault(device, []).extend(of_many(list(same.values())))
                numbers.setdefault(device, []).extend(same)
            for device, parts in ready.items():
                rows = torch.cat(parts).tolist()
                found.update(zip(numbers[device], map(tuple, rows), strict=True))
        return [found[number] for number in range(len(wanted))]

    def _sum(
        self, row: int, first: int, dimensions: Dimensions, begin: int, end: int
    ) -> torch.Tensor:
        """Returns the sums of the lanes of a part within a piece."""
        total = torch.zeros(2, dtype=torch.int64, device=self._rows[row].device)
        for lanes, number in _stretches(self._rows[row], first, dimensions, begin, end):
            total += of_bytes(lanes, number - begin).to(total.device)
        return total

    def _located(self, span: Span) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the lanes from the span's first one on, and its positions in them; None if it has
        all of them."""
        row, first, places, count = span
        if places is None:
            return self._rows[row][first : first + count], None
        return self._rows[row][first:], torch.frombuffer(places.writable(), dtype=torch.int32)

    def _runs(
        self, spans: Sequence[Span]
    ) -> Iterator[tuple[torch.device, Iterator[tuple[torch.Tensor, torch.Tensor | None]]]]:
        """Groups consecutive spans on one device."""
        return groupby(map(self._located, spans), key=lambda located: located[0].device)

    @staticmethod
    def _of(row: torch.Tensor, places: torch.Tensor | None) -> Lanes:
        return Lanes(row, None if places is None else places.to(row.device), row, row)


def _moved(tensors: list[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Copies tensors to a device with one transfer."""
    if tensors:
        yield from torch.cat(tensors).to(device).split([len(one) for one in tensors])


def _small(
    row: torch.Tensor, first: int, dimensions: Dimensions, begin: int, end: int
) -> torch.Tensor | None:
    """Returns the lanes of a part that has all of a small tensor contiguously; None for other
    parts."""
    length, low, high, stride = dimensions[0]
    is_whole = len(dimensions) == 1 and stride == 1 and low == begin == 0 and high == end == length
    if not is_whole or length == 0 or length * row.element_size() > _SMALL:
        return None
    return row[first : first + length]


def _stretches(
    row: torch.Tensor, first: int, dimensions: Dimensions, begin: int, end: int
) -> Iterator[tuple[torch.Tensor, int]]:
    """Yields the lanes of a tensor from `begin` to `end` that a part has, in rows in which the
    other lanes are zeros, and the number of the first lane of each row."""
    (_, low, high, stride), *rest = dimensions
    if not rest:
        begin, end = max(begin, low), min(end, high)
        if begin < end:
            yield (
                row[first + (begin - low) * stride : first + (end - 1 - low) * stride + 1 : stride],
                begin,
            )
        return
    inner = math.prod(length for length, *_ in rest)
    indices = range(max(begin // inner, low), min(-(-end // inner), high))
    if inner * row.element_size() > PIECE_BYTES:
        for index in indices:
            before = index * inner
            own = _stretches(
                row, first + (index - low) * stride, rest, begin - before, min(end - before, inner)
            )
            yield from ((lanes, number + before) for lanes, number in own)
    elif indices:
        lengths = [len(indices), *(high - low for _, low, high, _ in rest)]
        strides = [stride, *(stride for *_, stride in rest)]
        all_lanes = row.new_zeros([len(indices), *(length for length, *_ in rest)])
        own = row.as_strided(lengths, strides, first + (indices.start - low) * stride)
        all_lanes[(slice(None), *(slice(low, high) for _, low, high, _ in rest))] = own
        before = indices.start * inner
        begin, end = max(begin, before), min(end, indices.stop * inner)
        yield all_lanes.view(-1)[begin - before : end - before], begin


def _synchronize(devices: Iterable[torch.device]) -> None:
    """Waits for the current streams, so that an error of a kernel is raised here and not later."""
    for device in set(devices):
        if device.type != "cpu":
            torch.accelerator.current_stream(device).synchronize()
