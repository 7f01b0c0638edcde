"""Links and sequences of links with two faults, of which *apply* must report the first in the order of section 10: step
7 after step 6, before steps 8 and 9, and in sequences each step of each link."""
from .builder import PATCH, SET, Entry
from .coding import Plan, link
from .links import UNSUPPORTED, copy_of, refused, valid
from .links_apply import STEPS, step
from .links_layout import KEY, ONE_FILE
from .links_valid_structure import ONE, ONE_CHANGED
from .model import DTYPES, State, tensor
from .registry import makes_vectors

BAD_LAYOUT = [(KEY, ONE_FILE + " ")]


# Faults of one link, by the rule that they break. Each leaves the others as they are.
def absent(file):
    """R-APP-02: a patch of a tensor that the base does not have."""
    file.entries.append(Entry("u", PATCH, DTYPES["U8"], (0,), [], tensor("U8", b"").digests()))
    file.header["target"] = file.promised()


def promise(file):
    """R-APP-05: the header's target does not follow from the digests."""
    file.header["target"] = STEPS[1].digest()


def layout(file):
    """R-LAY-01"""
    file.metadata = BAD_LAYOUT


def segment(file):
    """R-SEG-01"""
    file.segments[0].crc = 0


def digest(file):
    """R-APP-04: a value that does not match its digest."""
    file.segments[0].set_raw("plane 0", b"\x47")


def index(file):
    """R-IDX-12"""
    file.segments.append(file.segments[0])


STEPS_OF_ONE = (("base", "R-APP-01", None), ("patched", "R-APP-02", absent), ("promise", "R-APP-05", promise),
                ("layout", "R-LAY-01", layout), ("segment", "R-SEG-01", segment), ("digest", "R-APP-04", digest))


@makes_vectors
def of_one_link():
    """Each pair of steps, not only neighbours: a reader may have put any step in any place."""
    for number, (first, rule, change) in enumerate(STEPS_OF_ONE):
        for second, _, other in STEPS_OF_ONE[number + 1:]:
            file = copy_of("one-lane")
            for one in (change, other) if first != "patched" else (other, change):
                if one is not None:
                    one(file)
            if {first, second} == {"patched", "promise"}:
                promise(file)
            yield refused(f"order/{first}-then-{second}", file, rule, f"{rule} before {second}", "one-lane", "10",
                          base=ONE_CHANGED if first == "base" else None, check=None,
                          features=["layout"] if "layout" in (first, second) else [])
    file = copy_of("one-lane")
    index(file)
    yield refused("order/index-then-base", file, "R-IDX-12", "step 6 before the base", "one-lane", "10", base=ONE_CHANGED)
    file = copy_of("unchanged-entry")
    file.entries[0].shape = (7,)
    file.entries.append(Entry("u", PATCH, DTYPES["U8"], (7,), [0], tensor("U8", bytes(7)).digests()))
    yield refused("order/patched-in-order", file, "R-APP-02", "two tensors that the base does not have so",
                  "unchanged-entry", "10", check=False)
    file = copy_of("set-zeros-over-base")
    yield refused("order/limit-then-base", file, "R-LIM-04", "the caller's limit before the base", "set-zeros-over-base",
                  "10", base=ONE_CHANGED, patches=True, features=["set-limit"], set_bytes=7)
    absent(file)
    yield refused("order/limit-then-patched", file, "R-LIM-04", "the caller's limit before the base's tensors",
                  "set-zeros-over-base", "10", patches=True, features=["set-limit"], set_bytes=7)


@makes_vectors
def of_patches():
    """Relative values need a base. A reader reports that after the index and before any segment."""
    file = copy_of("worked-contexts")
    segment(file)
    yield refused("order/relative-then-segment", file, "R-SEG-01", "without a base, relative values before segments",
                  "worked-contexts", "14", apply=None, patches=dict(UNSUPPORTED))
    file = copy_of("tensors-200-mixed-codings")
    file.segments[2].crc = 0
    yield refused("order/relative-then-absolute-segment", file, "R-SEG-01",
                  "without a base, relative values of other segments before a segment of absolute ones",
                  "tensors-200-mixed-codings", "14", apply=None, patches=dict(UNSUPPORTED))
    file = copy_of("worked-contexts")
    index(file)
    yield refused("order/index-then-relative", file, "R-IDX-12", "the index before relative values", "worked-contexts",
                  "14", patches=True)
    file = copy_of("sequence-second")
    file.entries[1].operation, file.entries[1].segments = SET, [0]
    file.segments.pop()
    yield refused("order/limit-then-relative", file, "R-LIM-04", "the caller's limit before relative values",
                  "sequence-second", "14", apply=None, patches=True, features=["set-limit"], set_bytes=11)


