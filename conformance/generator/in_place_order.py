"""Links in place: no digest is compared, and the first failure is the first of the text (SPEC section 24.6)."""
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


@makes_vectors_since("1.2")
def digests():
    """The sums fit, and a digest does not: in place does not look at it."""
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
