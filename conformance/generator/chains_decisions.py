"""Chains that show one decision each of section 19 that no earlier vector showed (see links_decisions.py)."""
from . import chains_in_place as in_place
from .builder import PLANES
from .chains import Chain, Held, Route, bad, commit_name, file_name, good, halves, line, pairs, routes_name, step, whole
from .chains_fallback import damaged
from .chains_routes import named, sized, two_ways
from .model import EMPTY, State, tensor
from .registry import makes_vectors_since
from .sums import wrong_lanes

DEAR = 2000  # bytes
STRANGER = "ab" * 32


@makes_vectors_since("1.2")
def what_is_held_stays():
    """A path fails after it has changed lanes. The next path begins with the held version, and not with nothing."""
    lanes = [0x3F83 + 64 * i for i in range(8)]
    wrong = State("chain-lanes", whole(1).tensors | {"weight": tensor("BF16", lanes)})
    lie = wrong_lanes(step(whole(0), whole(1)), step(whole(0), wrong))
    for id, options in (("absolute", {}), ("relative", {"values": PLANES})):
        other = Route(0, links=[step(whole(0), whole(1), 700, **options)])
        chain = Chain().publish(whole(0), None).publish(whole(1), Route(0, links=[lie]), other).put_routes(0, 1)
        yield good(f"held-kept/{id}", chain, [1], f"a link codes wrong lanes; the other one, of {id} values, begins with "
                   "what was held before", held=0, rules=["R-APP-04"])

    def relative(source, version):
        ends = zip(halves(source), halves(version))
        return Route(source, links=[step(*pair, 700, values=PLANES) for pair in ends])
    chain = pairs(0).publish(halves(1), 0, relative(0, 1))
    chain = chain.without(chain.files(0, 1)[1]).put_routes(0, 1)
    yield good("held-kept/second-shard", chain, [1], "the first shard is followed, the second one's file is missing; the "
               "other route has relative values", held=0, rules=["R-CHN-09"])
    chain = line(1).publish(whole(2), 1, Route(0, links=[step(whole(0), whole(2), 900, values=PLANES)]))
    chain = chain.without(*chain.files(1, 2)).put_routes(0, 1)
    yield good("held-kept/second-step", chain, [1, 2], "the first step is followed, the second one's file is missing; the "
               "skip has relative values", held=0, rules=["R-CHN-09"])
    two = Chain().publish(halves(0), None)
    two.publish(halves(1), in_place.route(0, 1, halves), in_place.route(0, 1, halves, fill=DEAR),
                metadata={in_place.KEY: "0 1"})
    missing = in_place.local(halves(0)[1], halves(1)[1]).encode()
    yield in_place.good("second-shard", two.without(file_name(missing)), [1],
                        "the first shard's link fits, the second one's file is missing: another route of the commit")


def skipped(*steps, wanted=3):
    """Versions 0 to 2 in steps; the wanted version by a skip from 0, which is cheap, and by other routes."""
    chain = line(wanted - 1)
    return chain.publish(whole(wanted), Route(0, 300), *steps)


