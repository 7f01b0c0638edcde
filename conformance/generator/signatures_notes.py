"""Notes (SPEC section 23.2): notes that count, and notes with one fault. The chain has one version, so a note that does
not count means R-SIG-01."""
from .chains import commit_name, digest, good, line, moved
from .registry import makes_vectors, makes_vectors_since
from .signatures import (
    FIRST, LINES, NOTE_BYTES, NOTES, SECOND, THIRD, UNKNOWN, counts, does_not_count, note, note_of, public_test_key,
    put, signature_line, text_of, trust, with_notes)

CHAIN = line(0)
COMMIT = digest(CHAIN.objects[commit_name(0)])
TEXT = text_of(CHAIN, 0)
GOOD = signature_line(FIRST, TEXT)
# Another program, which knows nothing of this project, made this from TEXT and the private key of FIRST: the crate
# signed_note 0.2.0. (Ed25519 is deterministic, so it equals the note above.)
OF_ANOTHER_TOOL = (
    "deltachain commit v1\n"
    "3796a929c31158b08eb4fef96a4a113cfa8e786550208f9158cc924f458d834a\n"
    "0\n"
    "6fecb354609ece4b603c96391963db28da9b34e072e54712c01b850851ae0b03\n"
    "\n"
    "\u2014 public-test-key-1 "
    "BtbX+qB+HE+s67QPka6bZWmEHly3avLJbN42NMOHRCqNAURm9PbTpZ1w/BUk0CKyZyJRQSsO+qNZ4bBq/JhOX3Cupgc=\n").encode()
assert note(TEXT, GOOD) == OF_ANOTHER_TOOL


@makes_vectors
def good_notes():
    one = note(TEXT, GOOD)
    yield counts("one", "a note by the key that is trusted", one)
    yield counts("one-of-two-keys", "two keys are trusted, one has signed, and one is enough", one,
                 keys=(SECOND, FIRST))
    yield counts("two-keys-in-one-note", "both keys have signed in one note", note_of(CHAIN, 0, SECOND, FIRST),
                 keys=(FIRST, SECOND), quorum=2)
    yield counts("two-keys-in-two-notes", "each of the keys has a note of its own", one, note_of(CHAIN, 0, SECOND),
                 keys=(FIRST, SECOND), quorum=2)
    yield counts("two-of-three-keys", "three keys are trusted, two have signed, and two are enough", one,
                 note_of(CHAIN, 0, THIRD), keys=(FIRST, SECOND, THIRD), quorum=2)
    yield counts("line-of-an-unknown-key", "a key that is not trusted has signed, too", note_of(CHAIN, 0, UNKNOWN,
                                                                                               FIRST))
    yield counts("bad-line-of-an-unknown-key", "the signature of a key that is not trusted is wrong",
                 note(TEXT, GOOD, signature_line(UNKNOWN, TEXT, signature=bytes(64))))
    yield counts("name-with-another-id", "a line has the name of the trusted key, another ID, and a wrong signature",
                 note(TEXT, signature_line(FIRST, TEXT, id=bytes(4), signature=bytes(64)), GOOD))
    yield counts("id-with-another-name", "a line has the ID of the trusted key, another name, and a wrong signature",
                 note(TEXT, signature_line(FIRST, TEXT, name="another", signature=bytes(64)), GOOD))
    yield counts("line-twice", "the same line twice counts once", note(TEXT, GOOD, GOOD))
    yield counts("beside-a-damaged-note", "another note on the commit is damaged", one, one[:-1])
    yield counts("beside-a-bad-note", "in another note on the commit the signature of the trusted key is wrong", one,
                 note(TEXT, signature_line(FIRST, TEXT, signature=bytes(64))))
    yield counts("other-tool", "the note was made by another program for signed notes", OF_ANOTHER_TOOL)


@makes_vectors
def quorum_not_reached():
    one, other_bytes = note(TEXT, GOOD), note(TEXT, GOOD, signature_line(UNKNOWN, TEXT))
    pair = {"keys": (FIRST, SECOND), "quorum": 2}
    yield does_not_count("none", "there is no note")
    yield does_not_count("of-another-key", "only a key that is not trusted has signed", note_of(CHAIN, 0, UNKNOWN))
    yield does_not_count("one-of-two-needed", "one of two keys has signed, and both are needed", one, **pair,
                         twin="two-keys-in-one-note")
    yield does_not_count("one-and-an-unknown", "one of two keys and an unknown one have signed", other_bytes, **pair,
                         twin="two-keys-in-one-note")
    yield does_not_count("line-twice-for-two", "one of two keys has signed twice in one note", note(TEXT, GOOD, GOOD),
                         **pair, twin="two-keys-in-one-note")
    yield does_not_count("two-notes-of-one-key", "one of two keys has signed in two notes", one, other_bytes, **pair,
                         twin="two-keys-in-two-notes")
    yield does_not_count("one-of-three-needed", "two of three keys have signed, and all are needed",
                         note_of(CHAIN, 0, FIRST, SECOND), keys=(FIRST, SECOND, THIRD), quorum=3,
                         twin="two-keys-in-one-note")


