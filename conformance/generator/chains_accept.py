"""Chains with two faults, in the order of section 19: steps 1 to 3, and failures that wait while a commit is
accepted."""
from .chains import CHAIN, Chain, Held, Route, bad, commit_name, digest, good, line, whole
from .chains_held import OTHER, of, other
from .documents import chain_document
from .registry import makes_vectors

NOBODY = "ab" * 32


@makes_vectors
def accept_and_two_faults():
    ours = line(2)
    none = Chain()
    for id, accept in (("held", digest(ours.commits[2])), ("other", NOBODY), ("older", digest(ours.commits[0]))):
        rule = "R-CHN-14" if id == "held" else "R-CHN-03"
        yield bad(f"accept/no-commit-{id}", none, rule, "accept/step-back",
                  "a store without commits; the caller accepts " + {
                      "held": "the commit that is held, which has no effect", "other": "what is no commit",
                      "older": "an older commit than is held"}[id], held=of(ours, 2), accept=accept)
    yield bad("accept/no-commit-of-another-chain", Chain(OTHER), "R-CHN-03", "accept/step-back",
              "another chain without commits, which is said before R-CHN-13", held=of(ours, 2), accept=NOBODY)
    back = line(2).without(commit_name(2))
    theirs = other(1)
    yield bad("accept/neither-chain-nor-head", other(0), "R-CHN-13", "accept/other-chain-1",
              "another chain, whose head is below what is held and not what the caller accepts", held=of(ours, 2),
              accept=NOBODY)
    for id, store, held in (("another-chain", theirs, of(ours, 1)), ("gone-back", back, Held(2)),
                            ("another-chain-and-gone-back", other(0), of(ours, 2))):
        head = max(version for version in range(3) if commit_name(version) in store.objects)
        malformed = store.with_object(commit_name(head), store.objects[commit_name(head)] + b" ")
        held = Held(2, digest(ours.commits[2]), digest(ours.document), ours.shards[2]) if id == "gone-back" else held
        yield bad(f"accept/malformed-and-{id}", malformed, "R-DOC-03", "accept/step-back",
                  f"a malformed head that the caller does not accept, before {id.replace('-', ' ')}", held=held,
                  accept=NOBODY)
        renamed = store.with_object(commit_name(head), line(3).objects[commit_name(3)])
        yield bad(f"accept/other-name-and-{id}", renamed, "R-CHN-02", "accept/step-back",
                  f"the head has the name of another version, before {id.replace('-', ' ')}", held=held, accept=NOBODY)
    yield bad("accept/malformed-chain-json", theirs.with_object(CHAIN, theirs.document + b"\n"), "R-DOC-03",
              "accept/other-chain-1", "a malformed chain.json before the commit that the caller accepts",
              held=of(ours, 1),
              accept=digest(theirs.commits[1]))
    yield bad("accept/no-chain-json", back.without(CHAIN), "R-CHN-01", "accept/step-back",
              "no chain.json, before the head that the caller accepts", held=of(ours, 2),
              accept=digest(ours.commits[1]))
    fork = line(0).publish(whole(1), 0, metadata={"run": "other"}).publish(whole(2), 1)
    yield bad("accept/other-chain-and-fork", fork.with_object(CHAIN, chain_document(OTHER)), "R-CHN-13",
              "accept/fork-1", "another chain.json before the held version that was published anew", held=of(ours, 1),
              accept=NOBODY)
    yield good("accept/above-by-number", ours, [0, 1, 2], "the caller accepts a version above what is held, by number",
               held=1, version=2, accept=digest(ours.commits[2]), from_nothing=True)
    yield bad("accept/by-number-of-another-commit", other(2), "R-CHN-13", "accept/other-chain-by-number",
              "the caller accepts another commit than that of the version wanted", held=of(ours, 2), version=1,
              accept=digest(other(2).commits[2]))
    yield good("accept/below-by-number-not-needed", ours, [0],
               "an older version is wanted by number, and another accepted: "
               "that is no step back of the head", held=2, version=0, accept=NOBODY, from_nothing=True)
    yield bad("accept/held-and-gone-back", back, "R-CHN-14", "accept/step-back",
              "the caller accepts the commit that is held, which has no effect", held=2, accept=digest(ours.commits[2]))
    yield bad("accept/held-published-anew", fork, "R-CHN-05", "accept/fork-1",
              "the caller accepts the commit that was held, which was published anew", held=of(ours, 1),
              accept=digest(ours.commits[1]))


