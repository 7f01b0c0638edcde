"""Patching tensors of torch where they are (SPEC section 24.6): proves the lanes that links change, then
writes them. Only numbers of lanes and their values cross to the device; what is computed there are integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ._errors import CancelledError, StateMismatchError, UnsupportedError, UsageError
from ._native import rules
from ._parts import Box, Held, Info, covers
from ._sums import AT_ONCE, MODULUS, PIECE_BYTES, of_bytes, of_lanes

if TYPE_CHECKING:
    import torch

__all__ = ["Changes", "Expected", "Memory", "Piece", "Step", "Sums", "check", "load", "prove"]

# Bytes of values that are kept together.
_ROOM = 4 << 20

Sums = tuple[int, int]


class Step(NamedTuple):
    """What one link changes in a piece.

    Attributes:
        link: its number.
        places: which lanes of the `Piece`, ascending; None: all.
        is_relative: whether `values` are differences of keys (SPEC section 8.3).
        values: new lanes, or differences.
        before, coded, piece: sums: of the piece before, of the new values of these lanes, of the piece after.
    """

    link: int
    places: Any
    is_relative: bool
    values: Any
    before: Sums
    coded: Sums
    piece: Sums


class Piece(NamedTuple):
    """What links change in a piece of a tensor.

    Attributes:
        name: of the tensor.
        number: of the piece.
        first: number of its first lane.
        length: how many lanes it has.
        lanes: which of them change, counted from `first`, ascending; None: all.
        steps: what each link changes, in order.
    """

    name: str
    number: int
    first: int
    length: int
    lanes: Any
    steps: Sequence[Step]


class Expected(NamedTuple):
    """Sums that are compared: those of lanes after, and with those of the piece before, of the piece after."""

    what: str
    before: Sums
    coded: Sums | None
    piece: Sums


@dataclass(slots=True, eq=False)
class Memory:
    """Where the tensors of a checkpoint lie in this process.

    Attributes:
        held: for each name the parts that are here; those that hold all of the tensor compare alone.
        joined: for each part that does not, the numbers of the covers that it belongs to (section 24.7).
        covers: for each name how many covers its divided parts make, here and in other processes.
        tied: names of tensors that lie where another one does, and that one's name.
        add: adds up sums over all processes; raises if any of them has an error.
    """

    held: Mapping[str, Sequence[Held]]
    joined: dict[Held, Sequence[int]] = field(default_factory=dict)
    covers: dict[str, int] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    add: Callable[[torch.Tensor, Exception | None], torch.Tensor] | None = None

    def parts(self, name: str) -> Sequence[Held]:
        """The parts of a tensor that are here."""
        return self.held.get(name, ())

    def divide(self, infos: Sequence[Info], rank: int, ranks: Sequence[Mapping[str, Sequence[Box]]]) -> None:
        """Finds the covers that several processes make together.

        Args:
            infos: the tensors.
            rank: of this process.
            ranks: the parts that each rank has.

        Raises:
            UsageError: if parts are missing, or overlap.
        """
        for info in infos:
            name = info[0]
            self.covers[name], joined = covers(info, [own.get(name, ()) for own in ranks])
            for place, held in enumerate(self.parts(name)):
                if (rank, place) in joined:
                    self.joined[held] = joined[rank, place]

    def check_ties(self, digests: Mapping[str, str]) -> None:
        """Refuses a version in which tensors differ that lie in the same memory.

        Raises:
            UsageError: with their names.
        """
        for name, other in self.tied.items():
            if digests[name] != digests[other]:
                raise UsageError(
                    f"USAGE: {name!r} and {other!r} share their memory, but differ in this version (tensor {name!r})",
                    tensor=name,
                )


class _Ledger:
    """Sums that are expected, and sums that are found: of parts that compare alone, and of covers of several processes.
    All processes have the same rows of covers, in the same order."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._expected: tuple[list[Expected], list[Expected]] = ([], [])
        self._found: list[tuple[bool, list[int], torch.Tensor]] = []

    def expect(self, name: str, expected: Expected) -> list[tuple[Held, bool, list[int]]]:
        """Adds rows. Returns for each part of the tensor whether it compares alone, and the rows that it adds to."""
        alone, joint = self._expected
        begin = len(joint)
        joint += [expected] * self._memory.covers.get(name, 0)
        parts = []
        for held in self._memory.parts(name):
            joins = self._memory.joined.get(held)
            if joins is None:
                parts.append((held, True, [len(alone)]))
                alone.append(expected)
            else:
                parts.append((held, False, [begin + cover for cover in joins]))
        return parts

    def found(self, is_alone: bool, rows: list[int], sums: torch.Tensor) -> None:
        """Adds to rows the sums of old and of new values: four numbers each."""
        self._found.append((is_alone, rows, sums))

    def compare(self, error: Exception | None) -> None:
        """Compares all, here and with the other processes.

        Args:
            error: why this process has not computed its sums.

        Raises:
            StateMismatchError: R-SUM-03, R-SUM-04: in all processes.
        """
        import torch

        totals = [torch.zeros(len(expected), 4, dtype=torch.int64) for expected in self._expected]
        if error is None:
            # One transfer for each device.
            for device in {sums.device for _, _, sums in self._found}:
                own = [found for found in self._found if found[2].device == device]
                all_sums = torch.cat([sums for _, _, sums in own]).cpu().split([len(rows) for _, rows, _ in own])
                for (is_alone, rows, _), sums in zip(own, all_sums, strict=True):
                    totals[not is_alone].index_add_(0, torch.tensor(rows, dtype=torch.int64), sums)
            error = _differs(totals[0] % MODULUS, self._expected[0])
        if self._memory.add is not None:
            totals[1] = self._memory.add(totals[1] % MODULUS, error)
        error = error or _differs(totals[1] % MODULUS, self._expected[1])
        if error is not None:
            raise error


