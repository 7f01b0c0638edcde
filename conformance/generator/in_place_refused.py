"""Links that are refused in place (SPEC section 24.6): links that cannot be applied in place, links whose sums do not
fit, and links that no operation accepts."""
import copy

from .builder import ABSOLUTE, BITMAP, DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .in_place_valid import STEPS, step
from .links import CLASSES, accepted
from .links_valid_pieces import by_rule, with_lanes
from .links_valid_structure import ONE
from .model import EMPTY, PIECE, State, tensor
from .registry import MADE, Vector, makes_vectors
from .sums import P, UNSUPPORTED, sums, vector, with_sums, wrong_lanes

BASE = State("in-place-wrong-base", {"a": tensor("BF16", [0x3F80, 2, 3, 4]), "b": tensor("U8", b"\5\6\7")})
TARGET = State("in-place-wrong-target", {"a": tensor("BF16", [0x3F81, 9, 3, 4]), "b": tensor("U8", b"\5\6\xff")})
OTHER = State("unused", {"a": tensor("BF16", [0x3F82, 9, 3, 4]), "b": tensor("U8", b"\5\6\xff")})
LAST = State("unused", {"a": tensor("BF16", [0x3F81, 9, 3, 4]), "b": tensor("U8", b"\5\6\xfe")})


def plans(values=SMALL):
    return [Plan(SPARSE, values, [(name, 0)], widths=(4,)) for name in "ab"]


def right():
    return link(BASE, TARGET, *plans())


# --- UNSUPPORTED ---

@makes_vectors
def cannot():
    def no(id, file, reason, **more):
        return vector(f"in-place/not-{id}", with_sums(file), "24.5", reason, UNSUPPORTED, **more)
    lanes = [0x0080 * i for i in range(8)]
    base = State("in-place-contexts-base", {"t": tensor("BF16", lanes)})
    target = State("in-place-contexts-target", {"t": tensor("BF16", [lanes[0] + 1, *lanes[1:7], lanes[7] + 1])})
    for id, plan, reason in (
            ("contexts", Plan(SPARSE, SMALL, parameters=(0, 0), widths=(2, 2), thresholds=[4]), "relative small values"),
            ("contexts-bitmap", Plan(SPARSE, PLANES, parameters=(BITMAP, BITMAP), thresholds=[4]), "bitmaps"),
            ("contexts-dense", Plan(DENSE, PLANES, thresholds=[4]), "dense positions"),
            ("contexts-threshold-0", Plan(SPARSE, SMALL, parameters=(0, 0), widths=(2, 2), thresholds=[0]),
             "all lanes are in the second context"),
            ("contexts-16", Plan(SPARSE, SMALL, parameters=(0,) * 16, widths=(2,) * 16, thresholds=[4] * 15),
             "sixteen contexts, two of them with lanes")):
        yield no(id, link(base, target, plan), f"several contexts: {reason}")
    yield no("contexts-not-coded", link(base, base, Plan(SPARSE, SMALL, [("t", 0)], (0, 0), (2, 2), [4], []), listed=["t"]),
             "two contexts and no coded lane")
    yield no("dense-relative", link(base, target, Plan(DENSE, PLANES)), "relative values of dense positions")
    one = Plan(SPARSE, SMALL, [("a", 0)], widths=(4,))
    yield no("dense-relative-second", link(BASE, TARGET, one, Plan(DENSE, PLANES, [("b", 0)])),
             "one part is local, the other one is not")
    fresh = BASE.changed("in-place-set-one", c=tensor("U8", b"x"))
    yield no("set", link(BASE, fresh, Plan(pieces=[("c", 0)])), "a tensor is new")
    yield no("set-zeros", link(BASE, BASE.changed("in-place-set-zeros", c=tensor("U8", b"\0"))),
             "a tensor is new, and zeros: it has no part")
    yield no("set-again", link(BASE, TARGET, Plan(pieces=[("a", 0)], coded=[0, 1, 2, 3]), Plan(pieces=[("b", 0)]),
                               operations={"a": 1}), "a tensor that is there is set")
    yield no("set-empty", link(BASE, BASE.changed("in-place-set-empty", c=tensor("U8", b""))), "an empty tensor is new")
    yield no("remove", link(BASE, TARGET.changed("in-place-remove", b=None), one), "a tensor is removed")
    yield no("remove-what-is-not-there", link(BASE, TARGET, *plans(), removed=["c"]),
             "a tensor is removed that the base does not have")
    good, bad = MADE["links/in-place/step-2"], link(STEPS[1], STEPS[2], *(
        Plan(SPARSE, SMALL, [(name, 0)], (0, 0), (4, 4), [0]) for name in "ab"))
    second = no("contexts-second-link", bad, "a link that is also part of a sequence")
    yield second
    yield no("sequence-contexts", step(1), "the second of two links has several contexts", then=[second])
    less = vector("in-place/not-sums", step(2), "24.6", "a link without bit and area, local but for that", UNSUPPORTED,
                  found=None)
    yield less
    yield no("sequence-second-without-sums", step(1), "the second of two links has no sums", then=[less])
    yield vector("in-place/not-sequence-first-without-sums", step(1), "24.6", "the first of two links has no sums",
                 UNSUPPORTED, found=None, then=[good])
    yield vector("in-place/not-sequence-middle", with_sums(step(1)), "24.6", "the second of three links has no sums",
                 UNSUPPORTED, then=[less, MADE["links/in-place/step-3"]])


