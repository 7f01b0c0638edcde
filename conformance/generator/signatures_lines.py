"""Signature lines (SPEC-signatures.md, section 23.2): names, IDs, base64 and signatures, of which one thing is wrong,
and what a wrong line does to the others of its note."""
from .registry import makes_vectors
from .signatures import (
    FIRST, SECOND, UNKNOWN, Key, b64, counts, does_not_count, note, note_of, public_test_key, signature_line)
from .signatures_notes import CHAIN, GOOD, TEXT

ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group (RFC 8032)
OF_UNKNOWN = signature_line(UNKNOWN, TEXT)
# What may be in names: no white space by Unicode, though some take it for such.
ODD = "\"-\\\x7f\x80\u00ad\u180e\u200b\u200d\u2060\ufeff\ufffd\U0001f511\u2014=/:%"
# White space by Unicode, and characters below U+0021.
WHITE = "\0\t\x0b\x0c\r\x1c\x1f\x85\xa0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000"


def beside(line):
    """A note with a good line before another one."""
    return note(TEXT, GOOD, line) if isinstance(line, str) else note(TEXT, GOOD) + line


@makes_vectors
def names():
    """A name that is none is that of an unknown key: it makes that what it stands in is no note."""
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
    """What stands between name and signature, in the line of the trusted key and in one beside it."""
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
    """Texts that are not the base64 of the 68 bytes, with the reason."""
    text = b64(data)
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    assert text.endswith("=") and set("+/") & {*text}, "it shows nothing with this key"
    return (("no-padding", "base64 without padding", text[:-1]),
            ("more-padding", "base64 with more padding", text + "="),
            ("padding-alone", "a padding sign in place of the last digit", text[:-2] + "=="),
            ("unused-bits", "base64 whose unused bits are not zero", text[:-2] + last[last.index(text[-2]) + 1] + "="),
            ("url", "base64 with the alphabet for URLs", text.replace("+", "-").replace("/", "_")),
            ("space-inside", "a space in its base64", text[:40] + " " + text[40:]),
            ("other-character", "a character in its base64 that is none of it", text[:40] + "." + text[40:]),
            ("hexadecimal", "hexadecimal digits", data.hex()),
            ("67-bytes", "67 bytes", b64(data[:67])), ("69-bytes", "69 bytes", b64(data + b"\0")),
            ("4-bytes", "an ID and no signature", b64(data[:4])),
            ("76-bytes", "a signature of another kind, of 72 bytes", b64(data[:4] + bytes(8) + data[4:])))


@makes_vectors
def base64():
    for key, id, reason, twin in (
            (FIRST, "base64", "the line of the trusted key has", "one"),
            (UNKNOWN, "base64-beside", "the line of another key has", "line-of-an-unknown-key")):
        for kind, what, text in other_base64(key.id() + key.sign(TEXT)):
            line = signature_line(key, TEXT, base64=text)
            yield does_not_count(f"{id}-{kind}", f"{reason} {what}", note(TEXT, line) if key is FIRST else beside(line),
                                 twin=twin)


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
    """A bad line of any trusted key makes that the note counts for none."""
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
