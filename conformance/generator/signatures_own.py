"""Own notes of keys (SPEC section 23.2), whose names anyone can compute."""
from .chains import digest, moved
from .registry import makes_vectors_since
from .signatures import (
    FIRST, NOTE_BYTES, NOTES, SECOND, UNKNOWN, counts, does_not_count, note, note_of, put, put_own,
    signature_line, text_of)
from .signatures_notes import CHAIN, GOOD, TEXT, rubbish

FEATURES = ["signatures-1.2"]
BOTH = {"keys": (FIRST, SECOND), "quorum": 2}
LONG_NAME = signature_line(UNKNOWN, TEXT, name="n")


def taken(id, reason, chain, features=(), **more):
    return counts(f"own-{id}", reason, chain=chain, features=[*FEATURES, *features], **more)


def refused(id, reason, chain, twin="alone", **more):
    return does_not_count(f"own-{id}", reason, chain=chain, features=FEATURES, twin=f"own-{twin}", **more)


def of_length(length):
    """Returns a good note of this length."""
    short = note(TEXT, GOOD, LONG_NAME)
    return note(TEXT, GOOD, LONG_NAME.replace(" n ", f" {'n' * (length - len(short) + 1)} "))


@makes_vectors_since("1.2")
def alone():
    own = put_own(CHAIN, 0, FIRST)
    yield taken("alone", "the own note of the key that is trusted", own)
    yield taken("and-by-digest", "the same note stands under both names", put(own, 0, note_of(CHAIN, 0, FIRST)))
    yield taken("of-two-keys", "two keys have signed in one note, which is the own note of each",
                put_own(put_own(CHAIN, 0, FIRST, note_of(CHAIN, 0, FIRST, SECOND)), 0, SECOND,
                        note_of(CHAIN, 0, FIRST, SECOND)), **BOTH)
    yield taken("of-one-of-two-keys", "two keys have signed in one note, which is the own note of one of them",
                put_own(CHAIN, 0, FIRST, note_of(CHAIN, 0, FIRST, SECOND)), **BOTH)
    yield taken("of-another-trusted-key", "a key has signed under the name of the own note of another trusted key",
                put_own(CHAIN, 0, SECOND, note_of(CHAIN, 0, FIRST)), keys=(FIRST, SECOND))
    yield taken("and-one-by-digest", "one key has an own note, another one named by its digest",
                put(own, 0, note_of(CHAIN, 0, SECOND)), **BOTH)
    yield taken("symbolic-link", "the own note is a link to elsewhere", moved(own, next(
        name for name in own.objects if name.startswith("signatures/"))), features=["symbolic-links"])
    yield taken(f"bytes-{NOTE_BYTES}", f"the own note has {NOTE_BYTES} bytes", put_own(
        CHAIN, 0, FIRST, of_length(NOTE_BYTES)))
    yield taken("rubbish-and-by-digest", "the own note is rubbish, and a good one is named by its digest",
                put(put_own(CHAIN, 0, FIRST, b"rubbish"), 0, note_of(CHAIN, 0, FIRST)))


@makes_vectors_since("1.2")
def many():
    """A reader reads an own note in addition to the 64 notes, wherever its name is among them."""
    yield taken(f"after-{NOTES}", f"{NOTES} notes come before it", rubbish(NOTES, put_own(CHAIN, 0, FIRST)))
    first, second = put_own(CHAIN, 0, FIRST), note_of(CHAIN, 0, SECOND)
    names = sorted(put(first, 0, second).objects.keys() - CHAIN.objects.keys())
    assert names[0].endswith(FIRST.hash().hex()), "it shows nothing with these keys"
    yield taken("beside-64", f"it and {NOTES - 1} others come before the note of the other key",
                put(rubbish(NOTES - 1, first), 0, second), **BOTH)
    assert UNKNOWN.hash().hex() < digest(second), "it shows nothing with these keys"
    unknown = put(rubbish(NOTES - 1, put(CHAIN, 0, second)), 0, b"rubbish", note_digest=UNKNOWN.hash().hex())
    yield does_not_count("own-of-an-unknown-key-among-64",
                         f"{NOTES - 1} notes and one under the name of the own note of a key that is not trusted come "
                         "before it", chain=unknown, keys=(SECOND,), features=FEATURES, twin="own-alone")


@makes_vectors_since("1.2")
def that_do_not_count():
    one = note_of(CHAIN, 0, FIRST)
    yield refused("rubbish", "its bytes are no note", put_own(CHAIN, 0, FIRST, b"rubbish"))
    yield refused("of-an-unknown-key", "a key that is not trusted has an own note", put_own(CHAIN, 0, UNKNOWN))
    yield refused("under-the-name-of-an-unknown-key",
                  "the trusted key has signed under the name of the own note of a key that is not trusted",
                  put_own(CHAIN, 0, UNKNOWN, one))
    yield refused("by-an-unknown-key", "a key that is not trusted has signed under the name of the trusted key's own note",
                  put_own(CHAIN, 0, FIRST, note_of(CHAIN, 0, UNKNOWN)))
    yield refused(f"bytes-{NOTE_BYTES + 1}", f"it has {NOTE_BYTES + 1} bytes", put_own(
        CHAIN, 0, FIRST, of_length(NOTE_BYTES + 1)), twin=f"bytes-{NOTE_BYTES}")
    yield refused("and-by-digest-for-two", "the same note stands under both names, and two keys are needed",
                  put(put_own(CHAIN, 0, FIRST), 0, one), twin="of-two-keys", **BOTH)
    yield refused("twice-for-two", "one of two keys has signed under the names of the own notes of both",
                  put_own(put_own(CHAIN, 0, FIRST), 0, SECOND, one), twin="of-two-keys", **BOTH)
    yield refused("wrong-signature", "the signature is wrong", put_own(
        CHAIN, 0, FIRST, note(TEXT, signature_line(FIRST, TEXT, signature=bytes(64)))))
    yield refused("other-version", "its name says version 1", put_own(CHAIN, 0, FIRST, named=1))
    yield refused("other-commit", "its name has the digest of another commit", put_own(CHAIN, 0, FIRST, of="cd" * 32))
    for id, reason, other in (
            ("chain", "it is a note on a commit of another chain", {"chain_digest": "ab" * 32}),
            ("version", "it is a note on another version", {"number": "1"}),
            ("commit", "it is a note on another commit", {"commit": "cd" * 32})):
        text = text_of(CHAIN, 0, **other)
        yield refused(f"text-other-{id}", reason, put_own(CHAIN, 0, FIRST, note(text, signature_line(FIRST, text))))
    yield refused("of-a-key-of-another-chain", "a key that is trusted has signed under the name of the own note of one "
                  "that is trusted for another chain", put_own(CHAIN, 0, SECOND, one), twin="of-another-trusted-key",
                  keys=(FIRST, SECOND.text("ab" * 32)))
    digits = FIRST.hash().hex()
    for id, reason, end in (
            ("name-id", "its name ends with the key ID alone", digits[:8]),
            ("name-id-and-zeros", "its name ends with the key ID, and digits of no key", digits[:8] + "0" * 56),
            ("name-uppercase", "KEY has capital letters", digits.upper())):
        yield refused(id, reason, put(CHAIN, 0, one, note_digest=end))
    yield refused("folder", "there is a folder with its name", put(CHAIN, 0, one, note_digest=f"{digits}/note"))
