"""Links in place: no digest is compared, and the first failure in the order of the text is reported (SPEC section
24.6)."""
from blake3 import blake3

from .builder import SMALL, SPARSE
from .coding import Plan, link
from .in_place_refused import BASE, TARGET, broken, changed, plans, right
from .in_place_valid import good
from .links import CLASSES
from .links_extension import AREA, record
from .links_valid_pieces import by_rule, with_lanes
from .links_valid_structure import ONE
from .model import EMPTY, PIECE, State, tensor
from .registry import Vector, makes_vectors_since
from .sums import CONTEXT, KIND, UNSUPPORTED, binding, data_of, sums, vector, with_area, with_sums


MORE = State("in-place-order-more", {"a": tensor("BF16", [0x3F81, 9, 3, 5]), "b": tensor("U8", b"\5\6\xfe")})


@makes_vectors_since("1.2")
def digests():
    """The sums fit, and a digest does not: in place does not compare it."""
    none = State("in-place-no-bytes", {"t": tensor("BF16", b"", (0,))})
    for id, file in (("part", right()), ("no-part", link(ONE, ONE, listed=["t"])),
                     ("no-bytes", link(none, none, listed=["t"]))):
        file.entries[0].digests = [blake3(b"another").digest()]
        target = file.promised()
        bound = blake3(file.base.digest() + target + file.index_raw(), derive_key_context=CONTEXT).digest()
        file = with_area(file, AREA + record(KIND, data_of(file, bound=bound)))
        file.header |= {"target": target}
        one = vector(f"in-place/digest-{id}", file, "24.6", f"sums that fit and a digest that does not: {id}", None,
                     rules=["R-APP-04"], twin="links/in-place/wrong-twin")
        one.expect["apply"] = {"class": CLASSES["R-APP-04"], "rule": "R-APP-04"}
        yield one


@makes_vectors_since("1.2")
def pieces():
    """R-SUM-03 and R-SUM-04 in the order of links, entries and pieces, with or without a part."""
    base, first, second = (State(f"in-place-order-{name}", {"a": tensor("U8", a), "b": tensor("U8", b"efgh")})
                           for name, a in (("base", b"abcd"), ("first", b"aXcd"), ("second", b"aYcd")))

    def listed(old, new, places):
        file = link(old, new, Plan(SPARSE, SMALL, [("a", 0)], widths=(8,)), listed=["b"])
        found = sums(file)
        for name, which in places:
            found[name][0][which][0] ^= 1
        return with_sums(file, found), found
    last = good("order-listed", listed(first, second, [])[0], "a tensor without a part beside another; also the second "
                "of a sequence")
    yield last
    file, found = listed(base, first, [("a", 1), ("b", 0)])
    yield broken("order-without-part", "R-SUM-03", "R-SUM-03 of a tensor, R-SUM-04 of the next one, which has no part",
                 file, found, "in-place/order-listed")
    file, found = listed(first, second, [("b", 0)])
    wrong = broken("order-part-missing", "R-SUM-04", "R-SUM-04 of a tensor without a part; also the second of a "
                   "sequence", file, found, "in-place/order-listed")
    yield wrong
    file, found = listed(base, first, [("a", 1)])
    yield broken("order-links-without-part", "R-SUM-03", "R-SUM-03 of the first link, R-SUM-04 of a tensor without a "
                 "part in the second", file, found, "in-place/order-listed", then=[wrong])
    zeros = by_rule("in-place-pieces-base", "U64", PIECE + 80, multiply=0, add=0)
    both = with_lanes(zeros, "in-place-pieces-both", {0: b"\1" * 8, PIECE - 8: b"\2" * 8, PIECE: b"\3" * 8,
                                                     PIECE + 72: b"\4" * 8})
    file, found = changed(link(zeros, both, Plan(SPARSE, SMALL, parameters=(20,), widths=(8,))), "t", 0, 0, 1)
    found["t"][1][1][0] ^= 1
    yield broken("order-pieces", "R-SUM-04", "R-SUM-04 of the first piece of a tensor, R-SUM-03 of the second",
                 with_sums(file, found), found, "in-place/pieces-one-segment", apply=False)


