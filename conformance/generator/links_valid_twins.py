"""Valid links of one coding each, small enough to damage a single byte of them."""
from .builder import DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .links import valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import EMPTY, State, tensor
from .registry import makes_vectors


@makes_vectors
def small_links():
    yield valid("one-lane-planes", link(ONE, ONE_CHANGED, Plan(SPARSE, PLANES)), "8.4", "one difference of 63")
    u8 = State("lane-u8-10", {"t": tensor("U8", [10])}), State("lane-u8-100", {"t": tensor("U8", [100])})
    yield valid("magnitude-u8", link(*u8, Plan(SPARSE, SMALL, widths=(8,))), "8.5", "m = 89 without an escape")
    for name, last in (("U8", 100), ("I32", 2**30)):
        states = [State(f"lane-{name.lower()}-to-{lane}", {"t": tensor(name, [lane])}) for lane in (1, last)]
        yield valid(f"magnitude-escape-{name.lower()}", link(*states, Plan(SPARSE, SMALL, widths=(1,))), "8.5",
                    "the longest escape of its width", ["R-LIM-03"])
    u64 = State("lane-u64-0", {"t": tensor("U64", [0])}), State("lane-u64-9", {"t": tensor("U64", [9])})
    yield valid("magnitude-u64", link(*u64, Plan(SPARSE, SMALL, widths=(1,))), "8.5", "m = 8 by an escape")
    four = State("lanes-u64-0", {"t": tensor("U64", [100] * 4)}), State("lanes-u64-10", {"t": tensor("U64", [90] * 4)})
    yield valid("magnitudes-u64", link(*four, Plan(SPARSE, SMALL, widths=(1,))), "8.5", "m = 9 by escapes, four times")
    far = State("gap-escapes-base", {"t": tensor("U8", bytes(3 * 4097))})
    near = State("gap-escapes-target", {"t": tensor("U8", (bytes(4096) + b"\1") * 3)})
    yield valid("gap-escapes-shifted", link(far, near, Plan(parameters=(4,))), "8.1", "three gaps of 2^8 * 2^4")
    signs = [0x0000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0x0001, 0x8001, 0x3F80]
    near = [0x0001, 0x8001, 0x7FC1, 0x7FC2, 0xFFC1, 0x0002, 0x8002, 0x3F81]
    yield valid("signs-sparse-planes", link(
        State("signs-near-base", {"t": tensor("BF16", signs)}), State("signs-near-target", {"t": tensor("BF16", near)}),
        Plan(SPARSE, PLANES)), "8.3", "one step away from 0 on both sides, from infinity and from NaNs")
    payload = State("nan-payload-zeros", {"t": tensor("F32", [0, 0, 0x7FC00001, 0x80000000])})
    yield valid("nan-payload-sparse", link(EMPTY, payload, Plan()), "8.2", "a NaN and -0 in a sparse snapshot")
    lanes = [0, 0x100, 1, 0x101, 2, 0x102, 3, 0x103]
    base = State("two-contexts-base", {"t": tensor("BF16", lanes)})
    target = State("two-contexts-target", {"t": tensor("BF16", [lane + 1 for lane in lanes])})
    yield valid("dense-two-contexts", link(base, target, Plan(DENSE, PLANES, thresholds=[1])), "7.1",
                "four dense lanes in each of two contexts", ["R-POS-02"])
    mixed = Plan(SPARSE, SMALL, parameters=(0, 32), widths=(1, 1), thresholds=[1], coded=[0, 1])
    both = State("two-contexts-both", {"t": tensor("BF16", [1, 0x101, *lanes[2:]])})
    yield valid("two-contexts-gaps-bitmap", link(base, both, mixed), "7.1", "gaps in context 0, a bitmap in context 1")
    gaps = Plan(SPARSE, SMALL, parameters=(0, 0), widths=(1, 1), thresholds=[0], coded=[0, 4])
    some = State("two-contexts-some", {"t": tensor("BF16", [1, *lanes[1:4], 3, *lanes[5:]])})
    yield valid("contexts-thresholds-0-gaps", link(base, some, gaps), "7.1", "gaps in a context without members")
    two = {name: tensor("BF16", lanes[start:start + 4]) for name, start in (("a", 0), ("b", 4))}
    moved = {name: tensor("BF16", [lane + 2 for lane in lanes[start:start + 4]]) for name,
             start in (("a", 0), ("b", 4))}
    yield valid("dense-two-contexts-two-parts", link(State("two-parts-base", two), State("two-parts-target", moved),
                                                     Plan(DENSE, PLANES, thresholds=[1])), "7.1",
                "two parts with two members of each context", ["R-POS-02"])
