"""Valid links: dtypes, contexts, positions and values (SPEC sections 2.1, 7.1 and 8)."""
from .builder import ABSOLUTE, DENSE, PLANES, SET, SMALL, SPARSE
from .coding import Plan, link
from .frames import frame
from .links import valid
from .model import DTYPES, EMPTY, RuleState, State, tensor
from .registry import makes_vectors


def special_lanes(dtype):
    """Zeros of both signs, minimum and maximum, infinities and NaNs with payloads, as far as the dtype has them. The
    number of lanes also fits whole elements of six bits."""
    bits = 8 * dtype.lane_bytes
    sign = 1 << (bits - 1)
    top = ((1 << dtype.exponent_bits) - 1) << (bits - 1 - dtype.exponent_bits) if dtype.exponent_bits else sign >> 1
    return [0, sign, 1, sign | 1, sign - 1, 2 * sign - 1, top, sign | top, top | 1, sign | top | 1, sign >> 1,
            0x2A, sign | 0x15, sign >> 2, 0x55, *([sign >> 3] if dtype.bits != 6 else [])]


@makes_vectors
def dtypes_set():
    for name, dtype in DTYPES.items():
        lanes, label = special_lanes(dtype), name.lower().replace("_", "-")
        target = State(f"dtype-{label}", {"dense": tensor(name, lanes), "sparse": tensor(name, [*lanes, 0, 0, 1])})
        yield valid(f"dtype-{label}-set", link(EMPTY, target, Plan(DENSE, pieces=[("dense", 0)]),
                                               Plan(SPARSE, pieces=[("sparse", 0)], parameters=(1,))), "8.2",
                    f"{name}: every bit pattern survives absolute values, dense and sparse")


