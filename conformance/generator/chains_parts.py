"""Readers that take some shards or some tensors (SPEC section 19.3): what they must prove, and what they ignore."""
from .builder import PATCH, SMALL, SPARSE
from .chains import Chain, Held, Route, bad, good, halves, line, pairs, source, step, thirds, union, whole
from .chains_fallback import broken_links
from .coding import Plan, link
from .model import State, tensor
from .registry import makes_vectors, makes_vectors_since


def take(shards=None, tensors=None):
    return {"shards": shards, "tensors": tensors}


@makes_vectors
def shards():
    chain = pairs(2)
    for id, numbers in (("first", [0]), ("second", [1]), ("both", [0, 1])):
        yield good(f"parts/shard-{id}", chain, [0, 1, 2], "shards by number", take=take(numbers))
    three = Chain().publish(thirds(0), None).publish(thirds(1), 0)
    yield good("parts/shards-of-three", three, [0, 1], "the first and the last of three shards", take=take([0, 2]))
    yield good("parts/shard-held", chain, [2], "one shard of two, from a held version", held=1, take=take([1]))
    yield good("parts/shard-held-head", chain, [], "one shard of two of the held head", held=2, head=2, take=take([0]))
    yield good("parts/only-shard", line(1), [0, 1], "the only shard", take=take([0]))
    yield good("parts/shard-of-more", source("valid/more-shards"), [2, 3], "the second shard, which older versions lack",
               take=take([1]))
    for id, how in (("missing", None), ("damaged", b"damaged")):
        name = chain.files(0, 1)[1]
        store = chain.without(name) if how is None else chain.with_object(name, how)
        yield good(f"parts/other-shard-{id}", store, [0, 1, 2], f"the file of a shard that is not taken is {id}",
                   take=take([0]))
        rule = "R-CHN-09" if how is None else "R-CHN-10"
        yield bad(f"parts/shard-{id}", store, rule, f"parts/other-shard-{id}", f"the file of the shard taken is {id}",
                  path=[0, 1, 2], take=take([1]))
    wrong = Chain().publish(halves(0), None, replaced={"state": union(halves(1)).digest().hex()})
    yield good("parts/state-not-known", wrong, [0], "who takes one shard relies on the commit for the state",
               take=take([0]), rules=["R-CHN-12"])
    yield bad("parts/state-of-both", wrong, "R-CHN-12", "parts/shard-both", "who takes both shards knows the state",
              path=[0], take=take([0, 1]))
    yield bad("parts/state-from-tables", wrong, "R-CHN-12", "parts/shard-both",
              "who takes a tensor of both shards knows the state from their tables", path=[0], take=take(None, ["left"]))
    yield bad("parts/state-without-tensors", wrong, "R-CHN-12", "parts/shard-both",
              "who takes no tensor of both shards knows the state from their tables", path=[0], take=take(None, []))
    left, right = halves(0)
    shared = Chain().publish([left, State("chain-right-shared", right.tensors | left.tensors)], None)
    yield bad("parts/shared-name", shared, "R-CHN-12", "parts/shard-both",
              "both shards have a tensor that is not taken", path=[0], take=take(None, ["right"]))
    elsewhere = pairs(0).publish(halves(1), Route(0, links=[step(halves(0)[0], halves(1)[0]),
                                                            step(halves(0)[1], whole(1))]))
    yield good("parts/other-shard-elsewhere", elsewhere, [0, 1], "the link of a shard that is not taken leads elsewhere",
               take=take([0]), rules=["R-CHN-11"])
    yield bad("parts/shard-elsewhere", elsewhere, "R-CHN-11", "parts/other-shard-elsewhere",
              "the link of the shard taken leads elsewhere", path=[0, 1], take=take([1]))


@makes_vectors
def tensors():
    chain = line(2)
    for id, names in (("one", ["weight"]), ("other", ["bias"]), ("both", ["bias", "weight"]), ("none", []),
                      ("unknown", ["Weight", "no such tensor"]), ("one-unknown", ["bias", "no such tensor"])):
        yield good(f"parts/tensors-{id}", chain, [0, 1, 2], "tensors by name; one that is not there is no fault",
                   take=take(None, names))
    yield good("parts/tensors-held", chain, [2], "a tensor, from a held version", held=1, take=take(None, ["bias"]))
    yield good("parts/tensors-held-head", chain, [], "a tensor of the held head", held=2, head=2,
               take=take(None, ["weight"]))
    yield good("parts/tensors-relative", source("valid/relative-values"), [0, 1, 2], "a tensor with relative values",
               take=take(None, ["weight"]))
    yield good("parts/tensors-of-shards", pairs(1), [0, 1], "a tensor that one of two shards has", take=take(None, ["left"]))
    yield good("parts/tensors-and-shards", pairs(1), [0, 1], "a tensor of the shard that is taken",
               take=take([1], ["left", "right"]))
    yield good("parts/tensors-of-other-shard", pairs(1), [0, 1], "a tensor of a shard that is not taken",
               take=take([1], ["left"]))
    for name in ("kept", "gone", "retyped", "new"):
        yield good(f"parts/tensors-change-{name}", source("valid/tensors-change"), [0, 1, 2],
                   "a tensor that stays, goes, returns, or changes dtype, shape and size", take=take(None, [name]))
    wrong = Held(1, shards=[whole(2)])
    yield good("parts/held-otherwise", chain, [2], "what is held is not what was recorded: the path begins at nothing",
               held=wrong, take=take(None, ["bias"]), rules=["R-APP-01"])
    other = Held(1, shards=[whole(1).changed("chain-1-other-bias", bias=tensor("F32", [9]))])
    yield good("parts/held-otherwise-elsewhere", chain, [2], "what is held differs in a tensor that is not taken",
               held=other, take=take(None, ["weight"]), rules=["R-APP-01"])
    together = [State(f"chain-together-{number}", {name: tensor("BF16", [number * i + i for i in range(4)])
                                                   for name in "abc"}) for number in (1, 2)]
    chain = Chain().publish(together[0], None).publish(together[1], Route(0, links=[link(
        *together, Plan(SPARSE, SMALL, parameters=(1, 0), widths=(1, 1), thresholds=[1]))]))
    yield good("parts/tensors-of-one-segment", chain, [0, 1], "one of three tensors in a segment with two contexts",
               take=take(None, ["b"]))


