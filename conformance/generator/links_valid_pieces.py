"""Valid links: pieces of large tensors, and how segments share them (SPEC sections 2.3, 6 and 7). Large states are
given by rule."""
from .builder import ABSOLUTE, DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .frames import compressed, frame
from .links import valid
from .model import EMPTY, PIECE, RuleState, State, Tensor, tensor
from .registry import makes_vectors

LANE_BYTES = {"U8": 1, "BF16": 2, "U64": 8, "F64": 8}


def by_rule(label, dtype, size, name="t", multiply=7, add=3):
    return RuleState(label, [{"name": name, "dtype": dtype, "shape": [size // LANE_BYTES[dtype]], "multiply": multiply,
                              "add": add, "modulus": 251}])


def with_lanes(state, label, changes, name="t"):
    """The state with some bytes replaced: {offset: bytes}."""
    old = state.tensors[name]
    data = bytearray(old.data)
    for offset, new in changes.items():
        data[offset:offset + len(new)] = new
    return state.changed(label, **{name: Tensor(old.dtype, old.shape, bytes(data))})


@makes_vectors
def piece_lengths():
    for dtype in ("U8", "U64"):
        width = LANE_BYTES[dtype]
        for id, size in (("below", PIECE - width), ("at", PIECE), ("above", PIECE + width)):
            base = by_rule(f"piece-{id}-{dtype.lower()}", dtype, size)
            target = with_lanes(base, f"piece-{id}-{dtype.lower()}-target",
                                {0: b"\xfd" * width, size - width: b"\xfe" * width})
            yield valid(f"piece-{id}-{dtype.lower()}", link(base, target, Plan(parameters=(16,))), "2.3",
                        f"a tensor of {size} bytes, the first and last lane of which change")


@makes_vectors
def large_sets():
    zeros = State("zeros-and-ends", {"t": Tensor(tensor("F64", b"").dtype, (2**22,), b"\1" * 8 + bytes(2 * PIECE - 16)
                                                 + b"\2" * 8)})
    yield valid("segment-2-full-pieces", link(EMPTY, zeros, Plan(SPARSE, ABSOLUTE, [("t", 0), ("t", 1)])), "13",
                "the most bytes of pieces that a segment may have", ["R-LIM-02"])
    equal = State("one-piece-equal", {"t": Tensor(tensor("U64", b"").dtype, (2**21,), bytes(range(8)) * 2**21)})
    file = link(EMPTY, equal, Plan(DENSE, coded=[]))
    for number in range(8):
        file.segments[0].compress(f"plane {number}", frame)
    yield valid("dense-full-piece", file, "8.2", "two million dense lanes in a file of a few hundred bytes")


@makes_vectors
def piece_order():
    base = by_rule("three-pieces", "U64", 2 * PIECE + 80)
    target = with_lanes(base, "three-pieces-target", {8: b"\xff" * 8, 2 * PIECE + 72: b"\xff" * 8})
    one, two = Plan(SPARSE, SMALL, [("t", 2)]), Plan(SPARSE, PLANES, [("t", 0)], (5,))
    yield valid("pieces-reversed-segments", link(base, target, one, two), "6.2",
                "the last piece in the first segment, the first in the second, the middle one in none")
    yield valid("pieces-one-segment", link(base, target, Plan(SPARSE, SMALL, [("t", 0), ("t", 2)], (9,))), "6.2",
                "two pieces of a tensor in one segment, the one between them in none")
    # A segment with the end of one tensor and all of others.
    small = {name: tensor("U64", [5, 6]) for name in ("a", "s", "u")}
    mixed = RuleState("pieces-and-small", base.rules + [
        {"name": name, "dtype": "U64", "shape": [2], "multiply": 0, "add": 5, "modulus": 256} for name in small])
    ends = with_lanes(mixed, "pieces-and-small-target", {2 * PIECE: b"\xfe" * 8})
    ends = ends.changed("pieces-and-small-target", **small)
    plan = Plan(SPARSE, ABSOLUTE, [("a", 0), ("s", 0), ("t", 2), ("u", 0)])
    yield valid("pieces-and-small-tensors", link(mixed, ends, plan), "6.2",
                "parts are in the order of entries, then of pieces")


@makes_vectors
def many_segments():
    names = [f"{i:03}" for i in range(200)]
    base = State("tensors-200-base", {name: tensor("BF16", [i, 2 * i]) for i, name in enumerate(names)})
    target = State("tensors-200-target", {name: tensor("BF16", [i + 1 + i % 2, 2 * i]) for i, name in enumerate(names)})
    pieces = [(name, 0) for name in names]
    for id, plans, reason in (
            ("one-segment", [Plan(SPARSE, SMALL, pieces)], "200 tensors in one segment"),
            ("own-segments", [Plan(SPARSE, SMALL, [piece]) for piece in pieces], "a segment for each of 200 tensors"),
            ("reversed-segments", [Plan(SPARSE, SMALL, [piece]) for piece in reversed(pieces)],
             "segments in the opposite order of the tensors"),
            ("interleaved", [Plan(SPARSE, PLANES, pieces[i::7]) for i in (3, 6, 0, 5, 1, 4, 2)],
             "seven segments whose tensors are interleaved"),
            ("mixed-codings", [Plan(SPARSE, SMALL, pieces[0::4]), Plan(DENSE, PLANES, pieces[1::4]),
                               Plan(SPARSE, ABSOLUTE, pieces[2::4]), Plan(DENSE, ABSOLUTE, pieces[3::4])],
             "four codings in one link")):
        file = link(base, target, *plans)
        file.index_stored = compressed
        yield valid(f"tensors-200-{id}", file, "6.2", reason, ["R-IDX-12"])
