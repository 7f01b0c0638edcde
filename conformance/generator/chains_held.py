"""Readers that hold a version: another chain, a store that was rolled back, an older version by number, and a held
state that is not as recorded (SPEC section 19). *Accept* names the commit of a rollback."""
from .chains import CHAIN, Chain, Held, Route, bad, commit_name, digest, good, halves, line, pairs, source, whole
from .documents import chain_document
from .registry import makes_vectors

OTHER = "ffeeddccbbaa99887766554433221100"


def other(last, identifier=OTHER, metadata=None):
    """Another chain with the same states."""
    chain = Chain(identifier, metadata).publish(whole(0), None)
    for number in range(1, last + 1):
        chain.publish(whole(number), number - 1)
    return chain


def of(chain, version):
    """Returns what a reader of this chain holds."""
    return Held(version, digest(chain.commits[version]), digest(chain.document), chain.shards[version])


@makes_vectors
def another_chain():
    ours, twin = line(2), "held/parent"
    for id, chain, reason in (
            ("of-the-same-states", other(2), "a chain of the same states"),
            ("that-is-longer", other(4), "a chain that is longer"), ("that-is-shorter", other(0), "a chain that is shorter"),
            ("with-other-metadata", other(2, metadata={"k": ""}), "a chain document with other metadata"),
            ("without-commits", Chain(OTHER), "a chain without commits")):
        yield bad(f"other-chain/{id}", chain, "R-CHN-13", twin, reason, held=of(ours, 1))
    yield bad("other-chain/by-number", other(2), "R-CHN-13", twin, "another chain, of which an older version is wanted",
              held=of(ours, 1), version=0)
    yield bad("other-chain/above-the-head", other(2), "R-CHN-13", twin,
              "another chain, of which a version above the head is wanted", held=of(ours, 1), version=9)
    replaced = line(2).with_object(CHAIN, chain_document(OTHER))
    yield bad("other-chain/only-chain-json", replaced, "R-CHN-13", twin, "all commits are those of the chain that is held",
              held=1)
    for version in (1, 2):
        yield bad(f"other-chain/only-chain-json-by-number-{version}", replaced, "R-CHN-13", twin,
                  "all commits are those of the chain that is held; a version is wanted by number", held=1, version=version)
    yield bad("other-chain/recorded-otherwise", line(2), "R-CHN-13", twin,
              "the reader has recorded the digest of another chain.json", held=Held(1, chain="ab" * 32))
    yield bad("other-chain/newline", line(2).with_object(CHAIN, line(2).document + b"\n"), "R-DOC-03", twin,
              "a malformed chain.json before its digest", held=1)
    yield bad("other-chain/newer", line(2).with_object(CHAIN, line(2).document.replace(b":1,", b":2,", 1)), "R-DOC-02",
              twin, "a newer chain.json before its digest", held=1)
    required = line(2).with_object(CHAIN, chain_document("00112233445566778899aabbccddeeff", {"deltachain!x": ""}))
    yield bad("other-chain/required-key", required, "R-DOC-07", twin,
              "a chain.json with a key that the reader must know before its digest", held=1)
    yield bad("other-chain/no-chain-json", line(2).without(CHAIN), "R-CHN-01", twin, "no chain.json", held=1)


