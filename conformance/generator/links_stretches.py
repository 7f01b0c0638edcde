"""Edges of stretches, for readers that change a piece stretch by stretch, and parts of a second piece."""
from . import frames
from .builder import BITMAP, DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .links import copy_of, refused, valid
from .links_valid_pieces import by_rule, with_lanes
from .primitives import pack
from .registry import makes_vectors_since

BYTES = 300_000
EDGES = sorted({place for power in range(9, 18) for place in range(1 << power, BYTES, 1 << power)
                if place // (1 << power) in (1, 2, 3)} | {1 << 18})
LANES = {"U8": 1, "BF16": 2, "F64": 8}


def at_edges(width):
    """Returns the numbers of the lanes around places at which a stretch may end."""
    near = {edge // width + step for edge in EDGES for step in (-1, 0, 1)}
    return sorted({0, BYTES // width - 1} | near)


@makes_vectors_since("1.2")
def stretches():
    """Multiples of 2^9 to 2^18 bytes: the first lane of a stretch, the last one of the previous stretch, and the next
    one."""
    for dtype, width in LANES.items():
        name, lanes = dtype.lower(), at_edges(width)
        base = by_rule(f"stretches-{name}", dtype, BYTES)
        old = base.tensors["t"].data
        target = with_lanes(base, f"stretches-{name}-target", {
            lane * width: bytes([old[lane * width] ^ 1]) for lane in lanes})
        contexts = {"U8": None, "BF16": [64, 128], "F64": [700, 1100]}[dtype]
        for id, plan in (("absolute", Plan(parameters=(5,))), ("small", Plan(SPARSE, SMALL, parameters=(8,), widths=(1,))),
                         ("bitmap", Plan(SPARSE, PLANES, parameters=(BITMAP,))), ("dense", Plan(DENSE)),
                         ("contexts", contexts and Plan(SPARSE, SMALL, None, (3, BITMAP, 0), (2, 2, 2), contexts)),
                         ("dense-contexts", contexts and Plan(DENSE, PLANES, thresholds=contexts))):
            if plan is None:
                continue
            file = link(base, target, plan)
            for stream in file.segments[0].names():
                if len(file.segments[0].stream(stream).raw) > 1000:
                    file.segments[0].compress(stream, frames.compressed)
            yield valid(f"stretches-{name}-{id}", file, "8.6", f"lanes of {width} bytes at the ends of stretches of powers "
                        f"of two: {id.replace('-', ' ')}")


@makes_vectors_since("1.2")
def second_pieces():
    """A part has the lanes of its piece, neither those up to the end of the piece, nor those of its tensor."""
    base = by_rule("piece-above-u64", "U64", (1 << 24) + 8)
    last = with_lanes(base, "piece-above-u64-last", {1 << 24: b"\xfe" * 8})
    for id, plan, reason in (("dense", Plan(DENSE), "dense positions"), ("sparse", Plan(), "sparse positions"),
                             ("bitmap", Plan(SPARSE, PLANES, parameters=(BITMAP,)), "a bitmap")):
        yield valid(f"piece-second-{id}", link(base, last, plan), "7", f"the only part is the second piece, of one lane: "
                    f"{reason}")
    twin = "piece-above-u64"

    def ranks(*gaps):
        file = copy_of(twin)
        segment = file.segments[0]
        assert segment.table.parts == [([], [1]), ([], [1])] and segment.table.positions == [16]
        segment.set_raw("gap low", pack(gaps, 16))
        return file
    for id, gaps, reason in (("second", (0, 1), "rank 1 in a second piece of one lane"),
                             ("second-of-tensor", (0, 2**16 - 1), "a rank in a second piece of one lane that is one of the "
                              "tensor")):
        yield refused(f"pieces/rank-{id}", ranks(*gaps), "R-POS-01", reason, twin, "8.1", apply=None)
    first = ranks(0, 0)
    first.segments[0].set_raw("gap high", b"\x20\0")
    yield refused("pieces/rank-first-of-tensor", first, "R-POS-01", "rank 2^21 in a first piece of 2^21 lanes, which is the "
                  "rank of the second piece's lane in the tensor", twin, "8.1", apply=None)
    for id, counts, reason in (("second", (1, 2), "two coded lanes in a second piece of one lane"),
                               ("first", (2**21 + 1, 1), "2^21 + 1 coded lanes in a first piece of 2^21 lanes")):
        file = copy_of(twin)
        file.segments[0].table.parts = [([], [count]) for count in counts]
        yield refused(f"pieces/count-{id}", file, "R-SEG-08", reason, twin, "7.1", apply=None)
    for id, count, reason in (("of-tensor", 2**21 + 1, "as many as the tensor has"), ("0", 0, "none")):
        file = copy_of("piece-second-dense")
        file.segments[0].table.parts = [([], [count])]
        yield refused(f"pieces/count-dense-{id}", file, "R-SEG-08", f"dense lanes of a second piece of one lane: {reason}",
                      "piece-second-dense", "7.1", apply=None)
