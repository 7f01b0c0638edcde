"""The head that a reader with trust has seen, and the commit that its caller accepts: points 4 and 5 of section 23.3 in
spec/signatures.md."""
from .chains import Chain, commit_name, digest, line, whole
from .chains_held import of, other
from .registry import makes_vectors, makes_vectors_since
from .signatures import FIRST, SECOND, UNKNOWN, put, seen, signed, trust
from .signatures_reading import all_signed, refused, taken


def fork(last, first=1):
    """Versions with the same states. Those from `first` on have been published again."""
    chain = line(first - 1).publish(whole(first), first - 1, metadata={"run": "other"})
    for number in range(first + 1, last + 1):
        chain.publish(whole(number), number - 1)
    return signed(chain, *range(last + 1))


@makes_vectors
def holds_nothing():
    chain = all_signed(3)
    yield taken("seen-the-head", chain, [0, 1, 2, 3], "the head has been seen", trust=seen(chain, 3))
    yield taken("seen-below", chain, [0, 1, 2, 3], "a version below the head has been seen", trust=seen(chain, 1))
    stranger = signed(line(3), 2)
    yield taken("seen-not-signed", stranger, [0, 1, 2],
                "the version seen is not signed by the keys that are trusted now", trust=seen(stranger, 1))
    yield refused("seen-above", signed(line(2), 0, 1, 2), "R-CHN-14", "seen-the-head",
                  "the version seen is above the head, and has no commit", trust=seen(chain, 3))
    yield refused("seen-above-not-signed", signed(line(3), 0, 1, 2), "R-CHN-14", "seen-the-head",
                  "the version seen is above the head, and its notes are gone", trust=seen(chain, 3))
    yield refused("seen-none-signed", line(3), "R-CHN-14", "seen-the-head", "all notes are gone", trust=seen(chain, 3))
    yield refused("seen-no-commit", Chain(), "R-CHN-14", "seen-the-head", "all commits are gone",
                  trust=seen(chain, 0))
    yield refused("seen-fork", fork(3, 3), "R-CHN-05", "seen-the-head", "another commit of the version seen is signed",
                  trust=seen(chain, 3))
    yield refused("seen-fork-below", fork(3), "R-CHN-05", "seen-below",
                  "the signed head follows another commit of the version seen", trust=seen(chain, 1))
    yield refused("seen-fork-of-a-stranger", signed(fork(2, 2).without(*(
        name for name in fork(2, 2).objects if name.startswith("signatures/"))), 0, 1), "R-CHN-14", "seen-the-head",
        "another commit of the version seen is not signed, so the head is below it", trust=seen(chain, 2))
    yield refused("seen-other-chain", signed(other(4), *range(5)), "R-CHN-05", "seen-below",
                  "another chain, all of it signed: nothing is held that could tell it, but a version was seen",
                  trust=seen(chain, 1))
    snapshot = Chain().publish(whole(0), None).publish(whole(1), 0).publish(whole(2), 1).publish(whole(3), None, 2)
    yield taken("seen-below-a-snapshot", signed(snapshot, 3), [3],
                "the path begins above the version seen, and the commits between are checked",
                trust=seen(snapshot, 1))
    yield refused("seen-gap", signed(snapshot, 3).without(commit_name(2)), "R-CHN-03", "seen-below-a-snapshot",
                  "a commit between the version seen and the head is missing, which the path does not need",
                  trust=seen(snapshot, 1))
    yield refused("seen-gone", signed(snapshot, 3).without(commit_name(1)), "R-CHN-03", "seen-below-a-snapshot",
                  "the commit of the version seen is missing, which the path does not need", trust=seen(snapshot, 1))
    between = snapshot.with_object(commit_name(2), line(1).publish(
        whole(2), 1, metadata={"run": "other"}).commits[2])
    yield refused("seen-other-between", signed(between, 3), "R-CHN-04", "seen-below-a-snapshot",
                  "a commit between the version seen and the head is another one", trust=seen(snapshot, 1))
    yield taken("not-seen-other-between", signed(between, 3), [3], "the same, if nothing has been seen")
    yield taken("seen-damaged-below", signed(snapshot, 3).with_object(commit_name(0), b""), [3],
                "a commit below the version seen is damaged, and the path does not need it", trust=seen(snapshot, 1))


