"""Chains that do not lead to the wanted version (SPEC section 19): one defect each, and no other path."""
from .chains import CHAIN, Chain, Route, bad, commit_name, digest, good, halves, line, numbers, pairs, source
from .chains import step, thirds, union, whole
from .chains_fallback import DAMAGES, broken_links, damaged, spoilt
from .chains_valid import UNUSABLE, unusable
from .model import EMPTY, State, tensor
from .registry import makes_vectors

THREE = "valid/three-versions"


@makes_vectors
def existence():
    chain = source(THREE)
    yield bad("existence/no-chain-json", chain.without(CHAIN), "R-CHN-01", THREE, "no chain.json")
    yield bad("existence/empty-store", chain.without(*chain.objects), "R-CHN-01", THREE, "no object at all")
    deeper = chain.without(*chain.objects)
    deeper.objects = {f"model/{name}": data for name, data in chain.objects.items()}
    yield bad("existence/one-folder-deeper", deeper, "R-CHN-01", THREE, "the chain is in a folder of the store")
    renamed = chain.without(CHAIN).with_object(CHAIN + ".tmp", chain.objects[CHAIN])
    yield bad("existence/chain-json-renamed", renamed, "R-CHN-01", THREE, "chain.json under another name")
    files = [name for name in chain.objects if name.startswith("files/")]
    commits = [commit_name(version) for version in range(3)]
    yield bad("existence/no-commits", chain.without(*commits, *files), "R-CHN-03", THREE, "chain.json alone")
    yield bad("existence/only-files", chain.without(*commits), "R-CHN-03", THREE, "files, but no commit")
    nearly = chain.without(*commits).with_object(commit_name(0) + ".tmp", chain.objects[commit_name(0)])
    yield bad("existence/commit-renamed", nearly, "R-CHN-03", THREE, "the only commit has an ending too much")
    for id, version in (("above-the-head", 3), ("far-above-the-head", 2**53 - 1)):
        yield bad(f"existence/{id}", chain, "R-CHN-03", THREE, "a version above the head is wanted", version=version)
    yield bad("existence/above-the-head-held", chain, "R-CHN-03", "held/at-the-head", "a version above the held head",
              version=3, held=2)
    for id, gone, held, version in (
            ("gap", 1, None, None), ("gap-at-0", 0, None, None), ("wanted-is-a-gap", 1, None, 1),
            ("gap-held", 1, 0, None), ("held-is-a-gap", 1, 1, None)):
        twin = THREE if held is None else "held/oldest" if held == 0 else "held/parent"
        yield bad(f"existence/{id}", chain.without(commit_name(gone)), "R-CHN-03", twin,
                  f"no commit of version {gone}, and no snapshot above it", version=version, held=held)
    skip = line(2).publish(whole(3), 0)
    yield bad("existence/gap-under-a-skip", skip.without(commit_name(2)), "R-CHN-03", "valid/skip-cheaper",
              "the path skips the version that has no commit, but all commits from its first version on are checked")


@makes_vectors
def names():
    chain = source(THREE)
    copy_of_1 = chain.with_object(commit_name(2), chain.objects[commit_name(1)])
    yield bad("names/commit-copied", copy_of_1, "R-CHN-02", THREE,
              "the commit of version 1 under the name of version 2")
    copy_of_0 = chain.with_object(commit_name(1), chain.objects[commit_name(0)])
    yield bad("names/commit-copied-below", copy_of_0, "R-CHN-02", THREE,
              "the commit of version 0 under the name of version 1")
    for id, numbers_inside, reason in (("of-the-head", {2: 5}, "the head calls itself 5"),
                                       ("in-the-middle", {1: 3}, "version 1 calls itself 3")):
        chain = Chain().publish(whole(0), None)
        for number in (1, 2):
            chain.publish(whole(number), number - 1, replaced={"version": numbers_inside.get(number, number)})
        yield bad(f"names/version-{id}", chain, "R-CHN-02", THREE, reason)
    chain = Chain().publish(whole(0), None, replaced={"version": 1})
    yield bad("names/version-0", chain, "R-CHN-02", "valid/one-version", "version 0 calls itself 1")
    moved = source(THREE).with_object(commit_name(3), source(THREE).objects[commit_name(2)])
    yield bad("names/commit-twice", moved, "R-CHN-02", THREE, "the head's commit once more, under the next name")


