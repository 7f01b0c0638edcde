"""Settings of the backend for vLLM: the settings that the server's own configuration fixes, and the
ones that a request may give.

Any client that reaches a server's port may send requests. So only the configuration can name a
chain. A request can at most point to a directory that another process of this machine manages, and
only read it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltachain import Trust, UsageError
from deltachain.adapters import is_managed

__all__ = ["CONFIGURATION", "SGLANG", "Settings", "fixed", "in_environment", "merged"]

# The option with the configuration, for messages.
CONFIGURATION = "--additional-config '{\"deltachain\": {...}}'"

# The variable with the settings for SGLang, whose configuration has no place for them.
SGLANG = "DELTACHAIN_SGLANG"

# Settings that requests may give, too, with their possible values.
_CHOICES = {
    "mode": ("auto", "sparse", "reload"),
    "kv": ("recompute", "keep"),
    "start": ("model", "newest"),
}
_TEXTS = ("chain", "host_copy")

# The settings of vLLM's backend that mean the same in SGLang, and those that have one value there.
_OF_SGLANG = {"chain", "trust", "quorum", "timeout", "start"}
_FIXED_IN_SGLANG = {"mode": "sparse", "kv": "recompute"}


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings: docs/integrations.md.

    Attributes:
        chain: the chain that this server downloads itself; None if another process downloads it.
        host_copy: the directory that all workers of a machine share; None: one in memory, which
            this server manages.
        mode: `"sparse"`: changes are written in place, without a copy of the model; needs `chain`.
            `"reload"`: the whole version is loaded layer by layer. `"auto"`: sparse if all of the
            model can be written in place.
        kv: `"recompute"`: the caller pauses with `mode=keep`, which drops caches of older weights.
            `"keep"`: the caller keeps them (`clear_cache=false`), and answers may mix two versions.
        timeout: maximum seconds that an update, or the start, waits for a version.
        start: `"model"`: the server begins to serve with its own model. `"newest"`: with the newest
            version.
        trust: public keys, or files of them: only versions that these have signed are downloaded
            (`chain`).
        quorum: how many of these keys have to sign.
    """

    chain: str | None = None
    host_copy: str | None = None
    mode: str = "auto"
    kv: str = "recompute"
    timeout: float = 600.0
    start: str = "model"
    trust: str | list[str] | None = None
    quorum: int = 1

    @property
    def signed_by(self) -> Trust | None:
        """The signers whose versions are downloaded; None: any signer, or none."""
        return None if self.trust is None else Trust(self.trust, self.quorum)


def fixed(additional: object, place: str = CONFIGURATION) -> dict[str, Any]:
    """The settings in the server's configuration, vLLM's `additional_config`, or in the place that
    stands for it.

    Raises:
        UsageError: if one is unknown or invalid.
    """
    given = additional.get("deltachain") if isinstance(additional, Mapping) else None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"USAGE: the settings in {place} must be an object")
    unknown = sorted(set(given) - set(Settings.__slots__))
    if unknown:
        names = ", ".join(Settings.__slots__)
        raise UsageError(
            f"USAGE: unknown in {place}: {', '.join(map(str, unknown))}; the settings are {names}"
        )
    settings = {name: value for name, value in given.items() if value is not None}
    for name, value in settings.items():
        _check(name, value)
    if settings.get("start") == "newest" and not {"chain", "host_copy"} & set(settings):
        raise UsageError(f'USAGE: "start": "newest" needs "chain" or "host_copy" in {place}')
    if "trust" in settings and "chain" not in settings:
        raise UsageError(
            f'USAGE: "trust" in {place} needs "chain" there: the process that downloads the chain '
            "checks signatures (`deltachain follow --trust`)"
        )
    whose = Settings(**settings).signed_by
    if whose is not None:
        whose.check()
    elif settings.get("quorum", 1) != 1:
        raise UsageError(f"USAGE: quorum= needs trust= in {place}")
    return settings


def in_environment() -> dict[str, Any]:
    """The settings of SGLang's plugin, in the environment.

    Raises:
        UsageError: if one is unknown, invalid or missing.
    """
    try:
        given = json.loads(os.environ.get(SGLANG, "null"))
    except ValueError as error:
        raise UsageError(f"USAGE: {SGLANG} is not valid JSON: {error}") from error
    settings = fixed({"deltachain": given}, SGLANG)
    for name, value in _FIXED_IN_SGLANG.items():
        if settings.pop(name, value) != value:
            raise UsageError(f"USAGE: {name} in {SGLANG}: SGLang has only {value!r}")
    if other := sorted(set(settings) - _OF_SGLANG):
        raise UsageError(f"USAGE: {', '.join(other)} in {SGLANG}: not for SGLang")
    if "chain" not in settings:
        raise UsageError(f'USAGE: set "chain" in {SGLANG}')
    return {**settings, **_FIXED_IN_SGLANG}


def merged(configured: Mapping[str, Any], told: Mapping[str, Any]) -> Settings:
    """The settings of the configuration, with those that a request adds.

    Args:
        configured: as `fixed` returns it.
        told: the request's `init_info`; None means not given.

    Raises:
        UsageError: if a request would change the configuration, open a chain, or read a directory
            that it may not.
    """
    added = {}
    for name, value in told.items():
        if value is None:
            continue
        _check(name, value)
        if name in configured:
            if _plain(name, value) != _plain(name, configured[name]):
                raise UsageError(
                    f"USAGE: {name} is {configured[name]!r} in this server's configuration "
                    f"({CONFIGURATION}); a request cannot change it to {value!r}"
                )
            continue
        if name == "chain":
            raise UsageError(
                'USAGE: a request cannot make this server open a chain: set "chain" in the '
                "server's configuration, "
                f"{CONFIGURATION}, or run `deltachain follow --engine vllm` beside it"
            )
        if name == "host_copy":
            if "chain" in configured:
                raise UsageError(
                    f"USAGE: this server downloads {configured['chain']!r} itself "
                    f"({CONFIGURATION}): run `deltachain "
                    'follow --no-tensors`, which keeps no copy, or omit "chain" there'
                )
            _check_readable(value)
        added[name] = value
    settings = Settings(**{**configured, **added})
    if settings.chain is None and settings.host_copy is None:
        raise UsageError(
            f'USAGE: the backend has no chain: set "chain" or "host_copy" in {CONFIGURATION}, or '
            "run `deltachain "
            "follow --engine vllm` beside the server"
        )
    return settings


def _check(name: str, value: object) -> None:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError(f"USAGE: {name} must be one of {', '.join(_CHOICES[name])}, not {value!r}")
    if name in _TEXTS and not (isinstance(value, str) and value):
        raise UsageError(f"USAGE: {name} must be a string, not {value!r}")
    if name == "timeout" and (
        isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0
    ):
        raise UsageError(f"USAGE: {name} must be a number of seconds, not {value!r}")


def _plain(name: str, value: Any) -> Any:
    """Chains and directories as absolute paths, for comparisons."""
    return os.path.abspath(value) if name in _TEXTS and "://" not in value else value


def _check_readable(path: str) -> None:
    """Refuses a directory that a request may not name. The configuration may name any directory."""

    def refuse(why: str) -> None:
        raise UsageError(
            f'USAGE: a request cannot name this directory: {why}; "host_copy" in {CONFIGURATION} '
            f"can (file {path})",
            file=path,
        )

    # Some characters cannot be in a path.
    if "\0" in path or os.path.realpath(path) != path:
        refuse("it is not an absolute path without symbolic links")
    if not is_managed(path):
        refuse("deltachain does not manage it")
    found = os.lstat(path)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        refuse("another user may have written to it")
