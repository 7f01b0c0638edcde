"""Sequences of links: tensors that a later link removes or sets again, and tensors that a link lists without a part
(SPEC sections 9 and 10). A reader that builds only the tensors of the last state must still do all of step 8 for the
others."""
from .builder import BITMAP, DENSE, PLANES, SET, SMALL, SPARSE
from .coding import Plan, link
from .links import copy_of, followed_by, refused, valid
from .model import State, tensor
from .registry import makes_vectors_since

LANES = [0x0000, 0x0101, 0x0001, 0x0102, 0x0002, 0x0103, 0x0003, 0x0104]  # exponent fields 0 and 2
ALONE = State("gone-alone", {"a": tensor("U8", b"abcd")})
CHANGED = ALONE.changed("gone-alone-changed", a=tensor("U8", b"abcX"))
# The second link changes the lanes 0, 3, 4 and 7 of each tensor, the third link the lane 2.
STATES = [State(f"gone-{number}", ALONE.tensors | {"t": tensor("BF16", [
    lane + (number > 0 and place in (0, 3, 4, 7)) + (number > 1 and place == 2) for place, lane in enumerate(LANES)])})
    for number in range(3)]
CODINGS = {"absolute": Plan(), "relative": Plan(SPARSE, SMALL, None, (BITMAP, 0), (1, 2), [1]),
           "dense": Plan(DENSE, PLANES, thresholds=[1])}
REMOVED, LATER = "links/valid/gone-removed", "links/valid/gone-removed-later"
BETWEEN, AGAIN = "links/valid/gone-between", "links/valid/gone-set-again"


@makes_vectors_since("1.2")
def good_ones():
    yield valid("gone-removed", link(STATES[1], ALONE), "6.2", "a tensor is removed; also the last of sequences")
    yield valid("gone-removed-later", link(STATES[2], ALONE), "6.2", "a tensor is removed; also the last of sequences")
    yield valid("gone-between", link(STATES[1], STATES[2], Plan()), "9", "one lane; also the second of sequences")
    fresh = link(STATES[1], STATES[2], Plan(), operations={"t": SET})
    yield valid("gone-set-again", fresh, "6.2", "a tensor is set that the base has; also the second of sequences")
    for id, plan in CODINGS.items():
        first = link(STATES[0], STATES[1], plan)
        yield valid(f"gone-{id}", first, "9", f"a tensor changes by {id} values, and is removed", result=ALONE,
                    **followed_by(REMOVED))
        yield valid(f"gone-{id}-again", first, "9", f"a tensor changes by {id} values, and is set again",
                    result=STATES[2], **followed_by(AGAIN))
    yield valid("gone-relative-absolute", link(STATES[0], STATES[1], CODINGS["relative"]), "9",
                "a tensor changes by relative values, then by absolute ones, and is removed", result=ALONE,
                **followed_by(BETWEEN, LATER))


def crc(segment):
    segment.crc = 0


def rank(segment):
    """The last rank in context 1 is 4, but the context has four members."""
    assert segment.streams["gap high"].raw == b"\1\1"
    segment.set_raw("gap high", b"\1\2")


def counted(*counts):
    def change(segment):
        assert segment.table.parts[0][1] != list(counts)
        segment.table.parts = [(segment.table.parts[0][0], list(counts))]
    return change


# Faults of the first link: its coding, the rule, and True if *check* finds the fault.
FAULTS = (("segment", "absolute", crc, "R-SEG-01", True, "a segment with a wrong checksum"),
          ("rank", "relative", rank, "R-POS-01", False, "a rank beyond the members of its context"),
          ("bitmap", "relative", counted(5, 2), "R-POS-02", False, "a bitmap that is longer than its context has members"),
          ("dense", "dense", counted(5, 3), "R-POS-02", False, "counts that are not those of the members"))


def spoiled(coding, change):
    file = copy_of(f"gone-{coding}")
    change(file.segments[0])
    return file


@makes_vectors_since("1.2")
def faults():
    """The only segment of the first link belongs to a tensor that the last state does not have, or does not have any
    more."""
    for id, coding, change, rule, in_check, reason in FAULTS:
        file = spoiled(coding, change)
        yield refused(f"apply/gone-{id}", file, rule, f"{reason}, of a tensor that the second link removes",
                      f"gone-{coding}", "10", check=in_check, **followed_by(REMOVED))
        yield refused(f"apply/gone-{id}-again", file, rule, f"{reason}, of a tensor that the second link sets",
                      f"gone-{coding}-again", "10", check=in_check, **followed_by(AGAIN))
        if coding == "relative":
            yield refused(f"apply/gone-{id}-absolute", file, rule, f"{reason}, of a tensor that the second link changes by "
                          "absolute values and the third removes", "gone-relative-absolute", "10", check=in_check,
                          **followed_by(BETWEEN, LATER))


@makes_vectors_since("1.2")
def order():
    """Steps 8 and 9 of the first link come before step 8 of the second."""
    second = link(STATES[1], CHANGED, Plan(pieces=[("a", 0)]))
    yield valid("gone-and-changed", second, "9", "one tensor is removed, another changes")
    damaged = copy_of("gone-and-changed")
    damaged.segments[0].crc = 0
    alone = refused("segment/crc-beside-removal", damaged, "R-SEG-01", "a segment with a wrong checksum, beside a removal",
                    "gone-and-changed", "7")
    yield alone
    for id, coding, change, rule, in_check, reason in FAULTS:
        if not in_check:
            yield refused(f"order/gone-{id}-then-second-segment", spoiled(coding, change), rule, f"{reason}, of a tensor "
                          "that the second link removes, before a segment of that link", f"gone-{coding}", "10",
                          check=False, **followed_by(alone.id))


@makes_vectors_since("1.2")
def listed_without_part():
    """A wrong digest of a tensor without coded lanes: compared after each link, when a later one has a fault."""
    wrong = STATES[1].changed("gone-not-coded", a=tensor("U8", b"abXd"))
    right = link(STATES[0], STATES[1], Plan(pieces=[("t", 0)]), listed=["a"])
    then = link(STATES[1], STATES[2], Plan(pieces=[("t", 0)]), listed=["a"])
    last = valid("listed-then", then, "9", "a tensor changes, another is listed; also the second of a sequence")
    yield last
    yield valid("listed-first", right, "9", "a tensor is listed without a part, in each of two links", result=STATES[2],
                **followed_by(last.id))
    first = link(STATES[0], wrong, Plan(pieces=[("t", 0)]))
    assert first.entries[0].segments == [0] and first.entries[0].digests == wrong.tensors["a"].digests()
    second = link(wrong, wrong.changed("unused", t=STATES[2].tensors["t"]), Plan(pieces=[("t", 0)]), listed=["a"])
    second.segments[0].crc = 0
    alone = refused("segment/crc-beside-listed", second, "R-SEG-01", "a segment with a wrong checksum, beside a tensor that "
                    "is listed", "listed-then", "7")
    yield alone
    yield refused("order/listed-digest-then-second-segment", first, "R-APP-04", "the digest of a tensor that has no part, "
                  "before a segment of the second link", "listed-first", "10", check=False, **followed_by(alone.id))
