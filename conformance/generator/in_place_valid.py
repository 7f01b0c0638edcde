"""Links that can be applied in place (SPEC section 24.5 and 24.6)."""
from .builder import ABSOLUTE, BITMAP, DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .frames import compressed
from .links_extension import AREA, record
from .links_valid_codings import special_lanes
from .links_valid_pieces import by_rule, with_lanes
from .links_valid_structure import ONE, ONE_CHANGED
from .model import DTYPES, EMPTY, PIECE, State, tensor
from .registry import makes_vectors, makes_vectors_since
from .sums import KIND, UNSUPPORTED, data_of, vector, with_area, with_sums

# Every coding of local parts, by the name of a tensor.
LOCAL = {"absolute": Plan(SPARSE, ABSOLUTE, parameters=(1,)), "bitmap": Plan(SPARSE, SMALL, parameters=(BITMAP,)),
         "dense": Plan(DENSE, ABSOLUTE), "planes": Plan(SPARSE, PLANES), "small": Plan(SPARSE, SMALL, parameters=(2,))}


def good(id, file, reason, section="24.6", **more):
    return vector(f"in-place/{id}", with_sums(file), section, reason, None, **more)


def local(base, target, plans=LOCAL):
    """A link with a segment for each tensor."""
    return link(base, target, *(Plan(plan.positions, plan.values, [(name, 0)], plan.parameters, plan.widths,
                                     coded=plan.coded) for name, plan in plans.items()))


def pair(id, dtype, old, new, names=LOCAL, shape=None):
    """Two states whose tensors all hold these lanes."""
    return (State(f"in-place-{id}-base", {name: tensor(dtype, old, shape) for name in names}),
            State(f"in-place-{id}-target", {name: tensor(dtype, new, shape) for name in names}))


@makes_vectors
def dtypes():
    for name, dtype in DTYPES.items():
        lanes, label = special_lanes(dtype), name.lower().replace("_", "-")
        same = lanes[3:6]
        base, target = pair(label, name, lanes + same, lanes[1:] + lanes[:1] + same)
        yield good(f"dtype-{label}", local(base, target), f"{name}: special lanes become others, by every local coding",
                   "24.5")


@makes_vectors
def places():
    for length in (1, 2, 9, 8193):
        old = bytes(length)
        new = old[:-1] + b"\xfe"
        base, target = pair(f"last-byte-{length}", "U8", old, new, ["t"])
        yield good(f"last-byte-{length}", link(base, target, Plan()), f"the last of {length} bytes changes", "24.2")
    base, target = pair("odd-length", "U8", b"\1\2\3", b"\4\2\3", ["t"])
    yield good("odd-length", link(base, target, Plan()), "three bytes, of which the last one stays", "24.2")
    base, target = pair("halves", "U8", bytes(range(1, 9)), bytes([1, 200, 201, 4, 5, 202, 7, 203]), ["t"])
    yield good("halves", link(base, target, Plan(SPARSE, SMALL)), "bytes of which the neighbour stays", "24.2")
    for dtype, width in (("U8", 1), ("BF16", 2), ("F32", 4), ("F64", 8)):
        row = 8192 // width
        count = 2 * row + 5
        wanted = [row - 1, row, 2 * row - 1, 2 * row, count - 1]
        base = by_zeros(f"in-place-rows-{width}-base", dtype, count)
        new = [lane % 100 + 1 if lane in wanted else 0 for lane in range(count)]
        target = State(f"in-place-rows-{width}-target", {"t": tensor(dtype, new)})
        for id, plan in (("absolute", Plan()), ("small", Plan(SPARSE, SMALL, parameters=(9,), widths=(8,)))):
            yield good(f"rows-{width}-{id}", link(base, target, plan),
                       f"lanes of {width} bytes at the ends of rows of 4096 units", "24.2")
    base = by_zeros("in-place-long-gap-base", "BF16", 5000)
    target = State("in-place-long-gap-target", {"t": tensor("BF16", [2 if lane in (0, 700) else 900 * (lane == 4999)
                                                                      for lane in range(5000)])})
    yield good("escapes", link(base, target, Plan(SPARSE, SMALL, widths=(1,))),
               "gaps and magnitudes that need escapes", "24.5")


