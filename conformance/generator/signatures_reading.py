"""Reading with trust (SPEC section 23.3): which version is the head, versions by number, and other faults of such a
chain."""
from .chains import CHAIN, Chain, bad, commit_name, digest, good, line, moved, pairs, tar, whole
from .chains_held import of, other
from .documents import chain_document
from .registry import makes_vectors, makes_vectors_since
from .signatures import (
    FIRST, SECOND, THIRD, UNKNOWN, note, note_of, put, signature_line, signed, text_of, trust)

SECTION = "23.3"
OTHER = "ffeeddccbbaa99887766554433221100"


def taken(id, chain, path, reason, *, trust=trust(), **more):
    return good(f"signed/{id}", chain, path, reason, section=SECTION, trust=trust, **more)


def refused(id, chain, rule, twin, reason, *, trust=trust(), **more):
    return bad(f"signed/{id}", chain, rule, f"signed/{twin}", reason, section=SECTION, trust=trust, **more)


def all_signed(last):
    return signed(line(last), *range(last + 1))


@makes_vectors
def heads():
    yield taken("every-version", all_signed(2), [0, 1, 2], "every version is signed, and the head is read")
    yield taken("head-alone", signed(line(3), 3), [0, 1, 2, 3], "only the head is signed: it names those below")
    yield taken("head-0", signed(line(2), 0), [0], "only version 0 is signed, so it is the head")
    yield taken("in-the-middle", signed(line(3), 1), [0, 1], "two versions above the signed one are a stranger's")
    stranger = signed(line(1), 0, 1)
    yield taken("stranger-on-top", signed(stranger.copy().publish(whole(2), 1), 2, by=(UNKNOWN,)), [0, 1],
                "a stranger has published on top, and signed with a key of its own")
    for id, data, reason in (("empty", b"", "has no bytes"), ("text", b"hello", "is no document"),
                             ("newer", b'{"deltachain":2,', "is a document of a newer version"),
                             ("copied", stranger.commits[1], "is a copy of the one below")):
        yield taken(f"{id}-on-top", stranger.with_object(commit_name(2), data), [0, 1],
                    f"what lies above the signed versions {reason}")
    yield taken("far-above", stranger.with_object(commit_name(2**53 - 1), stranger.commits[1]), [0, 1],
                "a stranger has taken the highest version number")
    yield taken("gap-on-top", signed(line(4), 0, 1).without(commit_name(2), commit_name(3)), [0, 1],
                "above the signed versions there is a gap")
    ahead = put(stranger, 1, note_of(line(2), 2, FIRST), named=2, of=digest(line(2).commits[2]))
    yield taken("note-without-commit", ahead, [0, 1],
                "a publisher stopped between its note and its commit, so there is a note on a version without a commit")
    yield taken("note-of-the-loser", put(signed(line(2), 0, 1), 2, note_of(line(2), 1, FIRST)), [0, 1],
                "the commit above has a note on another commit")
    yield taken("without-trust", signed(put(line(1), 1, b"rubbish"), 0), [0, 1],
                "a reader that trusts nobody ignores notes, and takes what is not signed", trust=None)
    yield taken("no-notes-without-trust", line(1), [0, 1], "the same without notes", trust=None)


@makes_vectors
def keys():
    chain = signed(signed(line(3), 0, 1, by=(FIRST, SECOND)), 2, by=(SECOND,))
    for id, given, quorum, path, reason in (
            ("first", (FIRST,), 1, [0, 1], "of two keys that sign, one is trusted, which has not signed the newest"),
            ("second", (SECOND,), 1, [0, 1, 2], "of two keys that sign, one is trusted"),
            ("either", (FIRST, SECOND), 1, [0, 1, 2], "both are trusted, and one is enough"),
            ("both", (FIRST, SECOND), 2, [0, 1], "both are trusted, and both have to sign"),
            ("and-a-third", (THIRD, SECOND, FIRST), 2, [0, 1], "two of three have to sign")):
        yield taken(f"keys-{id}", chain, path, reason, trust=trust(*given, quorum=quorum))
    yield refused("keys-all-three", chain, "R-SIG-01", "keys-and-a-third", "three have to sign, and two have",
                  trust=trust(FIRST, SECOND, THIRD, quorum=3))
    yield refused("keys-other", chain, "R-SIG-01", "keys-first", "a key that never signed is trusted",
                  trust=trust(THIRD))
    text = text_of(chain, 2)
    spoilt = put(chain, 2, note(text, signature_line(SECOND, text), signature_line(FIRST, text, signature=bytes(64))))
    yield taken("keys-beside-a-bad-note", spoilt, [0, 1, 2],
                "a stranger has stored a note with a wrong signature beside the good one",
                trust=trust(FIRST, SECOND))


