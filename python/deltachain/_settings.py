"""Checks of arguments: invalid ones are refused at once, with the argument's name and the allowed
values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from ._errors import IoError, UsageError

__all__ = ["Stop", "absolute", "choice", "ending", "function", "number", "texts", "whole"]


class _Event(Protocol):
    def is_set(self) -> bool: ...


# The objects that end a wait: an event of threading, or a function that returns whether to stop.
Stop = _Event | Callable[[], bool]


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns an absolute path, which stays right if the process changes its directory; `~` is the
    home directory. Symbolic links are not resolved, since they may be switched.

    Raises:
        IoError: if the path is relative to a directory that does not exist any more.
    """
    path = os.path.expanduser(os.fspath(path))
    # The function that opens the path refuses an empty one.
    if not path or os.path.isabs(path):
        return path
    try:
        here = os.getcwd()
    except OSError as error:
        raise IoError(
            f"IO: the current directory does not exist any more: {error} (file {path})", file=path
        ) from error
    return os.path.join(here, path.removeprefix("./"))


def present(path: str | os.PathLike[str]) -> str:
    """Like `absolute`, for a path to read. A path that does not exist stays as it is: an error
    about it may say more, such as that it is a name on the hub."""
    found = absolute(path)
    return found if os.path.lexists(found) else os.fspath(path)


def maybe_absolute(path: str | os.PathLike[str] | None) -> str | None:
    """Like `absolute`, for an optional path."""
    return None if path is None else absolute(path)


def whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Refuses values other than None and whole numbers from `least` to `most`."""
    number(name, value, least, most, int, "whole number")


def number(
    name: str,
    value: Any,
    least: float,
    most: float | None = None,
    kinds: Any = int | float,
    called: str = "number",
) -> None:
    """Refuses values other than None and numbers from `least` to `most`."""
    is_one = isinstance(value, kinds) and not isinstance(value, bool)
    # NaN is in no range.
    if value is not None and not (is_one and value >= least and (most is None or value <= most)):
        allowed = f" of {least} or more" if most is None else f" from {least} to {most}"
        raise UsageError(
            f"USAGE: {name}= must be a {called}{allowed if least > -math.inf else ''}, not "
            f"{value!r:.60}"
        )


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuses values other than these texts."""
    if value not in allowed:
        listed = " or ".join((", ".join(map(repr, allowed[:-1])), repr(allowed[-1])))
        raise UsageError(f"USAGE: {name}= must be {listed}, not {value!r:.60}")


def function(name: str, value: Any) -> None:
    """Refuses values other than None and functions."""
    if value is not None and not callable(value):
        raise UsageError(f"USAGE: {name}= must be a function, not {value!r:.60}")


def ending(stop: Stop | None) -> Callable[[], bool] | None:
    """Returns a function that says whether `stop` asks to stop; None without a `stop`."""
    check = getattr(stop, "is_set", stop)
    if check is not None and not callable(check):
        raise UsageError(
            f"USAGE: stop= must be an event of threading, or a function, not {stop!r:.60}"
        )
    return check


# Profiles of a chain's links.
RouteProfile = Literal["compact", "local"]


def check_profiles(profiles: Sequence[str]) -> None:
    """Refuses profiles that routes of a chain do not have: `local` is smaller than `direct`, and as
    fast."""
    for profile in profiles:
        if profile not in ("compact", "local"):
            raise UsageError(f"USAGE: profile= must be 'compact' or 'local', not {profile!r:.60}")


def texts(
    name: str, values: Mapping[Any, Any] | None, text_of: Callable[[Any], str] = str
) -> dict[str, str]:
    """Returns the mapping as Unicode texts."""
    if not isinstance(values or {}, Mapping):
        raise UsageError(
            f"USAGE: {name}= must be a mapping from names to texts, not {values!r:.60}"
        )
    found = {str(key): text_of(_number_of(value)) for key, value in (values or {}).items()}
    for text in (*found, *found.values()):
        if not is_unicode(text):
            raise UsageError(f"USAGE: {name}= has a text that is not Unicode: {text!r:.60}")
    return found


def notes(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Returns the metadata of a link or a version, as Unicode texts."""
    found = texts("metadata", metadata)
    for key in found:
        if key.startswith("deltachain."):
            raise UsageError(
                f"USAGE: metadata= has the key {key!r:.60}: keys that begin with deltachain. are "
                "reserved"
            )
    return found


def _number_of(value: Any) -> Any:
    """Returns the number in a tensor or an array without dimensions."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def is_unicode(text: str) -> bool:
    """True if the text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