@makes_vectors
def gone_back():
    chain, twin = line(3), "held/at-the-head"
    for id, left, reason in (("by-one", [0, 1], "the store has lost the version that the reader holds"),
                             ("by-two", [0], "the store has lost two versions"),
                             ("to-nothing", [], "the store has lost all commits"),
                             ("with-a-gap", [1], "the store has lost the held version, and one below")):
        lost = line(2).without(*(commit_name(version) for version in range(3) if version not in left))
        yield bad(f"gone-back/{id}", lost, "R-CHN-14", twin, reason, held=2)
    yield bad("gone-back/commit-under-another-name", line(2).without(commit_name(2)).with_object(
        commit_name(2) + ".tmp", line(2).objects[commit_name(2)]), "R-CHN-14", twin,
        "the held version's commit has an ending too much", held=2)
    yield bad("gone-back/head-damaged", line(2).without(commit_name(2)).with_object(commit_name(1), b""), "R-CHN-14", twin,
              "the head below the held version is damaged, which nobody reads", held=2)
    yield bad("gone-back/a-higher-commit", chain.without(commit_name(2)), "R-CHN-03", twin,
              "the held version's commit is missing, but there is a higher one: a gap", held=2)
    yield bad("gone-back/to-the-held-by-number", line(2).without(commit_name(2)), "R-CHN-03", twin,
              "the held version is wanted by number and has no commit", held=2, version=2)
    routes = line(2).put_routes(2, 1, None)
    yield bad("gone-back/routes-are-left", routes.without(commit_name(2)), "R-CHN-14", twin,
              "a routes document of the lost version does not make it one", held=2)
    yield bad("other-chain/and-gone-back", other(0), "R-CHN-13", twin, "another chain before a lost version",
              held=of(line(2), 2))


@makes_vectors
def accepted():
    back = line(2).without(commit_name(2))
    head = digest(line(2).commits[1])
    yield good("accept/step-back", back, [0, 1], "the caller accepts the head, which is below what is held", held=2,
               accept=head, from_nothing=True, rules=["R-CHN-14"])
    theirs = other(1)
    for held in (0, 1, 2):
        yield good(f"accept/other-chain-{held}", theirs, [0, 1], "the caller accepts the head of another chain",
                   held=of(line(2), held), accept=digest(theirs.commits[1]), from_nothing=True, rules=["R-CHN-13"])
    yield good("accept/other-chain-by-number", other(2), [0, 1], "the caller accepts a version of another chain",
               held=of(line(2), 2), version=1, accept=digest(other(2).commits[1]), from_nothing=True, rules=["R-CHN-13"])
    fork = line(0).publish(whole(1), 0, metadata={"run": "other"}).publish(whole(2), 1)
    for held in (1, 2):
        yield good(f"accept/fork-{held}", fork, [0, 1, 2],
                   "the caller accepts the head of a chain whose held version has been published anew",
                   held=of(line(2), held), accept=digest(fork.commits[2]), from_nothing=True, rules=["R-CHN-05"])
    yield good("accept/older-by-number", fork, [0, 1], "the caller accepts an older version, published anew",
               held=of(line(2), 2), version=1, accept=digest(fork.commits[1]), from_nothing=True, rules=["R-CHN-05"])
    gap = line(2).publish(whole(3), None, 2)
    yield good("accept/gap", gap.without(commit_name(1)), [3], "the caller accepts a head above a gap", held=0,
               accept=digest(gap.commits[3]), from_nothing=True, rules=["R-CHN-03"])
    whole_chain = line(2)
    yield good("accept/head-of-the-same-chain", whole_chain, [0, 1, 2],
               "the caller accepts the head, so the reader goes on as one that holds nothing", held=1,
               accept=digest(whole_chain.commits[2]), from_nothing=True)
    yield good("accept/not-needed", whole_chain, [2], "the caller accepts another commit, but nothing is amiss", held=1,
               accept="ab" * 32)
    yield good("accept/nothing-held", whole_chain, [0, 1, 2], "the caller accepts a commit, but the reader holds nothing",
               accept="ab" * 32)
    yield good("accept/held", whole_chain, [], "the caller accepts the head, which is held: nothing is fetched", head=2,
               held=2, accept=digest(whole_chain.commits[2]))
    yield good("accept/held-by-number", whole_chain, [], "the caller accepts the version that is held and wanted",
               head=1, held=1, version=1, accept=digest(whole_chain.commits[1]))
    replaced = whole_chain.with_object(CHAIN, chain_document(OTHER))
    yield bad("accept/held-of-another-chain", replaced, "R-CHN-13", "accept/held",
              "the caller accepts the head, which is held, but chain.json is another", held=2,
              accept=digest(whole_chain.commits[2]))
    yield bad("accept/held-of-another-chain-by-number", replaced, "R-CHN-13", "accept/held-by-number",
              "the caller accepts the version that is held and wanted, but chain.json is another", held=1, version=1,
              accept=digest(whole_chain.commits[1]))
    twin = "accept/step-back"
    yield bad("accept/other-commit", back, "R-CHN-14", twin, "the caller accepts another commit than the head", held=2,
              accept=digest(line(2).commits[0]))
    yield bad("accept/lost-commit", back, "R-CHN-14", twin, "the caller accepts the commit that has been lost", held=2,
              accept=digest(line(2).commits[2]))
    yield bad("accept/other-commit-of-another-chain", theirs, "R-CHN-13", "accept/other-chain-1",
              "the caller accepts the held commit, but the chain is another", held=of(line(2), 1),
              accept=digest(line(2).commits[1]))
    yield bad("accept/parent-of-the-head", theirs, "R-CHN-13", "accept/other-chain-1",
              "the caller accepts another version of the other chain than the head", held=of(line(2), 1),
              accept=digest(theirs.commits[0]))
    yield bad("accept/chain-json", theirs, "R-CHN-13", "accept/other-chain-1",
              "the caller accepts what is no commit: chain.json", held=of(line(2), 1), accept=digest(theirs.document))
    yield bad("accept/fork-of-another-commit", fork, "R-CHN-05", "accept/fork-1",
              "the caller accepts another commit than the head", held=of(line(2), 1), accept=digest(fork.commits[1]))
    malformed = theirs.with_object(commit_name(1), theirs.objects[commit_name(1)] + b"\n")
    yield bad("accept/malformed", malformed, "R-DOC-03", "accept/other-chain-1",
              "the accepted head is malformed, which comes before the other chain", held=of(line(2), 1),
              accept=digest(malformed.objects[commit_name(1)]))
    renamed = theirs.with_object(commit_name(2), theirs.objects[commit_name(1)])
    yield bad("accept/other-name", renamed, "R-CHN-02", "accept/other-chain-1",
              "the accepted commit has the name of another version", held=of(line(2), 1), accept=digest(theirs.commits[1]))
    yield bad("accept/no-such-version", theirs, "R-CHN-03", "accept/other-chain-by-number",
              "the version wanted has no commit, which comes before the other chain", held=of(line(2), 1), version=5,
              accept=digest(theirs.commits[1]))
    yield bad("accept/then-damaged", theirs.without(commit_name(0)), "R-CHN-03", "accept/other-chain-1",
              "the accepted head cannot be reached", held=of(line(2), 1), accept=digest(theirs.commits[1]))