# Links that are bad as the second or third of a sequence: the vectors `links/apply/after-...`.
def spoiled_third(change):
    file = step(3)
    file.header = {"base": STEPS[2].digest()}
    change(file)
    return file


def wrong_value(file):
    file.segments[0].set_raw("magnitude", b"\2")


def wrong_width(file):
    file.segments[0].table.widths = [3]


def wrong_promise(file):
    file.header["target"] = STEPS[4].digest()


SECOND = (("index", "R-IDX-12", index), ("patched", "R-APP-02", absent), ("promise", "R-APP-05", wrong_promise),
          ("layout", "R-LAY-01", layout), ("segment", "R-SEG-01", segment), ("digest", "R-APP-04", wrong_value),
          ("width", "R-SEG-06", wrong_width))


@makes_vectors
def of_sequences():
    """The first link, of two or three, leads from step 1 to step 2."""
    twin = "sequence-from-base"
    for id, rule, change in SECOND:
        in_check = id in ("index", "segment", "width")
        yield refused(f"apply/after-{id}", spoiled_third(change), rule, "a fault that sequences have in their second link",
                      "sequence-third", "9", base=STEPS[2], check=in_check, features=["layout"] if id == "layout" else [])
        yield refused(f"apply/sequence-{id}", step(2), rule, "the fault is in the second of two links", twin, "9",
                      check=False, features=["sequence"] + ["layout"] * (id == "layout"), then=[f"links/apply/after-{id}"])

    def bad(id, rule, reason, first, *then, base=None, check=None, features=()):
        return refused(f"order/sequence-{id}", first, rule, reason, twin, "10", base=base, check=check,
                       features=["sequence", *features], then=[f"links/{name}" for name in then])

    def faulty(change):
        file = step(2)
        change(file)
        return file
    third, fourth = "valid/sequence-third", "valid/sequence-fourth"
    # Steps 1 to 6 of all links, then R-APP-06.
    yield bad("second-index-then-fit", "R-IDX-12", "step 6 of the second link before links that do not fit", step(1),
              "apply/after-index", check=False)
    yield bad("third-index-then-fit", "R-IDX-12", "step 6 of the third link before the first two, which do not fit",
              step(1), third, "apply/after-index", check=False)
    yield bad("third-header-then-fit", "R-HDR-04", "the header of the third link before the first two, which do not fit",
              step(1), third, "header/version-2", check=False)
    yield bad("first-index-then-second-header", "R-IDX-12", "step 6 of the first link before step 1 of the second",
              faulty(index), "header/version-2", check=True)
    yield bad("second-index-then-base", "R-IDX-12", "step 6 of the second link before a wrong base", step(2),
              "apply/after-index", base=STEPS[4], check=False)
    # R-APP-06, then step 7 of all links.
    yield bad("fit-then-base", "R-APP-06", "links that do not fit before a wrong base", step(2), fourth, base=STEPS[4],
              check=False)
    yield bad("fit-then-patched", "R-APP-06", "links that do not fit before the base's tensors", faulty(absent), fourth,
              check=False)
    yield bad("fit-then-layout", "R-APP-06", "links that do not fit before a layout", faulty(layout), fourth, check=False,
              features=["layout"])
    yield bad("fit-then-segment", "R-APP-06", "links that do not fit before segments are read", faulty(segment), fourth)
    yield bad("second-fit-then-base", "R-APP-06", "the last two links, which do not fit, before a wrong base", step(2),
              third, third, base=STEPS[4], check=False)
    # Step 7 of each link in order.
    for id, rule, change, features in (("patched", "R-APP-02", "patched", ()), ("promise", "R-APP-05", "promise", ()),
                                       ("layout", "R-LAY-01", "layout", ["layout"])):
        yield bad(f"base-then-second-{id}", "R-APP-01", f"a wrong base before {rule} of the second link", step(2),
                  f"apply/after-{change}", base=STEPS[4], check=False, features=features)
        yield bad(f"first-layout-then-second-{id}", "R-LAY-01",
                  f"the layout of the first link before {rule} of the second", faulty(layout), f"apply/after-{change}",
                  check=False, features=["layout"])
        # Then step 8 of each link.
        yield bad(f"second-{id}-then-first-segment", rule, f"{rule} of the second link before segments of the first",
                  faulty(segment), f"apply/after-{change}", features=features)
        yield bad(f"second-{id}-then-first-digest", rule, f"{rule} of the second link before the results of the first",
                  faulty(wrong_value), f"apply/after-{change}", check=False, features=features)
    yield bad("layout-on-the-way", "R-LAY-01", "a layout of a link on the way, although the last one has none",
              faulty(layout), third, fourth, check=False, features=["layout"])
    yield bad("first-segment-then-second-segment", "R-SEG-01", "segments of the first link before those of the second",
              faulty(segment), "apply/after-width")
    yield bad("first-digest-then-second-segment", "R-APP-04", "the results of the first link before segments of the second",
              faulty(wrong_value), "apply/after-width", check=False)
    yield bad("first-digest-then-second-digest", "R-APP-04", "the results of both links are wrong", faulty(wrong_value),
              "apply/after-digest", check=False)