# --- R-SUM-03 and R-SUM-04 ---

def changed(file, *place, number=None, by=1):
    """Returns the link with one number of its sums changed: that of (tensor, piece, 0 of the piece or 1 of its lanes,
    k)."""
    name, piece, which, k = place
    found = copy.deepcopy(sums(file))
    old = found[name][piece][which][k]
    found[name][piece][which][k] = (old + by) % P if number is None else number
    return with_sums(file, found), found


def broken(id, rule, reason, file, found=False, twin="in-place/wrong-twin", **more):
    return vector(f"in-place/{id}", file, "24.6", reason, rule, found=found, twin=f"links/{twin}", **more)


def replaced(file, name, which, sums_of_these):
    found = copy.deepcopy(sums(file))
    found[name][0][which] = list(sums_of_these)
    return with_sums(file, found), found


@makes_vectors
def wrong_numbers():
    """The lanes are right, but the numbers are not."""
    yield vector("in-place/wrong-twin", with_sums(right()), "24.6", "a good link, from which bad ones are made", None)
    own = sums(right())
    a_coded = own["a"][0][1]
    for which, rule, what in ((1, "R-SUM-03", "coded lanes"), (0, "R-SUM-04", "a piece")):
        id = ("piece", "coded")[which]
        for name in "ab":
            for k in (0, 1):
                for label, by in (("more", 1), ("less", P - 1)):
                    file, found = changed(right(), name, 0, which, k, by=by)
                    yield broken(f"{id}-{name}-{k}-{label}", rule, f"sum {k} of {what} is one {label}", file, found)
        for label, value, reason in (
                ("zero", (0, 0), "are 0"), ("swapped", own["a"][0][which][::-1], "stand the other way round"),
                ("first-alone", (own["a"][0][which][0], 0), "are right but for the second, which is 0"),
                ("of-another", own["b"][0][which], "are those of the other tensor"),
                ("exchanged", own["a"][0][1 - which], "are those of the piece and its lanes the other way round")):
            file, found = replaced(right(), "a", which, value)
            yield broken(f"{id}-{label}", rule, f"the sums of {what} {reason}", file, found)
    before = sums(with_base_as_target())["a"][0]
    for label, value, reason in (
            ("old", before[1], "those of the old values"),
            ("difference", [(x - y) % P for x, y in zip(a_coded, before[1])], "those of new values less those of old ones"),
            ("added", [(x + y) % P for x, y in zip(a_coded, before[1])], "those of new and old values together")):
        file, found = replaced(right(), "a", 1, value)
        yield broken(f"coded-{label}", "R-SUM-03", f"the sums of coded lanes are {reason}", file, found)
    file, found = replaced(right(), "a", 0, before[0])
    yield broken("piece-before", "R-SUM-04", "the sums of a piece are those that it had", file, found)
    file, found = replaced(right(), "a", 0, a_coded)
    yield broken("piece-as-coded", "R-SUM-04", "the sums of a piece are those of its coded lanes", file, found)
    for id, plan, name in (("part", Plan(SPARSE, SMALL, [("t", 0)], coded=[]), "no-coded-lanes"),
                           ("entry", None, "unchanged-entry")):
        file, found = changed(link(ONE, ONE, *([plan] if plan else []), listed=["t"]), "t", 0, 0, 1)
        yield broken(f"piece-of-empty-{id}", "R-SUM-04", f"nothing changes, but the sums of the piece do: {id}", file, found,
                     f"in-place/{name}")
    file, found = changed(link(ONE, ONE, Plan(SPARSE, SMALL, [("t", 0)], coded=[]), listed=["t"]), "t", 0, 1, 0)
    yield broken("coded-of-nothing", "R-SUM-03", "there are no coded lanes, but their sums are not 0", file, found,
                 "in-place/no-coded-lanes")


