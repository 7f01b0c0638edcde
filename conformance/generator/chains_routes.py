"""Several routes from the same version, routes that fail one by one, routes documents below a held version, and sums
beyond 64 bits (SPEC section 19, steps 4 and 5)."""
from .builder import SMALL
from .chains import Chain, Route, bad, commit_name, digest, file_name, good, halves, line, pairs
from .chains import step, union, whole
from .chains_fallback import DAMAGES, broken_links, spoilt
from .documents import MOST
from .model import EMPTY, State, tensor
from .registry import makes_vectors

COMPACT = {"values": SMALL, "parameters": (0, 32), "widths": (1, 2), "thresholds": [128]}


def two_ways(*routes):
    """Version 0, and version 1 with these routes."""
    return Chain().publish(whole(0), None).publish(whole(1), *routes)


def sized(source, target, *sizes):
    """Routes of these sizes; each is one link."""
    return [Route(source, links=[step(EMPTY if source is None else whole(source), whole(target), size)]) for size in sizes]


@makes_vectors
def same_from():
    compact = Route(0, links=[step(whole(0), whole(1), **COMPACT)])
    yield good("same-from/direct-and-compact", two_ways(0, compact), [0, 1],
               "a route with absolute values and one with relative ones", rules=["R-DOC-04"])
    yield good("same-from/three-sizes", two_ways(*sized(0, 1, 700, 500, 900)), [0, 1],
               "three routes from one version, the smallest first")
    yield good("same-from/nothing", Chain().publish(whole(0), *sized(None, 0, 600, 500)), [0], "two routes from nothing")
    yield good("same-from/held", two_ways(*sized(0, 1, 700, 500)), [1], "two routes from the held version", held=0)
    one, two = ([step(whole(0), whole(1), 500)], [step(whole(0), whole(1), 500)])
    two[0].metadata = [("", "-" * len(two[0].metadata[0][1]))]
    yield good("same-from/one-size", two_ways(Route(0, links=one), Route(0, links=two)), [0, 1],
               "two routes of one size, which come in the order of their digests")
    yield good("same-from/smaller-later-version", Chain().publish(whole(0), None).publish(whole(1), *sized(0, 1, 400, 600))
               .publish(whole(2), *sized(0, 2, 900), *sized(1, 2, 450, 800)), [0, 1, 2],
               "two routes on each step, and a skip that costs more than the smaller ones")
    shards = Chain().publish(halves(0), None)
    shards.publish(halves(1), *(Route(0, links=[step(*ends, size) for *ends, size in zip(halves(0), halves(1), sizes)])
                                for sizes in ((400, 900), (700, 500))))
    yield good("same-from/sum-of-shards", shards, [0, 1], "the sum of all shards decides")
    document = line(2).put_routes(2, 1, None, *sized(1, 2, 500, 600), *sized(None, 2, 2000))
    yield good("same-from/routes-document", document, [2], "several routes from each in a routes document")


@makes_vectors
def one_of_two_fails():
    for id, how, rule, reason in DAMAGES:
        chain = two_ways(*sized(0, 1, 500, 700))
        name = file_name(step(whole(0), whole(1), 500).encode())
        yield good(f"same-from/first-{id}", spoilt(chain, name, how), [0, 1],
                   f"the smaller of two routes from one version: its file {reason}", rules=[rule])
    for id, data, rule, reason in broken_links(whole(0), whole(1), whole(2)):
        chain = two_ways(Route(0, links=[data]), *sized(0, 1, 700))
        yield good(f"same-from/first-{id}", chain, [0, 1], f"the smaller of two routes from one version: {reason}",
                   rules=[rule], features=["layout"] * (rule == "R-LAY-01"))
    chain = Chain().publish(whole(0), *sized(None, 0, 500, 600, 700))
    names = [file_name(step(EMPTY, whole(0), size).encode()) for size in (500, 600)]
    yield good("same-from/two-of-three-missing", chain.without(*names), [0],
               "two of three routes from nothing lack their file", rules=["R-CHN-09"])
    chain = two_ways(*sized(0, 1, 500, 700))
    names = [file_name(step(whole(0), whole(1), size).encode()) for size in (500, 700)]
    yield good("same-from/larger-missing", chain.without(names[1]), [0, 1], "the larger of two routes lacks its file")
    yield bad("same-from/both-missing", chain.without(*names), "R-CHN-09", "same-from/first-missing",
              "both routes lack their files", path=[0, 1])
    yield good("same-from/held-first-missing", chain.without(names[0]), [1],
               "the smaller of two routes from the held version lacks its file", held=0, rules=["R-CHN-09"])
    small = step(EMPTY, whole(2))
    two_files = Route(None, named=[(digest(small.encode()), 1)] * 2)
    yield good("same-from/first-has-two-files", line(2).put_routes(2, 1, two_files, None, 1), [2],
               "the smaller of two routes from nothing has two files for one shard", rules=["R-CHN-07"],
               size=len(small.encode()))
    chain = pairs(1)
    one = Route(0, links=[step(halves(0)[0], halves(1)[0])])
    yield good("same-from/first-has-one-file", chain.put_routes(1, 1, one, 0), [0, 1],
               "the smaller of two routes has one file for two shards", rules=["R-CHN-07"],
               size=chain.costs[None, 0] + sum(len(step(*ends).encode()) for ends in zip(halves(0), halves(1))))