@makes_vectors
def other_texts():
    """Texts that are signed as they are."""
    def of(text):
        return note(text, signature_line(FIRST, text))
    other_chain = "ab" * 32
    for id, reason, text in (
            ("first-line", "the first line is that of another version of notes", text_of(
                CHAIN, 0, first="deltachain commit v2")),
            ("first-line-space", "the first line ends with a space", text_of(CHAIN, 0, first="deltachain commit v1 ")),
            ("first-line-case", "the first line begins with a capital letter", text_of(
                CHAIN, 0, first="Deltachain commit v1")),
            ("first-line-missing", "there is no first line", TEXT.split("\n", 1)[1]),
            ("other-chain", "it is a note on a commit of another chain", text_of(CHAIN, 0, chain_digest=other_chain)),
            ("chain-uppercase", "the digest of the chain has capital letters", text_of(
                CHAIN, 0, chain_digest=digest(CHAIN.document).upper())),
            ("chain-identifier", "the chain's identifier in place of its digest", text_of(
                CHAIN, 0, chain_digest="00112233445566778899aabbccddeeff")),
            ("other-version", "it is a note on another version", text_of(CHAIN, 0, number="1")),
            ("version-zeros", "the version has leading zeros", text_of(CHAIN, 0, number="00")),
            ("version-20-digits", "the version is written as in names", text_of(CHAIN, 0, number="0" * 20)),
            ("version-empty", "there are no digits in the place of the version", text_of(CHAIN, 0, number="")),
            ("other-commit", "it is a note on another commit", text_of(CHAIN, 0, commit="cd" * 32)),
            ("commit-uppercase", "the digest of the commit has capital letters", text_of(CHAIN, 0,
                                                                                        commit=COMMIT.upper())),
            ("fifth-line", "there is a line more", TEXT + "more\n"),
            ("empty-fifth-line", "the text ends with an empty line", TEXT + "\n"),
            ("swapped-lines", "chain and version have changed places", "\n".join(
                [TEXT.split("\n")[number] for number in (0, 2, 1, 3, 4)])),
            ("carriage-returns", "its lines end with carriage returns, too", TEXT.replace("\n", "\r\n")),
            ("byte-order-mark", "it begins with a byte order mark", "\ufeff" + TEXT)):
        yield does_not_count(f"text-{id}", reason, of(text))
    yield does_not_count("text-of-another-but-signed", "the signature is that of the right text, which is not there",
                         note(text_of(CHAIN, 0, number="1"), GOOD))


@makes_vectors
def other_shapes():
    whole_note = note(TEXT, GOOD).decode()
    for id, reason, data in (
            ("empty", "it has no bytes", ""), ("text-alone", "there is nothing after the text", TEXT),
            ("no-lines", "there is no signature line", TEXT + "\n"),
            ("no-final-line-feed", "the last line has no line feed", whole_note[:-1]),
            ("bytes-after", "there is a byte after the last line", whole_note + "x"),
            ("space-after", "there is a space after the last line", whole_note + " "),
            ("zero-after", "there is a zero byte after the last line", whole_note + "\0"),
            ("empty-line-after", "there is an empty line after the last one", whole_note + "\n"),
            ("text-after", "there is a line after the last one that is no signature line", whole_note + "end\n"),
            ("text-between", "there is a line before the signature line that is none", note(TEXT, "hello\n",
                                                                                          GOOD).decode()),
            ("no-empty-line", "there is no empty line", TEXT + GOOD),
            ("two-empty-lines", "there are two empty lines", TEXT + "\n\n" + GOOD),
            ("empty-line-between", "there is an empty line between signature lines", note(
                TEXT, GOOD, "\n", signature_line(UNKNOWN, TEXT)).decode()),
            ("space-in-empty-line", "the empty line has a space", TEXT + " \n" + GOOD),
            ("lines-first", "the signature lines come first", f"{GOOD}\n{TEXT}"),
            ("carriage-return", "the signature line ends with a carriage return, too", whole_note[:-1] + "\r\n"),
            ("carriage-return-alone", "the signature line ends with a carriage return", whole_note[:-1] + "\r"),
            ("carriage-returns", "all lines end with carriage returns, too", whole_note.replace("\n", "\r\n"))):
        yield does_not_count(f"shape-{id}", reason, data.encode())
    others = [signature_line(public_test_key(9, f"k{number}"), TEXT, signature=bytes(64)) for number in range(LINES)]
    yield counts(f"lines-{LINES}", f"there are {LINES} signature lines", note(TEXT, *others[1:], GOOD))
    for id, lines in (("last", [*others, GOOD]), ("first", [GOOD, *others])):
        yield does_not_count(f"lines-{LINES + 1}-{id}", f"there are {LINES + 1} signature lines", note(TEXT, *lines),
                             twin=f"lines-{LINES}")