@makes_vectors
def dtypes_patch():
    """Each special lane becomes the next one, so that zeros, infinities and NaNs turn into each other."""
    for name, dtype in DTYPES.items():
        lanes, label = special_lanes(dtype), name.lower().replace("_", "-")
        new = lanes[1:] + lanes[:1]
        kinds = ("dense-planes", "sparse-planes", "sparse-small")
        base = State(f"dtype-{label}-patch-base", {kind: tensor(name, lanes) for kind in kinds})
        target = State(f"dtype-{label}-patch-target", {kind: tensor(name, new) for kind in kinds})
        thresholds = [(1 << dtype.exponent_bits) // 2]
        plans = [Plan(DENSE, PLANES, [(kinds[0], 0)], thresholds=thresholds),
                 Plan(SPARSE, PLANES, [(kinds[1], 0)], (32, 1), thresholds=thresholds),
                 Plan(SPARSE, SMALL, [(kinds[2], 0)], (2, 32), (4, 8), thresholds)]
        yield valid(f"dtype-{label}-patch", link(base, target, *plans), "8.3",
                    f"{name}: differences between all special values, in two contexts, by all relative codings")


@makes_vectors
def zeros_and_nans():
    base = State("signs-base", {"t": tensor("BF16", [0x0000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0x0001, 0x8001, 0x3F80])})
    target = State("signs-target", {"t": tensor("BF16", [0x8000, 0, 0x7FC1, 0xFFC1, 0x7FC0, 0x8001, 1, 0xBF80])})
    for id, plan in (("signs-planes", Plan(DENSE, PLANES)), ("signs-small", Plan(SPARSE, SMALL)),
                     ("signs-absolute", Plan())):
        yield valid(id, link(base, target, plan), "8.3",
                    "-0 is not 0, and NaNs that differ in sign or payload are different values")
    # Values that compare equal as numbers, and values that do not even equal themselves.
    equal = [("BF16", 1 << 15, 0x7FC0), ("F16", 1 << 15, 0x7E00), ("F32", 1 << 31, 0x7FC00000),
             ("F64", 1 << 63, 0x7FF8 << 48)]
    yield valid("signs-of-zero", link(
        State("signs-of-zero-base", {name: tensor(name, [0, sign, nan]) for name, sign, nan in equal}),
        State("signs-of-zero-target", {name: tensor(name, [sign, 0, nan]) for name, sign, nan in equal}),
        *(Plan(SPARSE, SMALL, [(name, 0)], coded=[0, 1]) for name, _, _ in equal)), "2",
        "0 becomes -0 and back, equal as numbers, different as bits; a NaN stays, different as a number, equal as bits")
    payload = State("nan-payload", {"t": tensor("F32", [0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x80000000])})
    yield valid("nan-payload-snapshot", link(EMPTY, payload, Plan(DENSE)), "2", "signalling NaNs and -0 are just bits")


def constant(label, count, byte):
    """A state of one U8 tensor of equal bytes; a long one is given by rule."""
    if count < 1000:
        return State(label, {"t": tensor("U8", bytes([byte]) * count)})
    return RuleState(label,
                     [{"name": "t", "dtype": "U8", "shape": [count], "multiply": 0, "add": byte, "modulus": 256}])


GAPS = State("gaps-base", {"t": tensor("U8", bytes(4096))})
GAPS_TARGET = State("gaps-target", {"t": tensor("U8", bytes(
    i + 1 if i in (0, 1, 9) else 200 if i in (1000, 4095) else 0 for i in range(4096)))})


@makes_vectors
def gap_shifts():
    for shift in (0, 1, 2, 3, 7, 8, 9, 15, 16, 22, 23):
        yield valid(f"gap-shift-{shift:02}", link(GAPS, GAPS_TARGET, Plan(parameters=(shift,))), "8.1",
                    f"{shift} low bits for each gap; with 0 to 3 the long ones escape",
                    ["R-SEG-05"] if shift == 23 else [])


@makes_vectors
def gap_escapes():
    """Values around the maximum high part that fits a byte, and around the maximum escape of one byte."""
    for gap in (253, 254, 255, 256, 382, 383, 65536):
        base = constant(f"gap-{gap}-base", gap + 2, 0)
        target = State(f"gap-{gap}-target", {"t": tensor("U8", bytes(gap) + b"\1\2")})
        yield valid(f"gap-{gap}", link(base, target, Plan()), "8.1", f"a gap of {gap} without low bits",
                    ["R-STR-06"] if gap >= 255 else [])
    base = State("gap-shifted-base", {"t": tensor("U8", bytes(1023))})
    for gap in (1019, 1020, 1021):
        target = State(f"gap-shifted-{gap}-target", {"t": tensor("U8", bytes(gap) + b"\1" + bytes(1022 - gap))})
        yield valid(f"gap-shifted-{gap}", link(base, target, Plan(parameters=(2,))), "8.1",
                    "the high part is what is compared with 255, not the gap")
    base = State("gap-parts-base", {name: tensor("U8", bytes(300)) for name in "abc"})
    target = State("gap-parts-target", {name: tensor("U8", bytes(299) + bytes([i])) for i, name in enumerate("abc", 1)})
    yield valid("gap-restarts", link(base, target, Plan()), "8.1", "ranks begin at 0 again in every part")


@makes_vectors
def lane_counts():
    """Lengths around byte boundaries, in all positions; long tensors change at both ends."""
    for count in (0, 1, 7, 8, 9, 254, 255, 256, 65535, 65536):
        base = constant(f"lanes-{count}-base", count, 7)
        target = State(f"lanes-{count}-target", {"t": tensor("U8", (b"\x08" + b"\7" * (count - 2) + b"\x09")[:count])})
        for id, plan in (("dense", Plan(DENSE, PLANES)), ("gaps", Plan(SPARSE, SMALL)),
                         ("bitmap", Plan(SPARSE, ABSOLUTE, parameters=(32,)))):
            file = link(base, target, *[plan] * (count > 0), listed=["t"])
            for segment in file.segments:
                for name in [name for name, stream in segment.streams.items() if len(stream.raw) > 1000]:
                    segment.compress(name, frame)
            yield valid(f"lanes-{count}-{id}", file, "7.1", f"a part of {count} lanes" if count else "no lane, no part",
                        ["R-SEG-08"])


SPREAD = State("spread-base", {"t": tensor("BF16", [(i * 37 % 256) << 7 | i for i in range(64)])})
SPREAD_TARGET = State("spread-target", {"t": tensor("BF16", [
    ((i * 37 % 256) << 7 | i) + (0 if i % 3 else i + 1) for i in range(64)])})


@makes_vectors
def contexts():
    sixteenths = [16 * i for i in range(1, 16)]
    for id, plan, reason in (
            ("contexts-2", Plan(SPARSE, SMALL, parameters=(1, 32), widths=(1, 4), thresholds=[128]), "two contexts"),
            ("contexts-3-mixed", Plan(SPARSE, SMALL, parameters=(32, 0, 23), widths=(8, 2, 1), thresholds=[100, 110]),
             "bitmap, gaps without low bits and gaps with 23 of them side by side"),
            ("contexts-16-low-shifts", Plan(SPARSE, SMALL, parameters=tuple(range(16)), widths=(1, 2, 4, 8) * 4,
                                            thresholds=sixteenths), "as many contexts as there can be, shifts 0 to 15"),
            ("contexts-16-high-shifts", Plan(SPARSE, PLANES, parameters=tuple(range(8, 24)), thresholds=sixteenths),
             "as many contexts as there can be, shifts 8 to 23"),
            ("contexts-16-bitmaps", Plan(SPARSE, PLANES, parameters=(32,) * 16, thresholds=sixteenths),
             "bitmaps that begin on byte boundaries, one for each context"),
            ("contexts-16-dense", Plan(DENSE, PLANES, thresholds=sixteenths),
             "all lanes in the order of their contexts"),
            ("contexts-equal-thresholds", Plan(DENSE, PLANES, thresholds=[100, 100, 100]),
             "increments of 0: the contexts between have no members"),
            ("contexts-thresholds-0", Plan(SPARSE, SMALL, parameters=(32, 0), widths=(1, 2), thresholds=[0]),
             "threshold 0: context 0 is empty"),
            ("contexts-thresholds-256", Plan(SPARSE, SMALL, parameters=(32, 0), widths=(1, 2), thresholds=[256]),
             "threshold 2^E: the last context is empty"),
            ("contexts-thresholds-255", Plan(SPARSE, PLANES, parameters=(32, 0), thresholds=[255]),
             "threshold 2^E - 1: infinities and NaNs have a context of their own"),
            ("contexts-all-empty-but-one", Plan(DENSE, PLANES, thresholds=[0] * 8 + [256] * 7),
             "empty contexts before and after the one that has all lanes")):
        rules = ["R-SEG-07"] if "256" in id or "empty-but" in id else ["R-SEG-03"] if "16" in id else []
        yield valid(id, link(SPREAD, SPREAD_TARGET, plan), "7.1", reason, rules)
    base = State("contexts-u8-base", {"t": tensor("U8", bytes(range(8)))})
    target = State("contexts-u8-target", {"t": tensor("U8", bytes(range(1, 9)))})
    for id, thresholds in (("0", [0]), ("1", [1])):
        yield valid(f"contexts-no-exponent-{id}", link(base, target, Plan(DENSE, PLANES, thresholds=thresholds)), "7.1",
                    "without exponent bits the exponent field is 0 and 2^E is 1", ["R-SEG-07"])


@makes_vectors
def several_parts():
    """Order of lanes: context, then part, then lane."""
    base = State("parts-base", {
        "a": tensor("BF16", [0x3F80, 0x0001, 0x4000, 0x0002, 0x3F81]), "b": tensor("F16", [1, 0x3C00, 2]),
        "c": tensor("U16", [5, 6, 7]), "d": tensor("BF16", [0x0003, 0x3F82])})
    new = {"a": tensor("BF16", [0x3F81, 0x0002, 0x4000, 0x0001, 0x3F7E]), "b": tensor("F16", [3, 0x3BFE, 2]),
           "c": tensor("U16", [4, 6, 9]), "d": tensor("BF16", [0x0004, 0x3F82])}
    target = State("parts-target", new)
    thresholds = {("a", 0): [64], ("b", 0): [8], ("c", 0): [1], ("d", 0): [0]}
    for id, plan in (
            ("parts-dtypes-small", Plan(SPARSE, SMALL, parameters=(0, 32), widths=(2, 1), thresholds=thresholds)),
            ("parts-dtypes-planes", Plan(SPARSE, PLANES, parameters=(32, 1), thresholds=thresholds)),
            ("parts-dtypes-dense", Plan(DENSE, PLANES, thresholds=thresholds)),
            ("parts-dtypes-dense-one-context", Plan(DENSE, PLANES)),
            ("parts-dtypes-absolute", Plan(SPARSE, ABSOLUTE))):
        yield valid(id, link(base, target, plan), "8", "parts of several dtypes, with thresholds of their own")
    lone = Plan(SPARSE, SMALL, parameters=(32, 0), widths=(2, 1), thresholds=thresholds,
                coded={("a", 0): [], ("b", 0): [0], ("c", 0): [], ("d", 0): []},
                pieces=[(name, 0) for name in "abcd"])
    one = State("parts-one-target", base.tensors | {"b": tensor("F16", [3, 0x3C00, 2])})
    yield valid("parts-without-lanes", link(base, one, lone, listed="abcd"), "6.2", "a part may code no lane at all")
    nothing = Plan(SPARSE, SMALL, pieces=[("a", 0)], coded=[])
    yield valid("segment-without-lanes", link(base, base, nothing, listed=["a"]), "6.2",
                "a segment that codes nothing: all streams but the table are empty")
    nothing = Plan(SPARSE, ABSOLUTE, pieces=[("a", 0)], coded=[], parameters=(32,))
    yield valid("bitmap-without-ones", link(base, base, nothing, listed=["a"]), "8.1",
                "a bitmap of zeros codes nothing")


@makes_vectors
def magnitudes():
    """Symbol widths and escapes; the differences are 1 to 600 and the maxima."""
    for width in (1, 2, 4, 8):
        escape = (1 << width) - 1
        steps = [1, -1, escape, -escape, escape + 1, -escape - 1, escape + 2, escape + 128, escape + 129, -600]
        base = State(f"magnitudes-{width}-base", {"t": tensor("U16", [1000] * len(steps))})
        target = State(f"magnitudes-{width}-target", {"t": tensor("U16", [1000 + step for step in steps])})
        yield valid(f"magnitude-width-{width}", link(base, target, Plan(SPARSE, SMALL, widths=(width,))), "8.5",
                    f"symbols of {width} bits: just below, at and above the escape", ["R-SEG-06", "R-STR-06"])
    for name in ("U8", "BF16", "I32", "F64", "U64"):
        dtype = DTYPES[name]
        half = 1 << (8 * dtype.lane_bytes - 1)
        lanes = [0, 0, 5, half - 1]
        keys = [half, half - 1, (5 + half) % (2 * half), half]  # differences -2^(W-1), 2^(W-1)-1, -2^(W-1), +1
        new = [key ^ (half - 1) if dtype.sign_magnitude and key & half else key for key in keys]
        base = State(f"extreme-{name.lower()}-base", {"t": tensor(name, lanes)})
        target = State(f"extreme-{name.lower()}-target", {"t": tensor(name, new)})
        for id, plan in (("small", Plan(SPARSE, SMALL, widths=(1,))), ("planes", Plan(SPARSE, PLANES)),
                         ("dense", Plan(DENSE, PLANES))):
            yield valid(f"extreme-{name.lower()}-{id}", link(base, target, plan), "8.3",
                        "the least and the greatest difference there are; the longest escapes",
                        ["R-VAL-02", "R-LIM-03"] if id == "small" else [])


@makes_vectors
def repeated_values():
    base = State("repeat-base", {"t": tensor("BF16", [1, 2, 3, 4])})
    target = State("repeat-target", {"t": tensor("BF16", [1, 2, 3, 5])})
    yield valid("absolute-repeats", link(base, target, Plan(coded=[0, 1, 3])), "8.2",
                "absolute values may repeat the base's")
    yield valid("dense-zero-difference", link(base, target, Plan(DENSE, PLANES)), "8.4",
                "dense differences may be 0", ["R-VAL-01"])
    yield valid("set-sparse-zeros", link(EMPTY, target, Plan(coded=[0, 1, 2, 3], parameters=(32,))), "8.1",
                "a snapshot with a bitmap")
    yield valid("set-over-base", link(base, target, Plan(coded=range(4)), operations={"t": SET}), "6.2",
                "a set tensor of a name that the base has")