@makes_vectors
def routes_not_files():
    """A route that fails rules out nothing else: its file may fit in another one."""
    fits = step(whole(1), whole(2))
    chain = line(1).publish(whole(2), Route(0, links=[fits]), Route(1, links=[fits]))
    yield good("fallback/file-fits-elsewhere", chain, [0, 2],
               "one file in two routes: it does not fit version 0, but version 1", rules=["R-APP-01"])
    snapshot = step(EMPTY, whole(1))
    chain = Chain().publish(whole(0), None).publish(whole(1), Route(None, links=[snapshot], ), Route(0, 900))
    chain.publish(whole(2), Route(None, links=[snapshot]), 1)
    yield good("fallback/target-fits-elsewhere", chain, [2],
               "one file in two routes: it does not lead to version 2, but to version 1", rules=["R-CHN-11"])
    data = step(whole(0), whole(1)).encode()
    for id, sizes, reason in (("too-small", (-1, 0), "a byte too small in the first"),
                              ("too-large", (0, 1), "a byte too large in the second, which is not needed")):
        routes = [Route(0, named=[(digest(data), len(data) + more)]) for more in sizes]
        chain = two_ways(*routes).with_object(file_name(data), data)
        yield good(f"fallback/size-{id}", chain, [0, 1], f"one file in two routes of different sizes: {reason}",
                   rules=["R-CHN-10"])
    shared = Chain().publish(whole(0), None)
    shared.publish(whole(1), *(Route(0, named=[(digest(data), len(data) + more)]) for more in (-2, -1, 1)), 0)
    yield good("fallback/size-wrong-three-times", shared, [0, 1], "one file in four routes, of which one has its size",
               rules=["R-CHN-10"])
    broken = Chain().publish([EMPTY, EMPTY], None)
    first = step(EMPTY, halves(1)[0])
    broken.publish(halves(1), Route(0, links=[first, step(EMPTY, halves(2)[1])]),
                   Route(None, links=[first, step(EMPTY, halves(1)[1], 900)]))
    yield good("fallback/first-shard-again", broken, [0, 1],
               "a route whose second file leads elsewhere shares its first file with another route", rules=["R-CHN-11"])