def _differs(sums: torch.Tensor, expected: list[Expected]) -> StateMismatchError | None:
    """The first of the expected sums that others were found for."""
    import torch

    if not expected:
        return None
    rows = [[*one.before, *(one.coded or (0, 0)), *one.piece, one.coded is not None] for one in expected]
    wanted = torch.tensor(rows, dtype=torch.int64)
    old, new = sums[:, :2], sums[:, 2:]
    is_wrong = (
        (new != wanted[:, 2:4]).any(1) & (wanted[:, 6] != 0),
        ((wanted[:, :2] - old + new - wanted[:, 4:6]) % MODULUS != 0).any(1),
    )
    if not bool((is_wrong[0] | is_wrong[1]).any()):
        return None
    first = int((is_wrong[0] | is_wrong[1]).nonzero()[0])
    rule = rules.SUM_03 if is_wrong[0][first] else rules.SUM_04
    return StateMismatchError(
        f"STATE_MISMATCH {rule}: the memory is not the version that it should be: other sums of {expected[first].what}",
        rule=rule,
    )


@dataclass(slots=True, eq=False)
class _Change:
    """Lanes of a stretch of memory, which are all of it if `places` is None, their old and their new values."""

    held: Held
    memory: torch.Tensor
    places: torch.Tensor | None
    old: torch.Tensor
    new: torch.Tensor

    def now(self) -> torch.Tensor:
        """The lanes as they are now."""
        return self.memory if self.places is None else self.memory.index_select(0, self.places)

    def put(self, values: torch.Tensor) -> None:
        """Writes the lanes."""
        if self.places is None:
            self.memory.copy_(values)
        else:
            self.memory.index_copy_(0, self.places.long(), values)


