"""Valid chains: paths, ties, shards, routes documents and held versions (SPEC sections 17 to 19)."""
from .builder import SMALL
from .chains import CHAIN, Chain, Route, commit_name, digest, file_name, good, halves, line, numbers, pairs, routes_name
from .chains import source, step, thirds, whole
from .documents import MOST, routes_document
from .links import SPEC_TEXT
from .model import EMPTY, State, tensor
from .registry import makes_vectors


@makes_vectors
def plain():
    chain = Chain().publish(EMPTY, None, metadata={"step": "100"})
    assert all(chain.objects[name].decode() in SPEC_TEXT for name in (CHAIN, commit_name(0)))
    yield good("valid/worked", chain, [0], "the chain of the text, byte for byte", section="18")
    yield good("valid/one-version", line(0), [0], "version 0 alone", rules=["R-CHN-03"])
    yield good("valid/three-versions", line(2), [0, 1, 2], "each version by a step from its parent", rules=["R-CHN-04"])
    yield good("valid/eleven-versions", line(10), list(range(11)), "version 10 comes after 9")
    yield good("valid/older-version", line(2), [0, 1], "an older version is wanted", version=1)
    yield good("valid/oldest-version", line(2), [0], "version 0 is wanted", version=0)
    yield good("valid/latest-by-number", line(2), [0, 1, 2], "the head is wanted by its number", version=2)
    chain = line(1).publish(whole(2), None, 1).publish(whole(3), 2)
    yield good("valid/snapshot-in-the-middle", chain, [2, 3], "a snapshot costs less than the steps before it")
    yield good("valid/before-the-snapshot", chain, [0, 1], "a version below the snapshot", version=1)
    chain = line(1).publish(whole(2), Route(None, 900), 1).publish(whole(3), 2)
    yield good("valid/snapshot-dearer", chain, [0, 1, 2, 3], "a snapshot that costs more than the steps")
    chain = line(2).publish(whole(3), 0, 2)
    yield good("valid/skip-cheaper", chain, [0, 3], "a route from version 0 costs less than three steps")
    chain = line(2).publish(whole(3), Route(0, 900), 2)
    yield good("valid/skip-dearer", chain, [0, 1, 2, 3], "a route from version 0 costs more than three steps")
    metadata = {"": "", "deltachain.x": "\\/", "\n": "\x7f\u2028", "\U0001f600": "1"}
    chain = Chain().publish(whole(0), None, metadata=metadata)
    yield good("valid/commit-metadata", chain.publish(whole(1), 0, metadata={"step": "100"}), [0, 1],
               "metadata of commits means nothing to a reader")
    chain = Chain().publish(whole(0), None, replaced={"version": MOST})
    chain.objects[commit_name(MOST)] = chain.objects.pop(commit_name(0))
    chain.costs[None, MOST] = chain.costs[None, 0]
    for known in (chain.shards, chain.states, chain.assets):
        known[MOST] = known[0]
    yield good("valid/highest-version", chain, [MOST], "the highest version there can be; none of those below is left")
    chain = line(0)
    coding = {"values": SMALL, "parameters": (0, 32), "widths": (1, 2), "thresholds": [128]}
    for number in (1, 2):
        chain.publish(whole(number), Route(number - 1, links=[step(whole(number - 1), whole(number), **coding)]))
    yield good("valid/relative-values", chain, [0, 1, 2], "links with contexts and relative values")


