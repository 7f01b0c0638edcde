"""Valid links: pieces of large tensors, and how segments share them (SPEC sections 2.3, 6 and 7). Large states are
given by rule."""
from .builder import ABSOLUTE, DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .frames import compressed, frame
from .links import valid
from .model import EMPTY, PIECE, RuleState, State, Tensor, described, tensor
from .registry import makes_vectors

LANE_BYTES = {"U8": 1, "BF16": 2, "U64": 8, "F64": 8}


def by_rule(label, dtype, size, name="t", multiply=7, add=3):
    return RuleState(label, [{"name": name, "dtype": dtype, "shape": [size // LANE_BYTES[dtype]], "multiply": multiply,
                              "add": add, "modulus": 251}])


def with_lanes(state, label, changes, name="t"):
    """Returns the state with some bytes replaced: {offset: bytes}."""
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
    yield valid("segment-2-full-pieces-apart", link(EMPTY, zeros, *(Plan(pieces=[("t", piece)]) for piece in (0, 1))), "6.2",
                "two full pieces in segments of their own", ["R-IDX-19"])
    equal = State("one-piece-equal", {"t": Tensor(tensor("U64", b"").dtype, (2**21,), bytes(range(8)) * 2**21)})
    file = link(EMPTY, equal, Plan(DENSE, coded=[]))
    for number in range(8):
        file.segments[0].compress(f"plane {number}", frame)
    yield valid("dense-full-piece", file, "8.2", "two million dense lanes in a file of a few hundred bytes")


@makes_vectors
def piece_digests():
    """Tensors around the lengths at which their digest becomes that of piece digests."""
    for id, size, reason in (("0", 0, "an empty tensor: no piece, but a digest"), ("1", PIECE, "exactly one piece"),
                             ("2", PIECE + 8, "two pieces, the second of one lane"),
                             ("2-full", 2 * PIECE, "two full pieces"), ("3", 2 * PIECE + 24, "three pieces")):
        base = by_rule(f"digests-{id}-base", "U64", size)
        new = RuleState(f"digests-{id}-target", [dict(base.rules[0], shape=[1, size // 8])])
        yield valid(f"digests-{id}", link(base, new), "3", f"{reason}; only the shape changes", ["R-APP-04", "R-APP-05"])
    zeros = {f"{i}": Tensor(tensor("U8", b"").dtype, (length,), bytes(length)) for i, length in enumerate(
        (0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 1))}
    rules = [{"name": name, "dtype": "U8", "shape": list(item.shape), "multiply": 0, "add": 0, "modulus": 251}
             for name, item in zeros.items()]
    yield valid("digests-of-zeros", link(EMPTY, RuleState("digests-of-zeros", rules)), "3",
                "set tensors of zeros around the ends of pieces", ["R-APP-04"])


@makes_vectors
def piece_order():
    base = by_rule("three-pieces", "U64", 2 * PIECE + 80)
    target = with_lanes(base, "three-pieces-target", {8: b"\xff" * 8, 2 * PIECE + 72: b"\xff" * 8})
    one, two = Plan(SPARSE, SMALL, [("t", 2)]), Plan(SPARSE, PLANES, [("t", 0)], (5,))
    yield valid("pieces-reversed-segments", link(base, target, one, two), "6.2",
                "the last piece in the first segment, the first in the second, of another coding, the middle one in none",
                ["R-IDX-19"])
    yield valid("pieces-one-segment", link(base, target, Plan(SPARSE, SMALL, [("t", 0), ("t", 2)], (9,))), "6.2",
                "two pieces of a tensor in one segment, the one between them in none")
    two = with_lanes(base, "three-pieces-first-two", {0: b"\xfe" * 8, PIECE: b"\xfd" * 8})
    yield valid("pieces-two-segments", link(base, two, Plan(SPARSE, SMALL, [("t", 0)]), Plan(SPARSE, SMALL, [("t", 1)])),
                "6.2", "the first two of three pieces in segments of their own", ["R-IDX-19"])
    # A segment with the end of one tensor and all of the others.
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
            ("interleaved", [Plan(positions, values, pieces[i::5]) for i, (positions, values) in zip((3, 0, 4, 1, 2), (
                (SPARSE, PLANES), (SPARSE, SMALL), (DENSE, PLANES), (SPARSE, ABSOLUTE), (DENSE, ABSOLUTE)))],
             "five segments of all codings, whose tensors are interleaved"),
            ("mixed-codings", [Plan(SPARSE, SMALL, pieces[0::4]), Plan(DENSE, PLANES, pieces[1::4]),
                               Plan(SPARSE, ABSOLUTE, pieces[2::4]), Plan(DENSE, ABSOLUTE, pieces[3::4])],
             "four codings in one link")):
        file = link(base, target, *plans)
        file.index_stored = compressed
        yield valid(f"tensors-200-{id}", file, "6.2", reason, ["R-IDX-12"])


@makes_vectors
def segment_order():
    """Orders that R-IDX-19 leaves free, and orders that it just allows."""
    def states(dtypes):
        bases = {name: tensor(dtype, [1, 2]) for name, dtype in dtypes.items()}
        return [State("unused", bases), State("unused", {
            name: tensor(item.dtype, [3 + number, 2]) for number, (name, item) in enumerate(bases.items())})]

    def made(id, dtypes, groups, reason, base_file=True, **values):
        """`groups`: names of the tensors of each segment; a value selects other values than absolute ones."""
        base, target = states(dtypes)
        if base_file:
            base.label, target.label = f"{id}-base", f"{id}-target"
        plans = [Plan(SPARSE, values.get(group, ABSOLUTE), [(name, 0) for name in group]) for group in groups]
        return valid(id, link(base, target, *plans), "6.2", reason, ["R-IDX-19"], apply=base_file)

    four = dict.fromkeys("abcd", "U8")
    yield made("order-dtypes", {"a": "U8", "b": "I8", "c": "U8", "d": "I8"}, ["bd", "ac"],
               "one coding and one width of lanes, two dtypes: the first segment has the second dtype")
    yield made("order-u8-i8-together", {"a": "U8", "b": "I8", "c": "U8", "d": "BOOL"}, ["ab", "cd"],
               "two dtypes share segments, each in order")
    yield made("order-codings", four, ["bd", "ac"], "one dtype, two codings: the first segment has the second tensor",
               bd=SMALL)
    yield made("order-shared", four, ["ab", "cd"], "one dtype and one coding: the first two, then the last two")
    fresh = State("order-set", {name: tensor("U8", b"x") for name in "abcd"})
    yield valid("order-set", link(EMPTY, fresh, *(Plan(pieces=[(name, 0) for name in pair]) for pair in ("ab", "cd"))),
                "6.2", "four tensors that are set, in order", ["R-IDX-19"])
    yield made("order-apart", dict.fromkeys("abcde", "U8"), ["a", "bcde"], "one tensor, then four")
    one, two = described("X", 8, 1), described("X", 8, 1, True, 3)
    yield made("order-described-two", {"a": one, "b": two, "c": one, "d": two}, ["bd", "ac"],
               "two described dtypes of one name: the first segment has the second dtype", base_file=False)
    yield made("order-described", dict.fromkeys("abcd", two), ["ab", "cd"], "one described dtype, in order",
               base_file=False)
