"""Described dtypes whose elements are blocks of up to 65536 bits (SPEC sections 2.1 and 6.2): the form of the bits, and
that digests include them."""
from .builder import DENSE, SMALL, SPARSE
from .coding import Plan, link
from .links import copy_of, refused, valid
from .links_described import TWIN, WITHOUT_DATA, fields, snapshot, spoiled, with_tensor
from .links_valid_structure import ONE, ONE_CHANGED
from .model import State, described, tensor
from .primitives import Raw, varint
from .registry import makes_vectors


def lanes(dtype, elements):
    """This many elements. No two neighbouring lanes are equal."""
    count = elements * dtype.bits // (8 * dtype.lane_bytes)
    return [(7 * i + 1) % 251 << (8 * dtype.lane_bytes - 8) | i % 5 for i in range(count)]


@makes_vectors
def blocks():
    for bits, width, elements in ((127, 1, 8), (128, 1, 1), (129, 1, 8), (144, 1, 3), (144, 2, 3), (144, 4, 2),
                                  (144, 8, 4),
                                  (272, 1, 2), (272, 2, 1), (272, 4, 2), (272, 8, 4), (1152, 1, 1), (1152, 2, 1),
                                  (1152, 4, 3), (1152, 8, 2), (16383, 1, 8), (16384, 8, 1), (65535, 1, 8),
                                  (65536, 1, 1),
                                  (65536, 2, 1), (65536, 4, 1), (65536, 8, 2)):
        dtype = described(f"Q{bits}", bits, width)
        yield valid(f"described-blocks-{bits}-lanes-{width}", snapshot(dtype, lanes(dtype, elements), (elements,)),
                    "2.1",
                    f"elements of {bits} bits, in lanes of {width} bytes", ["R-IDX-20"], apply=False)
    yield valid("described-blocks-empty", snapshot(described("Q", 65536, 8), b"", (0, 2**64 - 1)), "2.2",
                "no element of 65,536 bits", ["R-IDX-20"], apply=False)


@makes_vectors
def sequences():
    """Set, patched and removed: the intermediate state digests include the number of bits of an element."""
    for bits, width, elements, sign in ((144, 2, 3, 5), (272, 1, 2, 0), (1152, 4, 2, 8), (65536, 8, 1, 11)):
        dtype = described(f"B{bits}", bits, width, sign > 0, sign)
        old = lanes(dtype, elements)
        before, after = (with_tensor(ONE, tensor(dtype, values, (elements,))) for values in (
            old, [lane + (number % 3 == 0) for number, lane in enumerate(old)]))
        first = link(ONE, before, Plan(DENSE, pieces=[("x", 0)]))
        names = [f"links/valid/described-b{bits}-{step}" for step in ("patched", "removed")]
        yield valid(f"described-b{bits}-set", first, "2.1", f"a tensor with elements of {bits} bits appears",
                    apply=False)
        patch = link(before, after, Plan(SPARSE, SMALL, [("x", 0)], (1,), (2,)))
        yield valid(f"described-b{bits}-patched", patch, "2.1", f"a tensor with elements of {bits} bits changes",
                    apply=False)
        yield valid(f"described-b{bits}-removed", link(after, ONE_CHANGED, Plan()), "2.1",
                    f"a tensor with elements of {bits} bits goes, another changes", apply=False)
        yield valid(f"described-b{bits}-sequence", first, "3", f"elements of {bits} bits are set, patched and removed",
                    ["R-APP-05", "R-APP-06"], result=ONE_CHANGED, features=["sequence", *patch.features()], then=names)