@makes_vectors
def order_of_commits():
    chain = line(4)
    other_1 = line(0).publish(whole(1), 0, metadata={"run": "other"}).commits[1]
    anew = chain.with_object(commit_name(1), other_1)
    yield bad("held/wanted-missing-then-held", anew, "R-CHN-03", "held/parent",
              "version 9 has no commit, and the held version has been published anew", held=of(chain, 1), version=9)
    yield bad("held/wanted-missing-then-damaged", chain.with_object(commit_name(2), b"{}"), "R-CHN-03", "held/parent",
              "version 9 has no commit, and that of version 2 is damaged", held=1, version=9)
    damaged = chain.with_object(commit_name(2), chain.objects[commit_name(2)] + b"\n")
    yield bad("held/damaged-below-a-gap", damaged.without(commit_name(3)), "R-DOC-03", "held/parent",
              "commit 2 is damaged, commit 3 is missing", held=1, version=4)
    yield bad("held/renamed-below-a-gap", chain.with_object(commit_name(2), chain.objects[commit_name(1)]).without(
        commit_name(3)), "R-CHN-02", "held/parent", "commit 2 is that of another version, commit 3 is missing", held=1,
        version=4)
    gap = chain.with_object(commit_name(3), chain.objects[commit_name(3)] + b"\n").without(commit_name(2))
    yield bad("held/gap-below-a-damaged-one", gap, "R-CHN-03", "held/parent",
              "commit 2 is missing, commit 3 is damaged",
              held=1, version=4)
    fork = line(1).publish(whole(2), 1, metadata={"run": "other"})
    parents = chain.with_object(commit_name(2), fork.commits[2])
    yield bad("held/parent-below-a-gap", parents.with_object(commit_name(4), b"{}"), "R-CHN-04", "held/parent",
              "commit 3 does not follow commit 2, and commit 4 is damaged", held=1, version=4)
    # Faults of commit h, which the commit below does not fit, when a version below is wanted.
    yield bad("held/above-fork-and-other-parent", chain.with_object(commit_name(3), line(1).publish(
        whole(2), 1, metadata={"run": "other"}).publish(whole(3), 2).commits[3]), "R-CHN-05",
        "held/above-the-wanted-version", "the held version was published anew, and does not follow the one before",
        held=of(chain, 3), version=1)
    yield bad("held/above-renamed-and-other-commit", chain.with_object(commit_name(3), chain.objects[commit_name(4)]),
              "R-CHN-02", "held/above-the-wanted-version", "the held version's commit is that of another version",
              held=of(chain, 3), version=1)
    # Faults other than those of commits.
    yield bad("held-otherwise/and-gone-back", line(1), "R-CHN-14", "held/at-the-head",
              "what is held is not what was recorded, but it still is version 2",
              held=Held(2, digest(line(2).commits[2]), digest(chain.document), [whole(0)]))
    yield bad("held-otherwise/and-another-chain", other(2), "R-CHN-13", "held/at-the-head",
              "what is held is not what was recorded, but it still is of another chain",
              held=Held(2, digest(line(2).commits[2]), digest(chain.document), [whole(0)]))
    yield bad("held-otherwise/and-a-gap", chain.without(commit_name(3)), "R-CHN-03", "held/at-the-head",
              "what is held is not what was recorded, but the commits since then are checked",
              held=Held(2, digest(chain.commits[2]), digest(chain.document), [whole(0)]))


@makes_vectors
def ties_from_a_held_version():
    """Paths with equal bytes and numbers of routes: versions decide before places."""
    start = Route(None, 500)
    chain = Chain().publish(whole(0), start).publish(whole(1), start, Route(0, 300)).publish(
        whole(2), Route(0, 300), Route(1, 800)).publish(whole(3), Route(1, 300), Route(2, 300))
    chain.put_routes(2, 1, Route(0, 300))
    yield good("ties/held-versions-before-places", chain, [1, 3],
               "the path through the lower version, though its first "
               "route stands later in its document", held=0)
