"""Opens the store of a chain."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from . import _native

__all__ = ["Credentials", "open_store"]

Credentials = Callable[[], Mapping[str, Any]]


def open_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    credentials: Credentials | None = None,
    create: bool = False,
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
        create: create the directory if there is none.
        stall: abort an attempt after this many seconds without a byte in either direction (60).
        attempts: maximum attempts per operation, if its failure is retryable (8).
        max_rate: rate limit in bytes per second, for all requests together.
    """
    settings = [(str(key), _text(value)) for key, value in (storage_options or {}).items()]
    return _native.Store(os.fspath(url), settings, credentials, create, stall, attempts, max_rate)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
