"""Tables of functions.json for signed commits (SPEC section 23.2)."""
import hashlib

from .signatures import (
    FIRST, SECOND, UNKNOWN, Key, PublicKey, b64, note, note_name, public_test_key, signature_line, trust)
from .signatures_lines import ODD, WHITE, cosignature, other_base64, other_lengths, other_signatures
from .signatures_notes import CHAIN, TEXT
from .signatures_refused import LOW_ORDER, wrong_chains, with_sign

ABOUT = {
    "verifier_keys": "Section 23.2: public keys as readers are given them, with name, ID and the 32 bytes. Of a text "
                     "that is none, `legal` is false.",
    "low_order": "Section 23.2: keys with the 32 bytes, and whether these are of low order, so that a reader refuses them.",
    "trusted_keys": "Section 23.2: keys as they are given with the chains that they are trusted for. Of a text that is "
                    "none, `legal` is false.",
    "own_notes": "Section 23.2: the name of the own note of a key on the commit of a version; `commit` is a digest.",
    "trust": "Sections 23.1 and 23.2: keys and a quorum; where `legal` is false, a reader refuses them.",
    "note_texts": "Section 23.2: the text of a note on the commit of a version; `chain` and `commit` are digests.",
    "signature_lines": "Section 23.2: a line, a key and a text, and whether the line is this key's, and its signature "
                       "valid. `line` has no line feed.",
    "notes": "Section 23.2: the bytes of a note as hexadecimal digits; what is trusted; and for which of these keys "
             "the note counts, if it is found as one on this commit."}

# The example in the documentation of golang.org/x/mod/sumdb/note, another program for signed notes.
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = ("If you think cryptography is the answer to your problem,\n"
           "then you don't know what your problem is.\n")
GO_LINE = ("\u2014 PeterNeumann "
           "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=")


def made():
    return {"verifier_keys": verifier_keys(), "low_order": low_order(), "trusted_keys": trusted_keys(),
            "own_notes": own_notes(), "trust": trusts(), "note_texts": note_texts(),
            "signature_lines": signature_lines(), "notes": notes()}


def verifier_keys():
    good = [{"key": GO_KEY, "name": "PeterNeumann", "id": "c74f20a3",
             "public": "1a5cd907143c384c41e830c5bce12aa8817ec5649aaabf2c31388b35b2d744d6"}]
    named = [public_test_key(4, name) for name in ("k", ODD, "n" * 999)]
    good += [{"key": key.text(), "name": key.name, "id": key.id().hex(), "public": key.public().hex()}
             for key in (FIRST, SECOND, *named)]
    name, id, key = FIRST.text().split("+", 2)
    data = b"\1" + FIRST.public()
    bad = ["", name, f"{name}+{id}", f"{name}+{id}+", f"{name}+{key}", Key("", FIRST.seed).text(), f"{name}++{key}",
           f"{name}+{id}+{key}+", f"{name}+{id}+{key}\n", f" {name}+{id}+{key}", f"{name}+{id}+{key} ",
           f"{name}+{id.upper()}+{key}", f"{name}+{id[:7]}+{key}", f"{name}+0{id}+{key}", f"{name}+00000000+{key}",
           f"{name}2+{id}+{key}", f"{name}+{id}+{key[:-1]}", f"{name}+{id}+{key}=", f"{name}+{id}+{b64(data[1:])}",
           f"{name}+{id}+{b64(data + bytes(1))}", f"{name}+{id}+{b64(data[:-1])}", f"{name}+{id}+{data.hex()}",
           f"{name}+{id}+{SECOND.text().rsplit('+', 1)[1]}", f"PRIVATE+KEY+{name}+{id}+{key}"]
    bad += [of_another_kind(kind) for kind in (0, 2, 4, 255)]
    bad += [public_test_key(8, f"a{white}b").text() for white in WHITE + "+ \n"]
    assert "+" in key, "it shows nothing with this key"
    bad += [f"{name}+{id}+{key.replace('+', '-')}"]
    return good + [{"key": text, "legal": False} for text in bad]


def of_another_kind(kind):
    """Returns a key whose ID is right for its kind."""
    data = bytes([kind]) + FIRST.public()
    return f"{FIRST.name}+{hashlib.sha256(FIRST.name.encode() + bytes([10]) + data).hexdigest()[:8]}+{b64(data)}"


def low_order():
    """All 14 keys, and others that resemble them or differ in the sign."""
    low = [(public, True) for one in LOW_ORDER for public in (one, with_sign(one))]
    others = [key.public() for key in (FIRST, SECOND, UNKNOWN)]
    others += [with_sign(public) for public in others]
    # Points of the curve by their y: 3, 4, 2^255 - 19 - 3 and 2^255 - 19 + 3.
    others += [bytes([3, *bytes(31)]), bytes([4, *bytes(31)]), bytes.fromhex("ea" + "ff" * 30 + "7f"),
               bytes.fromhex("f0" + "ff" * 30 + "7f")]
    return [{"key": PublicKey("k", b"", public).text(), "public": public.hex(), "low_order": is_low}
            for public, is_low in low + [(public, False) for public in others]]