@makes_vectors
def not_signed():
    yield refused("none", line(2), "R-SIG-01", "every-version", "no version is signed")
    yield refused("by-a-stranger", signed(line(2), 0, 1, 2, by=(UNKNOWN,)), "R-SIG-01", "every-version",
                  "a stranger has signed all versions")
    yield refused("no-commit", signed(line(0), 0).without(commit_name(0)), "R-SIG-01", "head-0",
                  "there is no commit, though there is a note")
    yield refused("no-commit-no-note", Chain(), "R-SIG-01", "head-0", "there is nothing but chain.json")
    swapped = all_signed(2).with_object(CHAIN, chain_document(OTHER))
    yield refused("another-chain-json", swapped, "R-SIG-01", "every-version",
                  "chain.json is that of another chain, so all notes are on commits of another one")
    yield refused("no-chain-json", all_signed(2).without(CHAIN), "R-CHN-01", "every-version", "there is no chain.json")
    yield refused("chain-json-malformed", all_signed(2).with_object(CHAIN, b"{}"), "R-DOC-01", "every-version",
                  "chain.json is no document")


@makes_vectors
def by_number():
    chain = signed(line(3), 0, 2)
    yield taken("number", chain, [0, 1, 2], "the signed head, by its number", version=2)
    yield taken("number-below", chain, [0], "a signed version below, by its number", version=0)
    for version, reason in ((1, "below a signed head is not signed"), (3, "above the signed head is not signed")):
        yield refused(f"number-{version}", chain, "R-SIG-01", "number", f"the version that is asked for {reason}",
                      version=version)
    yield refused("number-without-commit", chain, "R-CHN-03", "number", "the version has no commit", version=4)
    noted = put(chain, 3, note_of(line(4), 4, FIRST), named=4, of=digest(line(4).commits[4]))
    yield refused("number-without-commit-but-note", noted, "R-CHN-03", "number",
                  "the version has a note, and no commit", version=4)
    for id, data, reason in (("malformed", b"{}", "is no document"), ("copied", chain.commits[2], "is a copy")):
        yield refused(f"number-{id}", chain.with_object(commit_name(3), data), "R-SIG-01", "number",
                      f"the commit {reason}, which is not looked at before it is signed", version=3)
    moved = put(line(3), 1, note_of(line(3), 1, FIRST), named=3)
    yield refused("number-of-another", moved, "R-SIG-01", "number",
                  "a good note of version 1 lies under the name of version 3", version=3)


@makes_vectors
def signed_and_wrong():
    """Signed versions are checked like any commit."""
    def replaced(version, data):
        chain = signed(line(2), 0, 1).with_object(commit_name(version), data)
        return signed(chain, version)
    for id, data, rule, reason in (
            ("malformed", b"{}", "R-DOC-01", "is no document"),
            ("newer", line(2).commits[2].replace(b":1,", b":2,", 1), "R-DOC-02", "is newer than the reader"),
            ("copied", line(2).commits[1], "R-CHN-02", "is that of another version")):
        yield refused(f"but-{id}", replaced(2, data), rule, "every-version", f"the commit that is signed {reason}")
        yield refused(f"but-{id}-by-number", replaced(2, data), rule, "number", f"the commit that is signed {reason}",
                      version=2)
    parent = line(0).with_object(CHAIN, chain_document(OTHER))
    yield refused("but-of-another-chain", signed(parent, 0), "R-CHN-04", "head-0",
                  "the commit of version 0 is signed for this chain, and its parent is another one")
    chain = signed(line(2), 2)
    yield refused("but-a-gap", chain.without(commit_name(1)), "R-CHN-03", "head-alone",
                  "a commit below the signed head is missing")
    name = chain.files(1, 2)[0]
    yield refused("but-a-file-is-damaged", chain.with_object(name, chain.objects[name][:-1] + b"x"), "R-CHN-10",
                  "head-alone", "a file of the signed head is damaged", path=[0, 1, 2])
    yield refused("but-a-file-is-missing", chain.without(name), "R-CHN-09", "head-alone",
                  "a file of the signed head is missing", path=[0, 1, 2])


@makes_vectors
def ways():
    """Intermediate commits, routes, files and shards need no signature of their own."""
    two = Chain().publish(whole(0), None).publish(whole(1), 0).publish(whole(2), None, 1).publish(whole(3), 2)
    yield taken("from-a-snapshot", signed(two, 3), [2, 3], "the path begins at a version that is not signed")
    routed = signed(line(2), 2).put_routes(2, 1, None, 1)
    yield taken("routes-of-a-stranger", routed, [2], "a routes document, which nobody signs, has a cheaper route")
    yield taken("another-way", signed(two, 3).without(*two.files(None, 2)), [2, 3],
                "the file of the cheapest path is missing, and another path leads through versions that are not signed")
    yield taken("damaged-above-the-head", signed(line(2), 1).without(*line(2).files(1, 2)), [0, 1],
                "the file of a version above the signed head is missing")
    yield taken("shards", signed(pairs(2), 2), [0, 1, 2], "a chain with two shards")
    yield taken("partial", signed(pairs(2), 1), [0, 1], "one shard is taken of the signed head",
                take={"shards": [1]})
    assets = Chain().publish(whole(0), None, assets={"config.json": b"{}"}).publish(
        whole(1), 0, assets={"config.json": b"{ }"})
    yield taken("assets", signed(assets, 0), [0], "the assets are those of the signed head")


