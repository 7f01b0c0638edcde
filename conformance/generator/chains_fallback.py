"""Valid chains in which something fails and another path leads to the same state, and stores in the middle of a
publish, of maintenance or of a prune (SPEC sections 19 to 21)."""
from .chains import Chain, Route, commit_name, file_name, good, halves, line, pairs, routes_name, source, step, whole
from .links_layout import KEY, ONE_FILE
from .primitives import Raw
from .registry import makes_vectors

CUT_OFF = -7


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


# Possible damage to a file: a function of its bytes (None: the file is missing), with a reader's words for it.
DAMAGES = (("missing", None, "R-CHN-09", "is missing"), ("damaged", damaged, "R-CHN-10", "has a flipped bit"),
           ("cut-off", lambda data: data[:CUT_OFF], "R-CHN-10", "ends early"),
           ("longer", lambda data: data + b"\0", "R-CHN-10", "has a byte more"),
           ("empty", lambda data: b"", "R-CHN-10", "is empty"))


def spoilt(chain, name, how):
    """Returns a copy in which a file is damaged or missing."""
    return chain.without(name) if how is None else chain.with_object(name, how(chain.objects[name]))


def broken_links(base, target, other):
    """Yields links from base to target that are refused: id, bytes, rule, reason."""
    crc = step(base, target)
    crc.segments[0].crc = 0
    value = step(base, target)
    value.segments[-1].set_raw("plane 0", bytes([value.segments[-1].streams["plane 0"].raw[0] ^ 1])
                               + value.segments[-1].streams["plane 0"].raw[1:])
    digests = step(base, target)
    digests.entries[0].digests = [bytes(32)]
    layout = step(base, target)
    layout.metadata = [(KEY, ONE_FILE + " ")]
    promise = step(base, other)
    promise.header = {"target": target.digest()}
    operation = step(base, target)
    operation.entries[0].operation = Raw(b"\3")
    newer = step(base, target)
    newer.header = {"version": 2}
    good_one = step(base, target).encode()
    yield "no-link", b"not a link", "R-HDR-01", "a file that is no link"
    yield "truncated-link", good_one[:-1], "R-HDR-09", "a link that was cut off before it was named"
    yield "newer-link", newer.encode(), "R-HDR-04", "a link of a newer version"
    yield "undefined-operation", operation.encode(), "R-IDX-07", "an index with an undefined operation"
    yield "segment-crc", crc.encode(), "R-SEG-01", "a segment whose CRC does not match"
    yield "tensor-digest", value.encode(), "R-APP-04", "a tensor that is not what its digest says"
    yield "other-digest", digests.encode(), "R-APP-05", "an index that promises another digest of a tensor"
    yield "layout", layout.encode(), "R-LAY-01", "a layout in another form"
    yield "broken-promise", promise.encode(), "R-APP-05", "a link that leads elsewhere than its header says"
    yield "other-base", step(other, target).encode(), "R-APP-01", "a link from another state"
    yield "other-target", step(base, other).encode(), "R-CHN-11", "a link to another state"


@makes_vectors
def files():
    chain = source("valid/skip-cheaper")
    for id, how, rule, reason in DAMAGES:
        yield good(f"fallback/file-{id}", spoilt(chain, *chain.files(0, 3), how), [0, 3],
                   f"the file of the cheapest route {reason}: the steps lead there too", rules=[rule])
    for id, data, rule, reason in broken_links(whole(0), whole(3), whole(4)):
        chain = line(2).publish(whole(3), Route(0, links=[data]), 2)
        cost = chain.costs[None, 0] + len(data)
        yield good(f"fallback/{id}", chain, [0, 3], f"{reason} on the cheapest route: the steps lead there too",
                   rules=[rule], size=cost, features=["layout"] * (rule == "R-LAY-01"))


@makes_vectors
def other_ways():
    chain = source("valid/snapshot-in-the-middle")
    yield good("fallback/begins-lower", spoilt(chain, *chain.files(None, 2), None), [2, 3],
               "without the file of the snapshot the path begins at version 0", rules=["R-CHN-09"])
    chain = line(1).publish(whole(2), Route(None, 900), 1)
    yield good("fallback/begins-higher", spoilt(chain, *chain.files(0, 1), damaged), [0, 1, 2],
               "without a step the path begins with a dear snapshot", rules=["R-CHN-10"])
    chain = line(2).publish(whole(3), Route(0, 300), Route(1, 301), 2)
    names = [file_name(step(whole(start), whole(3), size).encode()) for start, size in ((0, 300), (1, 301))]
    yield good("fallback/twice", chain.without(*names), [0, 3], "the two cheapest paths fail, one after the other",
               rules=["R-CHN-09"])
    chain = pairs(1).publish(halves(2), 0, 1)
    yield good("fallback/second-shard", spoilt(chain, chain.files(0, 2)[1], None), [0, 2],
               "the second shard's file is missing: all shards take another route", rules=["R-CHN-09"])
    chain = Chain().publish(whole(0), None).publish(whole(1), Route(None, 900), 0)
    chain.publish(whole(1), Route(None, 901), 0)
    yield good("fallback/shared-file", spoilt(chain, *chain.files(0, 1), damaged), [0, 2],
               "a damaged file that two routes use: neither can be taken", rules=["R-CHN-10"])
    chain = line(1).publish(whole(2), 1).put_routes(2, 1, 0, 1)
    yield good("fallback/from-routes-document", spoilt(chain, *chain.files(0, 2), None), [0, 2],
               "a file that a routes document names is missing", rules=["R-CHN-09"])
    chain = line(1).publish(whole(2), Route(None, 900), 1)
    yield good("fallback/from-held", spoilt(chain, *chain.files(1, 2), None), [2],
               "the step from the held version is missing: a snapshot instead", held=1, rules=["R-CHN-09"])
    chain = line(1).publish(whole(2), Route(0, 900), 1)
    yield good("fallback/from-below-held", spoilt(chain, *chain.files(1, 2), None), [2],
               "the step from the held version is missing: a path from nothing, which begins lower", held=1,
               rules=["R-CHN-09"])