class Changes:
    """Old and new values of lanes, proven, to be exchanged.

    What is read and written is queued in the current stream of each device, after the kernels that are there. Kernels
    of other streams that use the tensors must have ended, and later ones must wait for the current stream.
    """

    def __init__(self) -> None:
        self._changes: list[_Change] = []
        self._written = 0
        self._rooms: dict[Any, tuple[torch.Tensor, int]] = {}

    def keep(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of values, among others: many small tensors, between those that come and go, would leave gaps."""
        key, count = (values.device, values.dtype), values.numel()
        room, used = self._rooms.get(key, (values[:0], 0))
        if room.numel() - used < count:
            room, used = values.new_empty(max(count, _ROOM // values.element_size())), 0
        self._rooms[key] = (room, used + count)
        return room[used : used + count].copy_(values)

    def lanes(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]]:
        """Stretches of memory, which lanes of them change (None: all), old and new values."""
        for change in self._changes:
            yield change.memory, change.places, change.old, change.new

    def switch(self) -> None:
        """Reads the lanes again, compares, and writes the new values.

        Raises:
            StateMismatchError: if other code has written to them, or moved them: nothing has changed, unless that
                happened meanwhile.
        """
        import torch

        with torch.inference_mode():
            self._check_places()
            flags = [(change.now() != change.old).any() for change in self._changes]
            for device in {flag.device for flag in flags}:
                if bool(torch.stack([flag for flag in flags if flag.device == device]).any()):
                    name = next(change.held.name for change, flag in zip(self._changes, flags, strict=True) if flag)
                    raise StateMismatchError(
                        f"STATE_MISMATCH: other code has written to the memory since it was proven (tensor {name!r})",
                        tensor=name,
                    )
            self._check_places()
            for change in self._changes:
                self._written += 1
                change.put(change.new)
            _synchronize(change.memory.device for change in self._changes)
        self._check_places()

    def undo(self) -> None:
        """Gives the lanes that were written their old values."""
        import torch

        with torch.inference_mode():
            for change in self._changes[: self._written]:
                change.put(change.old)
            _synchronize(change.memory.device for change in self._changes)
        if self._written:
            self._check_places()
        self._written = 0

    def _check_places(self) -> None:
        """Refuses tensors that do not lie where they did."""
        for held in dict.fromkeys(change.held for change in self._changes):
            held.check()


def _synchronize(devices: Iterable[torch.device]) -> None:
    """Waits for the current streams: a kernel that fails is an error here, not later."""
    import torch

    for device in set(devices):
        if device.type != "cpu":
            torch.accelerator.current_stream(device).synchronize()


def prove(memory: Memory, pieces: Iterable[Piece]) -> Changes:
    """Computes the new values of all lanes that links change, and proves old and new ones. Nothing is written.

    All processes of a group call this together, with the same pieces in the same order.

    Raises:
        StateMismatchError: R-SUM-03, R-SUM-04.
        Exception: from `pieces`, and for lack of memory.
    """
    import torch

    changes = Changes()
    ledger = _Ledger(memory)
    summing = _Summing(ledger)
    error: Exception | None = None
    with torch.inference_mode():
        try:
            for piece in pieces:
                expected = [
                    ledger.expect(piece.name, Expected(_what(piece, step), step.before, step.coded, step.piece))
                    for step in piece.steps
                ]
                for at, held in enumerate(memory.parts(piece.name)):
                    rows = [parts[at][1:] for parts in expected]
                    change = _brought(piece, held, rows, summing, changes.keep)
                    if change is not None and piece.name not in memory.tied:
                        changes._changes.append(change)
            summing.flush()
        except Exception as raised:
            error = raised
        ledger.compare(error)
    return changes


def _what(piece: Piece, step: Step) -> str:
    return f"piece {piece.number} of {piece.name!r}, link {step.link}"


class _Summing:
    """Sums of old and new values. Those of many pieces are computed together: launching a kernel takes longer than one
    takes for a small piece."""

    def __init__(self, ledger: _Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[Any, list[Any]] = {}
        self._count = 0

    def add(self, rows: tuple[bool, list[int]], numbers: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
        """Lanes, by their numbers in the piece, and the rows that they count for."""
        key = (old.device, old.dtype)
        self._waiting.setdefault(key, []).append((rows, numbers, old, new))
        self._count += numbers.numel()
        if self._count > AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Computes what has been added."""
        for waiting in self._waiting.values():
            self._sum(waiting)
        self._waiting, self._count = {}, 0

    def _sum(self, waiting: list[Any]) -> None:
        import torch

        ends, total = [], 0
        for _, numbers, _, _ in waiting:
            total += numbers.numel()
            ends.append(total)
        numbers, old, new = (torch.cat([one[at] for one in waiting]) for at in (1, 2, 3))
        sums = torch.cat(of_lanes(numbers, ends, old, new), dim=1)
        for ((is_alone, rows), *_), own in zip(waiting, sums, strict=True):
            self._ledger.found(is_alone, rows, own.expand(len(rows), 4))


def _brought(
    piece: Piece,
    held: Held,
    rows: list[tuple[bool, list[int]]],
    summing: _Summing,
    keep: Callable[[torch.Tensor], torch.Tensor],
) -> _Change | None:
    """Brings the lanes of a piece that a part holds through the links."""
    import torch

    begin, end = held.span()
    if not held.lanes.numel() or end <= piece.first or begin >= piece.first + piece.length:
        return None
    held.check()
    device = held.lanes.device
    lanes = None if piece.lanes is None else _numbers(piece.lanes).to(device)
    which = None
    if held.is_plain:
        memory = held.lanes[piece.first : piece.first + piece.length]
        places = lanes
    else:
        memory = held.lanes
        numbers = torch.arange(piece.length, device=device) if lanes is None else lanes.long()
        which, places = held.find(numbers + piece.first)
        lanes = numbers.index_select(0, which).int()
        if memory.numel() < 1 << 31:
            places = places.int()
    change = _Change(held, memory, None if places is None else keep(places), torch.empty(0), torch.empty(0))
    change.old = keep(change.now())
    current, is_fresh = change.old, False
    for step, row in zip(piece.steps, rows, strict=True):
        values = _values(step.values, held).to(device)
        own = None if step.places is None else _numbers(step.places).to(device)
        if which is not None:
            own, values = _own(which, piece, own, values)
        was = current if own is None else current.index_select(0, own)
        new = _after(was, values, held.is_signed) if step.is_relative else values
        numbers = torch.arange(piece.length, dtype=torch.int32, device=device) if lanes is None else lanes
        summing.add(row, numbers if own is None else numbers.index_select(0, own), was, new)
        if own is None:
            current, is_fresh = new, False
        else:
            # What is to be summed, and the old values, stay.
            current = (current if is_fresh else current.clone()).index_copy_(0, own.long(), new)
            is_fresh = True
    change.new = keep(current)
    return change


def _own(
    which: torch.Tensor, piece: Piece, places: torch.Tensor | None, values: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Of a step's places and values, those of the lanes that a part holds: places among these lanes."""
    import torch

    if places is None:
        return None, values.index_select(0, which)
    count = piece.length if piece.lanes is None else len(piece.lanes)
    rank = torch.full((count,), -1, dtype=torch.int32, device=which.device)
    rank[which] = torch.arange(which.numel(), dtype=torch.int32, device=which.device)
    rank = rank.index_select(0, places)
    is_own = (rank >= 0).nonzero().view(-1)
    return rank.index_select(0, is_own), values.index_select(0, is_own)


def _after(old: torch.Tensor, differences: torch.Tensor, is_signed: bool) -> torch.Tensor:
    """New lanes from old ones and differences of their keys (SPEC section 8.3). Additions wrap."""
    return _key(_key(old, is_signed) + differences, is_signed)


def _key(lanes: torch.Tensor, is_signed: bool) -> torch.Tensor:
    """The key of lanes, which are numbers with a sign; and back."""
    if not is_signed:
        return lanes
    bits = 8 * lanes.element_size()
    # All ones if the sign bit is set: then all others are inverted.
    return lanes ^ ((lanes >> (bits - 1)) & ((1 << (bits - 1)) - 1))


def _numbers(buffer: Any) -> torch.Tensor:
    import torch

    if not len(buffer):
        return torch.empty(0, dtype=torch.int32)
    return torch.frombuffer(buffer.writable(), dtype=torch.int32)


def _values(buffer: Any, held: Held) -> torch.Tensor:
    import torch

    if not len(buffer):
        return held.lanes.new_empty(0, device="cpu")
    return torch.frombuffer(buffer.writable(), dtype=torch.uint8).view(held.lanes.dtype)


def load(memory: Memory, name: str, data: Any) -> None:
    """Writes a tensor of a version, of which `data` are the bytes."""
    import torch

    with torch.inference_mode():
        for held in () if name in memory.tied else memory.parts(name):
            held.write(_values(data, held))


def check(memory: Memory, sums: Mapping[str, Sequence[Sums] | None], until: Callable[[], bool] | None = None) -> None:
    """Compares the sums of all memory. All processes of a group call this together.

    Args:
        memory: the memory.
        sums: for each tensor those of its pieces; None if they are unknown.
        until: whether to end early.

    Raises:
        StateMismatchError: R-SUM-04.
        UnsupportedError: if the sums of a tensor are unknown.
        CancelledError: if `until` ends it.
    """
    import torch

    ledger = _Ledger(memory)
    error: Exception | None = None
    with torch.inference_mode():
        try:
            for name, pieces in sums.items():
                if pieces is None:
                    raise UnsupportedError(
                        f"UNSUPPORTED: the sums of a tensor are unknown (tensor {name!r})", tensor=name
                    )
                for number, expected in enumerate(pieces):
                    if until is not None and until():
                        raise CancelledError("CANCELLED: ended by the caller")
                    what = f"piece {number} of {name!r}"
                    for held, is_alone, rows in ledger.expect(name, Expected(what, (0, 0), None, expected)):
                        found = _of_piece(held, number)
                        ledger.found(is_alone, rows, torch.cat([torch.zeros_like(found), found]).expand(len(rows), 4))
        except Exception as raised:
            error = raised
        ledger.compare(error)


def _of_piece(held: Held, number: int) -> torch.Tensor:
    """The sums of what a part holds of a piece."""
    import torch

    count = PIECE_BYTES // held.lanes.element_size()
    first = number * count
    begin, end = (held.below(min(lane, math.prod(held.shape))) for lane in (first, first + count))
    if begin == end:
        return torch.zeros(2, dtype=torch.int64, device=held.lanes.device)
    held.check()
    if held.strides is None and len(held.box) <= 1:
        return of_bytes(held.lanes[begin:end], held.span()[0] + begin - first)
    total = torch.zeros(2, dtype=torch.int64, device=held.lanes.device)
    for part in range(begin, end, AT_ONCE):
        part_end = min(part + AT_ONCE, end)
        numbers, lanes = held.stretch(part, part_end)
        (sums,) = of_lanes(numbers - first, [part_end - part], lanes)
        total += sums[0]
    return total.remainder_(MODULUS)
