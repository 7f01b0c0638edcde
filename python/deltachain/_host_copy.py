"""The directory of a copy that another process manages: views of its files, and changes between
versions."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import _native
from ._chain import given
from ._errors import TornError, UsageError
from ._files import Patch, check_all_read, patch_of, taken
from ._settings import absolute
from ._tensors import Kind, Tensor, check_dtype, checked_kind, shaped, usual_kind

__all__ = ["FoundVersion", "HostCopy", "find_version"]


class FoundVersion(NamedTuple):
    """A version in a directory that a follower manages."""

    version: int
    """Its number."""
    digest: str
    """Its state digest: 64 hexadecimal digits."""
    path: str
    """The directory of its files, without symbolic links. The follower removes it after the version
    after the next."""
    metadata: dict[str, str]
    """The metadata given when it was published, such as the step."""

    def tensors(self, kind: Kind | None = None) -> Mapping[str, Any]:
        """Its tensors: views of mapped files, which stay valid when the files are removed. `kind`
        is as for `Subscriber`.

        Raises:
            Error, OSError: if the files were removed before.
        """
        return mapped(self.path, checked_kind(kind) or usual_kind())


def find_version(
    directory: str | os.PathLike[str], version: int | None = None
) -> FoundVersion | None:
    """A version in the directory of a `Subscriber(host_copy=...)`, which may be of another process.
    It is complete.

    Args:
        directory: the directory.
        version: its number; None: the current version.

    Returns:
        The version; None if it is not there, or is being removed.

    Raises:
        IoError: if the directory cannot be read.
    """
    found = _native.find_version(absolute(directory), version)
    if found is None:
        return None
    return FoundVersion(
        version=found.version,
        digest=found.digest,
        path=os.path.realpath(found.directory),
        metadata=given(found.metadata),
    )


class FullPatches(Iterator[Patch]):
    """All tensors of a version, with or without a `with` block."""

    def __init__(self, patches: Iterator[Patch]) -> None:
        self._patches = patches

    def __next__(self) -> Patch:
        return next(self._patches)

    def __enter__(self) -> FullPatches:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            check_all_read(self._patches)


class HostCopy:
    """The directory of a `Subscriber(host_copy=...)`, for other processes of the machine. Any
    number of them can read it.

        copy = dc.HostCopy("models/run7")
        for patch in copy.full(): ...          # every tensor, as views of files that are mapped
        while serving:
            if copy.is_behind:
                with engine.paused(), copy.applying() as patches: ...

    Args:
        path: the directory.
        kind: as for `Subscriber`.

    Attributes:
        held: the directory of the version that this process holds; None before `full()`.
    """

    def __init__(self, path: str | os.PathLike[str], *, kind: Kind | None = None) -> None:
        self._path = absolute(path)
        self._kind = checked_kind(kind) or usual_kind()
        self.held: str | None = None
        self._held_metadata: dict[str, str] = {}
        self._torn = False
        if not os.path.isdir(self._path):
            raise UsageError(f"USAGE: no such directory (file {self._path})", file=self._path)

    @property
    def current(self) -> str | None:
        """The directory of the current version; None if there is none yet."""
        link = os.path.join(self._path, "current")
        return os.path.realpath(link) if os.path.islink(link) else None

    @property
    def version(self) -> int | None:
        """The number of the current version; None if there is none yet."""
        found = find_version(self._path)
        return None if found is None else found.version

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the version that this process holds, or of the current one before
        `full()`, as given when it was published, such as the step. Empty if there is none yet.
        Reading it does not access the store."""
        if self.held is not None:
            return dict(self._held_metadata)
        found = find_version(self._path)
        return {} if found is None else found.metadata

    @property
    def is_behind(self) -> bool:
        """True if the current version is not the held version."""
        return self.current != self.held

    @property
    def torn(self) -> bool:
        """True if this process may hold parts of two versions, as in `Subscriber.torn`: use
        `full()`."""
        return self._torn

    def tensors(self) -> Mapping[str, Any]:
        """The tensors of the current version: views of mapped files, which all processes share.
        They are read-only; a process that writes to one of torch gets its own copy of that page."""
        current = self.current
        if current is None:
            raise UsageError(
                f"USAGE: the directory holds no version yet (file {self._path})", file=self._path
            )
        return mapped(current, self._kind)

    def full(self) -> FullPatches:
        """Every tensor of the current version, as an iterator. When all have been read, this
        process holds that version. A `with` block that does not read all of them raises a
        TornError."""
        return FullPatches(self._full())

    def _full(self) -> Iterator[Patch]:
        found = find_version(self._path)
        if found is None:
            raise UsageError(
                f"USAGE: the directory holds no version yet (file {self._path})", file=self._path
            )
        tensors = raw(found.path)
        check_dtypes(self._kind, tensors)
        self._torn = True
        for name, (dtype, shape, data) in tensors.items():
            yield Patch(name, shape, dtype, None, shaped(self._kind, dtype, shape, data))
        self.held, self._held_metadata = found.path, found.metadata
        self._torn = False

    @contextmanager
    def applying(self, *, threads: int | None = None) -> Iterator[Iterator[Patch]]:
        """The changes from the held version to the current one; see `Update.applying`.

        Raises:
            TornError: if this process is torn, or the held version's files were removed; at the
                end, if the block has not read all patches.
            UsageError: before `full()`; or if a dtype is one that the library of `kind=` does not
                have. Nothing has changed.
        """
        _native.check_settings(threads, [])
        if self._torn:
            raise TornError("an update was interrupted: load all tensors with full()")
        if self.held is None:
            raise UsageError("USAGE: load all tensors with full() first")
        found = find_version(self._path)
        if found is None or not os.path.isdir(self.held):
            raise TornError(
                "the files of the held version were removed: load all tensors with full()"
            )
        check_dtypes(self._kind, raw(found.path))
        self._torn = True
        with taken(differences(self.held, found.path, self._kind, threads)) as patches:
            yield patches
        self.held, self._held_metadata = found.path, found.metadata
        self._torn = False


