"""Building blocks of vectors of signed commits (spec/signatures.md): public test keys, and notes of which every part
can be wrong. Nothing here decides which notes count: each vector states it."""
import hashlib
from base64 import b64encode
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .chains import CHAIN, bad, commit_name, digest, good, line

NOTE_BYTES, NOTES, LINES = 16384, 64, 100


@dataclass(frozen=True)
class Key:
    """A key for tests only: its private half is published here."""
    name: str
    seed: bytes

    def private(self):
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    def public(self):
        return self.private().public_key().public_bytes_raw()

    def hash(self):
        """Returns the digest at the end of the names of its own notes."""
        return hashlib.sha256(self.name.encode() + b"\n\x01" + self.public()).digest()

    def id(self):
        return self.hash()[:4]

    def sign(self, text):
        return self.private().sign(text.encode() if isinstance(text, str) else text)

    def text(self, *chains):
        """Returns the text that readers get, with the digests of chains."""
        return " ".join([f"{self.name}+{self.id().hex()}+{b64(bytes([1]) + self.public())}", *chains])


@dataclass(frozen=True)
class PublicKey(Key):
    """A key whose private half is unknown, or does not exist."""
    bytes: bytes

    def public(self):
        return self.bytes


def b64(data):
    return b64encode(data).decode()


def public_test_key(number, name=None):
    return Key(name or f"public-test-key-{number}", b"deltachain public test key no. %d" % number)


FIRST, SECOND, THIRD, UNKNOWN = map(public_test_key, (1, 2, 3, 9))


def text_of(chain, version, *, first="deltachain commit v1", chain_digest=None, number=None, commit=None):
    """Returns the text of a note on the commit of a version."""
    return "\n".join([first, chain_digest or digest(chain.objects[CHAIN]), str(version) if number is None else number,
                      commit or digest(chain.objects[commit_name(version)]), ""])


def signature_line(key, text, *, name=None, id=None, signature=None, base64=None):
    """Returns a signature line; the arguments replace right values."""
    data = (key.id() if id is None else id) + (key.sign(text) if signature is None else signature)
    return f"\u2014 {key.name if name is None else name} {b64(data) if base64 is None else base64}\n"


def note(text, *lines):
    return f"{text}\n{''.join(lines)}".encode()


def note_of(chain, version, *keys):
    """Returns a good note by these keys."""
    text = text_of(chain, version)
    return note(text, *(signature_line(key, text) for key in keys))


def note_name(version, commit, note_digest):
    return f"signatures/{version:020}-{commit}-{note_digest}"


def put(chain, version, data, *, named=None, of=None, note_digest=None):
    """Returns the chain with a note on a version's commit, or under another name. `named`: another version; `of`:
    another commit."""
    name = note_name(version if named is None else named, of or digest(chain.objects[commit_name(version)]),
                     note_digest or digest(data))
    return chain.with_object(name, data)


def put_own(chain, version, key, data=None, **names):
    """Returns the chain with a note under the name of a key's own note: with that key's signature, or with other
    bytes."""
    return put(chain, version, note_of(chain, version, key) if data is None else data, note_digest=key.hash().hex(),
               **names)


def signed(chain, *versions, by=(FIRST,)):
    """Returns the chain with a note by each of these keys on each of the versions."""
    for version in versions:
        for key in by:
            chain = put(chain, version, note_of(chain, version, key))
    return chain


def trust(*keys, quorum=1, seen=None):
    """Returns a reader's trust: keys, or texts; by default the first test key. `seen`: a version and the digest of its
    commit."""
    return {"keys": [key if isinstance(key, str) else key.text() for key in keys or (FIRST,)], "quorum": quorum,
            "seen": seen and {"version": seen[0], "commit": seen[1]}}


def seen(chain, version, *keys, quorum=1):
    """Returns the trust of a reader that has met this head."""
    return trust(*keys, quorum=quorum, seen=(version, digest(chain.commits[version])))


def counts(id, reason, *notes, keys=(FIRST,), quorum=1, chain=None, features=()):
    """A vector of a chain with one version, whose notes count for enough keys."""
    chain = chain or with_notes(*notes)
    return good(f"notes/{id}", chain, [0], reason, section="23.2", trust=trust(*keys, quorum=quorum), features=features)


def does_not_count(id, reason, *notes, keys=(FIRST,), quorum=1, chain=None, twin="one", features=()):
    """A vector like that of `counts`, whose notes do not count, so that no version is signed."""
    chain = chain or with_notes(*notes)
    return bad(f"notes/{id}", chain, "R-SIG-01", f"notes/{twin}", reason, section="23.2",
               trust=trust(*keys, quorum=quorum), features=features)


def with_notes(*notes):
    """Returns a chain with one version, and these notes on it."""
    chain = line(0)
    for data in notes:
        chain = put(chain, 0, data)
    return chain