@makes_vectors
def states():
    base, same = whole(0), whole(1)
    chain = Chain().publish(base, None).publish(base, 0).publish(same, 1)
    yield good("valid/nothing-changes", chain, [0, 1, 2],
               "a version whose state is its parent's: a link without entries")
    chain = Chain().publish(base, None).publish(same, 0).publish(base, 1)
    yield good("valid/state-returns", chain, [0, 1, 2], "a version whose state is that of an older one")
    yield good("valid/one-file-twice-on-a-path", chain.copy().publish(same, 2), [0, 1, 2, 3],
               "a path that takes one file twice, for two versions of one state: its bytes count twice")
    chain = Chain().publish(base, None).publish(same, 0).publish(same, 0, 1)
    yield good("valid/one-file-two-routes", chain, [0, 2], "one file serves the routes to two versions")
    chain = Chain().publish(EMPTY, None).publish(base, 0)
    yield good("valid/empty-state", chain, [0, 1],
               "version 0 is the empty state; the step from it is a snapshot's link")
    yield good("valid/many-paths", many_paths(), list(range(0, 40, 3)),
               "10^10 paths, which nobody can list; one file serves all routes but the first")
    tensors = [{"kept": tensor("U8", b"kept"), "gone": tensor("F32", [1, 2]), "retyped": tensor("BF16", [1, 2])},
               {"kept": tensor("U8", b"kept"), "retyped": tensor("U16", [1, 2]), "new": tensor("I64", [7])},
               {"gone": tensor("F32", []), "retyped": tensor("U16", [1, 2], (2, 1)), "new": tensor("I64", [7, 8])}]
    chain = Chain()
    for number, item in enumerate(tensors):
        chain.publish(State(f"chain-tensors-{number}", item), number - 1 if number else None)
    yield good("valid/tensors-change", chain, [0, 1, 2],
               "tensors appear, vanish, return, and change dtype, shape and size")


def many_paths():
    """Forty versions of one state, each with routes from the previous three."""
    chain = Chain().publish(whole(0), None)
    for number in range(1, 40):
        chain.publish(whole(0), *range(max(0, number - 3), number))
    return chain


@makes_vectors
def shards():
    yield good("valid/two-shards", pairs(2), [0, 1, 2], "two shards", rules=["R-CHN-12"])
    chain = Chain().publish(thirds(0), None).publish(thirds(1), 0)
    yield good("valid/three-shards", chain, [0, 1], "three shards")
    sizes = (None, 700)
    skip = Route(0, links=[step(*ends, size) for *ends, size in zip(halves(0), halves(2), sizes)])
    yield good("valid/two-shards-sum", pairs(1).publish(halves(2), skip, 1), [0, 1, 2],
               "bytes of all shards count: the skip is cheaper for the first shard, but dearer in all")
    chain = Chain().publish([whole(0), EMPTY], None).publish([whole(1), EMPTY], 0)
    yield good("valid/empty-shard", chain, [0, 1], "a shard may be the empty state")
    left, right = halves(0)
    moved = [State("chain-left-moved", {}), State("chain-right-moved", left.tensors | right.tensors)]
    chain = Chain().publish(halves(0), None).publish(moved, 0)
    yield good("valid/tensor-changes-shard", chain, [0, 1], "a tensor goes from one shard to the other")
    one = State("chain-both-1", numbers("left", 1) | numbers("right", 1))
    chain = Chain().publish(State("chain-both-0", numbers("left", 0) | numbers("right", 0)), None).publish(one, 0)
    chain.publish(halves(1), None).publish(halves(2), 2)
    yield good("valid/more-shards", chain, [2, 3], "from one shard to two, through a snapshot", rules=["R-CHN-07"])
    yield good("valid/more-shards-before", chain, [0, 1], "a version from before the shards became two", version=1)
    chain = pairs(1).publish(one, None).publish(State("chain-both-2", numbers("left", 2) | numbers("right", 2)), 2)
    yield good("valid/fewer-shards", chain, [2, 3], "from two shards to one, through a snapshot", rules=["R-CHN-07"])