def trusted_keys():
    one, two = "ab" * 32, "01" * 32
    return [{"text": FIRST.text(*chains), "chains": chains} for chains in ([], [one], [two, one], [one] * 2)] + [
        {"text": text, "legal": False} for _, _, text in wrong_chains()]


def own_notes():
    odd = public_test_key(4, ODD)
    return [{"key": key.text(), "version": version, "commit": commit,
             "name": note_name(version, commit, key.hash().hex())}
            for key in (FIRST, SECOND, odd) for version, commit in ((0, "ab" * 32), (2**53 - 1, "01" * 32))]


def trusts():
    again = Key("another-name", FIRST.seed)
    stated = ((True, (FIRST,), 1), (True, (FIRST, SECOND), 1), (True, (FIRST, SECOND), 2), (False, (FIRST,), 0),
              (False, (FIRST,), 2), (False, (FIRST, SECOND), 3), (False, (FIRST, FIRST), 1), (False, (FIRST, again), 1),
              (False, (SECOND, FIRST, again), 2), (True, (FIRST, public_test_key(2, FIRST.name)), 2))
    return [{"keys": trust(*keys)["keys"], "quorum": quorum, "legal": legal} for legal, keys, quorum in stated] + [
        {"keys": [], "quorum": quorum, "legal": False} for quorum in (0, 1)]


def note_texts():
    chain, commit = "ab" * 32, "01" * 32
    return [{"chain": chain, "version": version, "commit": commit,
             "text": f"deltachain commit v1\n{chain}\n{version}\n{commit}\n"}
            for version in (0, 1, 9, 10, 1234567, 2**53 - 1)]


def signature_lines():
    def row(key, text, line, valid):
        return {"key": key, "text": text, "line": line.removesuffix("\n"), "valid": valid}
    right = FIRST.sign(TEXT)
    found = [row(GO_KEY, GO_TEXT, GO_LINE, True), row(GO_KEY, GO_TEXT[:-1], GO_LINE, False),
             row(GO_KEY, TEXT, GO_LINE, False), row(FIRST.text(), TEXT, signature_line(FIRST, TEXT), True),
             row(SECOND.text(), TEXT, signature_line(FIRST, TEXT), False),
             row(FIRST.text(), TEXT, signature_line(SECOND, TEXT, name=FIRST.name), False)]
    found += [row(FIRST.text(), TEXT, signature_line(FIRST, TEXT, signature=signature), False)
              for _, _, signature in other_signatures()]
    data = FIRST.id() + right
    texts = [text for _, _, text in other_base64(data)] + [b64(bytes) for _, _, bytes in other_lengths(data)]
    return found + [row(FIRST.text(), TEXT, signature_line(FIRST, TEXT, base64=text), False) for text in texts]


def notes():
    _, chain, version, commit, _ = TEXT.split("\n")
    one, two, unknown = (signature_line(key, TEXT) for key in (FIRST, SECOND, UNKNOWN))
    bad_one, bad_two, bad_unknown = (signature_line(key, TEXT, signature=bytes(64)) for key in (FIRST, SECOND, UNKNOWN))
    long_two = signature_line(SECOND, TEXT, signature=SECOND.sign(TEXT) + b"\0")
    stated = [((one,), [0]), ((two,), [1]), ((one, two), [0, 1]), ((two, one), [0, 1]), ((unknown,), []),
              ((unknown, two), [1]), ((one, one), [0]), ((bad_unknown, one), [0]), ((bad_one, two), []),
              ((one, two, bad_two), []), ((bad_one, one), []), ((one, bad_one), []), ((), []),
              ((signature_line(FIRST, TEXT, id=bytes(4)), two), [1]),
              ((signature_line(FIRST, TEXT, name="another"), two), [1]),
              ((one, signature_line(UNKNOWN, TEXT, name="a\xa0b")), []), ((one, "\n"), []), ((one, "end\n"), []),
              ((one[:-1],), []), ((one, cosignature("witness.example"), cosignature(FIRST.name), two), [0, 1]),
              ((one, signature_line(UNKNOWN, TEXT, signature=b"\0")), [0]), ((one, long_two), []),
              ((long_two, one), []),
              ((one, signature_line(UNKNOWN, TEXT, signature=b"")), []),
              ((unknown,) * 99 + (two,), [1]), ((unknown,) * 100 + (two,), [])]
    keys = trust(FIRST, SECOND)["keys"]
    assert CHAIN.commits.keys() == {int(version)}
    return [{"chain": chain, "version": int(version), "commit": commit, "keys": keys, "note": note(TEXT, *lines).hex(),
             "counts": counted} for lines, counted in stated]
