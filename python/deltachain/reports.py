"""The classes of results, for annotations: functions return them."""

from __future__ import annotations

from ._chain import (
    Asset,
    CompactReport,
    DirectoryReport,
    DoctorReport,
    FsckReport,
    MirrorReport,
    PruneReport,
    Route,
)
from ._files import ApplyReport, DiffReport, Header, LinkTensor, StateDigest
from ._fleet import FleetReport, Member
from ._publisher import PublishReport

__all__ = [
    "ApplyReport",
    "Asset",
    "CompactReport",
    "DiffReport",
    "DirectoryReport",
    "DoctorReport",
    "FleetReport",
    "FsckReport",
    "Header",
    "LinkTensor",
    "Member",
    "MirrorReport",
    "PruneReport",
    "PublishReport",
    "Route",
    "StateDigest",
]
