"""Links that fit, or do not fit, their base and each other (SPEC section 9). Good sequences come first."""
from .builder import PATCH, SMALL, SPARSE
from .coding import Plan, link
from .links import copy_of, refused, valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import DTYPES, EMPTY, State, tensor
from .registry import makes_vectors

STEPS = [EMPTY] + [State(f"step-{step}", {"a": tensor("BF16", [0x3F80 + step, 0x4000, 0x0001]),
                                          "b": tensor("I32", [step, 7, -step % 2**32])}) for step in range(4)]


def step(number, plan=None):
    """The link to STEPS[number]."""
    kind = plan or {"a": Plan(SPARSE, SMALL, [("a", 0)]), "b": Plan(SPARSE, SMALL, [("b", 0)])}
    plans = [Plan(pieces=[("a", 0)]), Plan(pieces=[("b", 0)])] if number == 1 else [kind["a"], kind["b"]]
    if number == 1:
        plans[1].coded = [0, 1, 2]
    return link(STEPS[number - 1], STEPS[number], *plans)


@makes_vectors
def sequences():
    for number, name in ((2, "second"), (3, "third"), (4, "fourth")):
        yield valid(f"sequence-{name}", step(number), "9", "a link that is also part of sequences", ["R-APP-06"])
    yield valid("sequence-first", step(1), "9", "a snapshot that is also part of sequences", ["R-APP-06"])
    following = [f"links/valid/sequence-{name}" for name in ("second", "third", "fourth")]
    yield valid("sequence-of-4", step(1), "9", "a snapshot and three links, applied in one go", ["R-APP-06"],
                result=STEPS[4], features=["sequence"], then=following)
    yield valid("sequence-from-base", step(2), "9", "two links from a base", ["R-APP-06"], result=STEPS[3],
                features=["sequence"], then=following[1:2])
    back = link(STEPS[3], STEPS[2], Plan(SPARSE, SMALL, [("a", 0)]), Plan(SPARSE, SMALL, [("b", 0)]))
    yield valid("sequence-back", back, "9", "there and back again: the result is the base", ["R-APP-06"],
                result=STEPS[3], features=["sequence"], then=["links/valid/sequence-third"])


@makes_vectors
def sequences_that_do_not_fit():
    def bad(id, reason, twin, first, base, *then):
        names = [f"links/valid/{name}" for name in then]
        return refused(f"apply/{id}", first, "R-APP-06", reason, twin, "9", base=base, check=False,
                       features=["sequence"], then=names)
    yield bad("sequence-gap", "the link between is missing", "sequence-first", step(1), EMPTY, "sequence-third")
    yield bad("sequence-twice", "the same link twice", "sequence-second", step(2), STEPS[1], "sequence-second")
    yield bad("sequence-reversed", "two links in the wrong order", "sequence-third", step(3), STEPS[2],
              "sequence-second")
    yield bad("sequence-last-gap", "the third link does not fit the second", "sequence-first", step(1), EMPTY,
              "sequence-second", "sequence-fourth")
    yield bad("sequence-snapshot-again", "a snapshot does not continue anything", "sequence-first", step(1), EMPTY,
              "sequence-first")


@makes_vectors
def wrong_base():
    def bad(id, reason, twin, base):
        return refused(f"apply/{id}", copy_of(twin), "R-APP-01", reason, twin, "9", base=base, check=False)
    yield bad("base-is-target", "applied twice: the base is the target already", "one-lane", ONE_CHANGED)
    yield bad("base-empty", "a patch of the empty state", "one-lane", EMPTY)
    yield bad("base-for-snapshot", "a snapshot over a state", "snapshot", ONE)
    yield bad("base-other-tensor", "the base has a tensor more", "one-lane",
              State("one-u8-and-more", ONE.tensors | {"u": tensor("U8", b"")}))
    yield bad("base-other-name", "the base's tensor has another name", "one-lane",
              State("one-u8-named", {"T": ONE.tensors["t"]}))
    yield bad("base-other-shape", "the base's tensor has another shape", "one-lane",
              State("one-u8-shaped", {"t": tensor("U8", bytes(range(8)), (1, 8))}))
    yield bad("base-other-dtype", "the base's tensor has another dtype", "one-lane",
              State("one-u8-as-i8", {"t": tensor("I8", bytes(range(8)))}))
    yield bad("base-minus-zero", "0 and -0 are different bases", "signs-small", State("signs-base-zeros", {
        "t": tensor("BF16", [0x8000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0x0001, 0x8001, 0x3F80])}))
    yield bad("base-empty-link", "a link that changes nothing has a base all the same", "empty-link", ONE_CHANGED)


