"""The errors of files that are no links, or broken ones, that few programs tell from a
`CorruptError`: `rule` says more."""

from __future__ import annotations

from ._errors import MalformedError, NonCanonicalError, NotDcfError, TruncatedError

__all__ = ["MalformedError", "NonCanonicalError", "NotDcfError", "TruncatedError"]