@makes_vectors
def below_what_is_held():
    """Routes documents count for every version on a path, including versions below the held one."""
    def chain(*of_1):
        result = Chain().publish(whole(0), Route(None, 300)).publish(whole(1), *of_1).publish(whole(2), Route(1, 300))
        return result.publish(whole(3), Route(1, 300), Route(2, 700))

    cheap = chain(Route(None, 301), Route(0, 300))
    yield good("below-held/snapshot-below", cheap, [1, 3], "a path from nothing, below what is held, costs less", held=2,
               from_nothing=True)
    yield good("below-held/withdrawn", cheap.copy().put_routes(1, 1, Route(0, 300)), [3],
               "the snapshot below what is held has been withdrawn; what is left costs more than the step", held=2)
    yield good("below-held/pruned", cheap.copy().put_routes(1, 1), [3], "the version below what is held has been pruned",
               held=2)
    yield good("below-held/first-pruned", chain(Route(0, 90 + 200)).put_routes(0, 1), [3],
               "version 0 has been pruned, so that no path begins below what is held", held=2)
    dear = chain(Route(0, 300))
    yield good("below-held/added", dear.copy().put_routes(1, 1, Route(None, 301), Route(0, 300)), [1, 3],
               "a snapshot below what is held has been added, and costs less than the step", held=2, from_nothing=True)
    yield good("below-held/not-added", dear, [3], "without that snapshot the step costs less", held=2)
    yield good("below-held/added-then-withdrawn", dear.copy().put_routes(1, 1, Route(None, 301)).put_routes(
        1, 2, Route(0, 300)), [3], "a snapshot below what is held was added and withdrawn", held=2)
    other = dear.copy().put_routes(1, 1, Route(None, 301), Route(0, 300), replaced={"commit": "ab" * 32})
    yield good("below-held/unusable", other, [3], "a routes document below what is held is unusable", held=2,
               rules=["R-CHN-06"])
    lost = cheap.copy().put_routes(1, 1, Route(0, 300))
    lost = lost.without(file_name(step(whole(2), whole(3), 700).encode()))
    yield good("below-held/withdrawn-then-missing", lost, [3],
               "the step from what is held lacks its file; the way below goes by routes in force", held=2,
               rules=["R-CHN-09"])
    none = cheap.copy().put_routes(1, 1).put_routes(0, 1).without(file_name(step(whole(2), whole(3), 700).encode()))
    yield bad("below-held/pruned-then-missing", none, "R-CHN-09", "below-held/withdrawn-then-missing",
              "the step from what is held lacks its file, and all below has been pruned", path=[3], held=2)
    below = Chain().publish(whole(0), Route(None, 300)).publish(whole(1), Route(0, 300)).publish(whole(2), Route(1, 300))
    below.publish(whole(3), Route(2, 700)).put_routes(3, 1, Route(0, 350), Route(2, 700))
    yield good("below-held/skip-from-below", below, [0, 3], "a skip over what is held has been added", held=2,
               from_nothing=True)
    yield good("below-held/skip-from-pruned", below.copy().put_routes(0, 1), [3],
               "a skip over what is held, from a version that has been pruned", held=2)


@makes_vectors
def final_failures():
    """R-CHN-12 is the commit's fault: it is reported at once, whatever else failed before or could still be tried."""
    wrong = {"state": union(halves(1)).digest().hex()}
    twin = "valid/two-shards"
    chain = Chain().publish(halves(0), *(Route(None, links=[step(EMPTY, half, size) for half in halves(0)])
                                         for size in (400, 500)), replaced=wrong)
    yield bad("results/two-paths", chain, "R-CHN-12", twin, "two paths, which lead to the same shards", path=[0])
    first = file_name(step(EMPTY, halves(0)[0], 400).encode())
    yield bad("results/after-a-missing-file", chain.without(first), "R-CHN-12", twin,
              "the cheapest path lacks a file; the other leads to shards that are not the state", path=[0])
    chain = pairs(0).publish(halves(1), None, 0, replaced={"state": union(halves(0)).digest().hex()})
    yield bad("results/held-after-a-missing-file", chain.without(*chain.files(0, 1)[:1]), "R-CHN-12", "held/two-shards",
              "the step from what is held lacks a file; the snapshot leads to shards that are not the state", path=[1],
              held=0)


def named(*sizes, number=0):
    """Files of a route that do not exist."""
    return [(f"{number:064x}", size) for size in sizes]