@makes_vectors
def parents():
    yield bad("parents/of-0", Chain().publish(whole(0), None, replaced={"parent": "ab" * 32}), "R-CHN-04",
              "valid/one-version", "the parent of version 0 is not chain.json")
    other = source(THREE)
    other.objects[CHAIN] = other.objects[CHAIN].replace(b"00112233", b"33221100")
    yield bad("parents/other-chain", other, "R-CHN-04", THREE, "chain.json of another chain")
    for version, id in ((1, "in-the-middle"), (2, "of-the-head")):
        chain = Chain().publish(whole(0), None)
        for number in (1, 2):
            chain.publish(whole(number), number - 1, replaced={"parent": "ab" * 32} if number == version else {})
        yield bad(f"parents/{id}", chain, "R-CHN-04", THREE,
                  f"the parent of version {version} is no commit of this chain")
    chain = line(1)
    chain.publish(whole(2), 1, replaced={"parent": digest(chain.commits[0])})
    yield bad("parents/grandparent", chain, "R-CHN-04", THREE, "the parent of version 2 is the commit of version 0")
    chain = Chain().publish(whole(0), None)
    chain.publish(whole(1), 0, replaced={"parent": digest(chain.objects[CHAIN])}).publish(whole(2), 1)
    yield bad("parents/chain-json-of-1", chain, "R-CHN-04", THREE, "the parent of version 1 is chain.json")
    yield bad("parents/of-the-head-held", wrong_head(), "R-CHN-04", "held/parent",
              "the parent of the head is not the commit that the reader holds", held=1)
    ours, theirs = fork()
    store = ours.copy()
    store.objects |= {commit_name(version): theirs.objects[commit_name(version)] for version in (2, 3)}
    yield good("parents/before-the-fork", ours, [0, 1, 2, 3], "the chain of which others are forks")
    yield bad("parents/fork", store, "R-CHN-04", "parents/before-the-fork",
              "versions 2 and 3 follow another version 1, whose state is the same")
    reused = ours.with_object(commit_name(1), theirs.objects[commit_name(1)])
    yield bad("parents/reused", reused, "R-CHN-04", "parents/before-the-fork",
              "version 1 has been published anew; version 2 follows the one before")


def wrong_head():
    return line(1).publish(whole(2), 1, replaced={"parent": "ab" * 32})


def fork():
    """Two chains with the same states, whose commits differ from version 1 on."""
    chains = []
    for run in ("ours", "theirs"):
        chain = Chain().publish(whole(0), None)
        for number in (1, 2, 3):
            chain.publish(whole(number), number - 1, metadata={"run": run})
        chains.append(chain)
    return chains


@makes_vectors
def held():
    ours, theirs = fork()
    yield good("held/before-the-fork", ours, [2, 3], "the chain of which others are forks", held=1)
    store = ours.copy()
    store.objects |= {commit_name(version): theirs.objects[commit_name(version)] for version in (1, 2, 3)}
    twin = "held/before-the-fork"
    yield bad("held/replaced-with-successors", store, "R-CHN-05", twin,
              "the held version and all above it have been published anew", held=1)
    yield bad("held/replaced", ours.with_object(commit_name(1), theirs.objects[commit_name(1)]), "R-CHN-05", twin,
              "the held version has been published anew, those above have not", held=1)
    yield bad("held/replaced-head", store, "R-CHN-05", twin, "the held version is the head and has been published anew",
              held=3)
    yield bad("held/replaced-wanted", store, "R-CHN-05", twin,
              "the held version is the one wanted and has been published anew", held=1, version=1)


@makes_vectors
def held_with_a_snapshot_above():
    """A defect between the held version and the wanted one is final, whatever paths there are."""
    def chain(run, **of_2):
        result = Chain().publish(whole(0), None).publish(whole(1), 0, metadata={"run": run})
        return result.publish(whole(2), 1, **of_2).publish(whole(3), None, 2)

    ours, twin = chain("ours"), "held/snapshot-above"
    yield good(twin, ours, [3], "a snapshot of the head costs less than the steps", held=1, from_nothing=True)
    for id, store, rule, reason in (
            ("fork", ours.with_object(commit_name(1), chain("theirs").objects[commit_name(1)]), "R-CHN-05",
             "the held version has been published anew"),
            ("gap", ours.without(commit_name(2)), "R-CHN-03", "there is a gap above the held version"),
            ("damage", ours.with_document(commit_name(2), ours.objects[commit_name(2)] + b"\n"), "R-DOC-03",
             "a commit above the held version is malformed"),
            ("parent", chain("ours", replaced={"parent": "ab" * 32}), "R-CHN-04",
             "the version after the held one follows another")):
        yield bad(f"held/{id}-below-a-snapshot", store, rule, twin, f"{reason}; the snapshot above does not help",
                  held=1)


