"""The store of a chain: its place, and its settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _native
from ._errors import UsageError
from ._settings import absolute, is_unicode, number, texts, whole

__all__ = ["Chain", "Store", "open_store", "store_of"]


class Store:
    """The directory or bucket of a chain, with settings. Every function that takes a chain takes a
    URL, a path, or a `Store`.

        store = dc.Store("s3://models/run7", storage_options={"region": "eu-central-1"},
        max_rate=100 << 20) dc.log(store) with dc.Subscriber(store) as subscriber: ...

    No request is sent until the store is used. Any number of publishers, subscribers and functions
    can use it at the same time; they share its connections and its rate limit. A store belongs to
    the process that made it. All stores of a process share two threads that wait for answers, and
    up to 32 that read and write files, which end when they have nothing to do; `threads=` of a
    function or a class does not count these.

    Args:
        url: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`, or `http(s)://` (read-only).
        storage_options: settings of the store, by their names in obstore:
            `{"region": "eu-central-1"}`, `endpoint`, `access_key_id`. They override the environment
            (`AWS_*`, `GOOGLE_*`, `AZURE_*`). Unknown ones are refused. The value `env:NAME` is that
            of the environment variable NAME.
        credentials: for S3, a function that returns `access_key_id`, `secret_access_key`, `token`
            (or None) and `expires_at` (an aware datetime, or None). Called from another thread,
            again shortly before they expire.
        stall: abort a request after this many seconds without a byte in either direction (60).
        attempts: maximum attempts per operation, if its failure is retryable (8).
        max_rate: rate limit in bytes per second, for all requests, or files of a directory,
            together.
        copies: copies of the chain, as `mirror` makes them. A subscriber downloads files from
            these, in this order, and from `url` the files that they lack. Only `url` determines
            which versions exist: if it fails, a subscriber keeps its version. Nothing else uses
            copies.

    Raises:
        UsageError: if a setting is missing, unknown or invalid.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        credentials: Callable[[], Mapping[str, Any]] | None = None,
        stall: float | None = None,
        attempts: int | None = None,
        max_rate: int | None = None,
        copies: Sequence[str | os.PathLike[str] | Store] = (),
    ) -> None:
        number("stall", stall, 0.001, 10**9)
        whole("attempts", attempts, 1, 1000)
        whole("max_rate", max_rate, 1, (1 << 64) - 1)
        settings = list(texts("storage_options", storage_options, _text).items())
        if credentials is not None and not callable(credentials):
            raise UsageError("USAGE: credentials= must be a function that returns them")
        url = _located(url)
        if not isinstance(url, str) or not is_unicode(url):
            raise UsageError(f"USAGE: the chain's path or URL is not Unicode text: {url!r:.80}")
        if isinstance(copies, (str, bytes, os.PathLike, Store)):
            raise UsageError("USAGE: copies= must be a list of chains")
        options = {
            "storage_options": settings,
            "credentials": credentials,
            "timeout": stall,
            "attempts": attempts,
            "max_rate": max_rate,
            "copies": [store_of(copy)._native for copy in copies],
        }
        self._native: _native.Store = _native.Store(url, options)
        # The URL without secrets, for messages.
        self._name = _native.without_secrets(url)

    def __repr__(self) -> str:
        return f"<deltachain.Store {self._name}>"

    def __reduce__(self) -> Any:
        raise TypeError("stores cannot be pickled: open them in the process that uses them")

    def chain_digest(self) -> str:
        """Returns the digest of `chain.json`, 64 hexadecimal digits: two stores with the same
        digest hold the same chain, or copies of it.

        Raises:
            ChainError: R-CHN-01 if there is no chain.
            IoError: if the store does not answer.
        """
        return self._native.chain_digest()

    def check_exists(self, advice: str = "") -> None:
        """Refuses a directory that does not exist, for which a follower would wait. Does nothing
        for other stores.

        Args:
            advice: what to do about it, for the error.

        Raises:
            UsageError: if it does not exist.
        """
        missing = self._native.missing_directory()
        if missing is not None:
            path = os.fspath(missing)
            raise UsageError(f"USAGE: no such directory (file {path})", file=path, advice=advice)


def _located(url: str | os.PathLike[str]) -> str:
    """Returns a URL unchanged, or an absolute path."""
    text = os.fspath(url)
    return text if isinstance(text, str) and "://" in text else absolute(url)


# The types of a chain argument.
Chain = str | os.PathLike[str] | Store


def store_of(chain: Chain) -> Store:
    """Returns the store of a chain; by default with the settings of the environment."""
    return chain if isinstance(chain, Store) else Store(chain)


def open_store(chain: Chain) -> _native.Store:
    """Opens the store of a chain that exists: refuses a missing directory."""
    store = store_of(chain)
    store.check_exists()
    return store._native


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