@makes_vectors_since("1.2")
def commits_below_what_is_held():
    """A path from nothing needs the commits from its beginning on, even for a reader that holds a later version."""
    dear = Route(2, DEAR)
    yield good("below-held/skip", skipped(dear), [0, 3], "a skip over what is held costs less than the step", held=2,
               from_nothing=True)
    fork = line(0).publish(whole(1), 0, metadata={"run": "other"}).commits[1]
    changes = (
        ("missing", "R-CHN-03", None, "is missing"),
        ("damaged", "R-DOC-03", lambda data: data + b"\n", "is damaged"),
        ("newer", "R-DOC-02", lambda data: data.replace(b'"deltachain":1', b'"deltachain":2'), "is of a newer version"),
        ("of-another-version", "R-CHN-02", lambda data: data.replace(b'"version":1,', b'"version":2,'),
         "is of another version"),
        ("published-anew", "R-CHN-04", lambda data: fork, "is not the parent of the next one"))

    def spoilt(chain, change):
        name = commit_name(1)
        return chain.without(name) if change is None else chain.with_object(name, change(chain.objects[name]))
    for id, rule, change, reason in changes:
        yield good(f"below-held/commit-{id}", spoilt(skipped(dear), change), [3],
                   f"a skip over what is held costs less than the step, but a commit below {reason}", held=2, rules=[rule])
        yield bad(f"below-held/commit-{id}-alone", spoilt(skipped(), change), rule, "below-held/skip",
                  f"the only path skips what is held, and a commit below {reason}", held=2)

    def strange(version, *steps):
        """The commit of a version has an unknown parent; the commits above it fit."""
        chain = Chain()
        for number in range(3):
            routes = [None if number == 0 else number - 1]
            chain.publish(whole(number), *routes, replaced={"parent": STRANGER} if number == version else {})
        return chain.publish(whole(3), Route(0, 300), *steps)
    for version in (0, 1):
        id, reason = f"parent-of-{version}", f"the parent of commit {version} is another one"
        yield good(f"below-held/{id}", strange(version, dear), [3],
                   f"a skip over what is held costs less than the step, but {reason}", held=2, rules=["R-CHN-04"])
        yield bad(f"below-held/{id}-alone", strange(version), "R-CHN-04", "below-held/skip",
                  f"the only path skips what is held, and {reason}", held=2)
    # An older version is wanted, so no path begins with the held one.
    for id, steps in (("", [Route(None, DEAR)]), ("-alone", [])):
        chain = line(2).publish(whole(3), Route(0, 300), *steps).publish(whole(4), 3).without(commit_name(1))
        reason = "a version below the held one is wanted, and a commit below that is missing"
        if steps:
            yield good(f"below-held/older{id}", chain, [3], f"{reason}: a snapshot", held=4, version=3, from_nothing=True,
                       size=DEAR, rules=["R-CHN-03"])
        else:
            yield bad(f"below-held/older{id}", chain, "R-CHN-03", "below-held/older", reason, held=4, version=3)
    other = Held(2, shards=[whole(1)])
    yield good("below-held/held-otherwise", skipped(dear, Route(None, 2 * DEAR)).without(commit_name(1)), [3],
               "a commit below what is held is missing, and what is held is not what it should be: a snapshot", held=other,
               rules=["R-CHN-03", "R-APP-01"])


@makes_vectors_since("1.2")
def parent_of_what_is_held():
    def strange(*versions):
        chain = Chain().publish(whole(0), None, replaced={"parent": STRANGER})
        for number in versions:
            chain.publish(whole(number), number - 1)
        return chain
    yield bad("held/parent-of-0", strange(1), "R-CHN-04", "held/parent",
              "version 0 is held, as it was recorded, and its parent is not chain.json", held=0)
    yield bad("held/parent-of-0-at-the-head", strange(), "R-CHN-04", "held/at-the-head",
              "version 0 is held and wanted, as it was recorded, and its parent is not chain.json", held=0)
    yield bad("held/parent-of-0-from-above", strange(1), "R-CHN-04", "held/above-the-wanted-version",
              "version 0 is wanted and 1 is held; the parent of version 0 is not chain.json", held=1, version=0)


@makes_vectors_since("1.2")
def routes_that_fail():
    """One route of one document fails; the version that it starts from may still be reached."""
    two = {source: Route(source, named=[(f"{source:064x}", 1)] * 2) for source in (0, 1)}
    for id, chain, path, reason in (
            ("", line(1).put_routes(1, 1, two[0], 0), [0, 1], "the smaller of two routes from version 0 has two files for "
             "one shard"),
            ("-of-the-last-step", line(2).put_routes(2, 1, two[1], 1), [0, 1, 2],
             "the smaller of two routes from version 1 has two files for one shard"),
            ("-of-a-skip", line(2).put_routes(2, 1, two[0], 1), [0, 1, 2],
             "the cheapest route, from version 0, has two files for one shard; the dear path begins there, too")):
        costs = line(2)
        yield good(f"same-from/two-files-from-a-version{id}", chain, path, reason, rules=["R-CHN-07"],
                   size=costs.bytes_of(path, None))
    yield good("same-from/two-files-from-what-is-held", line(1).put_routes(1, 1, two[0], 0), [1],
               "the smaller of two routes from the version held has two files for one shard", held=0, rules=["R-CHN-07"],
               size=line(1).costs[0, 1])
    first, step_of_1 = step(EMPTY, whole(1)), step(whole(0), whole(1))
    chain = Chain().publish(whole(0), None).publish(whole(1), Route(None, links=[first]))
    yield good("fallback/target-fits-elsewhere-alone", chain.publish(whole(2), Route(None, links=[first]), 1), [2],
               "one file in two routes from nothing: it does not lead to version 2, but to version 1, by which the only "
               "other path goes", rules=["R-CHN-11"])
    chain = Chain().publish(whole(0), None).publish(whole(1), Route(0, links=[step_of_1]))
    yield good("fallback/step-fits-elsewhere-alone", chain.publish(whole(2), Route(0, links=[step_of_1]), Route(1, 700)),
               [0, 2], "one file in two routes from version 0: it does not lead to version 2, but to version 1, by which the "
               "only other path goes", rules=["R-CHN-11"])