@makes_vectors
def no_way():
    chain = line(2).publish(whole(3), 2).put_routes(2, 1, None).put_routes(0, 1).put_routes(1, 1)
    twin = "routes-documents/pruned"
    for version in (0, 1):
        yield bad(f"no-way/pruned-{version}", chain, "R-CHN-08", twin,
                  f"version {version} is wanted, but has been pruned", version=version, section="21")
    yield bad("no-way/pruned-1-above-held", chain, "R-CHN-08", twin,
              "version 1 has been pruned; holding 0 is of no use", version=1, held=0, section="21")
    yield bad("no-way/pruned-head", line(2).put_routes(2, 1), "R-CHN-08", THREE, "the head has no route")
    yield bad("no-way/no-snapshot", line(2).put_routes(0, 1), "R-CHN-08", THREE, "no route begins at nothing")
    yield bad("no-way/only-from-pruned", line(2).put_routes(1, 1), "R-CHN-08", THREE,
              "the head has a route from version 1, which has none")
    yield bad("no-way/not-from-held", line(2).put_routes(0, 1).put_routes(1, 1), "R-CHN-08", "held/only-way",
              "no route from the held version, and none from nothing", held=0)


@makes_vectors
def routes_documents():
    """The head has a snapshot in its routes document only; the files that its commit names have been pruned."""
    def pruned():
        return line(2).put_routes(0, 1).put_routes(1, 1)

    yield good("routes-documents/only-way", pruned().put_routes(2, 1, None), [2],
               "the head can be reached through its routes document only")
    rules = {"newline": "R-DOC-03", "newer": "R-DOC-02", "empty": "R-DOC-01", "order": "R-DOC-04",
             "other-version": "R-CHN-02", "other-generation": "R-CHN-02", "other-commit": "R-CHN-06"}
    for id, how, reason in UNUSABLE:
        if id != "order":
            yield bad(f"routes-documents/{id}", unusable(pruned(), 1, how, None), rules[id],
                      "routes-documents/only-way", f"{reason}: the routes of the commit come from a pruned version")
    yield bad("routes-documents/from-itself", pruned().put_routes(2, 1, Route(2, links=[step(EMPTY, whole(2))])),
              "R-DOC-04", "routes-documents/only-way", "a route from the version itself")
    chain = pruned()
    yield bad("routes-documents/commit-of-parent",
              chain.put_routes(2, 1, None, replaced={"commit": digest(chain.commits[1])}), "R-CHN-06",
              "routes-documents/only-way", "the digest of the parent's commit")


@makes_vectors
def numbers_of_files():
    one = State("chain-both-0", numbers("left", 0) | numbers("right", 0))
    twin = "valid/more-shards"
    chain = Chain().publish(one, None).publish(halves(1), Route(0, links=[step(one, half) for half in halves(1)]))
    yield bad("numbers-of-files/more-shards", chain, "R-CHN-07", twin, "a route from one shard to two")
    chain = Chain().publish(halves(0), None).publish(one, Route(0, links=[step(halves(0)[0], one)]))
    yield bad("numbers-of-files/fewer-shards", chain, "R-CHN-07", "valid/fewer-shards",
              "a route from two shards to one")
    chain = Chain().publish(one, None).publish(thirds(1), Route(0, links=[step(one, third) for third in thirds(1)]))
    yield bad("numbers-of-files/held", chain, "R-CHN-07", "held/other-shards", "a route from one held shard to three",
              held=0)
    two_files = Route(None, links=[step(EMPTY, whole(2))] * 2)
    yield bad("numbers-of-files/only-route", line(2).put_routes(2, 1, two_files), "R-CHN-07", THREE,
              "the only route in force has two files; those of the commit are not in force")
    chain = pairs(1).put_routes(0, 1)
    yield good("numbers-of-files/right", chain.copy().put_routes(1, 1, None), [1], "as many files as shards")
    for id, links in (("too-few", [step(EMPTY, halves(1)[0])]),
                      ("too-many", [step(EMPTY, third) for third in thirds(1)])):
        yield bad(f"numbers-of-files/{id}", chain.copy().put_routes(1, 1, Route(None, links=links)), "R-CHN-07",
                  "numbers-of-files/right", f"a route of {len(links)} files to a version of two shards")


