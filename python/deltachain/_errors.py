"""The errors of this package: `Error`, with a class for each error class of the format (SPEC.md section 11)."""

from __future__ import annotations

import builtins
from typing import Any

__all__ = [
    "ChainError",
    "CorruptError",
    "Error",
    "ForkedError",
    "InUseError",
    "InternalError",
    "IoError",
    "LimitError",
    "MalformedError",
    "NonCanonicalError",
    "NotDcfError",
    "StateMismatchError",
    "TimeoutError",
    "TornError",
    "TruncatedError",
    "UnsupportedError",
    "UsageError",
    "WrongBaseError",
]


class Error(Exception):
    """Why something was refused or failed. What you hold has not changed.

    `str(error)` is one line for people: class, rule, message, place. Programs ask the class and the attributes.

    Attributes:
        rule: the rule of SPEC.md that was broken, such as `"R-APP-01"`; None if it is not about a rule.
        section: the part of the link that has the fault: `"header"`, `"index"` or `"segment 3"`.
        offset: bytes from the beginning of the file to the fault.
        tensor: the tensor concerned.
        file: the file or object concerned.
        link: of several links, the number of the one with the fault, counted from 0.
        advice: what you can do about it, in one phrase; empty where the message says it.
        retryable: whether the same call may succeed later, although you change nothing.
    """

    def __init__(
        self,
        message: str = "",
        *,
        rule: str | None = None,
        section: str | None = None,
        offset: int | None = None,
        tensor: str | None = None,
        file: str | None = None,
        link: int | None = None,
        advice: str = "",
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.section = section
        self.offset = offset
        self.tensor = tensor
        self.file = file
        self.link = link
        self.advice = advice
        self.retryable = retryable

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes; the arguments with names would be lost.
        return (_restored, (type(self), self.args, self.__dict__))


def _restored(kind: type[Error], args: tuple[Any, ...], fields: dict[str, Any]) -> Error:
    error = kind(*args)
    error.__dict__.update(fields)
    return error


class NotDcfError(Error):
    """The bytes are not a link."""


class TruncatedError(Error):
    """The file ends early: fetch it again."""


class CorruptError(Error):
    """A checksum does not match: fetch it again."""


class MalformedError(Error):
    """Checksums match, but the content breaks a rule: the program that wrote the file has a bug."""


class NonCanonicalError(Error):
    """A value is written in another than its one form: the program that wrote the file has a bug."""


class UnsupportedError(Error):
    """The file was made for a newer reader: update deltachain."""


class LimitError(Error):
    """The file asks for more than the format or the limits allow."""


class WrongBaseError(Error):
    """The link, or the chain, belongs to other weights than those that you have."""


class StateMismatchError(Error):
    """The result is not what the link promises. Do not use it."""


class ChainError(Error):
    """The chain lacks something, forks, or does not lead where it should."""


class IoError(Error, OSError):
    """The operating system, the network or the store failed."""


class UsageError(Error, ValueError):
    """The caller asked for something that cannot be."""


class InUseError(UsageError):
    """Another process has locked the directory. It can be used once that process has ended."""


class TimeoutError(Error, builtins.TimeoutError):
    """The time that was given is over. What was under way has been given up; nothing has changed."""

    def __init__(self, message: str = "", *, retryable: bool = True, **fields: Any) -> None:
        super().__init__(message, retryable=retryable, **fields)


class TornError(Error):
    """What was being patched holds parts of two versions. Load all of it: `update.full()`."""


class ForkedError(Error):
    """A handle was used in a child process that was made by `fork()` after the handle had been opened."""


class InternalError(Error):
    """deltachain has a bug. What was being changed is given up: open it anew."""


CLASSES: dict[str, type[Error]] = {
    "NOT_DCF": NotDcfError,
    "TRUNCATED": TruncatedError,
    "CORRUPT": CorruptError,
    "MALFORMED": MalformedError,
    "NON_CANONICAL": NonCanonicalError,
    "UNSUPPORTED": UnsupportedError,
    "LIMIT": LimitError,
    "WRONG_BASE": WrongBaseError,
    "STATE_MISMATCH": StateMismatchError,
    "CHAIN": ChainError,
    "IO": IoError,
    "USAGE": UsageError,
    "IN_USE": InUseError,
    "TIMEOUT": TimeoutError,
    "TORN": TornError,
    "FORKED": ForkedError,
    "INTERNAL": InternalError,
}
