"""Opens the store of a chain."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import _native
from ._errors import UsageError
from ._settings import number, texts, whole

__all__ = ["Credentials", "open_store"]

Credentials = Callable[[], Mapping[str, Any]]


def open_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    credentials: Credentials | None = None,
    is_new: bool | None = False,
    stall: float | None = None,
    attempts: int | None = None,
    max_rate: int | None = None,
) -> _native.Store:
    """Opens the store of a chain. Sends no request.

    Args:
        url: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`, or `http(s)://` (read-only).
        storage_options: settings of the store, by their names in obstore and pandas: `{"region": "eu-central-1"}`,
            `endpoint`, `access_key_id`. They override the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
        credentials: for S3, a function without arguments that returns `access_key_id`, `secret_access_key`, `token`
            (or None) and `expires_at` (an aware datetime, or None for never). Called when credentials are needed and
            shortly before they expire, from another thread.
        is_new: if there is no such directory: True creates it, None waits for it, False refuses it.
        stall: abort an attempt after this many seconds without a byte in either direction (60).
        attempts: maximum attempts per operation, if its failure is retryable (8).
        max_rate: rate limit in bytes per second, for all requests together.

    Raises:
        UsageError: if a setting is unknown or invalid.
    """
    number("stall", stall, 0.001, 1e9)
    whole("attempts", attempts, 1, 1000)
    whole("max_rate", max_rate, 1, (1 << 64) - 1)
    settings = list(texts("storage_options", storage_options, _text).items())
    if credentials is not None and not callable(credentials):
        raise UsageError("USAGE: credentials= must be a function that returns them")
    return _native.Store(os.fspath(url), settings, credentials, is_new, stall, attempts, max_rate)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
