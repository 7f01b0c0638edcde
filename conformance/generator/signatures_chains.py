"""Keys that are trusted for some chains (SPEC sections 23.2 and 23.3)."""
from .chains import CHAIN, Chain, commit_name, digest, line
from .chains_held import of, other
from .registry import makes_vectors_since
from .signatures import FIRST, SECOND, THIRD, note, put, seen, signature_line, signed, text_of, trust
from .signatures_reading import all_signed, refused, taken

THIS, THAT = digest(line(0).document), digest(other(0).document)
SOME = "ab" * 32
FEATURES = ["signatures-1.2"]


def fits(id, chain, path, reason, *keys, quorum=1, **more):
    return taken(f"chains-{id}", chain, path, reason, trust=trust(*keys, quorum=quorum), features=FEATURES, **more)


def unfit(id, reason, *keys, quorum=1, chain=None, rule="R-SIG-05", twin="named", **more):
    return refused(f"chains-{id}", chain or all_signed(1), rule, f"chains-{twin}", reason,
                   trust=trust(*keys, quorum=quorum), features=FEATURES, **more)


@makes_vectors_since("1.2")
def named():
    chain = all_signed(1)
    yield fits("named", chain, [0, 1], "the key is trusted for this chain", FIRST.text(THIS))
    yield fits("named-second", chain, [0, 1], "the key is trusted for two chains, of which this is the second",
               FIRST.text(SOME, THIS))
    yield fits("named-first", chain, [0, 1], "the key is trusted for two chains, of which this is the first",
               FIRST.text(THIS, SOME))
    yield fits("one-key-of-another", chain, [0, 1], "one key is trusted for this chain, another one for another chain",
               FIRST.text(THIS), SECOND.text(SOME))
    yield fits("one-key-of-all", chain, [0, 1], "one key is trusted for all chains, another one for another chain",
               SECOND.text(SOME), FIRST)
    both = signed(line(1), 0, 1, by=(FIRST, SECOND))
    yield fits("quorum", both, [0, 1], "both keys are trusted for this chain, one of them by its name",
               FIRST.text(THIS), SECOND, quorum=2)
    yield fits("head-below", signed(signed(line(1), 0), 1, by=(SECOND,)), [0],
               "the key that has signed the newest version is trusted for another chain", FIRST, SECOND.text(SOME))
    yield unfit("another", "the key is trusted for another chain", FIRST.text(SOME))
    yield unfit("two-others", "the key is trusted for two other chains", FIRST.text(SOME, THAT))
    yield unfit("identifier", "the key is trusted for the digest of the first commit", FIRST.text(
        digest(line(0).commits[0])))
    yield unfit("quorum-of-another", "two keys have to sign, and only one is trusted for this chain", FIRST,
                SECOND.text(SOME), quorum=2, chain=both, twin="quorum")
    yield unfit("quorum-of-three", "two keys have to sign, and only one of three is trusted for this chain", FIRST,
                SECOND.text(SOME), THIRD.text(THAT), quorum=2, chain=both, twin="quorum")
    yield unfit("quorum-of-named", "two keys have to sign, one is trusted for this chain, the other one for another",
                FIRST.text(THIS), SECOND.text(SOME), quorum=2, chain=both, twin="quorum")
    for id, lines in (("after", (FIRST, SECOND)), ("before", (SECOND, FIRST))):
        text = text_of(line(0), 0)
        bad = note(text, *(signature_line(key, text, signature=bytes(64) if key is SECOND else None) for key in lines))
        yield fits(f"bad-line-{id}", put(line(0), 0, bad), [0], "in the note of the trusted key, the line of a key "
                   "that is trusted for another chain has a wrong signature", FIRST, SECOND.text(SOME))
    yield unfit("signed-by-another", "only a key that is trusted for another chain has signed", FIRST, SECOND.text(SOME),
                chain=signed(line(1), 0, 1, by=(SECOND,)), rule="R-SIG-01")


@makes_vectors_since("1.2")
def before_others():
    """R-SIG-05 is checked after chain.json and before everything else, and no setting overrides it."""
    key = FIRST.text(SOME)
    held = of(other(2), 1)
    yield unfit("another-unsigned", "the key is trusted for another chain, and no version is signed", key, chain=line(1))
    yield unfit("another-empty", "the key is trusted for another chain, and there is no commit", key, chain=Chain())
    yield unfit("another-number", "the key is trusted for another chain, and the version asked for has no commit", key,
                version=2)
    yield unfit("another-held", "the key is trusted for another chain, of which a version is held", FIRST.text(THAT),
                held=held)
    yield unfit("another-rollback", "the key is trusted for another chain, and the head is below what is held", key,
                held=of(line(2), 2))
    yield unfit("another-damaged", "the key is trusted for another chain, and the head's commit is damaged", key,
                chain=all_signed(1).with_object(commit_name(1), b""))
    yield unfit("no-chain", "the key is trusted for another chain, and there is no chain.json", key,
                chain=all_signed(1).without(CHAIN), rule="R-CHN-01")
    yield unfit("bad-chain", "the key is trusted for another chain, and chain.json is no document", key,
                chain=all_signed(1).with_object(CHAIN, b"{}"), rule="R-DOC-01")
    accept = digest(all_signed(1).commits[1])
    yield fits("accept", all_signed(1), [0, 1], "the caller accepts another chain, for which the key is trusted", FIRST.text(
        THIS, THAT), held=held, accept=accept, from_nothing=True)
    yield unfit("accept-another", "the caller accepts the head of a chain for which the key is not trusted",
                FIRST.text(THAT), held=held, accept=accept, twin="accept")
    yield refused("chains-seen-another", all_signed(1), "R-SIG-05", "chains-named",
                  "the key is trusted for another chain, and its head was seen", trust=seen(other(2), 1) | {
                      "keys": [FIRST.text(THAT)]}, features=FEATURES)
