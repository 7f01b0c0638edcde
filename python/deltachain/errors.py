"""Errors of files that are not links, or that are broken links. Few programs need to distinguish
them from a `CorruptError`: `rule` says more."""

from __future__ import annotations

from ._errors import MalformedError, NonCanonicalError, NotDcfError, TruncatedError

__all__ = ["MalformedError", "NonCanonicalError", "NotDcfError", "TruncatedError"]
