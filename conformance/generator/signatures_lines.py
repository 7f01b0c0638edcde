"""Signature lines (SPEC section 23.2): names, IDs, base64 and signatures with one fault, and the effect of a wrong line
on the others of its note."""
import hashlib
import struct

from .registry import makes_vectors, makes_vectors_since
from .signatures import (
    FIRST, SECOND, UNKNOWN, Key, b64, counts, does_not_count, note, note_of, public_test_key, signature_line)
from .signatures_notes import CHAIN, GOOD, TEXT

ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group (RFC 8032)
OF_UNKNOWN = signature_line(UNKNOWN, TEXT)
# Characters that names may have: not white space by Unicode, though some programs take them for it.
ODD = "\"-\\\x7f\x80\u00ad\u180e\u200b\u200d\u2060\ufeff\ufffd\U0001f511\u2014=/:%"
# White space by Unicode, and characters below U+0021.
WHITE = "\0\t\x0b\x0c\r\x1c\x1f\x85\xa0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000"


def beside(line):
    """Returns a note with a good line before another one."""
    return note(TEXT, GOOD, line) if isinstance(line, str) else note(TEXT, GOOD) + line


@makes_vectors
def names():
    """An invalid name is that of an unknown key, but makes its text no note."""
    odd = public_test_key(4, ODD)
    yield counts("names-odd", "the name of the key has characters that are no white space", note_of(CHAIN, 0, odd),
                 keys=(odd,))
    yield counts("names-one-character", "the name of the key has one character", note_of(
        CHAIN, 0, public_test_key(5, "k")), keys=(public_test_key(5, "k"),))
    decomposed, composed = (public_test_key(6, name) for name in ("e\u0301", "\u00e9"))
    yield counts("names-composed", "two keys have names that look alike", note_of(CHAIN, 0, decomposed), keys=(
        decomposed, Key(composed.name, FIRST.seed)))
    yield does_not_count("names-composed-otherwise", "the name is written in another normal form", note(
        TEXT, signature_line(composed, TEXT, id=decomposed.id())), keys=(decomposed,), twin="names-composed")
    yield does_not_count("names-case", "the name differs in the case of a letter", note(
        TEXT, signature_line(FIRST, TEXT, name=FIRST.name.capitalize())))
    yield does_not_count("names-of-another-key", "ID and signature are those of the trusted key, the name is not",
                         note(TEXT, signature_line(FIRST, TEXT, name=SECOND.name)))
    yield does_not_count("names-longer", "the name goes on", note(TEXT, signature_line(FIRST, TEXT,
                                                                                      name=FIRST.name + "0")))
    for id, reason, name in (
            ("empty", "the name is empty", ""), ("plus", "the name has a plus sign", "a+b"),
            ("space", "the name has a space", "a b"),
            *((f"{ord(space):04x}", f"the name has the character U+{ord(space):04X}", f"a{space}b")
              for space in WHITE)):
        yield does_not_count(f"names-{id}", f"{reason}, in another line than that of the trusted key",
                             beside(signature_line(UNKNOWN, TEXT, name=name)), twin="line-of-an-unknown-key")
    for id, reason, name in (("invalid", "the byte FF", b"a\xff"), ("surrogate", "a surrogate", b"a\xed\xa0\x80"),
                             ("overlong", "a letter in two bytes", b"\xc1\xa1"), ("cut", "half a letter", b"a\xc3")):
        line = OF_UNKNOWN.encode().replace(UNKNOWN.name.encode(), name)
        yield does_not_count(f"names-utf-8-{id}", f"the name in another line is not UTF-8: {reason}", beside(line),
                             twin="line-of-an-unknown-key")


@makes_vectors
def forms():
    """Separators between name and signature, in the line of the trusted key and in another line."""
    for id, reason, change in (
            ("hyphens", "two hyphens in place of the dash", lambda line: line.replace("\u2014", "--")),
            ("en-dash", "an en dash", lambda line: line.replace("\u2014", "\u2013")),
            ("horizontal-bar", "a horizontal bar", lambda line: line.replace("\u2014", "\u2015")),
            ("no-dash", "no dash", lambda line: line.removeprefix("\u2014 ")),
            ("no-space", "no space after the dash", lambda line: line.replace("\u2014 ", "\u2014")),
            ("no-break-space", "a no-break space after the dash", lambda line: line.replace("\u2014 ", "\u2014\xa0")),
            ("two-spaces", "two spaces after the dash", lambda line: line.replace("\u2014 ", "\u2014  ")),
            ("tab", "a tab after the name", lambda line: "\t".join(line.rsplit(" ", 1))),
            ("two-spaces-after-name", "two spaces after the name", lambda line: "  ".join(line.rsplit(" ", 1))),
            ("space-first", "a space before the dash", lambda line: " " + line),
            ("space-last", "a space at the end", lambda line: line[:-1] + " \n"),
            ("no-signature", "nothing after the name", lambda line: line.rsplit(" ", 1)[0] + "\n"),
            ("more", "a word at the end", lambda line: line[:-1] + " more\n")):
        yield does_not_count(f"line-{id}", f"the line has {reason}", note(TEXT, change(GOOD)))
        yield does_not_count(f"line-beside-{id}", f"another line than that of the trusted key has {reason}",
                             beside(change(OF_UNKNOWN)), twin="line-of-an-unknown-key")