def with_base_as_target():
    """The entries and parts of the good link, with the base's values."""
    file = right()
    file.target = BASE
    return file


@makes_vectors
def wrong_lanes_of_links():
    """The sums are those of the target, but the segments do not lead to it."""
    def bad(id, rule, reason, file, other, twin="in-place/wrong-twin"):
        return broken(id, rule, reason, with_sums(wrong_lanes(file, other)), twin=twin, apply=False)
    for values, name in ((SMALL, "small"), (PLANES, "planes"), (ABSOLUTE, "absolute")):
        for id, other, reason in (("first", OTHER, "a coded lane gets another value"),
                                  ("last", LAST, "the last byte gets another value")):
            yield bad(f"value-{name}-{id}", "R-SUM-03", f"{reason}; values are {name}", link(BASE, TARGET, *plans(values)),
                      link(BASE, other, *plans(values)))
    shifted = State("unused", {"a": tensor("BF16", [0x3F81, 2, 9, 4]), "b": TARGET.tensors["b"]})
    yield bad("position", "R-SUM-03", "a value goes to the lane beside its own", link(BASE, TARGET, *plans(ABSOLUTE)),
              link(BASE, shifted, *plans(ABSOLUTE)))
    turned = State("unused", {"a": tensor("BF16", [9, 0x3F81, 3, 4]), "b": TARGET.tensors["b"]})
    yield bad("exchanged-lanes", "R-SUM-03", "two lanes get each other's value", link(BASE, TARGET, *plans(ABSOLUTE)),
              link(BASE, turned, *plans(ABSOLUTE)))
    negative = State("unused", {"a": tensor("BF16", [0xBF81, 9, 3, 4]), "b": TARGET.tensors["b"]})
    yield bad("sign", "R-SUM-03", "a lane gets the other sign", link(BASE, TARGET, *plans(ABSOLUTE)),
              link(BASE, negative, *plans(ABSOLUTE)))
    for dtype, width in (("U8", 1), ("BF16", 2), ("F32", 4), ("F64", 8)):
        old, new, most = [1, 2, 3], [1, 2, 4], 1 << (8 * width - 1)
        base, target, other = (State(label, {"t": tensor(dtype, lanes)}) for label, lanes in (
            (f"in-place-bit-{width}-base", old), (f"in-place-bit-{width}-target", new), ("unused", [1, 2, 4 | most])))
        good = vector(f"in-place/bit-{width}", with_sums(link(base, target, Plan())), "24.6",
                      "a good link, from which a bad one is made", None)
        yield good
        yield bad(f"bit-{width}-highest", "R-SUM-03", f"the highest bit of a lane of {width} bytes is another",
                  link(base, target, Plan()), link(base, other, Plan()), f"in-place/bit-{width}")
    for values, name in ((SMALL, "small"), (ABSOLUTE, "absolute")):
        # The coded lanes are right, but one lane is missing.
        file = link(BASE, TARGET, *plans(values))
        missed = link(BASE, TARGET, Plan(SPARSE, values, [("a", 0)], widths=(4,), coded=[1]), plans(values)[1])
        missed.target = TARGET
        yield broken(f"missed-{name}", "R-SUM-04", f"a lane that changes is not coded; values are {name}",
                     with_sums(missed), apply=False)
        assert file.entries[0].digests == missed.entries[0].digests
    missed = link(BASE, TARGET, plans()[0])
    assert missed.entries[1].segments == [0]
    yield broken("missed-part", "R-SUM-04", "a piece that changes has no part", with_sums(missed), apply=False)


