"""Building blocks of the project's own adapters, for authors of adapters for inference engines and
trainers."""

from __future__ import annotations

from ._host_copy import FoundVersion, find_version
from ._native import Servers, difference, is_managed, misfit, version_name, without_secrets
from ._parts import overlapping
from ._tensors import piece_sums

__all__ = [
    "FoundVersion",
    "Servers",
    "difference",
    "find_version",
    "is_managed",
    "misfit",
    "overlapping",
    "piece_sums",
    "version_name",
    "without_secrets",
]