def other_base64(data):
    """Returns texts that are not the base64 of the 68 bytes, with the reason."""
    text = b64(data)
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    assert text.endswith("=") and set("+/") & {*text}, "it shows nothing with this key"
    return (("no-padding", "base64 without padding", text[:-1]),
            ("more-padding", "base64 with more padding", text + "="),
            ("padding-alone", "a padding sign in place of the last digit, and unused bits that are not zero",
             text[:-3] + last[last.index(text[-3]) | 1] + "=="),
            ("unused-bits", "base64 whose unused bits are not zero", text[:-2] + last[last.index(text[-2]) + 1] + "="),
            ("url", "base64 with the alphabet for URLs", text.replace("+", "-").replace("/", "_")),
            ("space-inside", "a space in its base64", text[:40] + " " + text[40:]),
            ("other-character", "a character in its base64 that is none of it", text[:40] + "." + text[40:]),
            ("1-byte", "one byte", b64(data[:1])),
            ("3-bytes", "less than an ID", b64(data[:3])), ("4-bytes", "an ID and no signature", b64(data[:4])))


def other_lengths(data):
    """Returns bytes of lines that keys of other kinds could have, with the reason."""
    return (("5-bytes", "an ID and a byte", data[:5]), ("36-bytes", "half a signature", data[:36]),
            ("67-bytes", "a signature without its last byte", data[:67]),
            ("69-bytes", "a byte after the signature", data + b"\0"),
            ("72-bytes", "a second ID before the signature", data[:4] + data),
            ("76-bytes", "a time before the signature", data[:4] + bytes(8) + data[4:]),
            ("132-bytes", "a second signature", data + data[4:]),
            ("2424-bytes", "a signature of 2420 bytes", data[:4] + bytes(2420)))


@makes_vectors
def base64():
    for key, id, reason, twin in (
            (FIRST, "base64", "the line of the trusted key has", "one"),
            (UNKNOWN, "base64-beside", "the line of another key has", "line-of-an-unknown-key")):
        for kind, what, text in other_base64(key.id() + key.sign(TEXT)):
            line = signature_line(key, TEXT, base64=text)
            yield does_not_count(f"{id}-{kind}", f"{reason} {what}", note(TEXT, line) if key is FIRST else beside(line),
                                 twin=twin)
    yield does_not_count("base64-hexadecimal", "the line of the trusted key has hexadecimal digits, which are base64 of "
                         "102 other bytes", note(TEXT, signature_line(FIRST, TEXT, base64=(
                             FIRST.id() + FIRST.sign(TEXT)).hex())))


@makes_vectors
def lengths():
    """Lines of unknown keys may have any length. Signatures of a trusted key have one length; another length
    invalidates the note."""
    def line_of(key, data):
        return signature_line(key, TEXT, base64=b64(data))
    for id, what, data in other_lengths(UNKNOWN.id() + UNKNOWN.sign(TEXT)):
        other = line_of(UNKNOWN, data)
        yield counts(f"length-beside-{id}", f"the line of another key, after that of the trusted one, has {what}",
                     beside(other))
        yield counts(f"length-before-{id}", f"the line of another key, before that of the trusted one, has {what}",
                     note(TEXT, other, GOOD))
    for id, what, data in other_lengths(FIRST.id() + FIRST.sign(TEXT)):
        own = line_of(FIRST, data)
        yield does_not_count(f"length-{id}", f"the line of the trusted key has {what}", note(TEXT, own))
        for place, lines in (("after", (GOOD, own)), ("before", (own, GOOD))):
            yield does_not_count(f"length-{place}-the-good-line-{id}",
                                 f"of two lines of the trusted key, one has {what}", note(TEXT, *lines),
                                 twin="line-twice")
        yield counts(f"length-of-the-id-{id}", f"a line with the ID of the trusted key and another name has {what}",
                     beside(signature_line(FIRST, TEXT, name="another", base64=b64(data))))
    for id, what, data in other_lengths(SECOND.id() + SECOND.sign(TEXT)):
        both = note(TEXT, GOOD, line_of(SECOND, data))
        yield does_not_count(f"length-of-another-trusted-key-{id}", "two keys are trusted, and one is enough; the line "
                             f"of one is right, that of the other has {what}", both, keys=(FIRST, SECOND),
                             twin="one-of-two-keys")
        yield counts(f"length-of-a-removed-key-{id}", f"the same note, if the key whose line has {what} is not trusted",
                     both)