@makes_vectors
def holds_another():
    chain = all_signed(3)
    yield taken("seen-above-the-held", chain, [1, 2, 3], "version 0 is held, version 2 has been seen", held=0,
                trust=seen(chain, 2))
    yield taken("seen-above-the-held-at-the-head", chain, [1, 2, 3], "version 0 is held, the head has been seen",
                held=0, trust=seen(chain, 3))
    yield refused("seen-above-the-held-rollback", signed(line(2), 0, 1, 2), "R-CHN-14", "seen-above-the-held",
                  "version 1 is held, version 3 has been seen, and the head is 2", held=1, trust=seen(chain, 3))
    yield refused("seen-above-the-held-fork", fork(3, 2), "R-CHN-05", "seen-above-the-held",
                  "version 1 is held, and the head follows another commit of the version seen", held=1,
                  trust=seen(chain, 2))
    for id, version in (("below", 1), ("of", 2)):
        yield taken(f"seen-{id}-the-held-otherwise", chain, [3],
                    f"version 2 is held, and another commit {version} is recorded as seen, which says nothing more",
                    held=2, trust=trust(seen=(version, "ab" * 32)))


@makes_vectors
def by_number():
    chain, others = all_signed(3), {"trust": seen(all_signed(3), 2)}
    yield taken("seen-above-the-number", chain, [0, 1], "version 1 is asked for, version 2 has been seen", version=1,
                **others)
    yield taken("seen-below-the-number", chain, [0, 1, 2, 3], "version 3 is asked for, version 2 has been seen",
                version=3, **others)
    yield taken("seen-between", chain, [1, 2, 3], "version 0 is held, version 2 has been seen, 3 is asked for",
                held=0, version=3, **others)
    twin = "seen-above-the-number"
    yield refused("seen-above-the-number-gone", signed(line(1), 1), "R-CHN-03", twin,
                  "the commit of the version seen is missing, and one below is asked for", version=1, **others)
    yield refused("seen-above-the-number-fork", fork(2, 2), "R-CHN-05", twin,
                  "the commit of the version seen is another one, and one below is asked for", version=1, **others)
    yield refused("seen-is-the-number-fork", fork(2, 2), "R-CHN-05", twin,
                  "another commit of the version seen is asked for", version=2, **others)
    yield refused("seen-is-the-number-unsigned", line(2), "R-SIG-01", twin,
                  "the version seen is asked for, and its notes are gone", version=2, **others)