@makes_vectors
def ties():
    def sized(*routes):
        """Versions with routes of given sizes: pairs of source and size for each version."""
        chain = Chain()
        for number, pairs_ in enumerate(routes):
            chain.publish(whole(number), *(Route(*pair) for pair in pairs_))
        return chain

    start = [(None, 500)]
    yield good("ties/fewer-routes", sized(start, [(0, 300)], [(0, 600), (1, 300)]), [0, 2],
               "of paths with as many bytes, the one with fewer routes")
    yield good("ties/one-byte-less", sized(start, [(0, 300)], [(0, 601), (1, 300)]), [0, 1, 2],
               "one byte less counts for more than one route less")
    yield good("ties/fewer-routes-snapshot", sized(start, [(0, 300)], [(None, 1100), (1, 300)]), [2],
               "of paths with as many bytes, a snapshot alone")
    yield good("ties/lowest", sized(start, [(0, 300)], [(0, 300), (1, 900)], [(1, 300), (2, 300)]), [0, 1, 3],
               "of paths with as many bytes and routes, the one through the lower version")
    yield good("ties/lowest-snapshot", sized(start, [(None, 500), (0, 900)], [(0, 300), (1, 300)]), [0, 2],
               "of paths with as many bytes and routes, the one that begins at the lower version")
    yield good("ties/first-difference", sized(
        start, [(0, 300)], [(0, 300), (1, 900)], [(2, 300)], [(1, 300), (3, 900)], [(3, 300), (4, 300)]), [0, 1, 4, 5],
        "the first version that differs decides, not the last: [0, 1, 4, 5], not [0, 2, 3, 5]")


@makes_vectors
def routes_documents():
    chain = line(2).put_routes(2, 1, None, 1)
    yield good("routes-documents/adds-snapshot", chain, [2], "a snapshot is added to the head")
    yield good("routes-documents/adds-skip", line(3).put_routes(3, 1, 0, 2), [0, 3], "a skip is added to the head")
    yield good("routes-documents/adds-in-the-middle", line(3).put_routes(2, 1, None, 1), [2, 3],
               "a snapshot is added to a version on the way")
    yield good("routes-documents/highest-generation", chain.copy().put_routes(2, 2, 1), [0, 1, 2],
               "generation 2 is in force, not 1")
    yield good("routes-documents/generation-10", line(2).put_routes(2, 9, None, 1).put_routes(2, 10, 1), [0, 1, 2],
               "generation 10 is in force, not 9")
    yield good("routes-documents/generation-9999999999",
               line(2).put_routes(2, 999999999, 1).put_routes(2, 9999999999, None, 1), [2], "the highest generation")
    chain = line(2).publish(whole(3), 2).put_routes(2, 1, None).put_routes(0, 1).put_routes(1, 1)
    yield good("routes-documents/pruned", chain.without(*chain.files(None, 0), *chain.files(0, 1), *chain.files(1, 2)),
               [2, 3], "versions 0 and 1 have been pruned, with their files", section="21", rules=["R-CHN-08"])
    chain = line(2).put_routes(2, 1, 0)
    yield good("routes-documents/instead-of-the-commit", chain.without(*chain.files(0, 1), *chain.files(1, 2)), [0, 2],
               "the routes of a commit are no longer in force; their files are gone")
    chain = line(2)
    lonely = routes_document(3, 1, digest(b"no commit"), [])
    yield good("routes-documents/without-a-commit", chain.with_object(routes_name(3, 1), lonely), [0, 1, 2],
               "a routes document of a version that has no commit means nothing")


# Ways to make a routes document of version 2 unusable: replaced members, or a change of its bytes.
UNUSABLE = (
    ("newline", lambda data: data + b"\n", "a newline at the end"),
    ("newer", lambda data: data.replace(b'"deltachain":1', b'"deltachain":2'), "a document of a newer version"),
    ("empty", lambda data: b"", "an empty object"),
    ("order", {"routes": [{"from": 1, "files": [{"digest": "00" * 32, "size": 1}]}] * 2}, "a route twice"),
    ("other-version", {"version": 1}, "another version inside than in the name"),
    ("other-generation", {"generation": 7}, "another generation inside than in the name"),
    ("other-commit", {"commit": "ab" * 32}, "the digest of another commit"))


