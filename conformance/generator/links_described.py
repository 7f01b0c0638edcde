"""Links with described dtypes (SPEC sections 2.1 and 6.2). A safetensors file cannot hold such a tensor, so it is set,
patched and removed within sequences."""
from .builder import DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .links import copy_of, refused, valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import DTYPES, EMPTY, PIECE, State, Tensor, described, tensor
from .primitives import Raw, varint
from .registry import makes_vectors

FP16X = described("FP16_X", 16, 2, True, 6)
Q128 = described("Q128", 128, 8)
LANES = [0, 0x8000, 0x0200, 0x8200, 0x7C00, 0xFC00, 0x7DFF, 0xFFFF, 1, 0x8001, 0x3E00, 0xBE00]


def snapshot(dtype, data, shape=None, plan=None):
    """A link from nothing to one tensor."""
    plans = [plan or Plan(DENSE)] if any(data) else []
    return link(EMPTY, State("unused", {"t": tensor(dtype, data, shape)}), *plans)


@makes_vectors
def dtypes():
    for id, dtype, data, shape, reason in (
            ("sign-magnitude", FP16X, LANES, None, "sign-magnitude lanes are rotated"),
            ("bits-128", Q128, bytes(range(48)), (3,), "elements of 128 bits in lanes of eight bytes"),
            ("name-of-one", described("Q", 8, 1), b"abc", None, "a name of one letter"),
            ("name-of-32", described("A_" * 16, 8, 1), b"abc", None, "a name of 32 characters"),
            ("name-of-future", described("F16_", 16, 2), b"abcd", None, "a name that is almost one of the table"),
            ("one-bit", described("B1", 1, 1), b"ab", (4, 4), "elements of one bit"),
            ("three-bits", described("I3", 3, 2), b"abcdef", (16,), "elements of three bits in lanes of two bytes"),
            ("24-bits", described("I24", 24, 2), b"abcdef", (2,), "elements of three bytes in lanes of two"),
            ("bits-255", described("I255", 255, 1), bytes(range(255)), (8,), "elements of 255 bits"),
            ("no-exponent", described("S8", 8, 1, True), b"\0\x80\1\x81", None, "sign-magnitude without exponent bits"),
            ("all-exponent", described("E7", 8, 1, True, 7), b"\0\x80\1\x81\xff", None, "no mantissa"),
            ("11-bits", described("E11", 64, 8, True, 11), bytes(range(16)), None, "as many exponent bits as there may be"),
            ("15-bits-of-16", described("E11_2", 16, 2, True, 11), bytes(range(16)), None, "eleven exponent bits of 16"),
            ("lanes-of-4", described("W4", 32, 4), bytes(range(16)), (2, 2), "lanes of four bytes"),
            ("bits-128-scalar", Q128, bytes(range(16)), (), "a scalar of two lanes"),
            ("bits-128-empty", Q128, b"", (0, 2**64 - 1), "no element"), ("nothing", FP16X, b"", (0,), "an empty tensor"),
            ("nothing-of-8-bits", described("E7", 8, 1, True, 7), b"", (0,), "an empty tensor of bytes")):
        yield valid(f"described-{id}", snapshot(dtype, data, shape), "2.1", f"a described dtype: {reason}", ["R-IDX-20"],
                    apply=False)
    yield valid("described-zeros", snapshot(described("I24", 24, 2), bytes(6), (2,)), "2.1",
                "a described dtype whose zeros no segment codes", ["R-IDX-09"], apply=False)
    sparse = Plan(SPARSE, coded=[0, 1, 5, 7])
    data = [lane if number in sparse.coded else 0 for number, lane in enumerate(LANES)]
    yield valid("described-sparse", snapshot(FP16X, data, plan=sparse), "8.2", "sparse values of a described dtype",
                ["R-IDX-20"], apply=False)
    two = State("unused", {"a": tensor(described("X", 8, 1), b"a"), "b": tensor(described("X", 8, 1, True, 3), b"b"),
                           "c": tensor(described("Y", 8, 1), b"c"), "d": tensor("U8", b"d")})
    yield valid("described-side-by-side", link(EMPTY, two, Plan(DENSE)), "6.2",
                "described dtypes that differ in their names or bits, and one of the table, in one segment", apply=False)
    long = Tensor(Q128, (PIECE // 16 + 1,), b"\1" * 16 + bytes(PIECE))
    yield valid("described-bits-128-pieces", link(EMPTY, State("unused", {"t": long}), Plan()), "2.3",
                "two pieces of a described dtype", apply=False)


def with_tensor(state, item):
    return State("unused", state.tensors | {"x": item})


@makes_vectors
def sequences():
    """The tensor is set, patched by all relative codings, and removed; another tensor, which changes with it, is
    left."""
    new = LANES[1:] + LANES[:1]
    for id, dtype, lanes in (("float", FP16X, LANES), ("bits-128", Q128, LANES)):
        plans = [("planes", Plan(SPARSE, PLANES, [("x", 0)], (32, 1), thresholds=[2] if dtype is FP16X else [1])),
                 ("small", Plan(SPARSE, SMALL, [("x", 0)], (2, 32), (4, 8), [31] if dtype is FP16X else [0])),
                 ("dense", Plan(DENSE, PLANES, [("x", 0)], thresholds=[17] if dtype is FP16X else []))]
        before, after = (with_tensor(ONE, tensor(dtype, values)) for values in (lanes, new))
        first = link(ONE, before, Plan(DENSE, pieces=[("x", 0)]))
        yield valid(f"described-{id}-set", first, "2.1", "a described dtype appears", apply=False)
        last = link(after, ONE_CHANGED, Plan())
        yield valid(f"described-{id}-removed", last, "2.1", "a tensor of a described dtype goes, another changes",
                    apply=False)
        for name, plan in plans:
            yield valid(f"described-{id}-{name}", link(before, after, plan), "8.3",
                        "relative values of a described dtype", apply=False)
            following = [f"links/valid/described-{id}-{step}" for step in (name, "removed")]
            yield valid(f"described-{id}-{name}-sequence", first, "2.1",
                        "a described dtype is set, patched and removed", ["R-APP-06"], result=ONE_CHANGED,
                        features=["sequence", *copy_of(f"described-{id}-{name}").features()], then=following)
    before, after = (with_tensor(ONE, tensor(FP16X, LANES, shape)) for shape in ((12,), (3, 4)))
    yield valid("described-reshape", link(before, after), "6.2", "a tensor of a described dtype gets another shape",
                apply=False)
    changed = with_tensor(ONE_CHANGED, tensor(FP16X, LANES))
    yield valid("described-unlisted", link(before, changed, Plan()), "6.2",
                "a tensor of a described dtype is carried over", apply=False)
    yield valid("described-removed-last", link(changed, ONE, Plan()), "6.2",
                "a tensor of a described dtype goes, another changes back", apply=False)
    yield valid("described-carried-over", link(ONE, before, Plan(DENSE, pieces=[("x", 0)])), "6.2",
                "a tensor of a described dtype is set, carried over and removed", result=ONE, features=["sequence"],
                then=["links/valid/described-unlisted", "links/valid/described-removed-last"])


TWIN, WITHOUT_DATA = "described-sign-magnitude", "described-nothing"


def spoiled(id, rule, reason, change, twin=TWIN, section="2.1", **members):
    file = copy_of(twin)
    change(file.entries[0])
    return refused(f"index/described-{id}", file, rule, reason, twin, section, apply=None, patches=True, **members)


def fields(**changes):
    values = dict(name="FP16_X", bits=16, lane_bytes=2, sign_magnitude=True, exponent_bits=6) | changes

    def change(entry):
        entry.dtype = described(**values)
    return change


@makes_vectors
def wrong_descriptions():
    for id, name, reason in (
            ("name-empty", "", "the empty name"), ("name-33", "A" * 33, "33 characters"),
            ("name-1000", "A" * 1000, "1000 characters"),
            ("name-small-letters", "Fp16", "a small letter"), ("name-digit-first", "8FP", "a digit at the beginning"),
            ("name-underscore-first", "_FP8", "an underscore at the beginning"), ("name-hyphen", "FP-8", "a hyphen"),
            ("name-space", "FP8 ", "a space"), ("name-nul", "FP8\0", "U+0000"),
            ("name-beyond-ascii", "FP\u00c9", "a capital letter beyond ASCII"),
            ("name-full-width", "FP\uff18", "a digit beyond ASCII"), ("name-bf16", "BF16", "a name of the table"),
            ("name-bool", "BOOL", "a name of the table"), ("name-f4", "F4", "a name of the table"),
            ("name-f8-e4m3", "F8_E4M3", "a name of the table")):
        yield spoiled(id, "R-IDX-20", reason, fields(name=name), WITHOUT_DATA)
    for id, reason, changes in (
            ("bits-0", "elements without bits", dict(bits=0)), ("lanes-0", "lanes of no bytes", dict(lane_bytes=0)),
            ("lanes-3", "lanes of three bytes", dict(lane_bytes=3)), ("lanes-16", "lanes of 16 bytes", dict(lane_bytes=16)),
            ("lanes-255", "lanes of 255 bytes", dict(lane_bytes=255)),
            ("sign-2", "2 instead of yes or no", dict(sign_magnitude=2)),
            ("sign-255", "255 instead of yes or no", dict(sign_magnitude=255)),
            ("exponent-without-sign", "exponent bits of a dtype that is not sign-magnitude", dict(sign_magnitude=False)),
            ("exponent-one-without-sign", "one exponent bit of a dtype that is not sign-magnitude",
             dict(sign_magnitude=False, exponent_bits=1)),
            ("exponent-12", "twelve exponent bits", dict(exponent_bits=12)),
            ("exponent-255", "255 exponent bits", dict(exponent_bits=255))):
        yield spoiled(id, "R-IDX-20", reason, fields(**changes), WITHOUT_DATA)
    yield spoiled("exponent-8-of-8", "R-IDX-20", "no room for the sign",
                  fields(name="E7", bits=8, lane_bytes=1, exponent_bits=8), "described-nothing-of-8-bits")
    yield spoiled("exponent-12-of-64", "R-IDX-20", "twelve exponent bits of 64",
                  fields(name="E11", bits=64, lane_bytes=8, exponent_bits=12), WITHOUT_DATA)


@makes_vectors
def other_faults():
    def name(content):
        def change(entry):
            entry.dtype = described(Raw(content), 16, 2, True, 6)
        return change

    def shape(*dimensions, segments=()):
        def change(entry):
            entry.shape, entry.segments = dimensions, list(segments)
        return change
    yield spoiled("name-utf-8", "R-INT-04", "a name that is no UTF-8", name(b"\2\xff\xfe"), section="1")
    yield spoiled("name-long-varint", "R-INT-01", "a second byte 00 of the name's length", name(b"\x86\0FP16_X"),
                  section="1")
    yield spoiled("name-65536", "R-LIM-01", "a name longer than any may be", name(varint(65536) + b"A"), section="13",
                  allocation_ceiling=1 << 20)
    for id, elements, reason in (("24-bits", 1, "three bytes, in lanes of two"), ("9-bytes", 3, "nine bytes, in lanes of two")):
        yield spoiled(f"length-{id}", "R-IDX-09", reason, shape(elements, segments=[0]), "described-zeros", "2.2")
    yield spoiled("length-3-bits", "R-IDX-09", "twelve bits", shape(4), "described-three-bits", "2.2")
    yield spoiled("length-3-bytes", "R-IDX-09", "24 bits, in lanes of two bytes", shape(8), "described-three-bits", "2.2")
    yield spoiled("length-1-bit", "R-IDX-09", "seven bits", shape(7), "described-one-bit", "2.2")
    yield spoiled("length-of-255-bits", "R-IDX-09", "255 bits", shape(), "described-bits-255", "2.2")
    yield spoiled("length-half-lane", "R-IDX-09", "four bytes, in lanes of eight",
                  lambda entry: (fields(name="W4", bits=32, lane_bytes=8, sign_magnitude=False, exponent_bits=0)(entry),
                                 shape(1)(entry)), "described-lanes-of-4", "2.2")
    yield spoiled("length-of-128-bits-above-2-60", "R-LIM-01", "2^60 + 16 bytes", shape(2**56 + 1), "described-bits-128",
                  "13", allocation_ceiling=1 << 20)
    yield spoiled("length-of-128-bits-wraps", "R-LIM-01", "2^64 bits, which is 0 in 64 bits", shape(2**57),
                  "described-bits-128", "13", allocation_ceiling=1 << 20)
    yield spoiled("other-lanes", "R-IDX-11", "lanes of four bytes, in a segment with lanes of two",
                  lambda entry: (fields(bits=32, lane_bytes=4)(entry), shape(6, segments=[1])(entry)), section="6.2")
    for length, reason in ((0, "no name"), (3, "half a name"), (7, "no bits"), (8, "no lane bytes"),
                           (9, "no sign-magnitude"), (10, "no exponent bits"), (11, "no number of dimensions")):
        file = copy_of(TWIN)
        raw = file.index_raw()
        file.index = raw[:raw.index(b"\6FP16_X") + length]
        yield refused(f"primitives/described-ends-{length}", file, "R-INT-03", f"the index ends in a description: {reason}",
                      TWIN, "1", apply=None, patches=True)


@makes_vectors
def thresholds():
    file = copy_of("described-float-small")
    _increments, counts = file.segments[0].table.parts[0]
    file.segments[0].table.parts[0] = ([65], counts)
    yield refused("segment/threshold-described", file, "R-SEG-07", "a threshold of 65 with six exponent bits",
                  "described-float-small", "7.1", apply=None)
    file = copy_of("described-bits-128-planes")
    _increments, counts = file.segments[0].table.parts[0]
    file.segments[0].table.parts[0] = ([2], counts)
    yield refused("segment/threshold-described-bits-128", file, "R-SEG-07", "threshold 2 where there are no exponent bits",
                  "described-bits-128-planes", "7.1", apply=None)


@makes_vectors
def in_sequences():
    """The second link does not fit the tensor that the first one sets."""
    first, twin = copy_of("described-float-set"), "described-float-small-sequence"

    def second(id, rule, reason, change):
        """The second link alone cannot be applied: no file can hold its base."""
        file = copy_of("described-float-small")
        change(file)
        alone = valid(f"described-after-{id}", file, "9", f"a patch that does not fit what another link sets: {reason}",
                      apply=False)
        yield alone
        yield refused(f"apply/described-{id}-sequence", first, rule, reason, twin, "9", check=False,
                      features=["sequence", *file.features()], then=[alone.id])

    def dtype(**changes):
        def change(file):
            fields(**changes)(file.entries[0])
            file.header = {"target": file.promised()}
        return change

    def plain(file):
        file.entries[0].dtype = DTYPES["F16"]
        file.header = {"target": file.promised()}

    def target(file):
        file.target = State("unused", file.base.tensors | {"x": tensor("U16", LANES[1:] + LANES[:1])})
    yield from second("other-name", "R-APP-02", "a described dtype of another name", dtype(name="FP16_Y"))
    yield from second("other-bits", "R-APP-02", "a described dtype with other bits, and the same bytes",
                      lambda file: (dtype(bits=32)(file), setattr(file.entries[0], "shape", (6,)),
                                    file.header.update(target=file.promised())))
    yield from second("other-exponent", "R-APP-02", "a described dtype with one exponent bit more", dtype(exponent_bits=7))
    yield from second("not-sign-magnitude", "R-APP-02", "a described dtype that is not sign-magnitude",
                      lambda file: (dtype(sign_magnitude=False, exponent_bits=0)(file),
                                    file.segments[0].table.parts.__setitem__(0, ([1], file.segments[0].table.parts[0][1]))))
    yield from second("of-the-table", "R-APP-02", "a dtype of the table with the same bytes",
                      lambda file: (plain(file),
                                    file.segments[0].table.parts.__setitem__(0, ([31], file.segments[0].table.parts[0][1]))))
    yield from second("target", "R-APP-05", "the target has a dtype of the table", target)
