"""Keys of signed chains: the keys that sign, and the keys that a reader trusts
(spec/signatures.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _native
from ._errors import UsageError
from ._settings import whole

__all__ = [
    "PublicKey",
    "SignWith",
    "Signer",
    "Trust",
    "Trusts",
    "new_key",
    "public_key",
    "signers",
    "trusted",
]

# The beginning of a secret key's text.
_SECRET = "PRIVATE+KEY+"


@dataclass(frozen=True, slots=True)
class SignWith:
    """A key that is elsewhere, for `Publisher(sign_key=)`: a key service, a hardware token.

    dc.Publisher(url, sign_key=dc.SignWith("trainer+c74f20a3+ARpc2QcUPDhM...", ask_the_key_service))

    Attributes:
        public: its public key, `NAME+ID+KEY`.
        function: returns the Ed25519 signature, 64 bytes, of the bytes that it is called with.
            Called from another thread, once for each version. An exception from it ends the
            publish, and nothing is committed.
    """

    public: str
    function: Callable[[bytes], bytes]


# A secret key as text, a path of a file that holds one, or a key that is elsewhere.
Signer = str | os.PathLike[str] | SignWith
# A public key as text, alone or followed by the chains that it is for, or a path of a file of such
# lines.
PublicKey = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted keys of a chain, and how many of them must sign a version. Every `trust=` also takes
    a key, a path or a list of both, which means a quorum of 1.

    dc.Subscriber(url, trust=dc.Trust(["trainer+c74f20a3+ARpc2QcUPDhM...", "reviewers.pub"],
    quorum=2))

    Args:
        keys: a public key, a path of a file of them (one per line, `#` begins a comment), or a list
            of both. A key may be followed by the digests of the chains that it is trusted for; by
            default it is for all chains.
        quorum: how many of these keys must have signed.

    Raises:
        UsageError: if the quorum is below 1.
    """

    keys: PublicKey | Sequence[PublicKey]
    quorum: int = 1

    def __post_init__(self) -> None:
        whole("quorum", self.quorum, 1)

    def check(self) -> None:
        """Reads the keys, in the same way as calls with `trust=`.

        Raises:
            UsageError: if one is not a public key, or a file does not exist.
        """
        trusted(self)


# The types that `trust=` takes.
Trusts = Trust | PublicKey | Sequence[PublicKey]


def new_key(name: str) -> str:
    """Makes a new secret key, as text. Keep it secret: with it, others can publish in your name.

    >>> import deltachain as dc
    >>> dc.new_key("trainer").startswith("PRIVATE+KEY+trainer+")
    True

    Args:
        name: a name for people, without spaces and `+`.
    """
    return _native.secret_key(name, os.urandom(32))


def public_key(key: str | os.PathLike[str]) -> str:
    """Returns the public key of a secret one, for `trust=` of readers.

    Args:
        key: the secret key as text, or a path of the file that holds it.

    Raises:
        UsageError: if it is not a secret key.
    """
    return _native.public_key(_secret(key, "key"))


class KeySigner(NamedTuple):
    """A key that signs."""

    key: str
    """A secret key, or a public one if there is a function."""
    function: Callable[[bytes], bytes] | None
    """The function that signs, or None."""


class TrustedKeys(NamedTuple):
    """The value of `trust=` in the library's form."""

    keys: list[str]
    quorum: int
    """Number of keys that must have signed."""


def signers(given: Signer | Sequence[Signer] | None) -> list[KeySigner]:
    """Returns the keys that sign: secret ones, or public ones with their functions. The default is
    the key in the environment."""
    name = "sign_key="
    if given is None:
        name = "DELTACHAIN_SIGNING_KEY"
        given = os.environ.get(name, [])
        if isinstance(given, str) and not given.strip():
            # The environment lacks the secret. An unsigned version would break a signed chain.
            raise UsageError(
                f"USAGE: {name} is empty: set it to the secret key, or remove it to sign nothing"
            )
    found: list[KeySigner] = []
    for key in _listed(given):
        if not isinstance(key, SignWith):
            found.append(KeySigner(_secret(key, name), None))
        elif callable(key.function):
            found.append(KeySigner(_public(key.public, "SignWith()"), key.function))
        else:
            raise UsageError("USAGE: SignWith() needs a function that signs")
    return found


def trusted(given: Trusts | None) -> TrustedKeys | None:
    """Returns the keys of `trust=`, and how many must sign."""
    if given is None:
        return None
    trust = given if isinstance(given, Trust) else Trust(given)
    keys: list[str] = []
    for given_key in _listed(trust.keys):
        one = _expanded(given_key)
        if isinstance(one, str) and not (
            os.path.exists(one) or one.endswith(".pub") or one.count("+") < 2
        ):
            keys.append(_public(one, "trust="))
        elif isinstance(one, str | os.PathLike) and not os.path.exists(one):
            raise UsageError(f"USAGE: trust=: there is no such file: {os.fspath(one)!r}")
        else:
            keys += [_public(line, "trust=") for line in _lines(one, "trust=")]
    return TrustedKeys(keys, trust.quorum)


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list | tuple) else [given]


def _expanded(key: Any) -> Any:
    """Expands a path's `~` to an absolute path; returns other values unchanged."""
    return os.path.expanduser(key) if isinstance(key, str | os.PathLike) else key


def _secret(key: object, name: str) -> str:
    """Returns the text of a secret key. Messages do not contain the value, which may be a key with
    a typo."""
    if isinstance(key, str) and "PRIVATE" in key:
        return key.strip()
    lines = _lines(key, name)
    if len(lines) != 1:
        raise UsageError(f"USAGE: {name}: the file must hold one secret key")
    return lines[0]


def _public(key: object, name: str) -> str:
    if not isinstance(key, str):
        raise UsageError(f"USAGE: {name} must be public keys, NAME+ID+KEY, or files of them")
    if _SECRET in key:
        raise UsageError(
            f"USAGE: {name} has a secret key: give the public key, and keep the secret key secret"
        )
    return key.strip()


def _lines(path: object, name: str) -> list[str]:
    """Returns the lines of a file of keys, without comments."""
    path = _expanded(path)
    try:
        if not isinstance(path, str | os.PathLike):
            raise TypeError
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(path, encoding="utf-8") as file:
            lines = [line.split(" #")[0].strip() for line in file]
    except (OSError, ValueError, TypeError) as error:
        why = f": {error.strerror}" if isinstance(error, OSError) else ""
        raise UsageError(
            f"USAGE: {name} is neither a key nor a readable file of keys{why}"
        ) from None
    return [line for line in lines if line and not line.startswith("#")]