@makes_vectors
def wrong_bits():
    def written(content):
        def change(entry):
            entry.dtype = described("FP16_X", Raw(content), 2, True, 6)
        return change
    for id, bits, reason in (("65537", 65537, "one bit more than there may be"), ("2-16-and-16", 65552,
                                                                                  "2^16 + 16 bits"),
                             ("2-32-and-16", 2**32 + 16, "2^32 + 16 bits, which are 16 in 32 bits"),
                             ("2-64", 2**64 - 1, "the greatest varint")):
        yield spoiled(f"bits-{id}", "R-IDX-20", reason, fields(bits=bits), WITHOUT_DATA, allocation_ceiling=1 << 20)
    for id, rule, content, reason in (
            ("long", "R-INT-01", b"\x90\0", "16 bits as a varint of two bytes"),
            ("long-zero", "R-INT-01", b"\x80\0", "0 bits as a varint of two bytes"),
            ("long-three", "R-INT-01", b"\x90\x81\0", "144 bits as a varint of three bytes"),
            ("above-2-64", "R-INT-02", b"\xff" * 9 + b"\2", "more than 2^64 bits")):
        yield spoiled(f"bits-varint-{id}", rule, reason, written(content), WITHOUT_DATA, "1")

    def block(width, elements, bits=144):
        def change(entry):
            entry.dtype, entry.shape, entry.segments = described("Q4_0", bits, width), (elements,), [0]
        return change
    twin = "described-zeros"
    for id, change, reason in (("144-lanes-4", block(4, 1), "18 bytes, in lanes of four"),
                               ("144-lanes-8", block(8, 2), "36 bytes, in lanes of eight"),
                               ("272-lanes-8", block(8, 1, 272), "34 bytes, in lanes of eight"),
                               ("65535-bits", block(1, 4, 65535), "four elements of 65,535 bits are no whole bytes"),
                               ("65528-bits", block(2, 1, 65528), "8,191 bytes, in lanes of two")):
        yield spoiled(f"length-{id}", "R-IDX-09", reason, change, twin, "2.2")
    for id, elements, reason in (("above-2-60", 2**47 + 1, "2^60 bytes and an element"),
                                 ("wraps", 2**48, "2^64 bits, which are 0 in 64 bits"),
                                 ("wraps-bytes", 2**51, "2^64 bytes, which are 0 in 64 bits")):
        def change(entry):
            entry.dtype, entry.shape, entry.segments = described("Q", 65536, 8), (elements,), []
        yield spoiled(f"length-of-65536-bits-{id}", "R-LIM-01", reason, change, "described-blocks-65536-lanes-8", "13",
                      allocation_ceiling=1 << 20)
    twin = "described-blocks-144-lanes-2"
    for length, reason in ((0, "no bits"), (1, "half of the bits"), (2, "no lane bytes"), (4, "no exponent bits")):
        file = copy_of(twin)
        raw = file.index_raw()
        file.index = raw[:raw.index(b"\4Q144") + 5 + length]
        yield refused(f"primitives/described-bits-end-{length}", file, "R-INT-03",
                      f"the index ends in a description: {reason}", twin, "1", apply=None, patches=True)


@makes_vectors
def other_bits():
    """Two dtypes that differ only in their bits."""
    first = copy_of("described-b144-set")
    file = copy_of("described-b144-patched")
    file.entries[0].dtype, file.entries[0].shape = described("B144", 432, 2, True, 5), (1,)
    file.header = {"target": file.promised()}
    alone = valid("described-after-other-blocks", file, "9",
                  "a patch that does not fit what another link sets: elements of other bits, and the same bytes",
                  apply=False)
    yield alone
    yield refused("apply/described-other-blocks-sequence", first, "R-APP-02", alone.reason, "described-b144-sequence",
                  "9",
                  check=False, features=["sequence", *file.features()], then=[alone.id])
    states = [State("unused", {"t": tensor(described("Q", bits, 1), b"a" * 36, (288 // bits,))}) for bits in (144, 288)]
    retyped = link(*states, Plan(DENSE))
    yield valid("described-other-blocks-set", retyped, "6.2",
                "another number of bits is another dtype, so the tensor is set",
                apply=False)


@makes_vectors
def order_of_descriptions():
    """R-IDX-20 is checked when all five fields have been read, before the number of dimensions."""
    def entry(description, rest=b""):
        file = copy_of(TWIN)
        file.index = b"\0\0\1\1t\1\xff" + description + rest
        return file
    good, bad_name, bad_bits = (b"\6FP16_X\x10\2\1\6", b"\6FP16_x\x10\2\1\6", b"\6FP16_X\0\2\1\6")
    for id, rule, description, rest, reason in (
            ("name-then-end-before-bits", "R-INT-03", bad_name[:7], b"", "a name that is none, and no bits"),
            ("name-then-end-in-bits", "R-INT-03", bad_name[:7] + b"\x90", b"",
             "a name that is none, and half of the bits"),
            ("name-then-end-in-description", "R-INT-03", bad_name[:-1], b"",
             "a name that is none, and no exponent bits"),
            ("name-then-long-bits", "R-INT-01", b"\6FP16_x\x90\0\2\1\6", b"\0",
             "a name that is none, and bits that are too long"),
            ("bits-then-end-in-description", "R-INT-03", bad_bits[:-1], b"", "no bits, and no exponent bits"),
            ("lanes-then-end-in-description", "R-INT-03", b"\6FP16_X\x10\3\1", b"",
             "lanes of three bytes, and no exponent bits"),
            ("description-then-end", "R-IDX-20", bad_name, b"", "a description that is none, and nothing after it"),
            ("description-then-256-dimensions", "R-IDX-20", bad_bits, varint(256) + b"\1" * 256,
             "a description that is none, and 256 dimensions"),
            ("description-then-2-64-dimensions", "R-IDX-20", bad_name, varint(2**64 - 1),
             "a description that is none, and 2^64 - 1 dimensions"),
            ("description-then-long-dimensions", "R-IDX-20", bad_name, b"\x81\0\1",
             "a description that is none, and a number of dimensions that is too long"),
            ("description-then-length", "R-IDX-20", b"\6FP16_x\x0c\2\1\6", b"\1\1",
             "a description that is none, of a tensor that is no whole lanes")):
        yield refused(f"order/{id}", entry(description, rest), rule, reason, TWIN, "10", apply=None, patches=True)
    file = entry(good, varint(256))
    yield refused("order/256-dimensions-of-a-description", file, "R-LIM-01", "a good description, and 256 dimensions",
                  TWIN,
                  "10", apply=None, patches=True)