def unusable(chain, generation, how, *routes):
    """The chain with an unusable routes document of version 2."""
    name = routes_name(2, generation)
    if isinstance(how, dict):
        return chain.put_routes(2, generation, *routes, replaced=how)
    chain.put_routes(2, generation, *routes)
    return chain.with_object(name, how(chain.objects[name]))


@makes_vectors
def unusable_routes_documents():
    for id, how, reason in UNUSABLE:
        rule = {"newline": "R-DOC-03", "newer": "R-DOC-02", "empty": "R-DOC-01", "order": "R-DOC-04",
                "other-commit": "R-CHN-06"}.get(id, "R-CHN-02")
        yield good(f"passed-over/{id}-to-lower-generation", unusable(line(2).put_routes(2, 1, None, 1), 2, how, 1), [2],
                   f"{reason}: generation 1 is in force", section="18", rules=[rule])
        yield good(f"passed-over/{id}-to-commit", unusable(line(2), 1, how), [0, 1, 2],
                   f"{reason}: the routes of the commit are in force", section="18", rules=[rule])
    two = Route(None, links=[step(EMPTY, whole(2))] * 2)
    yield good("passed-over/route-with-two-files", line(2).put_routes(2, 1, two, 1), [0, 1, 2],
               "a route with two files to a version of one shard", rules=["R-CHN-07"])
    chain = pairs(1).publish(thirds(2), Route(None), Route(1, links=[b"x"] * 3))
    yield good("passed-over/route-between-unlike-shards", chain, [2],
               "a route with three files from a version of two shards", rules=["R-CHN-07"])
    chain = unusable(line(2).put_routes(2, 1, None, 1), 2, {"commit": "ab" * 32}, 1)
    yield good("passed-over/two-generations", chain.put_routes(2, 3, 1, replaced={"generation": 4}), [2],
               "two unusable generations: the third from above is in force", section="18")


@makes_vectors
def held():
    chain = line(2)
    yield good("held/parent", chain, [2], "one step from the held version", held=1)
    yield good("held/oldest", chain, [1, 2], "two steps from the held version", held=0)
    yield good("held/at-the-head", chain, [], "the reader holds the head", held=2, head=2)
    yield good("held/at-the-wanted-version", chain, [], "the reader holds the wanted version", held=1,
               version=1, head=1)
    yield good("held/above-the-wanted-version", chain, [0, 1], "what is held is newer than what is wanted", held=2,
               version=1, from_nothing=True)
    yield good("held/only-way", line(2).put_routes(0, 1), [1, 2], "version 0 can be reached no more, but is held",
               held=0)
    chain = Chain().publish(whole(0), None)
    chain.publish(whole(1), Route(0, 700)).publish(whole(2), None, Route(1, 700))
    yield good("held/snapshot-cheaper", chain, [2], "a snapshot costs less than the steps from the held version",
               held=0, from_nothing=True)
    chain = Chain().publish(whole(0), None)
    chain.publish(whole(1), Route(0, 600)).publish(whole(2), Route(0, 300), Route(1, 900))
    yield good("held/cheaper-from-below", chain, [0, 2], "a path from nothing, below what is held, costs less", held=1,
               from_nothing=True)
    yield good("held/commit-of-the-cheaper-is-gone", chain.without(commit_name(0)), [2],
               "a path from nothing would cost less, but its first commit is missing", held=1, rules=["R-CHN-03"])
    yield good("held/pruned-head", line(2).put_routes(2, 1), [], "no route leads to the head, but the reader holds it",
               held=2, head=2, rules=["R-CHN-08"])
    yield good("held/skip", source("valid/skip-cheaper"), [3], "a skip begins at the held version", held=0)
    yield good("held/skip-passes-it", source("valid/skip-dearer"), [2, 3], "a skip that begins below the held version",
               held=1)
    yield good("held/two-shards", pairs(2), [2], "two shards are held", held=1)
    yield good("held/other-shards", source("valid/more-shards"), [2, 3],
               "one shard is held; the wanted version has two, and a snapshot", held=1, from_nothing=True)
    chain = line(2)
    yield good("held/files-below-are-gone", chain.without(*chain.files(None, 0), *chain.files(0, 1)), [2],
               "what leads to the held version is not needed", held=1)
    yield good("held/commit-below-is-gone", chain.without(commit_name(0)), [2],
               "commits below the held version are not needed", held=1)


