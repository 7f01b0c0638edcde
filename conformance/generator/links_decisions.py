"""Links that show one decision each that no earlier vector showed: a reader in another language was changed in 399
places, one at a time, and these changes went unnoticed."""
from . import frames
from .builder import SMALL, SPARSE
from .coding import Plan, link
from .in_place_refused import BASE, LAST, TARGET, plans
from .links import CLASSES, copy_of, refused, valid
from .links_order import LONG, two_faults
from .model import State, tensor
from .primitives import pack, varint
from .registry import Vector, makes_vectors_since
from .sums import with_sums

SHIFT = 23
LANES = 8192


def position_streams(gaps):
    """The streams of gaps with 23 low bits each: (gap low, gap high, gap escape)."""
    high = [gap >> SHIFT for gap in gaps]
    return {"gap low": pack([gap % 2**SHIFT for gap in gaps], SHIFT), "gap high": bytes(min(h, 255) for h in high),
            "gap escape": b"".join(varint(h - 255) for h in high if h >= 255)}


def last_rank(gaps):
    return sum(gaps) + len(gaps) - 1


def far(id, twin, gaps, wraps, reason):
    """`wraps`: the maximum rank, as it appears in integers of this many bits."""
    bits, seems = wraps
    assert (last_rank(gaps) + 2**(bits - 1)) % 2**bits - 2**(bits - 1) == seems or last_rank(gaps) % 2**bits == seems
    file = copy_of(twin)
    for name, raw in position_streams(gaps).items():
        file.segments[0].set_raw(name, raw)
        if len(raw) > LANES // 2:
            file.segments[0].compress(name, frames.compressed)
    return refused(f"codings/{id}", file, "R-POS-01", reason, twin, "8.1")


@makes_vectors_since("1.2")
def ranks_that_wrap():
    """Each part of a gap is small: only the whole gap, or the sum of several, is too large for 31, 32, 63 or 64
    bits."""
    few = "gap-shift-23"  # five gaps in 4,096 lanes
    for id, gaps, wraps, reason in (
            ("gap-of-2-32", [0, 0, 7, 990, 2**32 + 3094], (32, 4095), "a gap of 2^32 and some, with a high part of 512"),
            ("gap-of-2-31", [0, 0, 7, 990, 2**31 + 3094], (32, 4095 - 2**31),
             "a gap of 2^31 and some, which is negative in 32 bits"),
            ("gap-of-2-32-first", [2**32, 0, 7, 990, 3094], (32, 4095), "the first gap is 2^32; no other one is long"),
            ("gaps-up-to-2-32", [0, 0, 2**31 - 4, 2**31 - 1, 4096], (32, 4095),
             "gaps below 2^31, whose sum is right again modulo 2^32"),
            ("gaps-up-to-2-31", [0, 0, 7, 2**30, 2**30], (32, 11 - 2**31),
             "gaps below 2^31, whose sum is negative in 32 bits")):
        yield far(id, few, gaps, wraps, reason)
    base = State("gaps-8192-base", {"t": tensor("U8", bytes(LANES))})
    target = State("gaps-8192-target", {"t": tensor("U8", b"\1" * LANES)})
    many = link(base, target, Plan(parameters=(SHIFT,)))
    for name in ("gap low", "gap high", "plane 0"):
        many.segments[0].compress(name, frames.compressed)
    yield valid("gaps-8192", many, "8.1", "8,192 gaps with 23 low bits: every lane is coded")
    half = LANES // 2
    yield far("gaps-up-to-2-64", "gaps-8192", [2**51] * LANES, (64, LANES - 1),
              "8,192 gaps of 2^51, whose sum is right again modulo 2^64")
    yield far("gaps-up-to-2-63", "gaps-8192", [2**51] * half + [0] * half, (64, LANES - 1 - 2**63),
              "4,096 gaps of 2^51, whose sum is negative in 64 bits")