@makes_vectors
def held():
    chain = signed(line(2), 0, 1)
    yield taken("held", all_signed(2), [2], "version 1 is held, and the head is signed", held=1)
    yield taken("held-at-the-head", all_signed(2), [], "the signed head is held", held=2, head=2)
    yield taken("held-below-a-stranger", chain, [], "a stranger has published on top of the version held", held=1,
                head=1)
    yield taken("held-below-a-removed-key", signed(chain, 2, by=(SECOND,)), [],
                "the version on top is signed by a key that is not trusted any more", held=1, head=1)
    other_note = put(chain, 2, note_of(signed(other(2), 2), 2, FIRST), of=digest(line(2).commits[2]))
    yield taken("held-below-notes-of-another-chain", other_note, [],
                "the version on top has a note on a commit of another chain", held=1, head=1)
    yield taken("held-and-a-stranger-above", signed(line(3), 0, 2), [2],
                "the version held is not signed, the head is, and a stranger is above", held=1)
    yield taken("held-number", chain, [0], "an older version that is signed, by its number", held=1, version=0,
                from_nothing=True)
    yield taken("held-unsigned-number", chain, [0, 1], "the version held is a stranger's; one below is asked for",
                held=2, version=1, from_nothing=True)
    yield refused("held-unsigned", chain, "R-CHN-14", "held",
                  "the version held is not signed, and the highest that is signed is below", held=2)
    yield refused("held-rollback", all_signed(2).without(commit_name(2)), "R-CHN-14", "held",
                  "the commit that is held is gone", held=2)
    yield refused("held-notes-gone", line(2), "R-CHN-14", "held", "all notes are gone", held=2)
    yield refused("held-commits-gone", Chain(), "R-CHN-14", "held", "all commits are gone", held=of(line(0), 0))
    yield refused("held-number-unsigned", chain, "R-SIG-01", "held-number", "the version asked for is not signed",
                  held=1, version=2)
    yield refused("held-number-held", line(2), "R-SIG-01", "held-number",
                  "the version held is asked for by its number, and is not signed", held=1, version=1)
    fork = line(1).publish(whole(2), 1, metadata={"run": "other"})
    yield refused("held-fork", signed(fork, 2), "R-CHN-05", "held-at-the-head",
                  "another commit of the version held is signed", held=of(line(2), 2))
    longer = fork.copy().publish(whole(3), 2)
    yield refused("held-fork-below", signed(longer, 3), "R-CHN-05", "held",
                  "the signed head follows another commit of the version held", held=of(line(2), 2))
    yield refused("held-fork-between", signed(line(2).with_object(commit_name(1), line(0).publish(
        whole(1), 0, metadata={"run": "other"}).commits[1]), 2), "R-CHN-04", "held",
        "a commit between the version held and the signed head is another one", held=0)
    yield refused("held-other-chain", signed(other(2), 0, 1, 2), "R-CHN-13", "held",
                  "another chain, all of it signed", held=of(line(2), 1))
    yield refused("held-other-chain-unsigned", other(2), "R-CHN-13", "held", "another chain, not signed",
                  held=of(line(2), 1), version=2)


LONG = (1 << 26) + 1  # bytes of a document that no reader reads


@makes_vectors_since("1.2")
def commits():
    """Unusual signed commits."""
    yield taken("symbolic-link", moved(all_signed(2), commit_name(2)), [0, 1, 2], "the signed head is a link to elsewhere",
                features=["symbolic-links"])
    blanks = b" " * LONG
    chain = all_signed(1).with_object(commit_name(2), blanks)
    chain = put(chain, 2, note_of(chain, 2, FIRST))
    whole_file, at = tar(chain.objects), 0
    at = whole_file.index(b" " * 4096)
    for vector in (taken("too-long-on-top", line(1), [0, 1],
                         "the version above is signed, and its commit is longer than any reader reads"),
                   refused("too-long-number", line(1), "R-SIG-01", "every-version",
                           "the version asked for is signed, and its commit is longer than any reader reads",
                           version=2)):
        vector.file = whole_file[:at + 1] + whole_file[at + LONG:]
        vector.members = vector.members | {"grown": {"at": at, "length": len(whole_file)}}
        assert vector.whole() == whole_file
        yield vector


@makes_vectors_since("1.2")
def shards_and_gaps():
    """R-CHN-17 is checked after the commits between the held version and the wanted one."""
    chain = signed(line(3), 3).without(commit_name(1))
    yield refused("gap-and-no-such-shard", chain, "R-CHN-03", "held",
                  "a commit between is missing, and a shard is taken that is not there", held=0, take={"shards": [5]})
    fork = line(1).publish(whole(2), 1, metadata={"run": "other"})
    yield refused("fork-and-no-such-shard", signed(fork, 2), "R-CHN-05", "held",
                  "another commit of the version held is the head, and a shard is taken that is not there",
                  held=of(line(2), 2), take={"shards": [5]})