@makes_vectors
def accepted():
    chain = all_signed(3)
    back = signed(line(1), 0, 1)
    head = digest(back.commits[1])
    yield taken("accept-step-back", back, [0, 1], "the caller accepts the signed head, which is below what is held",
                held=of(chain, 3), accept=head, from_nothing=True)
    yield taken("accept-seen", back, [0, 1], "the caller accepts the signed head, which is below what was seen",
                accept=head, trust=seen(chain, 3))
    yield taken("accept-held-and-seen", back, [0, 1],
                "the caller accepts the signed head, which is below what is held and what was seen",
                held=of(chain, 2), accept=head, from_nothing=True, trust=seen(chain, 3))
    yield taken("accept-below-a-stranger", signed(line(2), 1), [0, 1],
                "the caller accepts the signed head, above which a stranger has published", held=of(chain, 3),
                accept=head, from_nothing=True)
    theirs = signed(other(1), 0, 1)
    yield taken("accept-other-chain", theirs, [0, 1], "the caller accepts the signed head of another chain",
                held=of(chain, 2), accept=digest(theirs.commits[1]), from_nothing=True, trust=seen(chain, 3))
    yield taken("accept-number", theirs, [0], "the caller accepts a signed version of another chain",
                held=of(chain, 2), version=0, accept=digest(theirs.commits[0]), from_nothing=True)
    yield taken("accept-held", chain, [3], "the caller accepts the commit that is held", held=2,
                accept=digest(chain.commits[2]))
    yield taken("accept-seen-commit", chain, [0, 1, 2, 3], "the caller accepts the head, which was seen; 2 is held",
                held=2, accept=digest(chain.commits[3]), from_nothing=True, trust=seen(chain, 3))
    twin = "accept-step-back"
    more = {"held": of(chain, 3), "accept": head}
    yield refused("accept-none-signed", line(1), "R-SIG-01", twin, "the commit accepted is the head; none is signed",
                  **more)
    yield refused("accept-by-a-stranger", signed(line(1), 0, 1, by=(UNKNOWN,)), "R-SIG-01", twin,
                  "the commit accepted is signed by a stranger", **more)
    yield refused("accept-unsigned", signed(line(1), 0), "R-CHN-14", twin,
                  "the commit accepted is not signed, the one below is, which is not accepted", **more)
    yield refused("accept-no-commit", Chain(), "R-SIG-01", twin, "there is no commit", **more)
    yield refused("accept-unsigned-number", signed(line(1), 0), "R-SIG-01", twin,
                  "the commit accepted is not signed, and asked for by its number", version=1, **more)
    yield refused("accept-unsigned-and-malformed", signed(line(1), 0).with_object(commit_name(1), b"{}"), "R-SIG-01",
                  twin, "the version asked for is not signed, nor a document", version=1, held=of(chain, 3),
                  accept=digest(b"{}"))
    yield refused("accept-another", back, "R-CHN-14", twin, "another commit than the signed head is accepted",
                  held=of(chain, 3), accept=digest(back.commits[0]))
    yield refused("accept-another-seen", back, "R-CHN-14", "accept-seen",
                  "the head is below what was seen, and another commit is accepted", accept=digest(back.commits[0]),
                  trust=seen(chain, 3))
    yield refused("accept-another-fork", fork(3, 3), "R-CHN-05", "seen-the-head",
                  "another commit of the version seen is signed, and not the one that is accepted",
                  accept=digest(back.commits[0]), trust=seen(chain, 3))
    yield refused("accept-other-chain-unsigned", other(1), "R-SIG-01", "accept-other-chain",
                  "the caller accepts the head of another chain, and none of it is signed", held=of(chain, 2),
                  accept=digest(theirs.commits[1]))
    yield refused("accept-held-rollback", back, "R-CHN-14", twin,
                  "the caller accepts the commit that is held, which has no effect, and the head is below it",
                  held=of(chain, 2), accept=digest(chain.commits[2]))
    lost = put(line(1), 1, b"", note_digest="00" * 32)
    yield refused("accept-a-bad-note", lost, "R-SIG-01", twin, "the note on the commit accepted is damaged", **more)
    yield refused("accept-a-removed-key", signed(line(1), 0, 1, by=(SECOND,)), "R-SIG-01", twin,
                  "the commit accepted is signed by a key that is not trusted any more", trust=trust(FIRST), **more)


@makes_vectors_since("1.2")
def above_what_is_wanted():
    """The seen head decides which commits are checked. The held version stays in use."""
    chain, above = all_signed(3), "a version above it has been seen"
    for number in (2, 3):
        yield taken(f"seen-{number}-held-0-number-1", chain, [1], f"version 0 is held, version 1 is asked for, and {above}",
                    held=0, version=1, trust=seen(chain, number))
    yield taken("seen-3-held-1-number-1", chain, [], f"version 1 is held and asked for, and {above}", held=1, version=1,
                head=1, trust=seen(chain, 3))
    yield taken("seen-3-held-2-number-1", chain, [0, 1], f"version 2 is held, version 1 is asked for, and {above}", held=2,
                version=1, from_nothing=True, trust=seen(chain, 3))
    yield refused("seen-3-held-0-number-1-gap", chain.without(commit_name(2)), "R-CHN-03", "seen-3-held-0-number-1",
                  "version 0 is held, version 1 is asked for, and the commit between that and the version seen is missing",
                  held=0, version=1, trust=seen(chain, 3))