def raw(path: str) -> dict[str, tuple[str, tuple[int, ...], memoryview]]:
    """Dtype, shape and bytes of the tensors of a verified model, by name: a directory, or one file.
    The bytes are views of mapped files."""
    files: dict[str, memoryview] = {}
    found: dict[str, tuple[str, tuple[int, ...], memoryview]] = {}
    for one in _native.checkpoint(path)["tensors"]:
        part = os.fspath(one.path)
        if part not in files:
            with open(part, "rb") as file:
                # A private mapping: code that writes to a view gets its own copy of the page.
                files[part] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        shape = tuple(one.shape)
        size = Tensor(one.dtype, shape, b"").nbytes
        found[one.name] = (one.dtype, shape, files[part][one.offset : one.offset + size])
    return found


def check_dtypes(kind: Kind, tensors: Mapping[str, tuple[str, tuple[int, ...], Any]]) -> None:
    """Refuses dtypes that a library does not have.

    Raises:
        UsageError: with the tensor's name.
    """
    for name, (dtype, _, _) in tensors.items():
        check_dtype(kind, dtype, name)


def mapped(directory: str, kind: Kind) -> dict[str, Any]:
    """Returns the tensors of a model, as tensors of the library `kind`."""
    return {
        name: shaped(kind, dtype, shape, data)
        for name, (dtype, shape, data) in raw(directory).items()
    }


def differences(before: object, after: str, kind: Kind, threads: int | None) -> Iterator[Patch]:
    """Yields the changes from tensors, or a model's directory, to the model in another directory,
    tensor by tensor."""
    number: int | None = 0
    while number is not None:
        found = _native.compare(before, after, number, threads)
        number = found["next"]
        for patch in found["patches"]:
            yield patch_of(patch, kind)