def bias_spoilt(change):
    """A chain whose second link has a fault in the segment of `bias` only."""
    spoiled = step(whole(0), whole(1))
    change(spoiled.segments[1])
    assert spoiled.entries[0].name == "bias" and spoiled.entries[0].segments == [2]
    return Chain().publish(whole(0), None).publish(whole(1), Route(0, links=[spoiled]))


@makes_vectors
def segments():
    """Segments without selected tensors are not read."""
    def crc(segment):
        segment.crc = 0

    def value(segment):
        segment.set_raw("plane 0", b"\7")

    def padding(segment):
        segment.table.tail = b"\0"
    for id, change, rule, reason in (("crc", crc, "R-SEG-01", "a checksum that does not match"),
                                     ("value", value, "R-APP-04", "a value that is not what its digest says"),
                                     ("table", padding, "R-SEG-09", "a byte after its table")):
        chain = bias_spoilt(change)
        yield good(f"parts/other-segment-{id}", chain, [0, 1],
                   f"the segment of a tensor that is not taken has {reason}", take=take(None, ["weight"]), rules=[rule])
        yield bad(f"parts/segment-{id}", chain, rule, f"parts/other-segment-{id}",
                  f"the segment of a tensor that is taken has {reason}", path=[0, 1], take=take(None, ["bias"]))


@makes_vectors
def promises():
    """Steps 1 to 7 are done in full, whatever is selected."""
    names = ("weight", "bias")

    def both(id, chain, rule, reason, features=()):
        for taken in names:
            yield bad(f"parts/{id}-{taken}", chain, rule, f"parts/tensors-{'one' if taken == 'weight' else 'other'}",
                      f"{reason}; taken is {taken}", path=list(range(len(chain.commits))),
                      take=take(None, [taken]), features=features)

    def at_the_end(data):
        return line(1).publish(whole(2), Route(1, links=[data]))
    for number, name in enumerate(("bias", "weight")):
        promise = step(whole(1), whole(2))
        promise.entries[number].digests = whole(3).tensors[name].digests()
        yield from both(f"promise-of-{name}", at_the_end(promise), "R-APP-05",
                        f"the index promises another digest of {name}, the header the right state")
        early = step(whole(0), whole(1))
        early.entries[number].digests = whole(3).tensors[name].digests()
        chain = line(0).publish(whole(1), Route(0, links=[early])).publish(whole(2), 1)
        yield from both(f"early-promise-of-{name}", chain, "R-APP-05",
                        f"a link on the way promises another digest of {name}, its header the right state")
    first = step(State("unused", {}), whole(0))
    first.entries[0].digests = whole(3).tensors["bias"].digests()
    yield from both("snapshot-promise", Chain().publish(whole(0), Route(None, links=[first])), "R-APP-05",
                    "a snapshot's index promises another digest of bias")
    for id, data, rule, reason in broken_links(whole(1), whole(2), whole(3)):
        if id in ("no-link", "newer-link", "undefined-operation", "broken-promise", "layout", "other-base", "other-target"):
            yield from both(id, at_the_end(data), rule, reason, ["layout"] * (id == "layout"))
    grown = whole(1).changed("chain-1-zeros", zeros=tensor("U8", bytes(4)))
    patch = step(whole(0), grown)
    patch.entries[-1].operation = PATCH
    yield from both("patch-of-absent", Chain().publish(whole(0), None).publish(grown, Route(0, links=[patch])), "R-APP-02",
                    "a patch of another tensor, which the base does not have")
    held = line(1).publish(whole(2), Route(1, links=[step(whole(0), whole(2))]))
    yield bad("parts/held-other-base", held, "R-APP-01", "parts/tensors-held", "a link from another state than the held one",
              path=[2], held=1, take=take(None, ["bias"]))


@makes_vectors_since("1.2")
def tensors_that_go():
    """The wanted version does not have the selected tensor any more; its segment is checked all the same."""
    first = State("chain-parts-goes", whole(0).tensors | {"gone": tensor("U8", b"abcd")})
    second = first.changed("chain-parts-goes-next", gone=tensor("U8", b"abXd"))
    for id, change in (("", None), ("-segment", lambda segment: setattr(segment, "crc", 0))):
        changed = step(first, second)
        if change:
            change(changed.segments[0])
        chain = Chain().publish(first, None).publish(second, Route(0, links=[changed])).publish(whole(0), 1)
        asked = (("taken", ["gone"]), ("taken-beside", ["bias", "gone"]))
        yield good(f"parts/goes{id}-other", chain, [0, 1, 2], "a tensor changes and goes, and another is taken",
                   take=take(None, ["bias"]), rules=["R-SEG-01"] if change else [])
        for name, names in asked:
            if change:
                yield bad(f"parts/goes{id}-{name}", chain, "R-SEG-01", f"parts/goes-{name}",
                          "a tensor that is taken changes and goes, and the checksum of its segment does not match",
                          path=[0, 1, 2], take=take(None, names))
            else:
                yield good(f"parts/goes{id}-{name}", chain, [0, 1, 2], "a tensor that is taken changes and goes",
                           take=take(None, names))