@makes_vectors_since("1.2")
def steps():
    """Step 7 before step 8, and limits."""
    def bad(id, file, rule, reason, operations=("apply", "in-place"), base=BASE, more=(), **limits):
        refusal = {"class": CLASSES[rule], "rule": rule}
        return Vector(f"links/in-place/{id}", file.encode(), "24.6", reason, dict.fromkeys(operations, refusal),
                      rules=[rule], twin="links/in-place/wrong-twin",
                      features=sorted({*file.features(), "in-place", *more}), members={"base": base} | limits)

    def damaged(**more):
        file = link(BASE, TARGET, *plans(), **more)
        file.segments[0].crc = 0
        return with_sums(file)
    yield bad("order-base-segment", damaged(), "R-APP-01", "the memory is not the base, and a segment is damaged",
              base=TARGET)
    file = damaged()
    file.header |= {"target": BASE.digest()}
    yield bad("order-target-segment", file, "R-APP-05", "the header promises another state, and a segment is damaged")
    yield bad("order-layout-segment", damaged(metadata=[("deltachain.layout", "{}")]), "R-LAY-01",
              "the layout is none, and a segment is damaged", more=["layout"])
    fresh = BASE.changed("in-place-set-bytes", c=tensor("U8", bytes(100)))
    yield bad("set-bytes", with_sums(link(BASE, fresh)), "R-LIM-04", "the tensors that are set are larger than the "
              "caller allows", ("check", "apply", "sums", "in-place"), more=["set-limit"], set_bytes=99)
    yield good("smallest", link(EMPTY, EMPTY), "the smallest link, with its binding: memory without a tensor")
    file = link(ONE, ONE)
    assert data_of(file) == binding(file)
    yield vector("sums/none-record-of-nothing", with_area(file, AREA + record(KIND, b"")), "24.3",
                 "a link without entries, and a record without its binding", UNSUPPORTED,
                 found=None)


@makes_vectors_since("1.2")
def segments():
    """Step 1 checks all segments of all links, in their order, whatever the order of tensors and pieces."""
    def refused(id, file, rule, reason, operations, then=(), base=BASE):
        refusal = {"class": CLASSES[rule], "rule": rule}
        expect = dict.fromkeys(operations, refusal)
        more = {"then": [other.id for other in then]} if then else {}
        return Vector(f"links/in-place/{id}", file.encode(), "24.6", reason, expect, rules=[rule],
                      twin="links/in-place/wrong-twin", source=file, members={"base": base} | more,
                      features=sorted({*file.features(), "in-place", *(["sequence"] if then else [])}))

    def crc(file, number):
        file.segments[number].crc = 0
        return with_sums(file)

    def tail(file, number):
        file.segments[number].tail = b"\0"
        return with_sums(file)
    a, b = plans()
    all_three = ("check", "apply", "in-place")
    file = link(BASE, TARGET, b, a)
    crc(file, 0)
    yield refused("order-segments", tail(file, 1), "R-SEG-01", "two segments are damaged; the first one has the second "
                  "tensor", all_three)
    file = link(BASE, TARGET, a, b)
    tail(file, 0)
    yield refused("order-segments-of-tensors", crc(file, 1), "R-SEG-02", "two segments are damaged, in the order of tensors",
                  all_three)
    second = refused("order-last-damaged", tail(link(TARGET, MORE, *plans()), 0), "R-SEG-02", "the segment of the first "
                     "tensor is damaged; also the second of a sequence", all_three, base=TARGET)
    yield second
    yield refused("order-links-damaged", crc(right(), 1), "R-SEG-01", "the first link's segment of the second tensor is "
                  "damaged, and the second link's of the first", ("apply", "in-place"), [second])
    for id, name, plan in (("first", "a", b), ("last", "b", a)):
        contexts = Plan(SPARSE, SMALL, [(name, 0)], (0, 0), (4, 4), [0])
        yield refused(f"order-contexts-of-{id}-then-damaged", crc(link(BASE, TARGET, contexts, plan), 1), "R-SEG-01",
                      f"the segment of the {id} tensor has several contexts, and the next segment is damaged", all_three)
    file, found = changed(right(), "a", 0, 1, 0)
    file.segments[1].crc = 0
    yield refused("order-sums-then-damaged", with_sums(file, found), "R-SEG-01",
                  "sums of the first tensor are wrong, and the segment of the second one is damaged", all_three)