@makes_vectors
def wrong_pieces():
    base = by_rule("in-place-pieces-base", "U64", PIECE + 80, multiply=0, add=0)
    both = with_lanes(base, "in-place-pieces-both", {0: b"\1" * 8, PIECE - 8: b"\2" * 8, PIECE: b"\3" * 8,
                                                    PIECE + 72: b"\4" * 8})

    def two():
        return link(base, both, Plan(SPARSE, SMALL, parameters=(20,), widths=(8,)))
    for piece in (0, 1):
        for which, rule, what in ((1, "R-SUM-03", "of coded lanes"), (0, "R-SUM-04", "of a piece")):
            file, found = changed(two(), "t", piece, which, 1)
            yield broken(f"pieces-{piece}-{('piece', 'coded')[which]}", rule,
                         f"two pieces; sums {what} are wrong in number {piece}", file, found,
                         "in-place/pieces-one-segment", apply=False)
    second = with_lanes(base, "in-place-pieces-second", {PIECE + 8: b"\xff" * 8})
    file, found = changed(link(base, second, Plan()), "t", 0, 0, 0)
    yield broken("pieces-without-part", "R-SUM-04", "the sums of the first piece change, and it has no part", file, found,
                 "in-place/pieces-second-alone", apply=False)
    missed = link(base, both, Plan(SPARSE, SMALL, [("t", 1)], (20,), (8,)))
    yield broken("pieces-missed", "R-SUM-04", "the first piece changes and has no part", with_sums(missed), False,
                 "in-place/pieces-one-segment", apply=False)