def cosignature(name, seconds=1764028800):
    """Returns the line of a witness, by C2SP's tlog-cosignature. Its key has the seed of FIRST, but another kind and so
    another ID."""
    id = hashlib.sha256(name.encode() + b"\n\x04" + FIRST.public()).digest()[:4]
    signed = FIRST.sign(f"cosignature/v1\ntime {seconds}\n{TEXT}")
    return signature_line(FIRST, TEXT, name=name, base64=b64(id + struct.pack(">Q", seconds) + signed))


@makes_vectors
def cosignatures():
    """Lines of 76 bytes, which programs for signed notes write beside the lines of Ed25519."""
    for id, name, what in (("", "witness.example", "another name"), ("-of-the-name", FIRST.name, "the same name")):
        yield counts(f"cosignature{id}", f"a witness with {what} has signed, too, and the time with it",
                     beside(cosignature(name)))
        yield counts(f"cosignature-first{id}", f"a witness with {what} has signed, too, in the line before",
                     note(TEXT, cosignature(name), GOOD))
        yield does_not_count(f"cosignature-alone{id}", f"only a witness with {what} has signed",
                             note(TEXT, cosignature(name)))


@makes_vectors
def ids():
    for id, reason, data in (("zero", "the ID is zero", bytes(4)), ("reversed", "the ID is reversed", FIRST.id()[::-1]),
                             ("of-another", "the ID is that of another key", UNKNOWN.id()),
                             ("last-bit", "the ID differs in a bit", FIRST.id()[:3] + bytes([FIRST.id()[3] ^ 1]))):
        yield does_not_count(f"id-{id}", reason, note(TEXT, signature_line(FIRST, TEXT, id=data)))


def other_signatures():
    right = FIRST.sign(TEXT)
    flipped = bytes([right[0] ^ 1]) + right[1:]
    high = right[:63] + bytes([right[63] ^ 8])
    large = right[:32] + (int.from_bytes(right[32:], "little") + ORDER).to_bytes(32, "little")
    return (("flipped", "a bit of its first half is flipped", flipped),
            ("flipped-later", "a bit of its second half is flipped", high),
            ("large", "the order of the group is added to its second half", large),
            ("zero", "it is zero", bytes(64)), ("halves", "its halves have changed places", right[32:] + right[:32]),
            ("of-another-key", "it is that of another key", UNKNOWN.sign(TEXT)),
            ("without-line-feed", "it is one of the text without its last line feed", FIRST.sign(TEXT[:-1])),
            ("with-empty-line", "it is one of the text with the empty line", FIRST.sign(TEXT + "\n")),
            ("of-nothing", "it is one of no bytes", FIRST.sign("")),
            ("of-the-commit", "it is one of the bytes of the commit", FIRST.sign(CHAIN.commits[0])))


@makes_vectors
def signatures():
    """With a bad line of any trusted key, a note counts for no key."""
    for id, what, signature in other_signatures():
        yield does_not_count(f"signature-{id}", f"the signature is not valid: {what}",
                             note(TEXT, signature_line(FIRST, TEXT, signature=signature)))
    bad = signature_line(FIRST, TEXT, signature=bytes(64))
    for id, lines in (("after-the-good-line", (GOOD, bad)), ("before-the-good-line", (bad, GOOD))):
        yield does_not_count(f"bad-line-{id}", "of two lines of the trusted key, one has a wrong signature",
                             note(TEXT, *lines), twin="line-twice")
    of_second = signature_line(SECOND, TEXT, signature=bytes(64))
    for id, lines in (("after", (GOOD, of_second)), ("before", (of_second, GOOD))):
        yield does_not_count(f"bad-line-of-another-trusted-key-{id}", "two keys are trusted, and one is enough; the "
                             "line of one is right, that of the other has a wrong signature", note(TEXT, *lines),
                             keys=(FIRST, SECOND), twin="one-of-two-keys")
    yield counts("bad-line-of-a-removed-key", "the same note, if the key of the wrong signature is not trusted",
                 note(TEXT, GOOD, of_second))


@makes_vectors_since("1.2")
def first_characters():
    """All characters that may be the first of a name."""
    for id, name in (("", "!"), ("-inside", "a!b"), ("-last", "deltachain!")):
        key = public_test_key(7, name)
        yield counts(f"names-exclamation-mark{id}", "the name of the key has the character U+0021", note_of(CHAIN, 0, key),
                     keys=(key,))
        yield counts(f"names-exclamation-mark{id}-beside", "a name in another line has the character U+0021",
                     beside(signature_line(UNKNOWN, TEXT, name=name)))