@makes_vectors
def sizes():
    for size, make in ((NOTE_BYTES, counts), (NOTE_BYTES + 1, does_not_count)):
        short = note(TEXT, GOOD, signature_line(UNKNOWN, TEXT, name="n"))
        data = note(TEXT, GOOD, signature_line(UNKNOWN, TEXT, name="n" * (size - len(short) + 1)))
        assert len(data) == size
        more = {} if make is counts else {"twin": f"bytes-{NOTE_BYTES}"}
        yield make(f"bytes-{size}", f"the note has {size} bytes", data, **more)


@makes_vectors
def other_names():
    """Names of the objects. A note under an invalid name does not exist for readers."""
    one = note(TEXT, GOOD)
    for id, reason, named in (
            ("digest", "NOTE is the digest of other bytes", {"note_digest": digest(b"")}),
            ("digest-uppercase", "NOTE has capital letters", {"note_digest": digest(one).upper()}),
            ("digest-short", "NOTE lacks a digit", {"note_digest": digest(one)[:-1]}),
            ("digest-longer", "the name goes on after NOTE", {"note_digest": digest(one) + ".txt"}),
            ("version", "the name says version 1, the text version 0", {"named": 1}),
            ("commit", "the name has the digest of another commit", {"of": "cd" * 32}),
            ("commit-uppercase", "COMMIT has capital letters", {"of": COMMIT.upper()})):
        yield does_not_count(f"name-{id}", reason, chain=put(CHAIN, 0, one, **named))
    name = next(name for name in put(CHAIN, 0, one).objects if name.startswith("signatures/"))
    for id, reason, other in (
            ("version-short", "VERSION has 19 digits", name.replace("/0", "/")),
            ("folder", "it lies in a folder", name.replace("signatures/", "signatures/notes/")),
            ("other-folder", "it lies beside its commit", name.replace("signatures", "commits"))):
        yield does_not_count(f"name-{id}", reason, chain=CHAIN.with_object(other, one))


def rubbish(number, chain=None, **names):
    """Returns a chain with a good note, and this many others before it in the order of their names."""
    one = note(TEXT, GOOD)
    assert digest(one) > "00" * 31 + "ff"
    chain = chain or put(CHAIN, 0, one)
    for first in range(number):
        chain = put(chain, 0, b"rubbish", note_digest=f"{first:064x}", **names)
    return chain


@makes_vectors
def many():
    """Notes before the good one in the order of their names."""
    one = note(TEXT, GOOD)
    yield counts(f"after-{NOTES - 1}", f"{NOTES - 1} notes come before it", chain=rubbish(NOTES - 1))
    yield does_not_count(f"after-{NOTES}", f"{NOTES} notes come before it", chain=rubbish(NOTES),
                         twin=f"after-{NOTES - 1}")
    yield counts("after-those-of-other-commits", f"{NOTES} notes on other commits come before it",
                 chain=rubbish(NOTES, of="00" * 32))
    chain = line(1)
    for first in range(NOTES):
        chain = put(chain, 1, b"rubbish", named=0, note_digest=f"{first:064x}")
    yield good("notes/after-those-of-other-versions", put(chain, 1, note_of(chain, 1, FIRST)), [0, 1],
               f"{NOTES} notes with the digest of the commit and another version come before it", section="23.2",
               trust=trust())
    chain = with_notes(one)
    for number in range(NOTES):
        chain = put(chain, 0, b"rubbish", note_digest=f"{number:063x}")
        chain = put(chain, 0, b"rubbish", note_digest=f"{number:064x}.tmp")
    yield counts("after-what-is-none", "objects whose names are not those of notes come before it", chain=chain)


@makes_vectors_since("1.2")
def many_and_others():
    """Objects that count among the notes that a reader reads, and objects that do not."""
    before = rubbish(NOTES - 1)
    last = "00" * 31 + "ff"
    yield does_not_count("after-63-and-one-too-long", f"{NOTES - 1} notes come before it, and one that is too long",
                         chain=put(before, 0, bytes(NOTE_BYTES + 1), note_digest=last), twin=f"after-{NOTES - 1}")
    folder = put(before, 0, b"rubbish", note_digest=f"{last}/rubbish")
    yield counts("after-63-and-a-folder", f"{NOTES - 1} notes come before it, and a folder with the name of one",
                 chain=folder)
    name = next(name for name in with_notes(note(TEXT, GOOD)).objects if name.startswith("signatures/"))
    yield counts("symbolic-link", "the note is a link to elsewhere", chain=moved(with_notes(note(TEXT, GOOD)), name),
                 features=["symbolic-links"])
    odd = public_test_key(4, "a\uffffb\ufdd0")
    yield counts("names-noncharacters", "the name of the key has characters that Unicode leaves to programs",
                 note_of(CHAIN, 0, odd), keys=(odd,))