@makes_vectors
def wrong_sequences():
    """Each link of a sequence is compared."""
    good = {number: MADE[f"links/in-place/step-{number}"] for number in (1, 2, 3)}
    twins = {"first": "in-place/sequence-2", "last": "in-place/sequence-2"}
    for which, rule in ((1, "R-SUM-03"), (0, "R-SUM-04")):
        kind = ("piece", "coded")[which]
        file, found = changed(step(1), "a", 0, which, 0)
        yield broken(f"sequence-first-{kind}", rule, "the first of two links has a wrong number", file, found,
                     twins["first"], then=[good[2]])
        file, found = changed(step(2), "a", 0, which, 1)
        last = broken(f"sequence-part-{kind}", rule, "a wrong number; also the last of a sequence", file, found,
                      "in-place/step-2")
        yield last
        yield broken(f"sequence-last-{kind}", rule, "the last of two links has a wrong number", with_sums(step(1)), False,
                     twins["last"], then=[last])
        yield broken(f"sequence-middle-{kind}", rule, "the second of three links has a wrong number", with_sums(step(1)),
                     False, "in-place/sequence-3", then=[last, good[3]])
    # The errors of two links cancel each other: one lane is 1 too high, and the next link adds 1 too little.
    base, middle, end = (State(f"in-place-cancel-{name}", {"t": tensor("BF16", lanes)}) for name, lanes in (
        ("base", [10, 20, 30]), ("middle", [11, 20, 30]), ("end", [14, 20, 30])))
    high = State("unused", {"t": tensor("BF16", [12, 20, 30])})
    one = vector("in-place/cancel-first", with_sums(link(base, middle, Plan(SPARSE, SMALL))), "24.6",
                 "a good link, of which a bad one is made", None)
    yield one
    second = broken("cancel-second", "R-SUM-03", "a difference is one too small; also the second of a sequence",
                    with_sums(wrong_lanes(link(middle, end, Plan(SPARSE, SMALL, widths=(4,))),
                                          link(high, end, Plan(SPARSE, SMALL, widths=(4,))))), apply=False,
                    twin="in-place/cancel-first")
    yield second
    yield broken("cancel-values", "R-SUM-03", "a difference is one too great, and the next link's one too small",
                 with_sums(wrong_lanes(link(base, middle, Plan(SPARSE, SMALL)), link(base, high, Plan(SPARSE, SMALL)))),
                 twin="in-place/cancel-first", apply=False, then=[second])
    # The first link forgets a lane that the second one writes.
    whole = State("in-place-forget-middle", {"t": tensor("BF16", [11, 21, 30])})
    after = State("in-place-forget-end", {"t": tensor("BF16", [12, 21, 30])})
    writes = vector("in-place/forget-second", with_sums(link(whole, after, Plan(coded=[0, 1]))), "24.6",
                    "a direct link that writes a lane which does not change; also the second of a sequence", None)
    yield writes
    yield broken("forget-lane", "R-SUM-04", "a lane that the first link should have changed is written by the second",
                 with_sums(link(base, whole, Plan(coded=[0]))), twin="in-place/cancel-first", apply=False, then=[writes])
    # Numbers of the intermediate pieces that are wrong in both links.
    file, found = changed(link(base, middle, Plan(SPARSE, SMALL)), "t", 0, 0, 0)
    next_file = link(middle, end, Plan(SPARSE, SMALL, widths=(4,)))
    then = vector("in-place/cancel-next", with_sums(next_file), "24.6", "a good link; also the second of a sequence", None)
    yield then
    yield broken("cancel-pieces", "R-SUM-04", "the sums of a piece on the way are wrong, at the end they are right", file,
                 found, "in-place/cancel-first", then=[then])


# --- The order of checks ---

@makes_vectors
def order():
    """Two defects each: the first in the order of the text is reported."""
    file, found = changed(right(), "a", 0, 0, 0)
    found["b"][0][1][0] = (found["b"][0][1][0] + 1) % P
    yield broken("order-entries", "R-SUM-04", "R-SUM-04 of the first tensor, R-SUM-03 of the second", with_sums(file, found),
                 found)
    file, found = changed(right(), "a", 0, 0, 0)
    found["a"][0][1][0] = (found["a"][0][1][0] + 1) % P
    yield broken("order-piece", "R-SUM-03", "both rules in one piece", with_sums(file, found), found)
    found = sums(right())
    wrong, last = changed(step(2), "a", 0, 1, 0)
    second = broken("order-second", "R-SUM-03", "also the second of a sequence", wrong, last, "in-place/step-2")
    yield second
    file, found = changed(step(1), "c", 0, 0, 0)
    yield broken("order-links", "R-SUM-04", "R-SUM-04 of the last tensor of the first link, R-SUM-03 of the second link",
                 file, found, "in-place/sequence-2", then=[second])
    file, found = changed(step(1), "a", 0, 1, 0)
    yield vector("in-place/order-cannot", file, "24.6", "the first link breaks R-SUM-03, the second one has no sums",
                 UNSUPPORTED, found=found, then=[MADE["links/in-place/not-sums"]])
    for id, plan in (("contexts", Plan(SPARSE, SMALL, [("b", 0)], (0, 0), (8, 8), [0])),
                     ("dense", Plan(DENSE, PLANES, [("b", 0)]))):
        file, found = changed(link(BASE, TARGET, plans()[0], plan), "a", 0, 1, 0)
        yield vector(f"in-place/order-cannot-{id}", file, "24.6", f"the first part breaks R-SUM-03, the second is not local: "
                     f"{id}", UNSUPPORTED, found=found)
        file, found = changed(link(BASE, BASE.changed("in-place-wrong-last", b=TARGET.tensors["b"]), plan, listed=["a"]),
                              "a", 0, 0, 0)
        yield vector(f"in-place/order-cannot-{id}-listed", file, "24.6", "the first piece, which has no part, breaks R-SUM-04, "
                     f"the second part is not local: {id}", UNSUPPORTED, found=found)


