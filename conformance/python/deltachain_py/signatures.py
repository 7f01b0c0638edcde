"""Signed commits (SPEC section 23): public keys, notes, and what a reader trusts."""
import hashlib
import re
from base64 import b64decode, b64encode
from collections import namedtuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .errors import DcfError

ED25519 = b"\1"
NOTE_BYTES, NOTES, LINES = 16384, 64, 100
# Of a key: no plus sign, no control character and no white space.
NAME = "([^+\0-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)"
KEY = re.compile(NAME + r"\+([0-9a-f]{8})\+([A-Za-z0-9+/]{44})")  # 33 bytes
LINE = re.compile(f"\u2014 {NAME} ([^ ]+)")

Key = namedtuple("Key", "name id public")
Seen = namedtuple("Seen", "version commit")  # the newest head that was met, and the digest of its commit


def key_id(name, public):
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + public).digest()[:4]


def key(text):
    """The public key that is written so; None if it is none."""
    match = KEY.fullmatch(text)
    data = b64decode(match[3]) if match else b""
    if data[:1] != ED25519 or key_id(match[1], data[1:]).hex() != match[2]:
        return None
    return Key(match[1], bytes.fromhex(match[2]), data[1:])


class Trust:
    """Public keys as texts, a quorum, and the newest head that was met."""

    def __init__(self, keys, quorum, seen=None):
        self.keys, self.quorum, self.seen = [key(text) for text in keys], quorum, seen
        good = None not in self.keys and 1 <= quorum <= len(self.keys)
        for same in (lambda one: one.public, lambda one: (one.name, one.id)):
            good = good and len({same(one) for one in self.keys}) == len(self.keys)
        if not good:
            raise DcfError("USAGE", None, "these are no different public keys with a quorum of them")


def note_text(chain, version, commit):
    """What is signed; `chain` and `commit` are digests."""
    return f"deltachain commit v1\n{chain}\n{version}\n{commit}\n"


def is_valid(key, signature, text):
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature, text.encode())
        return True
    except InvalidSignature:
        return False


def unbase64(text):
    """The bytes of base64 in its one form; None if it is another."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if b64encode(data).decode() == text else None


def signature_lines(note, text):
    """Pairs of a name and its bytes, a key ID and a signature, of a note on this text; None if it is no such note
    (condition 3)."""
    begin = (text + "\n").encode()
    try:
        *lines, rest = note.removeprefix(begin).decode().split("\n")
    except UnicodeDecodeError:
        return None
    found = [LINE.fullmatch(line) for line in lines]
    if not note.startswith(begin) or rest or not 1 <= len(found) <= LINES or None in found:
        return None
    pairs = [(match[1], unbase64(match[2])) for match in found]
    return pairs if all(data is not None and len(data) > 4 for _, data in pairs) else None


def counts_for(note, text, keys):
    """The keys that a note counts for (conditions 3 and 4)."""
    counted = set()
    for name, data in signature_lines(note, text) or []:
        for key in keys:
            if (name, data[:4]) == (key.name, key.id):
                if len(data) != 68 or not is_valid(key, data[4:], text):
                    return set()
                counted.add(key)
    return counted
