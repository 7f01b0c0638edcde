"""Tensors of all forms that follow a chain in place, by the library, or by torch as on a device:
random ones, edge cases, and tensors in parts. And the sums that prove them, against a slow and
obvious implementation.

60 random models for each way by default; `DELTACHAIN_DRAWN` sets another number. The number in a
test's name is its seed.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from conftest import as_bytes  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import deltachain as dc  # noqa: E402
from deltachain import _device_memory, _native, _publisher, _sums, _tensor_follower  # noqa: E402
from deltachain._device_memory import DeviceMemory, Lanes  # noqa: E402
from deltachain._sums import KINDS, MODULUS, of_many  # noqa: E402
from deltachain._tensors import BITS, PACKED, numpy_dtype, torch_dtype  # noqa: E402

DRAWN = int(os.environ.get("DELTACHAIN_DRAWN", "60"))
PROFILES = ("local", "direct")
HAS_F4 = hasattr(torch, "float4_e2m1fn_x2")

# Dtypes of torch.
DTYPES = [
    "BF16",
    "F16",
    "F32",
    "F64",
    "U8",
    "I64",
    "BOOL",
    "F8_E4M3",
    "C64",
    *(["F4"] if HAS_F4 else []),
]
# Dtypes of numpy.
NUMPY = ["F16", "F32", "F64", "U8", "I64", "BOOL"]

Box = tuple[slice, ...]


@pytest.fixture(params=["library", "device"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the library or torch reads and writes the tensors. torch then also computes the sums,
    as on a device."""
    name: str = request.param
    if name == "device":
        monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
        monkeypatch.setattr(_device_memory, "of_bytes", _sums._of_bytes)
        monkeypatch.setattr(_sums, "_of_rows_here", _sums._of_rows)
    return name


# Sums.


def sums(begin: int, data: bytes) -> list[int]:
    """Computes the sums of bytes that begin at a position in a piece, byte by byte."""
    numbers = struct.unpack("<12288q", bytes(memoryview(_native.sum_numbers()).cast("B")))
    low, high = (numbers[:4096], numbers[4096:8192]), (numbers[8192:10240], numbers[10240:])
    found = [0, 0]
    for place, byte in enumerate(data, begin):
        for k in (0, 1):
            found[k] += (
                byte * 256 ** (place % 2) * low[k][(place >> 1) % 4096] * high[k][place >> 13]
            )
    return [found[0] % MODULUS, found[1] % MODULUS]


def lanes_of(data: bytes, width: int) -> Any:
    return (
        torch.frombuffer(bytearray(data), dtype=KINDS[width])
        if data
        else torch.empty(0, dtype=KINDS[width])
    )


WAYS = {"library": _sums.of_bytes, "torch": _sums._of_bytes}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_sums_are_those_of_the_specification(width: int, way: str) -> None:
    of_bytes = WAYS[way]
    examples = {
        (0, b"\1"): [1403049672, 939181040],
        (0, b"\0\1"): [550946983, 2059661423],
        (0, b"\x80\x3f"): [1699136892, 865739717],
        (8192, b"\x80\x3f"): [2010498579, 1697666059],
        (16777215, b"\xff"): [2120037275, 1049725627],
    }
    for (begin, data), expected in examples.items():
        assert sums(begin, data) == expected
        if begin % width == 0 and len(data) % width == 0 and begin % 2 == 0:
            assert of_bytes(lanes_of(data, width), begin // width).tolist() == expected
    draw = random.Random(width)
    row = 8192 // width
    for begin, count in itertools.product(
        [0, 1, 3, row - 1, row, row + 1], [0, 1, 9, 20000 // width]
    ):
        data = draw.randbytes(count * width)
        assert of_bytes(lanes_of(data, width), begin).tolist() == sums(begin * width, data), (
            begin,
            count,
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_sums_of_lanes_that_lie_apart(width: int, way: str) -> None:
    data = random.Random(width).randbytes(3000 * width)
    lanes = lanes_of(data, width)
    for begin, step in itertools.product([0, 1, 8], [2, 3, 7]):
        own = lanes[step - 1 :: step]
        expected = sums(begin * width, as_bytes(own))
        assert WAYS[way](own, begin).tolist() == expected, (begin, step)


def test_rows_that_are_taken_at_once_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sums, "_AT_ONCE", 1 << 18)
    lanes = torch.randint(-(1 << 15), 1 << 15, (3 * _sums._AT_ONCE + 17,), dtype=torch.int16)
    for begin in (0, 4096 * 5 + 100):
        whole = _sums.of_bytes(lanes, begin)
        assert torch.equal(_sums._of_bytes(lanes, begin), whole)
        # The sums of two halves add up, wherever the bytes are divided.
        for at in (1, 4096, _sums._AT_ONCE, _sums._AT_ONCE + 77):
            for of_bytes in WAYS.values():
                halves = of_bytes(lanes[:at], begin) + of_bytes(lanes[at:], begin + at)
                assert torch.equal(halves % MODULUS, whole)
    # All lanes at their largest value.
    lanes.fill_(-1)
    assert torch.equal(_sums._of_bytes(lanes, 77), _sums.of_bytes(lanes, 77))


def test_sums_of_a_whole_piece() -> None:
    piece = torch.randint(-128, 128, (_sums.PIECE_BYTES,), dtype=torch.int8)
    expected = _sums.of_bytes(piece)
    for width in (1, 2, 4, 8):
        assert torch.equal(_sums._of_bytes(piece.view(KINDS[width]), 0), expected)
        own = piece.view(KINDS[width])
        assert dc.adapters.piece_sums([own, own]).tolist() == [expected.tolist()] * 2
        assert torch.equal(_sums._of_rows(own[None]), expected[None])


@pytest.mark.parametrize("seed", range(DRAWN))
def test_stretches_are_all_lanes_of_a_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 6) for _ in range(draw.randint(1, 4))]
    here = [sorted(draw.sample(range(length + 1), 2)) for length in lengths]
    # Any order of strides, with gaps.
    strides, reach = [0] * len(lengths), 1
    for at in draw.sample(range(len(lengths)), len(lengths)):
        strides[at] = reach + draw.randint(0, 2)
        reach += (here[at][1] - here[at][0] - 1) * strides[at] + draw.randint(0, 2)
    first = draw.randint(0, 3)
    dimensions = [
        (length, *own, stride) for length, own, stride in zip(lengths, here, strides, strict=True)
    ]
    row = torch.randint(
        1, 1 << 15, (first + sum(reach * stride for stride in strides) + 1,), dtype=torch.int16
    )
    total = math.prod(lengths)
    naive = {}
    for number, index in enumerate(itertools.product(*map(range, lengths))):
        if all(low <= at < high for at, (low, high) in zip(index, here, strict=True)):
            place = first + sum(
                (at - low) * own for at, (low, _), own in zip(index, here, strides, strict=True)
            )
            naive[number] = int(row[place])
    # Divides one dimension after another, down to single rows.
    for piece_bytes in (2, 2 * lengths[-1], 8, 30, 1 << 24):
        monkeypatch.setattr(_device_memory, "PIECE_BYTES", piece_bytes)
        for _ in range(4):
            begin, end = sorted(draw.sample(range(total + 1), 2))
            seen: dict[int, int] = {}
            for lanes, number in _device_memory._stretches(row, first, dimensions, begin, end):
                assert begin <= number and number + len(lanes) <= end
                values = dict(enumerate(lanes.tolist(), number))
                assert not seen.keys() & values.keys()
                seen.update(values)
            assert {at: value for at, value in seen.items() if value} == {
                at: value for at, value in naive.items() if begin <= at < end
            }


