"""The caller's limit on the bytes of all pieces that have a part (SPEC section 13, R-LIM-08)."""
from .builder import PATCH, REMOVE, Entry
from .coding import Plan, link
from .links import UNSUPPORTED, copy_of, is_direct, refused, valid
from .links_apply import STEPS, step
from .links_order_apply import index, segment
from .links_valid_structure import ONE, ONE_CHANGED
from .model import State, tensor
from .registry import makes_vectors

FEATURES = ["coded-limit"]


@makes_vectors
def within():
    for id, twin, limit, reason in (
            ("exact", "one-lane", 8, "a piece of as many bytes as the caller allows, of which one changes"),
            ("more", "one-lane", 9, "fewer bytes than the caller allows"),
            ("relative", "worked-contexts", 16, "a piece with relative values"),
            ("snapshot", "snapshot", 8, "a snapshot"),
            ("zeros", "set-zeros", 0, "a set tensor without parts does not count"),
            ("zeros-over-base", "set-zeros-over-base", 0, "a set tensor without parts does not count"),
            ("none", "unchanged-entry", 0, "a listed tensor without parts does not count"),
            ("removal", "remove", 0, "a removal does not count"),
            ("smallest", "smallest", 0, "no tensor at all"),
            ("unlisted-pieces", "pieces-one-segment", 2**24 + 80, "the piece between two others has no part"),
            ("sum", "worked-escapes", 6024, "two parts in one segment"),
            ("segments", "tensors-200-own-segments", 800, "200 segments of four bytes each")):
        yield valid(f"coded-bytes-{id}", copy_of(twin), "13", f"as many coded bytes as the caller allows: {reason}",
                    ["R-LIM-08"], features=FEATURES, coded_bytes=limit)
    both = State("unused", {"t": tensor("U8", bytes(range(8))), "z": tensor("U8", bytes(100))})
    yield valid("coded-bytes-and-set-bytes", link(State("unused", {}), both, Plan(pieces=[("t", 0)])), "13",
                "108 bytes are set, and 8 of them coded", ["R-LIM-04", "R-LIM-08"], features=[*FEATURES, "set-limit"],
                set_bytes=108, coded_bytes=8)


def bad(id, twin, limit, reason, change=None, rule="R-LIM-08", **members):
    file = copy_of(twin)
    if change:
        change(file)
    patches = True if rule == "R-LIM-08" or is_direct(file) else dict(UNSUPPORTED)
    features = [*FEATURES, *members.pop("features", ())]
    return refused(id, file, rule, reason, twin, "13" if id.startswith("limits/") else "10", patches=patches,
                   features=features, coded_bytes=limit, **members)


@makes_vectors
def above():
    for id, twin, limit, reason in (
            ("one-less", "one-lane", 7, "one byte more than the caller allows"),
            ("none", "one-lane", 0, "the caller allows none"),
            ("relative", "worked-contexts", 15, "relative values count like others"),
            ("snapshot", "snapshot", 7, "set tensors with parts count"),
            ("lanes", "one-lane", 1, "all bytes of a piece count, not only the lanes that change"),
            ("pieces", "pieces-one-segment", 2**24 + 79, "the pieces that have a part count, whole"),
            ("sum", "worked-escapes", 6023, "parts that are small each and too large together"),
            ("segments", "tensors-200-own-segments", 799, "segments that are small each and too large together")):
        yield bad(f"limits/coded-bytes-{id}", twin, limit, reason)
    nothing = link(ONE, ONE, Plan(pieces=[("t", 0)], coded=[]), listed=["t"])
    yield valid("part-without-lanes", nothing, "6.2", "a part that codes no lane", features=[])
    yield refused("limits/coded-bytes-no-lane", nothing, "R-LIM-08", "a part that codes no lane counts with its piece",
                  "part-without-lanes", "13", patches=True, features=FEATURES, coded_bytes=7)


@makes_vectors
def order():
    def unused(file):
        file.segments.append(file.segments[0])

    def removal(file):
        file.entries.insert(0, Entry("s", REMOVE))

    def as_patch(file):
        file.entries[0].operation = PATCH
    yield bad("order/set-bytes-then-coded-bytes", "snapshot", 7, "both limits of the caller: set tensors first",
              rule="R-LIM-04", features=["set-limit"], set_bytes=7)
    yield bad("order/coded-bytes-within-set-bytes", "snapshot", 7, "a limit that is kept, and one that is not",
              features=["set-limit"], set_bytes=8)
    for id, twin, rule, change, reason in (
            ("unused", "one-lane", "R-IDX-12", unused, "an unused segment"),
            ("operations", "snapshot", "R-IDX-17", removal, "a removal from the empty state"),
            ("patch", "snapshot", "R-IDX-17", as_patch, "a patch of the empty state"),
            ("sum", "one-lane", "R-IDX-14", lambda file: setattr(file.segments[0], "stored_length", 600),
             "the sum of segments")):
        yield bad(f"order/{id}-then-coded-bytes", twin, 1, f"{reason}, before the caller's limit", change, rule=rule)
    yield bad("order/coded-bytes-then-segment", "one-lane", 7, "the caller's limit before any segment", segment)
    yield bad("order/coded-bytes-then-base", "one-lane", 7, "the caller's limit before the base", base=ONE_CHANGED)
    yield bad("order/coded-bytes-then-relative", "worked-contexts", 15,
              "without a base, the caller's limit before relative values", segment)
    grown = State("step-4-recoded", STEPS[4].tensors | {"c": tensor("U8", b"\1" * 100)})
    more = link(STEPS[4], grown, Plan(pieces=[("c", 0)]))
    yield valid("sequence-codes", more, "9", "a link that codes 100 bytes, as part of sequences", ["R-APP-06"])
    then = ["links/valid/sequence-codes"]
    yield valid("sequence-coded-bytes", step(4), "13",
                "each link of a sequence may code as many bytes as the caller allows",
                ["R-LIM-08"], result=grown, features=["sequence", *FEATURES], coded_bytes=100, then=then)
    for id, first, base in (("limits/sequence-coded-bytes", step(4), None),
                            ("order/sequence-second-coded-bytes-then-fit", step(2), None),
                            ("order/sequence-second-coded-bytes-then-base", step(4), STEPS[1])):
        yield refused(id, first, "R-LIM-08", "the second link codes a byte too many", "sequence-coded-bytes",
                      "13" if base is None else "10", base=base, check=False, features=["sequence", *FEATURES],
                      coded_bytes=99, then=then)
    file = step(4)
    index(file)
    yield refused("order/sequence-first-index-then-second-coded-bytes", file, "R-IDX-12",
                  "step 6 of the first link before the limit in the second", "sequence-coded-bytes", "10",
                  features=["sequence", *FEATURES], coded_bytes=99, then=then)