@makes_vectors
def older_by_number():
    """Commits between the wanted version and the held one are checked; then the path begins at nothing."""
    chain, twin = line(3), "held/above-the-wanted-version"
    yield good("held/far-above-the-wanted-version", chain, [0], "version 0 is wanted, 3 is held", held=3, version=0,
               from_nothing=True)
    yield good("held/above-with-a-snapshot", source("valid/snapshot-in-the-middle").copy(), [2],
               "a snapshot leads to the older version", held=3, version=2, from_nothing=True)
    yield good("held/above-and-below-is-damaged", Chain().publish(whole(0), None).publish(whole(1), None, 0).publish(
        whole(2), 1).without(commit_name(0)), [1], "commits below the older version are needed for paths only", held=2,
        version=1, from_nothing=True)
    for id, spoilt, rule, reason, version in (
            ("gap", chain.without(commit_name(2)), "R-CHN-03", "no commit of a version between", 1),
            ("gap-below-the-held", chain.without(commit_name(2)), "R-CHN-03", "no commit of a version between", 0),
            ("held-missing", chain.without(commit_name(3)), "R-CHN-03", "no commit of the held version", 1),
            ("wanted-missing", chain.without(commit_name(1)), "R-CHN-03", "no commit of the version wanted", 1),
            ("damaged", chain.with_object(commit_name(2), b"{}"), "R-DOC-01", "a damaged commit between", 1),
            ("held-damaged", chain.with_object(commit_name(3), chain.objects[commit_name(3)] + b" "), "R-DOC-03",
             "the held version's commit is malformed", 1),
            ("copied", chain.with_object(commit_name(2), chain.objects[commit_name(1)]), "R-CHN-02",
             "the commit of another version between", 1),
            ("fork", line(2).publish(whole(3), 2, metadata={"run": "other"}), "R-CHN-05",
             "the held version has been published anew", 1),
            ("fork-of-the-wanted", chain.with_object(commit_name(1), line(0).publish(
                whole(1), 0, metadata={"run": "other"}).commits[1]), "R-CHN-04",
             "the version wanted has been published anew; the one after it follows the old one", 1),
            ("fork-between", chain.with_object(commit_name(2), line(1).publish(
                whole(2), 1, metadata={"run": "other"}).commits[2]), "R-CHN-04",
             "a version between has been published anew", 1)):
        yield bad(f"held/above-{id}", spoilt, rule, twin, reason, held=of(chain, 3), version=version)
    yield bad("held/above-other-state", line(2).publish(whole(4), 2), "R-CHN-05", twin,
              "the held version has been published anew, with another state", held=of(chain, 3), version=2)