@makes_vectors
def patched_tensors():
    def bad(id, reason, change):
        good = copy_of("unchanged-entry")
        change(good.entries[0])
        return refused(f"apply/{id}", good, "R-APP-02", reason, "unchanged-entry", "9", check=False)

    def fields(**changes):
        def change(entry):
            for name, value in changes.items():
                setattr(entry, name, value)
        return change
    yield bad("patch-absent", "the base has no tensor of this name", fields(name="u"))
    yield bad("patch-other-dtype", "the base's tensor has another dtype of the same length", fields(dtype=DTYPES["I8"]))
    yield bad("patch-wider-dtype", "the base's tensor has a dtype of another width",
              fields(dtype=DTYPES["F64"], shape=(1,)))
    yield bad("patch-longer", "the base's tensor is shorter", fields(shape=(9,)))
    yield bad("patch-shorter", "the base's tensor is longer", fields(shape=(7,)))
    yield bad("patch-empty", "the base's tensor is not empty", fields(shape=(0, 8), segments=[]))
    more = copy_of("operations")
    for entry in more.entries:
        if entry.name == "grown":
            entry.operation = PATCH
    yield refused("apply/patch-grown", more, "R-APP-02", "a tensor that has grown cannot be patched", "operations", "9",
                  check=False)


@makes_vectors
def wrong_digests():
    def bad(id, rule, reason, twin, change):
        good = copy_of(twin)
        change(good)
        return refused(f"apply/{id}", good, rule, reason, twin, "9", check=False)

    def promised(change):
        """The header's target follows from the digests of the index, so only the data show that they are wrong."""
        def both(link):
            change(link)
            link.header = {"target": link.promised()}
        return both

    def flip(link):
        digest = link.entries[0].digests[0]
        link.entries[0].digests = [bytes([digest[0] ^ 1]) + digest[1:]]

    def swap(link):
        one, two = link.entries[1], link.entries[2]
        one.digests, two.digests = two.digests, one.digests

    def base_digest(link):
        link.entries[0].digests = link.base.tensors["t"].digests()

    def other_value(link):
        link.segments[0].set_raw("plane 0", b"\x47")

    def other_place(link):
        link.segments[0].set_raw("gap high", b"\6")

    def zeros(link):
        link.segments, link.entries[0].segments = [], [0]

    def target(state):
        def change(link):
            link.target = state
        return change
    for id, reason, twin, change in (
            ("one-bit", "one bit of a tensor digest", "one-lane", flip),
            ("swapped", "the digests of two tensors, exchanged", "names-in-order", swap),
            ("of-base", "the digest of the base's tensor", "one-lane", base_digest)):
        yield bad(f"digest-{id}", "R-APP-04", f"{reason}, with the target that follows", twin, promised(change))
        yield bad(f"promise-{id}", "R-APP-05", reason, twin, change)
    yield bad("digest-other-value", "R-APP-04", "another value than the digest promises", "one-lane", other_value)
    yield bad("digest-other-lane", "R-APP-04", "the right value in another lane", "one-lane", other_place)
    yield bad("digest-zeros", "R-APP-04", "a set tensor without its part", "snapshot", zeros)
    yield bad("target-base", "R-APP-05", "the header names the base as target", "one-lane", target(ONE))
    yield bad("target-shape", "R-APP-05", "the header's target has another shape", "one-lane",
              target(State("unused", {"t": tensor("U8", ONE_CHANGED.tensors["t"].data, (8, 1))})))
    yield bad("target-unlisted", "R-APP-05", "the header's target lacks a tensor that is carried over",
              "patch-and-unlisted", target(ONE_CHANGED))
    yield bad("target-kept", "R-APP-05", "the header's target has a tensor that is removed", "remove",
              target(copy_of("remove").base))
    yield bad("target-empty", "R-APP-05", "the header's target is the empty state", "snapshot", target(EMPTY))