@makes_vectors_since("1.2")
def padding_between_gaps():
    twin = "contexts-16-low-shifts"
    for context, bit in ((1, 0x80), (3, 0x80)):
        file = copy_of(twin)
        counts = file.segments[0].table.parts[0][1]
        assert counts[context] * context % 8, "its run has no padding"
        raw = bytearray(file.segments[0].streams["gap low"].raw)
        raw[sum(-(-counts[c] * c // 8) for c in range(context + 1)) - 1] |= bit
        file.segments[0].set_raw("gap low", raw)
        yield refused(f"streams/padding-gap-low-of-context-{context}", file, "R-STR-05",
                      f"gap low: padding before another context's gaps, after context {context}", twin, "5")


@makes_vectors_since("1.2")
def order_in_segments():
    def raw(name, content):
        return lambda file: file.segments[0].set_raw(name, content)
    yield two_faults("threshold-then-threshold", "R-SEG-07", "a threshold before the varint of the next one",
                     "worked-contexts", raw("table", bytes([3, 32, 0, 0, 1, 2, 2]) + varint(257) + LONG))
    for id, twin, name in (("gap", "gap-256", "gap escape"), ("magnitude", "magnitude-escape-i32", "magnitude escape")):
        yield two_faults(f"{id}-escapes-then-varint", "R-INT-01", "one escape too many, then a varint: all are read before "
                         "they are counted", twin, raw(name, b"\1\0" + LONG))


@makes_vectors_since("1.2")
def order_of_parts():
    """Step 8.5: the parts in order, each with all its contexts."""
    lanes = [0x0000, 0x0101, 0x0001, 0x0102, 0x0002, 0x0103, 0x0003, 0x0104]  # exponent fields 0 and 2
    base = State("parts-members-base", {name: tensor("BF16", lanes) for name in "ab"})
    target = State("parts-members-target", {name: tensor("BF16", [
        lane + (number in (0, 3, 4, 7)) for number, lane in enumerate(lanes)]) for name in "ab"})
    twin, parts = "parts-bitmap-and-gaps", [("a", 0), ("b", 0)]
    yield valid(twin, link(base, target, Plan(SPARSE, SMALL, parts, (32, 0), (1, 2), [1])), "8",
                "two parts, each with a bitmap and gaps")

    def spoiled(id, rule, counts, high, reason):
        file = copy_of(twin)
        segment = file.segments[0]
        assert segment.table.parts == [([1], [4, 2])] * 2 and segment.streams["gap high"].raw == b"\1\1" * 2
        segment.table.parts = [([1], [members, 2]) for members in counts]
        segment.set_raw("bitmap", segment.streams["bitmap"].raw + b"\0")  # nine bits, of which the last is 0
        segment.set_raw("gap high", high)
        return refused(f"order/{id}", file, rule, reason, twin, "10", check=False)
    yield spoiled("bitmap-then-rank-of-next-part", "R-POS-02", [5, 4], b"\1\1\1\2",
                  "the bitmap of part 0 before the ranks of part 1")
    yield spoiled("rank-then-bitmap-of-next-part", "R-POS-01", [4, 5], b"\1\2\1\1",
                  "the ranks of part 0 before the bitmap of part 1")


@makes_vectors_since("1.2")
def most_segments():
    def index(raw):
        return lambda file: setattr(file, "index", raw)
    for count, word in ((2**20, "as many segments as every reader supports"), (65536, "65,536 segments")):
        yield two_faults(f"segments-{count}-then-end", "R-INT-03", f"{word} are declared, before the index ends too early",
                         "one-lane", index(varint(0) + varint(count)))
    entries = varint(0) * 2 + varint(2**19)
    yield two_faults("tensors-524288-then-end", "R-INT-03", "as many tensors as every reader supports are declared, before "
                     "the index ends too early", "one-lane", index(entries))


@makes_vectors_since("1.2")
def in_place_steps():
    """Section 24.6: step 1 is done for all links before step 2 for any."""
    second = link(TARGET, LAST, Plan(SPARSE, SMALL, [("b", 0)], widths=(4,)))
    second.segments[0].crc = 0
    crc = {"class": CLASSES["R-SEG-01"], "rule": "R-SEG-01"}
    damaged = with_sums(second)
    twin = "links/in-place/wrong-twin"

    def vector(id, file, reason, **more):
        own = more.pop("expect", {})
        return Vector(f"links/in-place/{id}", file.encode(), "24.6", reason, own | {"apply": crc, "in-place": crc},
                      rules=["R-SEG-01"], twin=twin, source=file, members={"base": file.base} | more,
                      features=sorted({*file.features(), "in-place", *(["sequence"] if "then" in more else [])}))
    last = vector("order-second-damaged", damaged, "a segment is damaged; also the second of a sequence",
                  expect={"check": crc})
    yield last
    for id, file, reason in (
            ("not-local", with_sums(link(BASE, TARGET, *plans()[:1], Plan(0, 1, [("b", 0)]))), "is not local"),
            ("no-sums", link(BASE, TARGET, *plans()), "has no sums"),
            ("set", with_sums(link(BASE, TARGET, Plan(pieces=[("a", 0)], coded=[0, 1, 2, 3]), Plan(pieces=[("b", 0)]),
                                   operations={"a": 1})), "sets a tensor")):
        yield vector(f"order-{id}-then-damaged", file, f"the first link {reason}, and a segment of the second is damaged",
                     then=[last.id])