@makes_vectors_since("1.2")
def order_of_shards():
    chain, twin = pairs(0).publish(halves(1), 0), "valid/two-shards"
    first, second = chain.files(0, 1)
    spoilt = chain.without(first)
    yield bad("links/first-shard-missing", spoilt.with_object(second, damaged(spoilt.objects[second])), "R-CHN-09", twin,
              "the first shard's file is missing, the second one's is damaged", path=[0, 1])
    spoilt = chain.with_object(first, damaged(chain.objects[first])).without(second)
    yield bad("links/first-shard-damaged", spoilt, "R-CHN-10", twin,
              "the first shard's file is damaged, the second one's is missing", path=[0, 1])


@makes_vectors_since("1.2")
def costs_of_53_bits():
    """Both costs are 2^53 if they are floating-point numbers."""
    quarter = 2**51
    chain = Chain()
    chain.publish(halves(0), Route(None, named=named(quarter, quarter)))
    snapshot = Route(None, named=named(2 * quarter, 2 * quarter + 1, number=1))
    chain.publish(halves(1), snapshot, Route(0, named=named(quarter, quarter, number=2)))
    yield good("valid/bytes-of-2-53", chain, [0, 1], "a path of 2^53 bytes, and one of a byte more with fewer routes",
               replay=False)


@makes_vectors_since("1.2")
def ties():
    """Routes of equal size: the digests of their files decide which is first, and a reader takes that one."""
    def filled(base, target, letter):
        file = step(base, target, 500)
        file.metadata = [("", letter * len(file.metadata[0][1]))]
        return file

    def three(source, version):
        base = EMPTY if source is None else whole(source)
        return [Route(source, links=[filled(base, whole(version), letter)]) for letter in "abc"]
    chain = Chain().publish(whole(0), *three(None, 0)).publish(whole(1), *three(0, 1))
    yield good("ties/three-of-one-size", chain, [0, 1], "three routes of one size on each step")
    yield good("ties/three-of-one-size-from-held", chain, [1], "three routes of one size from the version held", held=0)
    yield good("ties/three-of-one-size-direct", chain, [0, 1], "three routes of one size, none of which is marked",
               direct=True)
    marked = Chain().publish(whole(0), *three(None, 0)).publish(whole(1), *three(0, 1), metadata={"deltachain.direct": "2"})
    yield good("ties/three-of-one-size-direct-last", marked, [0, 1], "three routes of one size, the last of which is direct",
               direct=True)
    shards = Chain().publish(halves(0), None)
    shards.publish(halves(1), *(Route(0, links=[step(*ends, size) for *ends, size in zip(halves(0), halves(1), sizes)])
                                for sizes in ((400, 900), (900, 400), (650, 650))))
    yield good("ties/sum-of-shards", shards, [0, 1], "three routes whose files have the same bytes together")
    document = two_ways(*sized(0, 1, 500)).put_routes(1, 1, *three(0, 1))
    yield good("ties/routes-document", document, [0, 1], "three routes of one size in a routes document")


@makes_vectors_since("1.2")
def generation_0():
    """Generations count from 1 (section 17.1), so an object with the name of generation 0 is not part of the chain."""
    cheap, name = Route(None, named=named(1)), routes_name(1, 0)
    chain, pruned = line(1), line(1).put_routes(0, 1)
    of_1 = chain.put_routes(1, 1, cheap).objects.pop(routes_name(1, 1))
    of_0 = chain.put_routes(1, 0, cheap).objects.pop(name)
    for id, data, what in (("of-0", of_0, "a document of generation 0"), ("of-1", of_1, "a document of generation 1"),
                           ("rubbish", b"rubbish", "rubbish")):
        yield good(f"generation-0/{id}", line(1).with_object(name, data), [0, 1], f"under the name of generation 0 lies {what}",
                   section="17.1")
        yield bad(f"generation-0/{id}-alone", pruned.with_object(name, data), "R-CHN-08", f"generation-0/{id}",
                  f"no path leads to version 0, and under the name of generation 0 of version 1 lies {what}",
                  section="17.1")
    yield good("generation-0/beside-1", line(1).put_routes(1, 1, 0).with_object(name, of_0), [0, 1],
               "documents under the names of generation 0 and 1", section="17.1")
    withdrawn = line(1).put_routes(1, 1).with_object(name, of_0)
    yield bad("generation-0/beside-1-alone", withdrawn, "R-CHN-08", "generation-0/beside-1",
              "the document of generation 1 has no route, and a document lies under the name of generation 0", section="17.1")