def by_zeros(label, dtype, count):
    return State(label, {"t": tensor(dtype, [0] * count)})


@makes_vectors
def large():
    base = by_rule("in-place-pieces-base", "U64", PIECE + 80, multiply=0, add=0)
    both = with_lanes(base, "in-place-pieces-both", {0: b"\1" * 8, PIECE - 8: b"\2" * 8, PIECE: b"\3" * 8,
                                                    PIECE + 72: b"\4" * 8})
    for id, plans in (("one-segment", [Plan(SPARSE, SMALL, parameters=(20,), widths=(8,))]),
                      ("reversed", [Plan(pieces=[("t", 1)]), Plan(SPARSE, PLANES, [("t", 0)], (20,))])):
        yield good(f"pieces-{id}", link(base, both, *plans), "two pieces; a place counts from the beginning of its piece",
                   "24.2")
    second = with_lanes(base, "in-place-pieces-second", {PIECE + 8: b"\xff" * 8})
    yield good("pieces-second-alone", link(base, second, Plan()), "two pieces, the first of which has no part")
    yield good("pieces-none", link(base, base, listed=["t"]), "two pieces without a part", "24.3")


@makes_vectors
def entries():
    base, target = pair("unchanged-lanes", "BF16", [1, 2, 3, 4], [1, 9, 3, 4], ["t"])
    yield good("unchanged-lanes", link(base, target, Plan(coded=[0, 1, 3])), "two of three coded lanes do not change",
               "24.5")
    yield good("no-coded-lanes", link(base, base, Plan(SPARSE, SMALL, [("t", 0)], coded=[]), listed=["t"]),
               "a part without coded lanes: the sums of no bytes", "24.3")
    yield good("unchanged-entry", link(ONE, ONE, listed=["t"]), "a listed tensor without a part", "24.3")
    base, target = pair("to-zero", "F32", [0x3F800000, 7, 0x80000000], [0, 7, 0], ["t"])
    yield good("to-zero", link(base, target, Plan()), "all new values are 0, as are their sums", "24.2")
    yield good("empty-link", link(ONE, ONE), "a link without entries: the record is the binding alone", "24.3")
    base, target = pair("all-lanes", "I16", [1, 2, 3, 4], [5, 6, 7, 8], ["t"], (2, 2))
    yield good("all-lanes", link(base, target, Plan(SPARSE, SMALL)), "sparse positions, and every lane is coded")
    base, target = pair("scalar", "F64", [1], [2**63 + 1], ["t"], ())
    yield good("scalar", link(base, target, Plan(DENSE)), "a tensor of one element, without dimensions")
    base = State("in-place-shapes-base", {"a": tensor("BF16", [1, 2, 3, 4]), "b": tensor("BF16", [5, 6, 7, 8]),
                                          "c": tensor("F32", b"", (0, 3)), "d": tensor("F32", b"", (0,))})
    target = State("in-place-shapes-target", {"a": tensor("BF16", [1, 2, 3, 4], (2, 2)),
                                              "b": tensor("BF16", [5, 6, 9, 8], (4, 1)),
                                              "c": tensor("F32", b"", (3, 0)), "d": tensor("F32", b"", (0,))})
    yield good("shapes", link(base, target, Plan(SPARSE, SMALL, [("b", 0)]), listed=["d"]),
               "tensors get another shape, one with a part, one without, one empty; another empty one is listed", "24.3")
    base = State("in-place-mixed-base", {name: tensor(dtype, [1, 2, 3, 4]) for name, dtype in (
        ("a", "BF16"), ("b", "F32"), ("c", "BF16"), ("d", "BF16"), ("e", "U8"))})
    target = base.changed("in-place-mixed-target", a=tensor("BF16", [1, 9, 3, 4]), b=tensor("F32", [8, 2, 3, 4]),
                          d=tensor("BF16", [1, 2, 3, 7]))
    file = link(base, target, Plan(SPARSE, SMALL, [("d", 0)]), Plan(SPARSE, ABSOLUTE, [("b", 0)]),
                Plan(SPARSE, PLANES, [("a", 0)]))
    yield good("mixed", file, "direct and local parts; the segments are in another order than the tensors; two tensors "
               "are not listed", "24.5")
    file = link(*pair("shared", "BF16", [1, 2, 3], [1, 2, 4], "abc"), Plan(SPARSE, SMALL, [("a", 0), ("b", 0), ("c", 0)]))
    yield good("shared-segment", file, "three parts in one segment")
    file = link(*pair("compressed", "BF16", [1, 2, 3], [1, 2, 4], [f"tensor-{i:02}" for i in range(40)]),
                Plan(SPARSE, SMALL))
    file.index_stored = compressed
    yield good("index-compressed", file, "the binding is over the index as raw", "24.3")
    file = link(ONE, ONE_CHANGED, Plan(), metadata=[("deltachain.in-place", "0"), ("step", "7")])
    yield good("metadata", file, "metadata of a link mean nothing in place", "24.5")
    yield vector("in-place/other-bits", with_area(with_sums(link(ONE, ONE_CHANGED, Plan())), with_sums(
        link(ONE, ONE_CHANGED, Plan())).extension, 2**32 - 1), "24.3", "all compatible bits", None)