@makes_vectors
def documents():
    def changed(name, old, new):
        chain = source(THREE)
        assert chain.objects[name].count(old) == 1
        return chain.with_document(name, chain.objects[name].replace(old, new))

    start, end = b'{"deltachain":1,', b"}}"
    state = whole(2).digest().hex().encode()
    for id, name, old, new, rule, reason in (
            ("chain-byte-order-mark", CHAIN, start, b"\xef\xbb\xbf" + start, "R-DOC-01",
             "chain.json with a byte order mark"),
            ("chain-newline", CHAIN, end, b"}}\n", "R-DOC-03", "chain.json with a newline at the end"),
            ("chain-newer", CHAIN, start, b'{"deltachain":2,', "R-DOC-02", "chain.json of a newer version"),
            ("head-newline", commit_name(2), end, b"}}\n", "R-DOC-03", "the head's commit with a newline at the end"),
            ("head-newer", commit_name(2), start, b'{"deltachain":2,', "R-DOC-02",
             "the head's commit is of a newer version"),
            ("head-from-itself", commit_name(2), b'"from":1', b'"from":2', "R-DOC-04",
             "a route from the head to itself"),
            ("head-one-shard", commit_name(2), b'["' + state, b'["' + b"ab" * 32, "R-DOC-06",
             "the head's only shard is not its state"),
            ("middle-space", commit_name(1), b',"version"', b', "version"', "R-DOC-03",
             "a commit on the way with a space"),
            ("middle-newer", commit_name(1), start, b'{"deltachain":2,', "R-DOC-02",
             "a commit on the way is of a newer version"),
            ("first-cut-off", commit_name(0), end, b"}", "R-DOC-03", "the first commit was cut off")):
        yield bad(f"documents/{id}", changed(name, old, new), rule, THREE, reason)
    chain = source(THREE)
    yield bad("documents/head-empty", chain.with_object(commit_name(2), b""), "R-DOC-01", THREE,
              "the head's commit is empty")
    data = chain.objects[commit_name(2)]
    yield bad("documents/head-two-files", chain.with_object(commit_name(2), data.replace(
        b"[{\"digest\"", b'[{"digest":"' + b"ab" * 32 + b'","size":1},{"digest"')), "R-DOC-05", THREE,
        "a route of two files in a commit of one shard")
    yield bad("documents/held-newer", changed(commit_name(2), start, b'{"deltachain":2,'), "R-DOC-02", "held/parent",
              "the version after the held one is of a newer version", held=1)


@makes_vectors
def files():
    chain = source(THREE)
    for id, how, rule, reason in DAMAGES:
        for where, pair in (("first", (None, 0)), ("middle", (0, 1)), ("last", (1, 2))):
            if where == "middle" or how is None:
                yield bad(f"files/{where}-{id}", spoilt(chain, *chain.files(*pair), how), rule, THREE,
                          f"the {where} file of the path {reason}", path=[0, 1, 2])
    twin = "valid/two-shards"
    two = source(twin)
    for id, how, rule, reason in DAMAGES[:2]:
        yield bad(f"files/second-shard-{id}", spoilt(two, two.files(0, 1)[1], how), rule, twin,
                  f"the second shard's file {reason}", path=[0, 1, 2])
    yield bad("files/held-missing", spoilt(chain, *chain.files(1, 2), None), "R-CHN-09", "held/parent",
              "the file of the step from the held version is missing", path=[2], held=1)
    many = source("valid/many-paths")
    yield bad("files/many-paths", spoilt(many, *many.files(0, 1), damaged), "R-CHN-10", "valid/many-paths",
              "the file of 116 routes is damaged; whoever tries all paths does not come to an end",
              path=list(range(0, 40, 3)))
    name, other = *chain.files(0, 1), *chain.files(1, 2)
    yield bad("files/other-file", chain.with_object(name, chain.objects[other]), "R-CHN-10", THREE,
              "a good link under the name of another", path=[0, 1, 2])
    yield bad("files/without-ending", chain.without(name).with_object(name.removesuffix(".dcf"), chain.objects[name]),
              "R-CHN-09", THREE, "a file whose name has no ending", path=[0, 1, 2])
    for id, add in (("size-too-low", -1), ("size-too-high", 1)):
        wrong = line(1).publish(whole(2), 1)
        data = wrong.objects[commit_name(2)]
        size = wrong.costs[1, 2]
        assert data.count(b'"size":%d}' % size) == 1
        wrong.objects[commit_name(2)] = data.replace(b'"size":%d}' % size, b'"size":%d}' % (size + add))
        wrong.costs[1, 2] += add
        yield bad(f"files/{id}", wrong, "R-CHN-10", THREE, "a route that names another size than the file has",
                  path=[0, 1, 2])


