"""Contexts of described dtypes with exponent fields of many widths (SPEC section 7.1)."""
from .builder import BITMAP, DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .links import followed_by, valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import State, described, tensor
from .registry import makes_vectors_since


def float_lanes(dtype):
    """Lanes around the thresholds, of both signs, with the lowest and the highest mantissa."""
    bits = 8 * dtype.lane_bytes - 1 - dtype.exponent_bits
    most = (1 << bits) - 1
    fields = sorted({field + step for field in thresholds(dtype) for step in (-1, 0, 1)} | {0, 1, (1 << dtype.exponent_bits) - 1})
    return [sign << 8 * dtype.lane_bytes - 1 | field << bits | mantissa for field in fields
            if 0 <= field < 1 << dtype.exponent_bits for sign in (0, 1) for mantissa in (0, most)]


def thresholds(dtype):
    """Two neighbours, whose fields may begin with the same eight bits, and one higher threshold."""
    half = 1 << dtype.exponent_bits - 1
    return [half, half + 1, half + max(2, half // 2)] if half > 2 else [half]


@makes_vectors_since("1.2")
def exponents():
    """Exponent fields longer than a byte, in lanes of every width that allows them; and shorter ones in lanes of eight
    bytes."""
    for width, exponent in ((1, 7), (2, 8), (2, 9), (2, 11), (4, 9), (4, 11), (8, 1), (8, 8), (8, 9), (8, 11)):
        dtype = described(f"E{exponent}", 8 * width, width, True, exponent)
        lanes = float_lanes(dtype)
        before, after = (State("unused", ONE.tensors | {"x": tensor(dtype, values)}) for values in (
            lanes, [lane ^ 1 if place % 3 else lane for place, lane in enumerate(lanes)]))
        contexts = thresholds(dtype)
        name = f"described-exponent-{exponent}-of-{8 * width}"
        what = f"an exponent field of {exponent} bits in lanes of {8 * width}"
        first = link(ONE, before, Plan(DENSE, pieces=[("x", 0)]))
        yield valid(f"{name}-set", first, "2.1", f"a tensor with {what} appears", apply=False)
        last = link(after, ONE_CHANGED, Plan())
        yield valid(f"{name}-removed", last, "2.1", f"a tensor with {what} goes, another changes", apply=False)
        count = len(contexts) + 1
        for id, plan in (("small", Plan(SPARSE, SMALL, [("x", 0)], (0, BITMAP, 1, 2)[:count], (1, 2, 4, 8)[:count], contexts)),
                         ("dense", Plan(DENSE, PLANES, [("x", 0)], thresholds=contexts))):
            file = link(before, after, plan)
            assert all(len(members) > 1 for members in file.segments[0].parts[0].ranks)
            yield valid(f"{name}-{id}", file, "7.1", f"{count} contexts by {what}", apply=False)
            yield valid(f"{name}-{id}-sequence", first, "7.1", f"{count} contexts by {what}", result=ONE_CHANGED,
                        **followed_by(*(f"links/valid/{name}-{step}" for step in (id, "removed"))))