@makes_vectors
def limits_in_sequences():
    """R-LIM-04 is part of step 6."""
    grown = State("step-4-grown", STEPS[4].tensors | {"c": tensor("U8", bytes(100))})
    more = link(STEPS[4], grown)
    yield valid("sequence-grows", more, "9", "a link that sets 100 bytes, as part of sequences", ["R-APP-06"])
    then = ["links/valid/sequence-grows"]
    yield valid("sequence-set-bytes", step(4), "13", "each link of a sequence may set as many bytes as the caller allows",
                ["R-LIM-04"], result=grown, features=["sequence", "set-limit"], set_bytes=100, then=then)
    yield refused("limits/sequence-set-bytes", step(4), "R-LIM-04", "the second link sets a byte too many",
                  "sequence-set-bytes", "13", check=False, features=["sequence", "set-limit"], set_bytes=99, then=then)
    yield refused("order/sequence-second-limit-then-fit", step(2), "R-LIM-04",
                  "the limit in the second link before links that do not fit", "sequence-set-bytes", "10", check=False,
                  features=["sequence", "set-limit"], set_bytes=99, then=then)


@makes_vectors
def promised_tensors():
    """The base of the second link has the tensors that the first one promises."""
    twin, changed = "sequence-from-base", STEPS[2].changed("unused", b=None)
    gone = link(STEPS[1], changed, Plan(values=2, pieces=[("a", 0)]))
    second = step(3)
    second.header = {"base": changed.digest()}
    alone = valid("after-removal", second, "9", "a patch of a tensor that another link removes", apply=False)
    yield alone
    yield refused("apply/sequence-patch-of-removed", gone, "R-APP-02", "the second link patches what the first removes",
                  twin, "9", base=STEPS[1], check=False, features=["sequence"], then=[alone.id])
    longer = STEPS[2].changed("unused", b=tensor("I32", [1, 2, 3, 4]))
    grown = link(STEPS[1], longer, Plan(values=2, pieces=[("a", 0)]), Plan(pieces=[("b", 0)]))
    second = step(3)
    second.header = {"base": longer.digest()}
    alone = valid("after-growth", second, "9", "a patch of a tensor that another link makes longer", apply=False)
    yield alone
    yield refused("apply/sequence-patch-of-grown", grown, "R-APP-02", "the second link patches what the first makes longer",
                  twin, "9", base=STEPS[1], check=False, features=["sequence"], then=[alone.id])
    wrong = step(2)
    wrong.entries[0].digests = STEPS[3].tensors["a"].digests()
    wrong.header = {"target": wrong.promised()}
    second = link(State("unused", {"a": STEPS[3].tensors["a"], "b": STEPS[2].tensors["b"]}), STEPS[3],
                  Plan(values=2, pieces=[("b", 0)]))
    alone = valid("after-promise", second, "9", "a link from a state that another one promises", apply=False)
    yield alone
    yield refused("apply/sequence-false-promise", wrong, "R-APP-04",
                  "the first link promises what it does not give; the second one goes on from there", twin, "9",
                  base=STEPS[1], check=False, features=["sequence"], then=[alone.id])


@makes_vectors
def layouts_that_are_not_read():
    """Neither *check* nor *patches* reads layouts."""
    file = copy_of("one-lane")
    file.metadata = BAD_LAYOUT
    yield valid("layout-unread", file, "12", "a bad layout is no fault of a link whose tensors alone are wanted",
                ["R-LAY-01"], apply=False)
    removed = link(State("two-u8", ONE.tensors | {"u": tensor("U8", b"u")}), ONE, removed=["s"])
    removed.metadata = [(KEY, ONE_FILE)]
    yield valid("layout-and-removal", removed, "12", "a layout, and a removal", features=["layout"])