@pytest.mark.parametrize("seed", range(10))
def test_sums_of_parts_on_devices_add_up(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums that torch computes of several parts of pieces add up to those of all lanes."""
    monkeypatch.setattr(_device_memory, "of_bytes", _sums._of_bytes)
    draw = random.Random(seed)
    width = draw.choice([1, 2, 4, 8])
    rows, columns = draw.randint(2, 40), draw.randint(2, 40)
    whole = lanes_of(draw.randbytes(rows * columns * width), width).view(rows, columns)
    cut = draw.randint(1, columns - 1)
    memory = DeviceMemory()
    parts = []
    for low, high in ((0, cut), (cut, columns)):
        room = Room(draw, (rows, high - low), width)
        room.view().copy_(whole[:, low:high])
        own = room.view()
        dimensions = [(rows, 0, rows, own.stride(0)), (columns, low, high, own.stride(1))]
        parts.append((memory.row(own, width), own.storage_offset(), dimensions))
    for piece in (7, rows * columns):
        pieces = [(at, min(at + piece, rows * columns)) for at in range(0, rows * columns, piece)]
        found = [memory.sums([(part, *own) for own in pieces]) for part in parts]
        for (begin, end), *own in zip(pieces, *found, strict=True):
            expected = sums(0, as_bytes(whole.view(-1)[begin:end]))
            assert [(one + other) % MODULUS for one, other in zip(*own, strict=True)] == expected


# Models.


class Held:
    """A tensor of a chain at a version: dtype, shape, and its lanes, by bytes."""

    def __init__(self, dtype: str, shape: tuple[int, ...], lanes: Any) -> None:
        self.dtype, self.shape, self.lanes = dtype, shape, lanes

    def given(self) -> dc.Tensor:
        return dc.Tensor(self.dtype, self.shape, self.lanes.tobytes())


State = Mapping[str, Held]


def width_of(dtype: str) -> int:
    return 1 if dtype in PACKED else BITS[dtype] // 8


def in_lanes(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in lanes. For packed dtypes the last dimension counts bytes."""
    return (*shape[:-1], shape[-1] * BITS[dtype] // 8) if dtype in PACKED else shape


def made(draw: random.Random, dtype: str, shape: tuple[int, ...]) -> Held:
    lanes = (*in_lanes(dtype, shape), width_of(dtype))
    data = numpy.frombuffer(draw.randbytes(math.prod(lanes)), numpy.uint8)
    return Held(dtype, shape, data.reshape(lanes))


def changed(draw: random.Random, held: Held, share: float) -> Held:
    """Returns the tensor with a share of its lanes changed: to any bits, or to the next number."""
    lanes = held.lanes.copy()
    flat = lanes.reshape(-1, lanes.shape[-1])
    for lane in range(len(flat)):
        if draw.random() < share:
            if draw.random() < 0.5:
                flat[lane] = list(draw.randbytes(flat.shape[1]))
            else:
                flat[lane, 0] = (int(flat[lane, 0]) + 1) % 256
    return Held(held.dtype, held.shape, lanes)


class Room:
    """Memory of torch that holds a tensor with gaps: in any order of dimensions, with steps, and
    surrounded by lanes that must stay untouched. Lanes are integers of their width.

    Args:
        how: "row" for a contiguous tensor; "transposed" for a random order of dimensions only;
            otherwise the order, the steps and the gaps are random.
    """

    def __init__(
        self, draw: random.Random, lanes: tuple[int, ...], width: int, how: str = "apart"
    ) -> None:
        order = list(range(len(lanes)))
        if how != "row":
            draw.shuffle(order)
        steps = [1 if how != "apart" else draw.choice([1, 1, 2, 3]) for _ in lanes]
        room = [0 if how != "apart" else draw.randint(0, 2) for _ in lanes]
        behind = [0 if how != "apart" else draw.randint(0, 2) for _ in lanes]
        sizes = [room[at] + lanes[at] * steps[at] + behind[at] for at in order]
        self.index = tuple(
            slice(room[at], room[at] + lanes[at] * steps[at], steps[at]) for at in order
        )
        self.back = [order.index(at) for at in range(len(lanes))]
        # Lanes before and after everything, also for a scalar.
        before = 0 if how == "row" else draw.randint(0, 5)
        count = math.prod(sizes)
        self.all = lanes_of(draw.randbytes((before + count + before) * width), width)
        self.sizes, self.before, self.count = sizes, before, count
        # The lanes around the tensor.
        self.start = self.all.clone()

    def view(self, memory: Any = None) -> Any:
        memory = self.all if memory is None else memory
        own = memory[self.before : self.before + self.count].view(self.sizes)
        return own[self.index].permute(self.back) if self.sizes else own

    def assert_holds(self, lanes: Any) -> None:
        """Asserts that the tensor has these values, and that the lanes around it are unchanged."""
        expected = self.start.clone()
        self.view(expected).copy_(lanes_of(lanes.tobytes(), lanes.shape[-1]).view(lanes.shape[:-1]))
        assert torch.equal(self.all, expected)


class Form:
    """A tensor, or a part of one, in the caller's memory.

    Attributes:
        given: the value for `into=`.
        flip: flips a bit of a lane, by its place in the part.
        assert_holds: asserts that the part has these lanes.
    """

    def __init__(
        self,
        given: Any,
        flip: Callable[[tuple[int, ...], int], None],
        assert_holds: Callable[[Any], None],
    ):
        self.given, self.flip, self.assert_holds = given, flip, assert_holds


def of_torch(draw: random.Random, dtype: str, lanes: tuple[int, ...], how: str) -> Form:
    room = Room(draw, lanes, width_of(dtype), how)

    def flip(lane: tuple[int, ...], bit: int) -> None:
        room.view()[lane] ^= _bit(bit, room.all.element_size())

    tensor = room.view().view(torch_dtype(dtype))
    if (
        draw.random() < 0.2
        and tensor.dtype.is_floating_point
        and dtype in ("BF16", "F16", "F32", "F64")
    ):
        tensor = torch.nn.Parameter(tensor)
    return Form(tensor, flip, room.assert_holds)


def _bit(bit: int, width: int) -> int:
    return -(1 << bit) if bit == 8 * width - 1 else 1 << bit


def of_numpy(draw: random.Random, dtype: str, lanes: tuple[int, ...]) -> Form:
    room = Room(draw, lanes, width_of(dtype), draw.choice(["row", "transposed", "apart"]))

    def flip(lane: tuple[int, ...], bit: int) -> None:
        room.view()[lane] ^= _bit(bit, room.all.element_size())

    return Form(room.view().numpy().view(numpy_dtype(dtype)), flip, room.assert_holds)


def of_bytes(dtype: str, shape: tuple[int, ...], width: int) -> Form:
    """Memory of no library: bytes."""
    lanes = (*in_lanes(dtype, shape), width)
    data = bytearray(math.prod(lanes))
    array = numpy.frombuffer(data, numpy.uint8).reshape(lanes)

    def flip(lane: tuple[int, ...], bit: int) -> None:
        array[lane][bit // 8] ^= 1 << bit % 8

    def assert_holds(expected: Any) -> None:
        assert data == expected.tobytes()

    return Form(dc.Tensor(dtype, shape, data), flip, assert_holds)


class Lent:
    """A tensor of the chain in the caller's memory: in one form, or in several parts."""

    def __init__(self, draw: random.Random, dtype: str, shape: tuple[int, ...], by: str) -> None:
        self.dtype, self.shape = dtype, shape
        self.parts: list[tuple[Box, Form]] = []
        lanes = in_lanes(dtype, shape)
        boxes: Iterable[Box] = [tuple(slice(0, length) for length in shape)]
        self.is_divided = bool(shape) and math.prod(shape) > 0 and draw.random() < 0.45
        if self.is_divided:
            boxes = divided(draw, dtype, shape)
        for box in boxes:
            of_part = tuple(part.stop - part.start for part in box)
            ways = ["row", "transposed", "apart", "apart"] if dtype in DTYPES else []
            if by == "library":
                ways += ["numpy"] * (dtype in NUMPY) + ["bytes"] * (1 + (dtype not in DTYPES))
            way = draw.choice(ways)
            if way == "bytes":
                form = of_bytes(dtype, of_part, width_of(dtype))
            elif way == "numpy":
                form = of_numpy(draw, dtype, in_lanes(dtype, of_part))
            else:
                form = of_torch(draw, dtype, in_lanes(dtype, of_part), way)
            self.parts.append((box, form))
        forms = [form.given for _, form in self.parts]
        self.into: Any = forms[0]
        if self.is_divided:
            self.into = [
                dc.Part(form, box) for form, (box, _) in zip(forms, self.parts, strict=True)
            ]
            if len(forms) == 1:
                self.into = draw.choice([self.into, self.into[0]])
        assert math.prod(lanes) * width_of(dtype) == math.prod(shape) * BITS[dtype] // 8

    def _lanes(self, box: Box) -> Box:
        """Converts a box to lanes."""
        if self.dtype not in PACKED:
            return box
        bits = BITS[self.dtype]
        return (*box[:-1], slice(box[-1].start * bits // 8, box[-1].stop * bits // 8))

    def assert_holds(self, held: Held) -> None:
        for box, form in self.parts:
            form.assert_holds(held.lanes[self._lanes(box)])

    def flip(self, lane: tuple[int, ...], bit: int) -> None:
        """Flips a bit of a lane in every form that has the lane."""
        for box, form in self.parts:
            own = self._lanes(box)
            if all(part.start <= at < part.stop for part, at in zip(own, lane, strict=True)):
                form.flip(tuple(at - part.start for part, at in zip(own, lane, strict=True)), bit)
                return
        raise AssertionError(f"nothing has {lane}")


def divided(draw: random.Random, dtype: str, shape: tuple[int, ...]) -> list[Box]:
    """Returns boxes that cover each element once: cut in one or two dimensions, in any order, some
    of them empty."""
    unit = {"F4": 2, "F6_E2M3": 4, "F6_E3M2": 4}.get(dtype, 1)
    cuts = []
    for at, length in enumerate(shape):
        own = {0, length}
        step = unit if at == len(shape) - 1 else 1
        if draw.random() < 0.6:
            own |= {draw.randint(0, length // step) * step for _ in range(draw.choice([1, 1, 2]))}
        ends = sorted(own)
        cuts.append([slice(begin, end) for begin, end in itertools.pairwise(ends)])
    boxes: list[Box] = list(itertools.product(*cuts))
    draw.shuffle(boxes)
    if draw.random() < 0.2:
        boxes.append(tuple(slice(length, length) for length in shape))
    return boxes


def drawn_shape(draw: random.Random, dtype: str) -> tuple[int, ...]:
    kind = draw.choice(["number", "none", "one", "row", "matrix", "matrix", "cube"])
    unit = {"F4": 2, "F6_E2M3": 4, "F6_E3M2": 4}.get(dtype, 1)
    last = unit * draw.randint(1, 12)
    if kind == "number" and unit == 1:
        return ()
    shapes = {
        "none": (0, last),
        "one": (1, unit),
        "row": (unit * draw.randint(1, 200),),
        "cube": (draw.randint(1, 6), draw.randint(1, 6), last),
    }
    return shapes.get(kind, (draw.randint(1, 20), last))


def drawn(draw: random.Random, by: str) -> tuple[list[dict[str, Held]], dict[str, str]]:
    """Returns random versions, and the names that are tied to others."""
    dtypes = DTYPES if by == "device" else [*DTYPES, "F4", "F6_E2M3", "F6_E3M2"]
    first, ties = {}, {}
    for number in range(draw.randint(1, 4)):
        dtype = draw.choice(dtypes)
        first[f"w{number}"] = made(draw, dtype, drawn_shape(draw, dtype))
        if draw.random() < 0.2:
            ties[f"t{number}"] = f"w{number}"
    states = [first]
    for _ in range(draw.randint(2, 5)):
        share = draw.choice([0.0, 0.03, 0.3, 1.0])
        states.append(
            {
                name: changed(draw, held, draw.choice([0, share, share]))
                for name, held in states[-1].items()
            }
        )
    for state in states:
        state.update({name: state[other] for name, other in ties.items()})
    return states, ties


def any_profile() -> Any:
    """Lets publishers use all profiles: other writers publish routes with links of `direct`."""
    return mock.patch.object(_publisher, "check_profiles")


def publish(path: Path, states: Iterable[State], profile: Any) -> str:
    with any_profile(), dc.Publisher(path, profile=profile) as publisher:
        for state in states:
            publisher.publish({name: held.given() for name, held in state.items()})
    return str(path)


class Stopped(Exception):
    pass


def failing(at: int) -> Callable[[Lanes, Any], None]:
    """Returns a `put` that fails once, after this many calls."""
    calls, original = itertools.count(), Lanes.put

    def put(lanes: Lanes, values: Any) -> None:
        if next(calls) == at:
            raise Stopped
        original(lanes, values)

    return put


@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_drawn_model_follows(
    seed: int, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    states, ties = drawn(draw, by)
    profile = draw.choice(PROFILES)
    url = publish(tmp_path / "chain", states, profile)
    lent = {
        name: Lent(draw, held.dtype, held.shape, by)
        for name, held in states[0].items()
        if name not in ties
    }
    into = {name: one.into for name, one in lent.items()}
    into.update({name: lent[other].into for name, other in ties.items()})

    def assert_holds(version: int, but: Callable[[], None] | None = None) -> None:
        """Asserts that the version is held bit for bit, apart from a bit that `but` flips, and
        flips back."""
        if but is not None:
            but()
        for name, one in lent.items():
            one.assert_holds(states[version][name])
        if but is not None:
            but()

    def lane(differs: Callable[[str], Any]) -> Callable[[], None] | None:
        """Returns a function that flips a bit of one of these lanes."""
        all_lanes = [
            (name, tuple(map(int, at)))
            for name in lent
            for at in numpy.argwhere(differs(name))
            if lent[name].parts
        ]
        if not all_lanes:
            return None
        name, at = draw.choice(all_lanes)
        bit = draw.randrange(8 * width_of(states[0][name].dtype))
        return lambda: lent[name].flip(at, bit)

    with dc.Subscriber(url, into=into) as subscriber:
        subscriber.prepare(0).apply()
        assert_holds(0)
        assert (subscriber.version, subscriber.proof) == (0, "memory")
        held = 0
        while held + 1 < len(states):
            target = min(len(states) - 1, held + draw.choice([1, 1, 2]))
            event = draw.choice(["", "", "flip", "other", "write", "fault"])

            def changes(name: str, held: int = held) -> Any:
                """Lanes that the next link changes."""
                return (states[held][name].lanes != states[held + 1][name].lanes).any(-1)

            def stays(name: str, held: int = held, target: int = target) -> Any:
                links = range(held, target)
                own = [
                    (states[at][name].lanes != states[at + 1][name].lanes).any(-1) for at in links
                ]
                return ~numpy.logical_or.reduce(own)

            flip = (
                lane(stays if event == "other" else changes)
                if event in ("flip", "other", "write")
                else None
            )
            expected, proof = None, "changed_lanes"
            if flip is not None and event in ("flip", "other"):
                flip()
            if flip is not None and event == "flip":
                expected, proof = "proof", "memory"
            if flip is not None and event == "other":
                with pytest.raises(dc.StateMismatchError) as caught:
                    subscriber.check()
                # Without sums, the check hashed the tensors.
                assert caught.value.rule == "R-SUM-04" or (
                    caught.value.rule is None and profile != "local"
                )
                assert subscriber.version is None
                expected, proof = "check", "memory"
            update = subscriber.prepare(target)
            assert_holds(held, flip if event in ("flip", "other") else None)
            # If the update is not in place, it loads the whole version over the flipped bits, or
            # the subscriber is torn.
            is_in_place = update._native is not None and update._native.is_in_place
            assert is_in_place or profile != "local" or event in ("flip", "other")
            if flip is not None and event == "write" and is_in_place:
                flip()
                with pytest.raises((dc.StateMismatchError, dc.WrongBaseError)):
                    update.apply()
                assert not subscriber.torn
                assert_holds(held, flip)
                update = subscriber.prepare(target)
                proof = "memory"
            elif event == "fault" and by == "device":
                with monkeypatch.context() as patched:
                    patched.setattr(Lanes, "put", failing(draw.randrange(3)))
                    try:
                        update.apply()
                    except Stopped:
                        assert (subscriber.torn, subscriber.version) == (
                            (False, held) if is_in_place else (True, None)
                        )
                        if is_in_place:
                            assert_holds(held)
            update.apply()
            held = target
            assert_holds(held)
            assert (subscriber.version, subscriber.torn) == (held, False)
            if profile == "local" and event != "write":
                assert (update.fallback_reason, subscriber.proof) == (expected, proof)
            # Without sums, links are applied by digests if all tensors are whole.
            assert update.fallback_reason in (None, expected, "no_route", "proof")
            if draw.random() < 0.4:
                subscriber.check()
                assert subscriber.proof == "memory" or profile != "local"
        subscriber.check()
        if not any(one.is_divided for one in lent.values()):
            subscriber.verify()
        assert_holds(held)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("how", ["row", "transposed", "parts"])
def test_a_tensor_of_several_pieces(how: str, profile: str, by: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (2100, 4100)
    first = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, generator=generator)
    assert first.nbytes > _sums.PIECE_BYTES
    versions = [first]
    for _ in range(2):
        after = versions[-1].clone()
        after.view(-1)[torch.randint(after.numel(), (5000,), generator=generator)] += 1
        # The lanes on both sides of a boundary between pieces.
        after.view(-1)[_sums.PIECE_BYTES // 2 - 1 : _sums.PIECE_BYTES // 2 + 1] ^= 1
        versions.append(after)
    with any_profile(), dc.Publisher(tmp_path / "chain", profile=profile) as publisher:
        for one in versions:
            publisher.publish({"w": one.view(torch.bfloat16)})
    memory = torch.zeros(shape, dtype=torch.int16)
    own = torch.zeros(shape[1], shape[0], dtype=torch.int16).t() if how == "transposed" else memory
    given: Any = own.view(torch.bfloat16)
    if how == "parts":
        fused = torch.zeros(shape[0], shape[1] + 8, dtype=torch.int16)
        views = [(slice(0, 1000), fused[:, 3104:4104]), (slice(1000, shape[1]), fused[:, 4:3104])]
        given = [
            dc.Part(view.view(torch.bfloat16), (slice(None), columns)) for columns, view in views
        ]
        own = None
    with dc.Subscriber(tmp_path / "chain", into={"w": given}) as subscriber:
        for number, one in enumerate(versions):
            subscriber.prepare(number).apply()
            now = torch.cat([fused[:, 3104:4104], fused[:, 4:3104]], 1) if own is None else own
            assert torch.equal(now, one)
        # Without sums, a link is applied by digests if the memory is whole.
        assert profile != "local" or subscriber.proof == "changed_lanes"
        subscriber.check()
        now = fused[:, 4:3104] if own is None else own
        now[-1, -1] ^= 1
        with pytest.raises(dc.StateMismatchError) as caught:
            subscriber.check()
        assert caught.value.tensor == "w"
    if own is None:
        assert not fused[:, :4].any() and not fused[:, 4104:].any()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", ["U8", "F8_E4M3", "BF16", "F32"])
def test_every_bit_of_a_lane_that_changes_is_proven(
    dtype: str, profile: str, by: str, tmp_path: Path
) -> None:
    draw = random.Random(dtype)
    first = made(draw, dtype, (16,))
    width = width_of(dtype)
    after = first.lanes.copy()
    for lane in range(0, 16, 5):
        after[lane, 0] ^= 1 << lane % 8
    states = [{"w": first}, {"w": Held(dtype, (16,), after)}]
    url = publish(tmp_path / "chain", states, profile)
    tensor = torch.zeros(16, dtype=torch_dtype(dtype))
    raw = tensor.view(torch.uint8)
    with dc.Subscriber(url, into={"w": tensor}) as subscriber:
        for byte, bit in itertools.product(range(16 * width), range(8)):
            is_coded = byte // width % 5 == 0
            if not is_coded and (byte * 8 + bit) % 7:
                continue
            subscriber.prepare(0).apply()
            raw[byte] ^= 1 << bit
            update = subscriber.prepare(1)
            update.apply()
            if is_coded and profile == "local":
                assert update.fallback_reason == "proof" and as_bytes(tensor) == after.tobytes(), (
                    byte,
                    bit,
                )
                assert subscriber.proof == "memory"
            elif profile != "local":
                # Digests cover all memory. Values that are written as they are need no old ones.
                assert as_bytes(tensor) == after.tobytes(), (byte, bit)
                assert update.fallback_reason == (None if is_coded else "proof")
            elif update.fallback_reason is None:
                # The proof covers changed lanes only, and says so: the check of all memory finds
                # the flipped bit.
                assert subscriber.proof == "changed_lanes"
                with pytest.raises(dc.StateMismatchError):
                    subscriber.check()
            else:
                # The link has also coded this lane.
                assert as_bytes(tensor) == after.tobytes()


def test_links_whose_errors_would_cancel_are_found(by: str, tmp_path: Path) -> None:
    """The second link undoes the first."""
    first = Held("BF16", (4,), numpy.arange(8, dtype=numpy.uint8).reshape(4, 2))
    other = Held("BF16", (4,), first.lanes.copy())
    other.lanes[0, 0] = 1
    url = publish(tmp_path / "chain", [{"w": first}, {"w": other}, {"w": first}], "local")
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    with dc.Subscriber(url, into={"w": tensor}) as subscriber:
        subscriber.prepare(0).apply()
        tensor.view(torch.uint8)[0] = 7
        update = subscriber.prepare(2)
        update.apply()
        assert as_bytes(tensor) == first.lanes.tobytes()
        assert (update.fallback_reason, subscriber.proof) == ("proof", "memory")


def test_a_write_between_proof_and_switch_names_the_tensor(by: str, tmp_path: Path) -> None:
    draw = random.Random(5)
    first = {name: made(draw, "BF16", (64,)) for name in ("a", "b")}
    second = {name: changed(draw, held, 1.0) for name, held in first.items()}
    url = publish(tmp_path / "chain", [first, second], "local")
    tensors = {name: torch.zeros(64, dtype=torch.bfloat16) for name in first}
    with dc.Subscriber(url, into=tensors) as subscriber:
        subscriber.prepare(0).apply()
        update = subscriber.prepare(1)
        tensors["b"].view(torch.int16)[3] ^= 1
        with pytest.raises(
            dc.WrongBaseError, match="other code has written to the memory"
        ) as caught:
            update.apply()
        assert caught.value.tensor == "b"
        tensors["b"].view(torch.int16)[3] ^= 1
        assert {name: as_bytes(tensor) for name, tensor in tensors.items()} == {
            name: held.lanes.tobytes() for name, held in first.items()
        }


# Refused tensors.


def refused(url: str, into: Any, error: Any, text: str, name: str | None = "w") -> None:
    """Asserts that the tensors are refused with this text and name, before anything changes."""
    memory = [
        (one, as_bytes(one))
        for given in into.values()
        for part in (given if isinstance(given, list) else [given])
        if isinstance(one := part.tensor if isinstance(part, dc.Part) else part, torch.Tensor)
        and one.device.type == "cpu" and one.layout == torch.strided and not one.is_conj()
    ]  # fmt: skip
    with pytest.raises(error, match=text) as caught, dc.Subscriber(url, into=into) as subscriber:
        subscriber.prepare(0).apply()
    assert caught.value.tensor == name
    assert all(as_bytes(one) == before for one, before in memory)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "expanded": (lambda: torch.zeros(4).expand(4, 4), "share their memory"),
    "overlapping itself": (
        lambda: torch.zeros(10).as_strided((4, 4), (2, 1)),
        "share their memory",
    ),
    "sparse": (lambda: torch.zeros(4, 4).to_sparse(), "sparse"),
    "meta": (lambda: torch.zeros(4, 4, device="meta"), "no data"),
    "unknown dtype": (lambda: torch.zeros(4, 4, dtype=torch.complex128), "unknown dtype"),
    "another dtype": (
        lambda: torch.zeros(4, 4, dtype=torch.bfloat16),
        "the chain has F32, but this memory has BF16",
    ),
    "a dtype of as many bytes": (
        lambda: torch.zeros(4, 4, dtype=torch.int32),
        "the chain has F32, but this memory has I32",
    ),
    "another shape": (lambda: torch.zeros(4, 5), "shape"),
    "another shape of as many elements": (lambda: torch.zeros(2, 8), "shape"),
    "a row": (lambda: torch.zeros(16), "shape"),
    "transposed shape": (
        lambda: dc.Part(torch.zeros(2, 4), (slice(0, 4), slice(0, 2))),
        "not that part",
    ),
    "a lazy view": (lambda: torch.zeros(4, 4, dtype=torch.complex64).conj(), "lazy view"),
    "a step": (lambda: dc.Part(torch.zeros(2, 4), slice(0, 4, 2)), "without a step"),
    "too many slices": (
        lambda: dc.Part(torch.zeros(4, 4), (slice(None),) * 3),
        "must be slices without a step",
    ),
    "a part twice": (
        lambda: [dc.Part(torch.zeros(4, 2), (slice(None), slice(0, 2))) for _ in range(2)],
        "do not cover the shape",
    ),
    "a part is missing": (
        lambda: [dc.Part(torch.zeros(2, 4), slice(0, 2))],
        "do not cover the shape",
    ),
    "parts overlap": (
        lambda: [dc.Part(torch.zeros(3, 4), slice(0, 3)), dc.Part(torch.zeros(2, 4), slice(2, 4))],
        "overlap",
    ),
    "parts that share memory": (
        lambda: [
            dc.Part(memory[begin : begin + 2], slice(begin * 2, begin * 2 + 2))
            for memory in [torch.zeros(3, 4)]
            for begin in (0, 1)
        ],
        "shares a part of its memory",
    ),
}


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chain with one square tensor."""
    path = tmp_path_factory.mktemp("square") / "chain"
    with dc.Publisher(path, profile="local") as publisher:
        publisher.publish({"w": torch.ones(4, 4)})
    return str(path)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(case: str, square: str, by: str) -> None:
    make, text = REFUSED[case]
    refused(square, {"w": make()}, dc.UsageError, text)


def read_only() -> Any:
    array = numpy.zeros((4, 4), numpy.float32)
    array.setflags(write=False)
    return array


OF_OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only": (read_only, "read-only"),
    "in reverse": (lambda: numpy.zeros((4, 4), numpy.float32)[::-1], "negative or interleaved"),
    "another order of bytes": (lambda: numpy.zeros((4, 4), ">f4"), "in another order"),
    "another dtype of numpy": (
        lambda: numpy.zeros((4, 4), numpy.int32),
        "the chain has F32, but this memory has I32",
    ),
    "a field of records": (
        lambda: numpy.zeros((4, 4), numpy.dtype([("own", "<f4"), ("byte", "u1")]))["own"],
        "negative or interleaved",
    ),
    "bytes": (lambda: dc.Tensor("F32", (4, 4), bytes(64)), "read-only"),
    "too few bytes": (lambda: dc.Tensor("F32", (4, 4), bytearray(63)), "do not fit"),
    "a function": (lambda: dc.Tensor("F32", (4, 4), lambda offset, length: b""), "buffer"),
    "no tensor": (lambda: 3, "the value is of type"),
    "bytes of another dtype": (lambda: bytearray(64), "this memory has U8"),
}


@pytest.mark.parametrize("case", OF_OTHERS)
def test_what_other_libraries_cannot_give_is_refused_by_name(case: str, square: str) -> None:
    make, text = OF_OTHERS[case]
    refused(square, {"w": make()}, dc.UsageError, text)


def test_memory_that_overlaps_partly_is_refused(by: str, tmp_path: Path) -> None:
    def chain(**shapes: tuple[int, ...]) -> str:
        path = tmp_path / "_".join(map(str, itertools.chain(*shapes.values(), shapes)))
        if not path.exists():
            with dc.Publisher(path, profile="local") as publisher:
                publisher.publish({name: torch.ones(shape) for name, shape in shapes.items()})
        return str(path)

    def follows(into: dict[str, Any]) -> None:
        with dc.Subscriber(
            chain(**{name: tuple(one.shape) for name, one in into.items()}), into=into
        ) as subscriber:
            subscriber.prepare(0).apply()
            subscriber.check()
        assert all(bool((one == 1).all()) for one in into.values())

    def overlaps(
        into: dict[str, Any], text: str = "shares a part of its memory", name: str = "b"
    ) -> None:
        refused(
            chain(**{name: tuple(one.shape) for name, one in into.items()}),
            into,
            dc.UsageError,
            text,
            name,
        )

    memory = torch.zeros(8)
    follows({"a": memory, "b": memory})
    memory.zero_()
    overlaps({"a": memory[:5], "b": memory[4:]})
    overlaps({"a": memory, "b": memory[:4]})
    # Interleaved columns share no memory.
    memory = torch.zeros(4, 9)
    follows({"a": memory[:, :3], "b": memory[:, 3:], "c": memory[:, :3]})
    follows({"a": memory[:, ::2], "b": memory[:, 1::2]})
    memory.zero_()
    overlaps(
        {"a": memory[:, :2], "b": memory[:, 2:5], "c": memory[:, 4:]},
        "shares a part of its memory with 'b'",
        name="c",
    )
    # The same memory with another order of dimensions.
    square = torch.zeros(4, 4)
    overlaps({"a": square, "b": square.t()}, "share")


def test_memory_of_other_libraries_that_overlaps_is_refused(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish({name: numpy.ones(8, numpy.float32) for name in "ab"})
    memory = numpy.zeros(12, numpy.float32)
    into: dict[str, Any] = {"a": memory[:8], "b": memory[4:]}
    with (
        pytest.raises(dc.UsageError, match="share"),
        dc.Subscriber(tmp_path / "chain", into=into) as subscriber,
    ):
        subscriber.prepare(0).apply()
    # One tensor of torch, one of numpy.
    into["b"] = torch.from_numpy(memory)[4:]
    with (
        pytest.raises(dc.UsageError, match="share"),
        dc.Subscriber(tmp_path / "chain", into=into) as subscriber,
    ):
        subscriber.prepare(0).apply()
    assert not memory.any()


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_packed_dtypes_are_divided_between_bytes(dtype: str, tmp_path: Path) -> None:
    draw = random.Random(1)
    first = made(draw, dtype, (6, 8))
    states = [{"w": first}, {"w": changed(draw, first, 0.3)}]
    url = publish(tmp_path / "chain", states, "local")

    def part(rows: slice, columns: slice) -> dc.Part:
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        length = math.prod(shape) * BITS[dtype] // 8
        return dc.Part(dc.Tensor(dtype, shape, bytearray(length)), (rows, columns))

    # Rows, and columns of whole bytes.
    boxes = [(slice(0, 2), slice(0, 8)), (slice(2, 6), slice(0, 4)), (slice(2, 6), slice(4, 8))]
    parts = [part(*box) for box in boxes]
    with dc.Subscriber(url, into={"w": parts}) as subscriber:
        for number, state in enumerate(states):
            subscriber.prepare(number).apply()
            for (rows, columns), own in zip(boxes, parts, strict=True):
                bits = BITS[dtype]
                lanes = state["w"].lanes[rows, columns.start * bits // 8 : columns.stop * bits // 8]
                assert own.tensor.data == lanes.tobytes()
        assert subscriber.proof == "changed_lanes"
        subscriber.check()
    # Part of the boundary is in the middle of a byte.
    parts = [
        dc.Part(dc.Tensor(dtype, (6, 8), bytearray(6 * BITS[dtype])), (slice(0, 6), slice(0, 3)))
    ]
    with dc.Subscriber(url, into={"w": parts}) as subscriber:
        with pytest.raises(
            dc.UnsupportedError, match="a byte would have elements of several parts"
        ) as caught:
            subscriber.prepare(0).apply()
        assert caught.value.tensor == "w"


@pytest.mark.skipif(not HAS_F4, reason="SKIPPED: this torch has no dtype of four bits")
def test_four_bits_of_torch_are_divided_between_bytes(by: str, tmp_path: Path) -> None:
    draw = random.Random(2)
    first = made(draw, "F4", (6, 8))
    states = [{"w": first}, {"w": changed(draw, first, 0.3)}]
    url = publish(tmp_path / "chain", states, "local")

    def memory(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.uint8)

    def given(own: Any) -> Any:
        return own.view(torch_dtype("F4"))

    rows, columns, transposed = memory(2, 4), memory(4, 9), memory(2, 4)
    into = [
        dc.Part(given(rows), slice(0, 2)),
        dc.Part(given(columns[:, 3:5]), (slice(2, 6), slice(0, 4))),
        dc.Part(given(transposed.t()), (slice(2, 6), slice(4, 8))),
    ]
    with dc.Subscriber(url, into={"w": into}) as subscriber:
        for number, state in enumerate(states):
            subscriber.prepare(number).apply()
            lanes = torch.from_numpy(state["w"].lanes[..., 0].copy())
            assert torch.equal(rows, lanes[:2])
            assert torch.equal(columns[:, 3:5], lanes[2:, :2])
            assert torch.equal(transposed.t(), lanes[2:, 2:])
        assert subscriber.proof == "changed_lanes"
        subscriber.check()
        assert not columns[:, :3].any() and not columns[:, 5:].any()
    halves = [dc.Part(given(memory(6, 2)), (slice(None), slice(0, 3)))]
    refused(url, {"w": halves}, dc.UnsupportedError, "a byte would have elements of several parts")
    refused(url, {"w": given(memory(6, 8))}, dc.UsageError, "shape")


@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
def test_six_bits_are_no_dtype_of_torch(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(dc.UsageError, match="torch has no dtype F6"):
        torch_dtype(dtype)
    url = publish(tmp_path / "chain", [{"w": made(random.Random(3), dtype, (4, 4))}], "local")
    refused(
        url,
        {"w": torch.zeros(4, 3, dtype=torch.uint8)},
        dc.UsageError,
        f"the chain has {dtype}, but this memory has U8",
    )


# Parts in one process, and in several.


def test_parts_of_one_process_are_proven_together(by: str, tmp_path: Path) -> None:
    draw = random.Random(3)
    first = made(draw, "BF16", (6, 40))
    states = [{"w": first}]
    for _ in range(3):
        states.append({"w": changed(draw, states[-1]["w"], 0.3)})
    url = publish(tmp_path / "chain", states, "local")
    # The columns in two places, with their rows divided in each; and the first rows a second time.
    boxes = [(slice(0, 2), slice(0, 40)), (slice(2, 6), slice(0, 7)), (slice(2, 6), slice(7, 40))]
    boxes.append(boxes[0])
    forms = [
        of_torch(draw, "BF16", (box[0].stop - box[0].start, box[1].stop - box[1].start), "apart")
        for box in boxes
    ]

    def assert_holds(version: int) -> None:
        for box, form in zip(boxes, forms, strict=True):
            form.assert_holds(states[version]["w"].lanes[box])

    into = {"w": [dc.Part(form.given, box) for box, form in zip(boxes, forms, strict=True)]}
    with dc.Subscriber(url, into=into) as subscriber:
        for version in (0, 1):
            subscriber.prepare(version).apply()
            assert_holds(version)
        assert subscriber.proof == "changed_lanes"
        for form in forms:
            subscriber.prepare(1).apply() if subscriber.version is None else subscriber.check()
            form.flip((1, 3), 0)
            with pytest.raises(dc.StateMismatchError) as caught:
                subscriber.check()
            assert caught.value.tensor == "w"
            form.flip((1, 3), 0)
        # A lane that changes is wrong in one of two copies.
        subscriber.prepare(1).apply()
        differs = (states[1]["w"].lanes != states[2]["w"].lanes).any(-1)[:2]
        forms[3].flip(tuple(map(int, numpy.argwhere(differs)[0])), 5)
        update = subscriber.prepare(2)
        update.apply()
        assert update.fallback_reason == "proof"
        assert_holds(2)
        subscriber.prepare(3).apply()
        assert subscriber.proof == "changed_lanes"
        assert_holds(3)


class Threads:
    """Ranks that follow together, as threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.told: list[bytes] = [b""] * size

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """Runs the work on each thread, and returns the results or exceptions."""
        results: list[Any] = [None] * len(self.told)

        def one(rank: int) -> None:
            try:
                results[rank] = work(Rank(self, rank))
            except Exception as error:
                results[rank] = error

        threads = [
            threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(results))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class Rank:
    """One rank of `Threads`."""

    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank, self.size = threads, rank, len(threads.told)

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        threads = self.threads
        threads.told[self.rank] = message
        threads.barrier.wait()
        told = list(threads.told)
        threads.barrier.wait()
        return told


@pytest.mark.parametrize("seed", range(max(1, DRAWN // 4)))
def test_drawn_divisions_are_proven_together(seed: int, by: str, tmp_path: Path) -> None:
    draw = random.Random(seed)
    size = draw.randint(2, 4)
    first: dict[str, Held] = {}
    for number in range(draw.randint(1, 3)):
        dtype = draw.choice(DTYPES)
        last = draw.randint(1, 6) * 2
        first[f"w{number}"] = made(
            draw, dtype, (draw.randint(1, 12), *draw.choice([(), (3,)]), last)
        )
    states: list[dict[str, Held]] = [first]
    for _ in range(3):
        states.append({name: changed(draw, held, 0.2) for name, held in states[-1].items()})
    url = publish(tmp_path / "chain", states, "local")
    # For each rank, its boxes of each tensor.
    own: list[dict[str, list[tuple[Box, Form]]]] = [{} for _ in range(size)]
    for name, held in first.items():
        how = draw.choice(["all", "one", "boxes", "copies"])
        boxes = [tuple(slice(0, length) for length in held.shape)]
        if how in ("boxes", "copies"):
            boxes = [
                box
                for box in divided(draw, held.dtype, held.shape)
                if all(part.stop > part.start for part in box)
            ]
        boxes = boxes * {"all": size, "copies": 2}.get(how, 1)
        first_rank = draw.randrange(size)
        for at, box in enumerate(boxes):
            part = in_lanes(held.dtype, tuple(one.stop - one.start for one in box))
            form = of_torch(draw, held.dtype, part, draw.choice(["row", "transposed", "apart"]))
            own[(first_rank + at) % size].setdefault(name, []).append((box, form))

    def lanes(held: Held, box: Box) -> Any:
        bits = BITS[held.dtype] if held.dtype in PACKED else 8
        return held.lanes[(*box[:-1], slice(box[-1].start * bits // 8, box[-1].stop * bits // 8))]

    def assert_holds(version: int) -> None:
        for rank in own:
            for name, parts in rank.items():
                for box, form in parts:
                    form.assert_holds(lanes(states[version][name], box))

    threads = Threads(size)
    into = [
        {name: [dc.Part(form.given, box) for box, form in parts] for name, parts in rank.items()}
        for rank in own
    ]
    subscribers: list[Any] = threads.run(
        # Each rank has its own pool, as processes do: threads that wait for other ranks do nothing
        # else.
        lambda rank: dc.Subscriber(url, into=into[rank.rank], group=rank, threads=2 + rank.rank)
    )

    def each(work: Callable[[Any], Any]) -> list[Any]:
        return threads.run(lambda rank: work(subscribers[rank.rank]))

    try:
        for version in (0, 1):
            found = each(lambda subscriber, version=version: subscriber.prepare(version).apply())
            assert found == [None] * size
            assert_holds(version)
        assert [one.proof for one in subscribers] == ["changed_lanes"] * size
        assert not [
            one for one in each(lambda subscriber: subscriber.check()) if isinstance(one, Exception)
        ]
        # All ranks report a flipped bit on any of them.
        _, form = draw.choice([part for rank in own for parts in rank.values() for part in parts])
        place = (0,) * form.given.dim()
        form.flip(place, 0)
        found = each(lambda subscriber: subscriber.check())
        assert {type(one) for one in found} == {dc.StateMismatchError}
        form.flip(place, 0)
        for version in (2, 3):
            found = each(lambda subscriber, version=version: subscriber.prepare(version).apply())
            assert found == [None] * size
            assert_holds(version)
        # Ranks whose own tensors are whole load them, too, because the ranks do not hold one
        # version.
        assert {next(iter(one.fallbacks)) for one in subscribers} <= {"check", "place"}
        assert [sum(one.fallbacks.values()) for one in subscribers] == [1] * size
    finally:
        for one in subscribers:
            one.close()


@pytest.mark.parametrize(
    ("boxes", "text"),
    [
        ([[(slice(0, 4), slice(0, 2))], [(slice(0, 4), slice(3, 4))]], "do not cover the shape"),
        ([[(slice(0, 3), slice(0, 4))], [(slice(2, 4), slice(0, 4))]], "overlap"),
        ([[], []], "no process has this tensor"),
    ],
)
def test_parts_that_are_no_cover_are_refused(
    boxes: list[list[Box]], text: str, square: str, by: str
) -> None:
    threads = Threads(len(boxes))

    def prepare(rank: Rank) -> None:
        own = [torch.zeros([part.stop - part.start for part in box]) for box in boxes[rank.rank]]
        parts = [dc.Part(tensor, box) for tensor, box in zip(own, boxes[rank.rank], strict=True)]
        into = {"w": parts} if parts else {}
        with dc.Subscriber(square, into=into, group=rank, threads=2 + rank.rank) as subscriber:
            subscriber.prepare(0).apply()

    found = threads.run(prepare)
    assert [(type(one), one.tensor) for one in found] == [(dc.UsageError, "w")] * len(boxes), found
    assert all(text in str(one) for one in found)


def test_a_rank_whose_part_does_not_change_takes_part(by: str, tmp_path: Path) -> None:
    """The rank has nothing to read or write, and still exchanges its messages."""
    threads, versions = Threads(2), [torch.ones(4, 4) for _ in range(2)]
    versions[1][3, 1] = 2
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        for one in versions:
            publisher.publish({"w": one})
    tensors = [torch.zeros(2, 4) for _ in range(2)]

    def follow(rank: Rank) -> str | None:
        part = dc.Part(tensors[rank.rank], slice(2 * rank.rank, 2 * rank.rank + 2))
        into, own = {"w": part}, 2 + rank.rank
        with dc.Subscriber(tmp_path / "chain", into=into, group=rank, threads=own) as subscriber:
            for version in (0, 1):
                subscriber.prepare(version).apply()
            return subscriber.proof

    assert threads.run(follow) == ["changed_lanes"] * 2
    assert torch.equal(torch.cat(tensors), versions[1])


# Many small tensors.


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_sums_of_many_are_those_of_each(width: int) -> None:
    for length in (1, 2, 3, 7, 4096, 4097, 8193, 20_001):
        raw = torch.randint(0, 256, (5, length * width), dtype=torch.uint8)
        tensors = list(raw.view(KINDS[width]))
        each = torch.stack([_sums.of_bytes(tensor) for tensor in tensors])
        assert torch.equal(torch.cat(of_many(tensors)), each), length
        assert torch.equal(_sums._of_rows(torch.stack(tensors)), each), length


class Counted(TorchDispatchMode):
    """Counts calls of torch that compute or copy, but not views."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        self.calls += not function.is_view
        return function(*given, **(named or {}))


def test_small_tensors_are_summed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device, each call takes longer than the computation."""
    monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
    count = 300
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish({str(name): torch.randn(1000).bfloat16() for name in range(count)})
    into = {str(name): torch.zeros(1000).bfloat16() for name in range(count)}
    with dc.Subscriber(tmp_path / "chain", into=into) as subscriber:
        subscriber.prepare().apply()
        with Counted() as counted:
            subscriber.check()
        # A few calls for each tensor would be thousands.
        assert counted.calls < 100
        into["7"][3] += 1
        with pytest.raises(dc.StateMismatchError) as raised:
            subscriber.check()
        assert raised.value.tensor == "7" and "prepare again" in raised.value.advice