@makes_vectors
def commits():
    chain = source("valid/snapshot-in-the-middle")
    for id, change, rule, reason in (
            ("missing", None, "R-CHN-03", "is missing"),
            ("damaged", lambda data: data + b"\n", "R-DOC-03", "is damaged"),
            ("empty", lambda data: b"", "R-DOC-01", "is empty"),
            ("newer", lambda data: data.replace(b'"deltachain":1', b'"deltachain":2'), "R-DOC-02",
             "is of a newer version")):
        yield good(f"fallback/commit-below-{id}", spoilt(chain, commit_name(1), change), [2, 3],
                   f"a commit below the path {reason}", rules=[rule])
    chain = line(1).publish(whole(2), Route(None, 900), 1).publish(whole(3), 2)
    for id, change, rule, reason in (
            ("missing", None, "R-CHN-03", "is missing"), ("damaged", lambda data: data[1:], "R-DOC-01", "is damaged"),
            ("other-version", lambda data: data.replace(b'"version":1,', b'"version":2,'), "R-CHN-02",
             "is of another version")):
        yield good(f"fallback/commit-{id}", spoilt(chain, commit_name(1), change), [2, 3],
                   f"a commit on the cheapest path {reason}: a dear snapshot above leads there", rules=[rule])
    chain = Chain().publish(whole(0), None, replaced={"parent": "ab" * 32}).publish(whole(1), Route(None, 900), 0)
    yield good("fallback/parent-of-0", chain, [1], "version 0 is of another chain: a snapshot above it",
               rules=["R-CHN-04"])
    chain = line(1).publish(whole(2), Route(None, 900), 1, replaced={"parent": "ab" * 32})
    yield good("fallback/parent-of-the-head", chain, [2], "the head follows another version 1: a dear snapshot of it",
               rules=["R-CHN-04"])
    yield good("fallback/parent-in-the-middle", chain.publish(whole(3), 2), [2, 3],
               "version 2 follows another version 1: a dear snapshot of it", rules=["R-CHN-04"])
    chain = line(2).publish(whole(3), None)
    yield good("fallback/gap-below", chain.without(commit_name(1), commit_name(2), *chain.files(0, 1)), [3],
               "gaps below the first version of the path", rules=["R-CHN-03"])


def stages(chain, objects):
    """Yields copies of the chain to which the objects are added one after another, {} first."""
    for count in range(len(objects) + 1):
        stage = chain.copy()
        stage.objects |= dict(objects[:count])
        yield stage


@makes_vectors
def publishing():
    before, after = pairs(1), pairs(2)
    names = [*after.files(1, 2), commit_name(2)]
    for count, stage in enumerate(stages(before, [(name, after.objects[name]) for name in names])):
        yield good(f"recovery/publish-{count}", stage if count < 3 else after, [0, 1, 2] if count == 3 else [0, 1],
                   f"a publish of version 2 that ended after {count} of 3 objects: two files, then the commit",
                   section="20")
    yield good("recovery/lost-commit", after.without(commit_name(2)), [0, 1],
               "the store has lost its newest object: version 1 is whole", section="20", head=1)
    long = line(4).put_routes(4, 1, None)
    lost = long.without(commit_name(4), commit_name(3), *long.files(None, 4), *long.files(2, 3))
    yield good("recovery/lost-many", lost, [0, 1, 2], "the store has lost newest objects, but not in their order",
               section="20")
    yield good("recovery/lost-and-held", lost, [], "what a reader holds outlives the loss of all that came after",
               section="20", held=2, head=2)


@makes_vectors
def maintenance():
    before, after = line(2), line(2).put_routes(2, 1, None, 1)
    names = [*after.files(None, 2), routes_name(2, 1)]
    for count, stage in enumerate(stages(before, [(name, after.objects[name]) for name in names])):
        yield good(f"recovery/snapshot-{count}", stage if count < 2 else after, [2] if count == 2 else [0, 1, 2],
                   f"a snapshot of the head that ended after {count} of 2 objects: the file, then the routes",
                   section="20")
    chain = after.publish(whole(3), 2)
    yield good("recovery/prune-0", chain, [2, 3], "before versions 0 and 1 are pruned", section="21")
    yield good("recovery/prune-0-older", chain, [0, 1], "before versions 0 and 1 are pruned", section="21", version=1)
    for count, (version, generation, *routes) in enumerate([(0, 1), (1, 1), (2, 2, None)], 1):
        chain = chain.copy().put_routes(version, generation, *routes)
        yield good(f"recovery/prune-{count}", chain, [2, 3],
                   f"a prune that ended after {count} of 3 routes documents", section="21")
    gone = [*chain.files(None, 0), *chain.files(0, 1), *chain.files(1, 2), routes_name(2, 1)]
    for count, name in enumerate(gone, 1):
        chain = chain.without(name)
        yield good(f"recovery/prune-{count + 3}", chain, [2, 3],
                   f"a prune that ended after {count} of 4 objects had been removed, the lower generation last",
                   section="21")
    yield good("recovery/prune-held", source("recovery/prune-7"), [2, 3], "a reader that holds a pruned version",
               held=1, from_nothing=True, section="21")


@makes_vectors
def beginning():
    chain = Chain().publish(halves(0), None)
    yield good("recovery/begin-4", chain, [0], "a chain that has just begun: chain.json, two files, the commit",
               section="20")