@makes_vectors
def other_rules():
    """Links that apply refuses before step 8.5 are refused by the same rule, before the sums are compared."""
    def bad(id, file, rule, reason, twin, base=BASE, check=True, then=(), more=(), **limits):
        refusal = {"class": CLASSES[rule], "rule": rule}
        expect = {"check": refusal if check else accepted(file), "apply": refusal}
        if check:
            expect["sums"] = refusal
        members = limits | {"base": base if base.tensors else None}
        members |= {"then": [other.id for other in then]} if then else {}
        features = {*file.features(), "in-place", *more, *(["sequence"] if then else [])}
        return Vector(f"links/in-place/{id}", file.encode(), "24.6", reason, expect | {"in-place": refusal}, rules=[rule],
                      twin=f"links/{twin}", features=sorted(features), members=members)
    twin = "in-place/wrong-twin"
    yield bad("base-is-target", with_sums(right()), "R-APP-01", "the memory holds the target already", twin, TARGET, False)
    yield bad("base-empty", with_sums(right()), "R-APP-01", "the memory is empty", twin, EMPTY, False)
    yield bad("sequence-gap", with_sums(step(1)), "R-APP-06", "the second of two links does not follow the first", "in-place/"
              "sequence-2", STEPS[0], False, [MADE["links/in-place/step-3"]])
    yield bad("coded-bytes", with_sums(right()), "R-LIM-08", "the pieces that have a part are larger than the caller allows",
              twin, more=["coded-limit"], coded_bytes=10)
    layout = link(BASE, TARGET, *plans(), metadata=[("deltachain.layout", "{}")])
    yield bad("layout", with_sums(layout), "R-LAY-01", "the layout is none", twin, check=False, more=["layout"])
    promise = link(BASE, TARGET, *plans())
    promise.header = {"target": BASE.digest()}
    yield bad("order-target-without-sums", promise, "R-APP-05", "the header promises another state, and there are no sums",
              twin, check=False)
    file = right()
    file.segments[1].crc = 0
    yield bad("segment", with_sums(file), "R-SEG-01", "a segment's checksum does not match", twin)
    file = right()
    file.segments[1].crc = 0
    yield bad("order-segment-without-sums", file, "R-SEG-01", "a segment's checksum does not match, and there are no sums",
              twin)
    file = right()
    file.segments[1].crc = 0
    file, _ = changed(file, "a", 0, 1, 0)
    yield bad("order-segment", file, "R-SEG-01", "a segment's checksum does not match, and sums before it are wrong", twin)
    yield bad("order-base-without-sums", right(), "R-APP-01", "the memory is not the base, and there are no sums", twin,
              TARGET, False)
    # Members of contexts are not compared in place: such a link is refused earlier.
    lanes = [0x0080 * i for i in range(8)]
    base = State("in-place-contexts-base", {"t": tensor("BF16", lanes)})
    target = State("in-place-contexts-target", {"t": tensor("BF16", [lanes[0] + 1, *lanes[1:7], lanes[7] + 1])})
    file = link(base, target, Plan(DENSE, PLANES, thresholds=[4]))
    table = file.segments[0].table
    (increments, counts), = table.parts
    table.parts = [(increments, [counts[0] + 1, counts[1] - 1])]
    file = with_sums(file)
    refusal = {"class": CLASSES["R-POS-02"], "rule": "R-POS-02"}
    yield Vector("links/in-place/order-members", file.encode(), "24.6",
                 "the counts of two contexts are not those of the base: apply finds it, in place does not get there",
                 {"check": accepted(file), "apply": refusal, "in-place": dict(UNSUPPORTED)}, rules=["R-POS-02"],
                 twin="links/in-place/not-contexts-dense", features=sorted({*file.features(), "in-place"}),
                 members={"base": base})