@makes_vectors
def other_records():
    """Records of other kinds around the link's own change nothing."""
    def areas(own):
        zero, two, seven = record(0, b"first"), record(2, b"second" * 50), record(7, b"")
        yield "before", zero + own, "a record before it"
        yield "after", own + two, "a record after it"
        yield "around", zero + own + two + seven, "records around it, one of them empty"
        yield "last-kind", own + record(2**32 - 1, b"x"), "the highest kind after it"
        yield "crc-before", record(0, b"first", crc=0) + own, "the CRC of a record before it does not match"
        yield "crc-after", own + record(2, b"second", crc=1), "the CRC of a record after it does not match"
        yield "long-before", record(0, b"x" * 70000) + own, "a record of 70000 bytes before it"

    file = link(ONE, ONE_CHANGED, Plan())
    for id, area, reason in areas(record(KIND, data_of(file))):
        yield vector(f"sums/beside-{id}", with_area(link(ONE, ONE_CHANGED, Plan()), AREA + area), "24.3", reason, None)


STEPS = [State(f"in-place-step-{number}", {"a": tensor("BF16", a), "b": tensor("I32", b), "c": tensor("U8", c)})
         for number, (a, b, c) in enumerate((
             ([0x3F80, 0x4000, 1, 0x8000], [1, 2, 3], b"abc"), ([0x3F81, 0x4000, 2, 0x8000], [1, 2, 3], b"abd"),
             ([0x3F83, 0x4000, 1, 0], [1, 2**31, 3], b"abd"), ([0x3F82, 0xC000, 1, 0], [1, 2**31, 3], b"abc")))]


def step(number, values=SMALL):
    """The link to STEPS[number]: local, or direct."""
    base, target = STEPS[number - 1], STEPS[number]
    changed = [name for name, item in target.tensors.items() if item != base.tensors[name]]
    return link(base, target, *(Plan(SPARSE, values, [(name, 0)], widths=(4,)) for name in changed))


def back():
    return link(STEPS[2], STEPS[1], *(Plan(SPARSE, SMALL, [(name, 0)], widths=(4,)) for name in "ab"))