@makes_vectors
def worked_chain():
    """The table of section 19.2; there are no files, so only *plan* is run."""
    def made():
        chain = Chain()
        for version, routes in enumerate(([(None, 1000)], [(0, 40)], [(None, 1000), (1, 40)], [(2, 40)],
                                          [(1, 90), (3, 40)])):
            chain.publish(whole(version), *(Route(start, named=named(size, number=version)) for start, size in routes))
        return chain

    def plan(id, chain, path, size, reason, **others):
        return good(f"worked/{id}", chain, path, f"the chain of section 19.2: {reason}", size=size, replay=False,
                    section="19.2", **others)
    chain = made()
    yield plan("nothing", chain, [2, 3, 4], 1080, "nothing is held")
    yield plan("from-1", chain, [4], 90, "version 1 is held", held=1)
    yield plan("from-2", chain, [3, 4], 80, "version 2 is held", held=2)
    yield plan("from-4", chain, [], 0, "version 4 is held", held=4, head=4)
    yield plan("back-to-1", chain, [0, 1], 1040, "version 4 is held, 1 is wanted", held=4, version=1, from_nothing=True)
    yield bad("worked/gone-back", chain.without(commit_name(4)), "R-CHN-14", "worked/from-4",
              "the chain of section 19.2: version 4 is held, and its commit is gone", held=4, replay=False, section="19.2")
    routes = made().put_routes(2, 1, Route(1, named=named(40)))
    yield plan("without-the-snapshot", routes, [0, 1, 4], 1130, "a routes document of 2 lists only the route from 1")
    damaged = chain.with_object(commit_name(1), b"damaged")
    yield plan("commit-1-damaged", damaged, [2, 3, 4], 1080, "commit 1 is damaged", rules=["R-DOC-01"])


@makes_vectors
def beyond_64_bits():
    """32 steps of 64 files, 2^64 bytes together and some more: in 64 bits their cost seems tiny."""
    shards = [EMPTY] * 64
    sizes = [2048 + 1000] + [1] * 63
    chain = Chain().publish(shards, Route(None, named=named(*sizes)))
    for number in range(1, 32):
        chain.publish(shards, Route(number - 1, named=named(*[MOST] * 64)))
    snapshot = Route(None, links=[step(EMPTY, EMPTY)] * 64)
    chain.publish(shards, snapshot, Route(31, named=named(*[MOST] * 64)))
    wrapped = (sum(sizes) + 64 * 32 * MOST) % 2**64
    assert wrapped < chain.costs[None, 32]
    yield good("valid/bytes-above-2-64", chain, [32], "a path of more than 2^64 bytes, which are few in 64 bits, and a "
               "snapshot", features=["shards"])


@makes_vectors
def one_route_beyond_64_bits():
    """The same in one route, for readers that search backwards and return the first path."""
    count = 2050
    sizes = [MOST] * 2048 + [3000] * 2
    small = named(*[131] * count)
    chain = Chain().publish([EMPTY] * count, Route(None, named=small), Route(None, named=named(*sizes)))
    assert sum(sizes) > 2**64 > count * 131 > sum(sizes) % 2**64
    yield good("valid/route-above-2-64", chain, [0], "two routes from nothing, the second of more than 2^64 bytes, which "
               "are few in 64 bits", replay=False)


@makes_vectors
def links_of_other_kinds():
    extended = step(whole(0), whole(1))
    extended.extension = b"for later"
    yield good("valid/extension-area", two_ways(Route(0, links=[extended])), [0, 1],
               "a link with an extension area, which belongs to the file's digest", section="4")
    laid_out = step(whole(0), whole(1))
    laid_out.metadata = [("deltachain.layout", '{"files":[{"name":"model.safetensors","metadata":null,"tensors":null}]}')]
    yield good("valid/layout", two_ways(Route(0, links=[laid_out])), [0, 1], "a link with a layout", section="12",
               features=["layout"])
    states = [State(f"chain-sets-{number}", {name: tensor("U8", b"12345678") for name in "abc"[:number + 1]})
              for number in range(3)]
    chain = Chain().publish(states[0], None).publish(states[1], 0).publish(states[2], None, 1)
    assert chain.costs[None, 2] < chain.bytes_of([0, 1, 2], None)
    yield good("valid/set-bytes", chain, [2], "the snapshot sets 24 bytes, as many as the caller allows", set_bytes=24,
               rules=["R-LIM-04"])
    yield good("fallback/set-bytes", chain, [2], "the snapshot sets more than the caller allows; each step sets less",
               set_bytes=23, rules=["R-LIM-04"])
    yield bad("links/set-bytes", chain, "R-LIM-04", "valid/set-bytes", "every path sets more than the caller allows",
              path=[2], set_bytes=7)