@makes_vectors
def held_otherwise():
    """The reader does not hold what commit h names: paths that begin with it are ruled out."""
    def of_one(*shards):
        return Held(1, shards=list(shards))
    chain = line(2)
    for id, shards, reason in (("other-state", [whole(2)], "the shard has another state"),
                               ("older-state", [whole(0)], "the shard is that of the version before"),
                               ("too-many", [whole(1), whole(1)], "two shards for one"),
                               ("none", [], "no shard"),
                               ("tensor-missing", [whole(1).changed("chain-1-weight", bias=None)], "a tensor is missing")):
        yield good(f"held-otherwise/{id}", chain, [2], f"{reason}: what is planned from it cannot be replayed",
                   held=of_one(*shards), rules=["R-APP-01"])
    two = pairs(2)
    for id, shards, reason in (("second-shard", [halves(1)[0], halves(2)[1]], "the second shard has another state"),
                               ("swapped", halves(1)[::-1], "the shards have changed places"),
                               ("one-of-two", halves(1)[:1], "one shard of two"),
                               ("three-of-two", [*halves(1), whole(0)], "three shards of two")):
        yield good(f"held-otherwise/{id}", two, [2], f"{reason}: what is planned from it cannot be replayed",
                   held=of_one(*shards), rules=["R-APP-01"])
    yield good("held-otherwise/at-the-head", line(1), [], "the head is held, but not so: it is read from nothing", head=1,
               held=of_one(whole(0)), rules=["R-APP-01"])
    yield good("held-otherwise/unused", Chain().publish(whole(0), None).publish(whole(1), Route(0, 700)).publish(
        whole(2), None, Route(1, 900)), [2], "the path begins at nothing, so what is held does not matter",
        held=of_one(whole(0)), from_nothing=True)
    yield good("held-otherwise/older-by-number", chain, [0], "an older version is wanted, so what is held does not matter",
               held=of_one(whole(2)), version=0, from_nothing=True)
    twin = "held-otherwise/other-state"
    pruned = line(2).put_routes(0, 1).put_routes(1, 1)
    yield bad("held-otherwise/only-way", pruned, "R-APP-01", twin, "the only path begins at what is held, but not so",
              path=[2], held=of_one(whole(0)))
    yield bad("held-otherwise/too-many-and-only-way", pruned, "R-APP-01", twin,
              "the only path begins at what is held; there is a shard too many", path=[2], held=of_one(whole(1), whole(1)))
    yield bad("held-otherwise/none-and-only-way", pruned, "R-APP-01", twin,
              "the only path begins at what is held; there is no shard", path=[2], held=of_one())
    yield bad("held-otherwise/pruned-head", line(1).put_routes(1, 1), "R-APP-01", "held/pruned-head",
              "the head is held, but not so, and no route leads to it", path=[], held=of_one(whole(0)))