@makes_vectors
def sequences():
    one, two, three = (good(f"step-{number}", step(number), "a link that is also part of sequences")
                       for number in (1, 2, 3))
    direct = good("step-2-direct", step(2, ABSOLUTE), "a direct link that is also part of sequences")
    again = good("step-back", back(), "a link that is also part of sequences")
    yield from (one, two, three, direct, again)
    for id, first, then, reason in (
            ("2", step(1), [two], "two local links; lanes that both code, and lanes that one does"),
            ("3", step(1), [two, three], "three local links"),
            ("local-direct", step(1), [direct], "a local link, then a direct one"),
            ("direct-local", step(2, ABSOLUTE), [three], "a direct link, then a local one"),
            ("there-and-back", step(2), [again], "there and back again: the memory holds what it held")):
        yield good(f"sequence-{id}", first, reason, then=then)


@makes_vectors
def snapshots():
    """Links from nothing have sums, but none can be applied in place."""
    target = State("in-place-set", {"a": tensor("BF16", [1, 2, 3]), "b": tensor("U8", b"\xfe\xfd\xfc"),
                                    "c": tensor("F32", b"", (0,)), "d": tensor("F32", [0, 0]), "e": tensor("F64", [5])})
    file = link(EMPTY, target, Plan(DENSE, pieces=[("a", 0)]), Plan(SPARSE, pieces=[("b", 0)], coded=[0, 1, 2]),
                Plan(SPARSE, pieces=[("e", 0)]))
    yield vector("sums/snapshot", with_sums(file), "24.3", "sums of tensors that are set; one has no part: it is zeros",
                 UNSUPPORTED)
    zeros = by_rule("in-place-set-pieces", "U64", PIECE + 80, multiply=0, add=0)
    ends = with_lanes(zeros, "in-place-set-pieces-ends", {PIECE - 8: b"\1" * 8})
    yield vector("sums/snapshot-pieces", with_sums(link(EMPTY, ends, Plan())), "24.3",
                 "two pieces of a tensor that is set; the second is zeros", UNSUPPORTED)


@makes_vectors_since("1.2")
def dense():
    """All lanes of a piece are coded, whether they change or not."""
    old = bytes(range(100))
    for id, lanes, reason in (("three", (0, 50, 99), "three of 100 coded lanes change"), ("none", (), "no coded lane changes"),
                              ("all", range(100), "all coded lanes change"), ("first", (0,), "the first lane changes"),
                              ("last", (99,), "the last lane changes")):
        new = bytes(byte + 100 * (lane in lanes) for lane, byte in enumerate(old))
        base, target = State("in-place-dense-base", {"t": tensor("U8", old)}), State(
            f"in-place-dense-{id}-target", {"t": tensor("U8", new)})
        yield good(f"dense-{id}", link(base, target, Plan(DENSE, pieces=[("t", 0)]), listed=["t"]),
                   f"dense positions: {reason}", "24.5")
    names = [f"t{number}" for number in range(5)]
    few = {name: number for number, name in enumerate(names)}
    base = State("in-place-dense-many-base", {name: tensor("U8", old) for name in names})
    target = State("in-place-dense-many-target", {name: tensor("U8", bytes(
        byte + 100 * (lane < few[name]) for lane, byte in enumerate(old))) for name in names})
    yield good("dense-many", link(base, target, Plan(DENSE, pieces=[(name, 0) for name in names[::2]]),
                                  Plan(SPARSE, SMALL, [(name, 0) for name in names[1::2]], widths=(8,)), listed=names),
               "tensors by turns dense and sparse, with 0 to 4 lanes that change", "24.5")
    base = by_rule("in-place-pieces-base", "U64", PIECE + 80, multiply=0, add=0)
    second = with_lanes(base, "in-place-pieces-second", {PIECE + 8: b"\xff" * 8})
    yield good("pieces-second-dense", link(base, second, Plan(DENSE)), "two pieces, of which the second has a dense part",
               "24.5")
