"""The errors of this package: `Error`, with a class for each error class of the format (SPEC.md
section 11)."""

from __future__ import annotations

import builtins
import concurrent.futures
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from . import _native

__all__ = [
    "CancelledError",
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
    "TornError",
    "TruncatedError",
    "UnsupportedError",
    "UsageError",
    "WrongBaseError",
]


class Error(Exception):
    """A refusal or a failure. Your data has not changed.

    `str(error)` is one line for people: class, rule, message, place. Programs use the class and the
    attributes.

    Attributes:
        rule: the rule of SPEC.md that was broken, such as `"R-APP-01"`, if any.
            `python -m deltachain explain R-APP-01` says what it means, what has usually caused it,
            and what to do.
        section: the part of the link that has the fault: `"header"`, `"index"` or `"segment 3"`.
        offset: bytes from the beginning of the file to the fault.
        tensor: the tensor concerned.
        file: the file or object concerned.
        link: of several links, the number of the one with the fault, counted from 0.
        advice: what to do, in one phrase.
        retryable: whether a retry of the same call may succeed.
    """

    # The advice if there is no better one.
    _advice: ClassVar[str] = "see the message"

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
        self.advice = advice or self._advice
        self.retryable = retryable

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are pickled between processes; by default, keyword arguments would be lost.
        return (_restored, (type(self), self.args, self.__dict__))


def _restored(kind: type[Error], args: tuple[Any, ...], fields: dict[str, Any]) -> Error:
    error = kind(*args)
    error.__dict__.update(fields)
    return error


class NotDcfError(Error):
    """The bytes are not a link."""


class TruncatedError(Error):
    """The file ends early: download it again."""


class CorruptError(Error):
    """A checksum does not match: download it again."""


class MalformedError(Error):
    """Checksums match, but the content breaks a rule: the program that wrote the file has a bug."""


class NonCanonicalError(Error):
    """A value is not in canonical form: the program that wrote the file has a bug."""


class UnsupportedError(Error):
    """The file was made for a newer reader: update deltachain."""


class LimitError(Error):
    """The file asks for more than the format or the limits allow."""


class WrongBaseError(Error):
    """The link, or the chain, is for other weights than yours."""


class StateMismatchError(Error):
    """The result does not match the link's digest. Do not use it."""


class ChainError(Error):
    """The chain is incomplete, forked or rolled back, or is not the expected one."""


class IoError(Error, OSError):
    """The operating system, the network or the store failed."""


class UsageError(Error, ValueError):
    """An argument is invalid, or the call is not possible now."""


class InUseError(UsageError):
    """Another process has locked the directory. It can be used once that process has ended."""

    _advice = "end that process, or choose another directory"


class CancelledError(Error, concurrent.futures.CancelledError):
    """`stop=` has ended the call, or `cancel()` the publish. Nothing has changed."""

    _advice = "call again if you like"


class TimeoutError(Error, builtins.TimeoutError):
    """The timeout is over. The work was aborted; nothing has changed."""

    _advice = "call again, or allow more time"

    def __init__(self, message: str = "", *, retryable: bool = True, **fields: Any) -> None:
        super().__init__(message, retryable=retryable, **fields)


class TornError(Error):
    """The patched engine or tensors hold parts of two versions. Load all tensors of an engine with
    `update.full()`; for the tensors of `into=`, prepare again, which loads all of them."""

    _advice = "load all tensors with full()"


class ForkedError(Error):
    """A handle was used in a child process that was made by `fork()` after the handle had been
    opened."""

    _advice = "open another one in this process, or start processes with spawn"


class InternalError(Error):
    """deltachain has a bug. The object is unusable: open a new one."""

    _advice = "report the bug, with what was written to stderr"


@contextmanager
def advised(kinds: tuple[type[Error], ...], advice: str) -> Iterator[None]:
    """Gives errors of these classes in the block the advice that fits the call."""
    try:
        yield
    except kinds as error:
        error.advice = advice
        raise


# By the library's names: NOT_DCF for `NotDcfError`.
CLASSES: dict[str, type[Error]] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).upper(): kind
    for kind in (*Error.__subclasses__(), InUseError)
}

for _name, _text in _native.class_advice().items():
    CLASSES[_name]._advice = _text