@makes_vectors
def links():
    for id, data, rule, reason in broken_links(whole(1), whole(2), whole(3)):
        yield bad(f"links/{id}", line(1).publish(whole(2), Route(1, links=[data])), rule, THREE, reason, path=[0, 1, 2],
                  features=["layout"] * (rule == "R-LAY-01"))
    foreign = Route(None, links=[step(whole(1), whole(0))])
    yield bad("links/snapshot-of-another-base", Chain().publish(whole(0), foreign), "R-APP-01", "valid/one-version",
              "a link from another state in a route from nothing", path=[0])
    yield bad("links/snapshot-as-step", line(1).publish(whole(2), Route(1, links=[step(EMPTY, whole(2))])), "R-APP-01",
              THREE, "a snapshot's link in a route from a version", path=[0, 1, 2])
    swapped = [step(*pair) for pair in zip(halves(0), halves(1))][::-1]
    yield bad("links/shards-in-another-order", pairs(0).publish(halves(1), Route(0, links=swapped)), "R-CHN-11",
              "valid/two-shards", "each shard's link in the other's place", path=[0, 1])
    left, right = halves(1)
    both = [step(halves(0)[0], left), step(halves(0)[1], whole(1))]
    yield bad("links/second-shard-elsewhere", pairs(0).publish([left, right], Route(0, links=both)), "R-CHN-11",
              "valid/two-shards", "the second shard's link leads to another state", path=[0, 1])
    older = Route(1, links=[step(whole(0), whole(2))])
    yield bad("links/held-other-base", line(1).publish(whole(2), older), "R-APP-01", "held/parent",
              "a link from the grandparent in a route from the held version", path=[2], held=1)


@makes_vectors
def results():
    twin = "valid/two-shards"
    left, right = halves(0)
    shared = State("chain-right-shared", right.tensors | left.tensors)
    yield bad("results/shards-share-a-tensor", Chain().publish([left, shared], None), "R-CHN-12", twin,
              "both shards have a tensor, with the same content", path=[0])
    other = State("chain-right-differs", right.tensors | {"left": tensor("U8", b"other")})
    yield bad("results/shards-share-a-name", Chain().publish([left, other], None), "R-CHN-12", twin,
              "both shards have a tensor of one name, with different contents", path=[0])
    for id, state, reason in (("other-state", union(halves(1)), "another state than the union of the shards"),
                              ("first-shard", left, "the state of the first shard instead of all"),
                              ("empty-state", EMPTY, "the empty state instead of the union")):
        chain = Chain().publish([left, right], None, replaced={"state": state.digest().hex()})
        yield bad(f"results/{id}", chain, "R-CHN-12", twin, reason, path=[0])
    chain = pairs(0).publish(halves(1), 0, replaced={"state": union(halves(0)).digest().hex()})
    yield bad("results/state-of-the-parent", chain, "R-CHN-12", twin, "the state of the parent", path=[0, 1])
    yield bad("results/held", chain, "R-CHN-12", "held/two-shards", "the state of the parent, which is held", path=[1],
              held=0)


@makes_vectors
def beginning():
    """A publisher stopped before the first commit."""
    twin = "recovery/begin-4"
    chain = source(twin)
    names = [CHAIN, *chain.files(None, 0)]
    for count, rule in enumerate(["R-CHN-01", "R-CHN-03", "R-CHN-03", "R-CHN-03"]):
        stage = chain.without(*chain.objects)
        stage.objects = {name: chain.objects[name] for name in names[:count]}
        yield bad(f"recovery/begin-{count}", stage, rule, twin,
                  f"a chain whose beginning ended after {count} of 4 objects: there is nothing to read", section="20")