@makes_vectors
def foreign_names():
    chain = line(2)
    bad = b"not a document"
    for id, names, reason in (
            ("commits", ["7.json", "0000000000000000003.json", "000000000000000000003.json",
                         "00000000000000000003.json.tmp", ".00000000000000000003.json", "00000000000000000003",
                         "00000000000000000003.jsonl", "+0000000000000000003.json", "-0000000000000000003.json",
                         " 0000000000000000003.json", "0000000000000000_003.json", "0x000000000000000003.json",
                         "0000000000000000003a.json", "0000000000000000000\uff13.json", "latest.json",
                         "00000000000000000003.json.d/00000000000000000003.json"], "commit"),
            ("routes", ["00000000000000000002.json", "00000000000000000002-1.json", "2-0000000001.json",
                        "00000000000000000002-00000000001.json", "00000000000000000002-0000000001.json.tmp",
                        "00000000000000000002-+000000001.json", "00000000000000000002_0000000001.json",
                        "+0000000000000000002-0000000001.json", "00000000000000000002-000000000\uff11.json"],
             "routes document"),
            ("files", ["AB" * 32 + ".dcf", "ab" * 32, "ab" * 32 + ".dcf.part", "model.dcf", "x/" + "ab" * 32 + ".dcf"],
             "file")):
        store = chain.copy()
        store.objects |= {f"{id}/{name}": bad for name in names}
        yield good(f"foreign/{id}", store, [0, 1, 2], f"names that are almost those of a {reason} are ignored",
                   section="17.1")
    store = chain.copy()
    for version in (MOST + 1, 2**63, 2**64, 10**20 - 1):
        store.objects |= {commit_name(version): bad, routes_name(version, 1): bad}
    yield good("foreign/versions-too-high", store, [0, 1, 2], "names of commits above 2^53 - 1 are no commits",
               section="17.1")
    store = chain.with_object(routes_name(2, 0), routes_document(2, 0, digest(chain.commits[2]), []))
    yield good("foreign/generation-0", store, [0, 1, 2], "generations begin with 1", section="17.1")
    pruning = routes_document(2, 1, digest(chain.commits[2]), [])
    store = chain.copy()
    store.objects |= {f"routes/{name}": pruning for name in (
        "00000000000000000002-1.json", "2-1.json", "00000000000000000002-00000000001.json")}
    yield good("foreign/routes-that-would-prune", store, [0, 1, 2],
               "a good routes document under a name that is almost right is ignored", section="17.1")
    store = chain.copy()
    store.objects |= {"signatures/00000000000000000009.json": bad, "signatures/chain.json": bad,
                      "assets/" + "ab" * 32: b"damaged", "assets/config.json": b"{}", "assets/" + "AB" * 32 + ".json": b"",
                      "README.md": b"#", "chain.json.bak": b"{}", "backup/chain.json": b"{}", "locks/writer": b"",
                      "backup/commits/00000000000000000009.json": bad, "00000000000000000009.json": bad}
    yield good("foreign/other-folders", store, [0, 1, 2], "other objects and folders are ignored", section="17.1")
    store = chain.with_object(file_name(b"unnamed"), b"unnamed").with_object("files/" + "ab" * 32 + ".dcf", b"damaged")
    yield good("foreign/unnamed-files", store, [0, 1, 2], "files that no route names are harmless, damaged ones too",
               section="20")
    store = chain.with_object("commits/00000000000000000009.json/part", bad)
    yield good("foreign/folder-called-like-a-commit", store, [0, 1, 2],
               "a folder is no object, so it is no commit whatever its name", section="17.1")
