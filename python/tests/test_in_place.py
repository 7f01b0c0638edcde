"""Tensors of torch that are patched where they are: lanes are proven before any is written, and can go back."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

import plans  # noqa: E402
from conftest import as_bytes  # noqa: E402

import deltachain as dc  # noqa: E402
from deltachain import _in_place, _sums  # noqa: E402
from deltachain._in_place import Memory, check, prove  # noqa: E402
from deltachain._parts import bound, covers, parts_of, ties  # noqa: E402
from deltachain._tensors import torch_dtype  # noqa: E402

DTYPES = ["BOOL", "U8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16", "BF16", "U32", "F32", "C64", "F64", "I64"]

# Rows of a few units and pieces of a few lanes would hide nothing: the sums are compared with those of the real size.
PIECE = 256


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_in_place, "PIECE_BYTES", PIECE)


def tensor_of(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    if not data:
        return torch.zeros(shape, dtype=torch_dtype(dtype))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(torch_dtype(dtype)).reshape(shape)


def tensors_of(state: plans.State) -> dict[str, Any]:
    return {name: tensor_of(*one) for name, one in state.items()}


def memory_of(tensors: dict[str, Any], state: plans.State) -> Memory:
    parts = bound(infos_of(state), list(parts_of(tensors, False)), False)
    return Memory(parts, tied=ties(parts))


def infos_of(state: plans.State) -> list[Any]:
    return [(name, dtype, list(shape)) for name, (dtype, shape, _) in state.items()]


def assert_holds(tensors: dict[str, Any], state: plans.State) -> None:
    assert {name: as_bytes(tensor) for name, tensor in tensors.items()} == {
        name: data for name, (_, _, data) in state.items()
    }


def drawn(draw: random.Random, links: int) -> list[plans.State]:
    first: dict[str, Any] = {}
    for number in range(draw.randint(1, 3)):
        dtype = draw.choice(DTYPES)
        shape = draw.choice([(), (0, 3), (1,), (draw.randint(1, 300),), (draw.randint(1, 30), draw.randint(1, 9), 2)])
        count = torch.Size(shape).numel()
        first[f"w{number}"] = (dtype, shape, draw.randbytes(count * plans.width_of(dtype)))
    states: list[plans.State] = [first]
    for _ in range(links):
        states.append(plans.changed(states[-1], draw.choice([0.0, 0.02, 0.3]), draw))
    return states


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_sums_are_those_of_the_specification(width: int) -> None:
    examples = {
        (0, b"\1"): [1403049672, 939181040],
        (0, b"\0\1"): [550946983, 2059661423],
        (0, b"\x80\x3f"): [1699136892, 865739717],
        (8192, b"\x80\x3f"): [2010498579, 1697666059],
        (16777215, b"\xff"): [2120037275, 1049725627],
    }
    for (begin, data), expected in examples.items():
        assert list(plans.sums(begin, data)) == expected
        lanes = (begin + len(data)) % width
        if begin % width == 0 and lanes == 0:
            found = torch.frombuffer(bytearray(data), dtype=torch.int8)
            for of_bytes in (_sums.of_bytes, _sums._of_bytes):
                assert of_bytes(_sums.as_lanes(found, width), begin // width).tolist() == expected
    draw = random.Random(width)
    for begin, count in itertools.product([0, 1, 8192 // width - 1, 8192 // width], [0, 1, 9, 20000 // width]):
        data = draw.randbytes(count * width)
        lanes = _sums.as_lanes(torch.frombuffer(bytearray(data or b"\0" * width), dtype=torch.uint8), width)[:count]
        expected = list(plans.sums(begin * width, data))
        for of_bytes in (_sums.of_bytes, _sums._of_bytes):
            assert of_bytes(lanes, begin).tolist() == expected
        numbers = torch.arange(begin, begin + count, dtype=torch.int32)
        cuts = sorted([0, count // 3, count // 3, count])
        found = _sums.of_lanes(numbers, cuts, lanes, lanes)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], _sums._of_lanes(numbers, cuts, lanes)[0])
        for (first, end), own in zip(itertools.pairwise([0, *cuts]), found[0].tolist(), strict=True):
            assert own == list(plans.sums((begin + first) * width, data[first * width : end * width]))


def test_rows_that_are_taken_at_once_add_up() -> None:
    lanes = torch.randint(-(1 << 15), 1 << 15, (3 * _sums.AT_ONCE + 17,), dtype=torch.int16)
    begin = 4096 * 5 + 100
    numbers = torch.arange(begin, begin + lanes.numel())
    (found,) = _sums.of_lanes(numbers, [lanes.numel()], lanes)
    assert torch.equal(_sums.of_bytes(lanes, begin), found[0])
    assert torch.equal(_sums._of_bytes(lanes, begin), found[0])
    assert torch.equal(_sums._of_lanes(numbers, [lanes.numel()], lanes)[0], found)
    # In any order.
    order = torch.randperm(lanes.numel())
    assert torch.equal(_sums.of_lanes(numbers[order], [lanes.numel()], lanes[order])[0], found)
    # The largest units.
    lanes.fill_(-1)
    (found,) = _sums.of_lanes(numbers, [lanes.numel()], lanes)
    assert torch.equal(_sums.of_bytes(lanes, begin), found[0])
    assert torch.equal(_sums._of_bytes(lanes, begin), found[0])


@pytest.mark.parametrize("seed", range(150))
def test_drawn_links_are_proven_written_and_undone(seed: int) -> None:
    draw = random.Random(seed)
    states = drawn(draw, draw.randint(1, 4))
    tensors = tensors_of(states[0])
    memory = memory_of(tensors, states[0])
    changes = prove(memory, plans.plans(states, PIECE, draw))
    assert_holds(tensors, states[0])
    changes.switch()
    assert_holds(tensors, states[-1])
    check(memory, plans.table(states[-1], PIECE))
    changes.undo()
    assert_holds(tensors, states[0])
    check(memory, plans.table(states[0], PIECE))


@pytest.mark.parametrize("dtype", ["U8", "F8_E4M3", "BF16", "F32", "F64"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_every_bit_of_a_coded_lane_is_proven(dtype: str, is_relative: bool) -> None:
    draw = random.Random(dtype)
    width = plans.width_of(dtype)
    first: plans.State = {"w": (dtype, (16,), draw.randbytes(16 * width))}
    lanes = plans.cut(first["w"][2], width)
    lanes[::3] = [draw.randbytes(width) for _ in lanes[::3]]
    states = [first, {"w": (dtype, (16,), b"".join(lanes))}]
    (piece,) = plans.plans(states, 1 << 20, draw)
    while piece.steps[0].is_relative != is_relative:
        (piece,) = plans.plans(states, 1 << 20, draw)
    tensors = tensors_of(first)
    memory = memory_of(tensors, first)
    raw = tensors["w"].view(torch.uint8)
    union = memoryview(piece.lanes.writable()).cast("i") if piece.lanes else range(16)
    places = piece.steps[0].places
    coded = {union[place] for place in memoryview(places.writable()).cast("i")} if places else set(union)
    prove(memory, [piece])
    rule = "R-SUM-03" if is_relative else "R-SUM-04"
    for byte, bit in itertools.product(range(16 * width), range(8)):
        raw[byte] ^= 1 << bit
        if byte // width in coded:
            with pytest.raises(dc.StateMismatchError) as caught:
                prove(memory, [piece])
            assert caught.value.rule == rule
        else:
            # Not proven, and said so: the check of all memory finds it.
            prove(memory, [piece])
        with pytest.raises(dc.StateMismatchError):
            check(memory, plans.table(first, PIECE))
        raw[byte] ^= 1 << bit
    assert_holds(tensors, first)


def test_links_of_one_pass_are_compared_one_by_one() -> None:
    """Two links whose errors cancel each other: the second undoes the first, from another base."""
    first: plans.State = {"w": ("BF16", (4,), bytes(range(8)))}
    second: plans.State = {"w": ("BF16", (4,), b"\x01" + bytes(range(1, 8)))}
    draw = random.Random(1)
    piece = next(
        one
        for one in (plans.plans([first, second, first], PIECE, draw)[0] for _ in itertools.count())
        if all(step.is_relative for step in one.steps)
    )
    tensors = tensors_of(first)
    tensors["w"].view(torch.uint8)[0] = 7
    with pytest.raises(dc.StateMismatchError, match="link 0"):
        prove(memory_of(tensors, first), [piece])


def test_a_write_between_proof_and_switch_is_found() -> None:
    draw = random.Random(5)
    first: plans.State = {name: ("BF16", (64,), draw.randbytes(128)) for name in ("a", "b")}
    states = [first, {name: (dtype, shape, bytes(data[::-1])) for name, (dtype, shape, data) in first.items()}]
    tensors = tensors_of(first)
    memory = memory_of(tensors, first)
    changes = prove(memory, plans.plans(states, PIECE, draw))
    tensors["b"].view(torch.int16)[3] ^= 1
    with pytest.raises(dc.StateMismatchError, match="other code has written") as caught:
        changes.switch()
    assert caught.value.tensor == "b"
    tensors["b"].view(torch.int16)[3] ^= 1
    assert_holds(tensors, first)


def placed(draw: random.Random, tensor: Any) -> Any:
    """A copy of a tensor, in a row or not."""
    how = draw.choice(["row", "transposed", "columns", "every second"])
    if how == "row" or tensor.dim() < 2:
        return tensor.contiguous().clone()
    if how == "transposed":
        return tensor.transpose(0, 1).contiguous().clone().transpose(0, 1)
    rows, columns, *rest = tensor.shape
    wide = torch.zeros((rows, 2 * columns + 3, *rest), dtype=tensor.dtype)
    own = wide[:, 2 : 2 + columns] if how == "columns" else wide[:, 1 : 1 + 2 * columns : 2]
    return own.copy_(tensor)


def divided(draw: random.Random, state: plans.State, ranks: int) -> list[dict[str, Any]]:
    """Divides each tensor by rows, by columns, by both, or gives it to all or some ranks."""
    given: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for name, (dtype, shape, data) in state.items():
        whole = tensor_of(dtype, shape, data)
        how = draw.choice(["all", "one", "rows", "columns", "blocks", "copies"])
        if how == "all" or len(shape) < 2:
            for own in given:
                own[name] = placed(draw, whole)
        elif how == "one":
            draw.choice(given)[name] = placed(draw, whole)
        else:
            rows, columns = whole.shape[:2]
            middle = (draw.randint(0, rows), draw.randint(0, columns))
            down, across = (
                [slice(0, middle[0]), slice(middle[0], rows)],
                [slice(0, middle[1]), slice(middle[1], columns)],
            )
            boxes = {
                "rows": [(part,) for part in down],
                "columns": [(slice(None), part) for part in across],
                "blocks": list(itertools.product(down, across)),
                "copies": [(part,) for part in down] + [(part,) for part in down],
            }[how]
            for at, box in enumerate(boxes):
                own = given[at % ranks]
                own.setdefault(name, []).append(dc.Part(placed(draw, whole[box]), box))
    return given


class Threads:
    """Processes that add up their sums, as threads."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.told: list[Any] = [None] * ranks

    def add(self, rank: int) -> Any:
        def add(sums: Any, error: Exception | None) -> Any:
            self.told[rank] = (sums, error)
            self.barrier.wait()
            told = list(self.told)
            self.barrier.wait()
            errors = [error for _, error in told if error is not None]
            if errors:
                raise error or errors[0]
            return sum(sums for sums, _ in told)

        return add

    def run(self, work: Any) -> list[Any]:
        results: list[Any] = [None] * len(self.told)

        def one(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def memories(given: list[dict[str, Any]], state: plans.State, threads: Threads) -> list[Memory]:
    parts = [bound(infos_of(state), list(parts_of(into, True)), True) for into in given]
    made = [Memory(own, {}, {}, {}, threads.add(rank)) for rank, own in enumerate(parts)]
    boxes = [{name: [part.part for part in held] for name, held in own.items()} for own in parts]
    for rank, memory in enumerate(made):
        memory.divide(infos_of(state), rank, boxes)
    return made


def assert_parts(given: list[dict[str, Any]], state: plans.State) -> None:
    for own in given:
        for name, parts in own.items():
            whole = tensor_of(*state[name])
            for part in parts if isinstance(parts, list) else [dc.Part(parts)]:
                assert as_bytes(part.tensor) == as_bytes(whole[part.index].contiguous())


@pytest.mark.parametrize("seed", range(60))
def test_drawn_divisions_are_proven_together(seed: int) -> None:
    draw = random.Random(seed)
    ranks = draw.randint(1, 4)
    first: dict[str, Any] = {}
    for number in range(draw.randint(1, 3)):
        # torch copies of a bool that is neither 0 nor 1 only that it is true.
        dtype = draw.choice(DTYPES[1:])
        shape = (draw.randint(1, 12), draw.randint(1, 12), *draw.choice([(), (3,)]))
        first[f"w{number}"] = (dtype, shape, draw.randbytes(torch.Size(shape).numel() * plans.width_of(dtype)))
    states: list[plans.State] = [first]
    for _ in range(draw.randint(1, 3)):
        states.append(plans.changed(states[-1], 0.2, draw))
    given = divided(draw, first, ranks)
    threads = Threads(ranks)
    own = memories(given, first, threads)
    pieces = plans.plans(states, PIECE, draw)
    made = threads.run(lambda rank: prove(own[rank], pieces))
    assert not [one for one in made if isinstance(one, Exception)]
    for changes in made:
        changes.switch()
    assert_parts(given, states[-1])
    assert threads.run(lambda rank: check(own[rank], plans.table(states[-1], PIECE))) == [None] * ranks
    for changes in made:
        changes.undo()
    assert_parts(given, first)
    # A bit anywhere is found by all ranks.
    holders = [part for memory in own for parts in memory.held.values() for part in parts if part.lanes.numel()]
    part = draw.choice(holders)
    rank = draw.randrange(part.count)
    number, lane = part.stretch(rank, rank + 1)
    assert part.below(int(number)) == rank
    which, place = part.find(number)
    assert which.tolist() == [0] and torch.equal(part.lanes[place], lane)
    part.lanes[place] ^= 1
    found = threads.run(lambda rank: check(own[rank], plans.table(first, PIECE)))
    assert {type(one) for one in found} == {dc.StateMismatchError}


def test_parts_of_one_process_are_proven_together() -> None:
    draw = random.Random(3)
    state: plans.State = {"w": ("BF16", (6, 40), draw.randbytes(480))}
    states = [state, plans.changed(state, 0.3, draw)]
    whole = tensor_of(*state["w"])
    # The columns in two places, rows of them in each; and the first rows once more.
    boxes = [(slice(0, 2), slice(None)), (slice(2, 6), slice(0, 7)), (slice(2, 6), slice(7, 40)), (slice(0, 2),)]
    into = {"w": [dc.Part(placed(draw, whole[box]), box) for box in boxes]}
    parts = bound(infos_of(state), list(parts_of(into, False)), False)
    memory = Memory(parts)
    memory.divide(infos_of(state), 0, [{"w": [part.part for part in parts["w"]]}])
    changes = prove(memory, plans.plans(states, PIECE, draw))
    changes.switch()
    assert_parts([into], states[1])
    check(memory, plans.table(states[1], PIECE))
    for part in into["w"]:
        part.tensor.view(torch.int16)[1, 3] ^= 1
        with pytest.raises(dc.StateMismatchError):
            check(memory, plans.table(states[1], PIECE))
        part.tensor.view(torch.int16)[1, 3] ^= 1


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([[((0, 4), (0, 2))], [((0, 4), (3, 4))]], "are not all"),
        ([[((0, 3), (0, 4))], [((2, 4), (0, 4))]], "overlap"),
        ([[], []], "no process"),
    ],
)
def test_parts_that_are_no_cover_are_refused(parts: Any, text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        covers(("w", "F32", [4, 4]), parts)
    assert caught.value.tensor == "w"


@pytest.mark.parametrize(
    ("into", "text"),
    [
        ({"w": torch.zeros(4).expand(4, 4)}, "share their memory"),
        ({"w": torch.zeros(4, 4).to_sparse()}, "sparse"),
        ({"w": torch.zeros(4, device="meta")}, "no data"),
        ({"w": torch.zeros(4, dtype=torch.complex128)}, "unknown dtype"),
        ({"w": bytearray(4)}, "not a tensor of torch"),
    ],
)
def test_what_cannot_be_patched_is_refused_by_name(into: Any, text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        list(parts_of(into, False))
    assert caught.value.tensor == "w"


def test_memory_that_overlaps_partly_is_refused() -> None:
    memory = torch.zeros(8)
    list(parts_of({"a": memory, "b": memory}, False))
    with pytest.raises(dc.UsageError, match="shares a part of its memory"):
        list(parts_of({"a": memory[:5], "b": memory[4:]}, False))
    with pytest.raises(dc.UsageError, match="shares a part of its memory"):
        list(parts_of({"a": memory, "b": memory[:4]}, False))
    # Columns lie between each other, and share nothing.
    memory = torch.zeros(4, 9)
    list(parts_of({"a": memory[:, :3], "b": memory[:, 3:], "c": memory[:, :3]}, False))
    list(parts_of({"a": memory[:, ::2], "b": memory[:, 1::2]}, False))
    with pytest.raises(dc.UsageError, match="shares a part of its memory with 'b'") as caught:
        list(parts_of({"a": memory[:, :2], "b": memory[:, 2:5], "c": memory[:, 4:]}, False))
    assert caught.value.tensor == "c"
    with pytest.raises(dc.UsageError, match="shares a part of its memory"):
        list(parts_of({"a": memory[:2, :2], "b": memory.view(torch.int16)[:, 2:5]}, False))
