"""Signed commits (SPEC section 23): public keys, notes, and a reader's trust."""
import hashlib
import re
from base64 import b64decode, b64encode
from collections import namedtuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .errors import DcfError

ED25519 = b"\1"
NOTE_BYTES, NOTES, LINES = 16384, 64, 100
# The name of a key: no plus sign, no control characters, no white space.
NAME = "([^+\0-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)"
KEY = re.compile(NAME + r"\+([0-9a-f]{8})\+([A-Za-z0-9+/]{44})((?: [0-9a-f]{64})*)")  # 33 bytes, and chains
LINE = re.compile(f"\u2014 {NAME} ([^ ]+)")

# Public keys for which anyone can make signatures, with the highest bit 0.
LOW_ORDER = {bytes.fromhex(digits) for digits in (
    "00" * 32, "01" + "00" * 31, "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a", "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f")}

Key = namedtuple("Key", "name id public hash chains")  # `hash` begins with the ID, and names the key's own notes
Seen = namedtuple("Seen", "version commit")  # the newest head that was met, and the digest of its commit


def key_hash(name, public):
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + public).digest()


def is_low_order(public):
    return public[:31] + bytes([public[31] & 0x7F]) in LOW_ORDER


def key(text):
    """Parses a public key, with the chains that it is trusted for (none means all). Returns None if the text is not a
    key."""
    match = KEY.fullmatch(text)
    data = b64decode(match[3]) if match else b""
    if data[:1] != ED25519 or is_low_order(data[1:]):
        return None
    hash = key_hash(match[1], data[1:])
    if hash[:4].hex() != match[2]:
        return None
    return Key(match[1], hash[:4], data[1:], hash.hex(), tuple(match[4].split()))


class Trust:
    """Public keys as texts, a quorum, and the newest head that was met."""

    def __init__(self, keys, quorum, seen=None):
        self.keys, self.quorum, self.seen = [key(text) for text in keys], quorum, seen
        good = None not in self.keys and 1 <= quorum <= len(self.keys)
        for same in (lambda one: one.public, lambda one: (one.name, one.id)):
            good = good and len({same(one) for one in self.keys}) == len(self.keys)
        if not good:
            raise DcfError("USAGE", None, "these are no different public keys with a quorum of them")

    def keys_of(self, chain):
        """Returns the keys that are trusted for a chain."""
        return [key for key in self.keys if not key.chains or chain in key.chains]


def own_note(version, commit, key):
    """Returns the name of a key's own note, without the folder."""
    return f"{version:020}-{commit}-{key.hash}"


def note_text(chain, version, commit):
    """Returns the text that keys sign; `chain` and `commit` are digests."""
    return f"deltachain commit v1\n{chain}\n{version}\n{commit}\n"


def is_valid(key, signature, text):
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature, text.encode())
        return True
    except InvalidSignature:
        return False


def unbase64(text):
    """Returns the bytes of canonical base64; None for other texts."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if b64encode(data).decode() == text else None


def signature_lines(note, text):
    """Returns pairs of a name and its bytes (a key ID and a signature) from a note on this text; None if it is no such
    note (condition 3)."""
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
    """Returns the keys that a note counts for (conditions 3 and 4)."""
    counted = set()
    for name, data in signature_lines(note, text) or []:
        for key in keys:
            if (name, data[:4]) == (key.name, key.id):
                if len(data) != 68 or not is_valid(key, data[4:], text):
                    return set()
                counted.add(key)
    return counted
