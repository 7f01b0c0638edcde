"""Links: made from two states, applied to a base, opened and read. A state is a path, or a mapping
of names to tensors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, Unpack, overload

from . import _native
from ._errors import TornError, UsageError
from ._settings import absolute, function, maybe_absolute, notes, present
from ._tensors import (
    PACKED,
    Kind,
    Tensor,
    allocator,
    checked_kind,
    kind_of,
    known,
    shaped,
    writable,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "ApplyReport",
    "DiffReport",
    "Header",
    "Link",
    "LinkTensor",
    "Patch",
    "StateDigest",
    "apply",
    "diff",
    "digest",
    "snapshot",
]

Path = str | os.PathLike[str]
Tensors = Mapping[str, Any]
# A module of torch, which need not be installed, cannot be joined by `|`.
State = Union[Path, Tensors, "torch.nn.Module"]
Profile = Literal["compact", "local", "direct"]
Progress = Callable[[str, int, int], object]

# Bytes of tensors whose patches are read together.
_BATCH = 64 << 20


@dataclass(frozen=True, slots=True)
class DiffReport:
    """Figures of a link.

    Attributes:
        base: state digest of the base: 64 hexadecimal digits.
        target: state digest of the target.
        bytes: length of the link.
        target_bytes: bytes of the target's tensors.
        elements: lanes of the target. A lane is an element, or a byte of a packed dtype.
        changed: lanes that differ from the base, or are new.
        tensors: tensors that the link lists.
    """

    base: str
    target: str
    bytes: int
    target_bytes: int
    elements: int
    changed: int
    tensors: int


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """Figures of an apply to files.

    Attributes:
        base: state digest of the base.
        target: state digest of the result.
        target_bytes: bytes of its tensors.
        written: bytes that were written to disk.
        copied: names of files copied from the base's directory.
    """

    base: str
    target: str
    target_bytes: int
    written: int
    copied: list[str]


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a link (SPEC.md section 4). Lengths are in bytes.

    Attributes:
        base: digest of the state that the link starts from, 64 hexadecimal digits.
        target: digest of the state that it leads to.
        compatible_features: bits of features that a reader may ignore.
        index_stored: length of the index in the file, compressed.
        index_raw: its length when it is decompressed.
        segments_length: length of all segments.
        extension_length: length of the extension area.
        file_length: length of the whole file.
    """

    base: str
    target: str
    compatible_features: int
    index_stored: int
    index_raw: int
    segments_length: int
    extension_length: int
    file_length: int


@dataclass(frozen=True, slots=True)
class LinkTensor:
    """A tensor in a link's index.

    Attributes:
        name: its name.
        operation: `patch` starts from the base's tensor, `set` from zeros.
        dtype: in the target; None if it is removed.
        shape: in the target; empty if it is removed.
        digest: in the target; None if it is removed.
    """

    name: str
    operation: Literal["patch", "set", "remove"]
    dtype: str | None
    shape: tuple[int, ...]
    digest: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """The changes of one tensor.

    `indices` and `values` are tensors of the caller's library: torch, numpy, or buffers
    (`memoryview` and `deltachain.Tensor`) if it uses neither. They are read-only copies that you
    can keep. torch has no read-only tensors: writing to those changes only the copy.

    Attributes:
        name: the tensor's name.
        shape: shape of the whole tensor.
        dtype: its name in safetensors, such as `"BF16"`.
        indices: changed lanes: strictly ascending numbers in the flattened tensor, int32, or int64
            if it has more than 2^31. None means all lanes. A lane is an element, or a byte of a
            packed dtype (F4, F6).
        values: the new values: one for each index, or the whole tensor if `indices` is None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    indices: Any
    values: Any

    @property
    def count(self) -> int:
        """Number of lanes in the patch."""
        width = 1 if self.dtype in PACKED else Tensor(self.dtype, (), b"").nbytes
        data = self.values.data if isinstance(self.values, Tensor) else self.values
        nbytes = getattr(data, "nbytes", None)
        return int((memoryview(data).nbytes if nbytes is None else nbytes) // width)


@dataclass(frozen=True, slots=True)
class StateDigest:
    """A state's digest (SPEC.md section 3), and those of its tensors.

    Attributes:
        digest: of the state, 64 hexadecimal digits.
        tensors: dtype, shape and digest of each tensor, by name.
    """

    digest: str
    tensors: dict[str, tuple[str, tuple[int, ...], str]]

    def __str__(self) -> str:
        return self.digest


def located(state: Any) -> Any:
    """Returns a state as the library takes it: an absolute path, the tensors of a module, or the
    value unchanged."""
    if isinstance(state, str | os.PathLike):
        return present(state)
    tensors = known(state)
    return state if tensors is None else tensors


def patch_of(patch: _native.TensorPatch, kind: Kind) -> Patch:
    """Returns a patch with tensors of the caller's library."""
    name, dtype, shape, lanes = patch.name, patch.dtype, tuple(patch.shape), patch.indices
    if lanes is None:
        return Patch(name, shape, dtype, None, shaped(kind, dtype, shape, patch.values))
    # A lane of a packed dtype is a byte.
    lane = "U8" if dtype in PACKED else dtype
    values = shaped(kind, lane, (len(lanes),), patch.values)
    indices: Any
    if kind == "torch":
        import torch

        wide = memoryview(lanes).itemsize == 8
        indices = torch.frombuffer(writable(lanes), dtype=torch.int64 if wide else torch.int32)
    elif kind == "numpy":
        import numpy

        indices = numpy.frombuffer(lanes, dtype=memoryview(lanes).format)
    else:
        indices = memoryview(lanes)
    return Patch(name, shape, dtype, indices, values)


@contextmanager
def taken(patches: Iterator[Patch]) -> Iterator[Iterator[Patch]]:
    """Passes patches to a block, which must read all of them.

    Raises:
        TornError: if the block has not read all patches.
    """
    yield patches
    check_all_read(patches)


def check_all_read(patches: Iterator[Patch]) -> None:
    """Refuses patches that a block has left unread.

    Raises:
        TornError: if patches are left.
    """
    left = next(patches, None)
    if left is not None:
        raise TornError(
            "the block ended before it read all patches; the next one is of "
            f"{left.name!r}: use full()"
        )


class Link:
    """A link: the file that turns one state, the base, into another one, the target. Made by `open`
    and `diff`.

    Header and index have been read and checked. Use `with` or `close()` to free it early. A link
    cannot be pickled; `bytes(link)` can.
    """

    __slots__ = ("_native", "report")

    def __init__(self, native: _native.Link, report: DiffReport | None = None) -> None:
        self._native = native
        self.report = report
        """Its figures, if `diff` made it."""

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file or frees the memory."""
        self._native.close()

    def __repr__(self) -> str:
        return f"<deltachain.Link {self.base[:12]} -> {self.target[:12]}, {len(self)} bytes>"

    def __len__(self) -> int:
        return self._native.length

    def __bytes__(self) -> bytes:
        return bytes(self._native.to_bytes())

    def __reduce__(self) -> Any:
        raise TypeError(
            "links cannot be pickled: send bytes(link), or open them where they are used"
        )

    @property
    def path(self) -> str | None:
        """The path that the link was opened from."""
        path = self._native.path
        return None if path is None else os.fspath(path)

    @property
    def base(self) -> str:
        """State digest of the base: 64 hexadecimal digits."""
        return self._native.base

    @property
    def target(self) -> str:
        """State digest of the target."""
        return self._native.target

    @property
    def metadata(self) -> dict[str, str]:
        """Free text in the link, such as step and run."""
        return self._native.metadata

    @property
    def is_direct(self) -> bool:
        """Whether patches can be read without the base."""
        return self._native.is_direct

    @property
    def header(self) -> Header:
        """The fields of the header."""
        return Header(**self._native.header())

    @property
    def index(self) -> list[LinkTensor]:
        """The tensors that the link changes, by name. Others are as in the base."""
        return [
            LinkTensor(one.name, one.operation, one.dtype, tuple(one.shape), one.digest)
            for one in self._native.tensors()
        ]

    def verify(self, *, threads: int | None = None, progress: Progress | None = None) -> None:
        """Reads, decodes and checks every segment. Only `apply` verifies the target, because that
        needs the base.

        Raises:
            Error: if a check fails.
        """
        function("progress", progress)
        self._native.verify(threads, progress)

    def patches(
        self,
        base: State | None = None,
        names: Iterable[str] | Callable[[str], bool] | None = None,
        *,
        kind: Kind | None = None,
    ) -> Iterator[Patch]:
        """The link's changes, tensor by tensor, by name. Removed tensors are not included: see
        `index`.

        Neither base nor result is verified: `apply` and `Subscriber` do that.

        Args:
            base: the base of the link. Links that are not direct need it.
            names: only these tensors: names, or a function that selects them. Only the parts of the
                file that they need are read.
            kind: `"torch"`, `"numpy"` or `"deltachain"`: the kind of indices and values. By
                default, as the base's.

        Raises:
            UsageError: if the base is needed and missing, or does not have the tensor.
        """
        native, base = self._native, located(base)
        wanted = names if callable(names) else None if names is None else set(names).__contains__
        given = base if isinstance(base, Mapping) else {}
        usual = checked_kind(kind) or (
            kind_of(next(iter(given.values()))) if given else "deltachain"
        )
        batch: list[int] = []
        held = 0
        for number, one in enumerate(native.tensors()):
            if one.operation == "remove" or (wanted is not None and not wanted(one.name)):
                continue
            batch.append(number)
            held += Tensor(one.dtype or "U8", one.shape, b"").nbytes
            if held >= _BATCH or len(batch) >= 4096:
                yield from (patch_of(patch, usual) for patch in native.patches(batch, base))
                batch, held = [], 0
        if batch:
            yield from (patch_of(patch, usual) for patch in native.patches(batch, base))

    def save(self, path: Path, *, replace: bool = False) -> None:
        """Writes the link to a file, atomically."""
        _native.write_file(absolute(path), self._native, replace)


def open(link: Path | bytes | bytearray | memoryview) -> Link:
    """Opens a link from a path, or from bytes, which are copied. Reads and checks its header and
    index.

    Raises:
        Error: the class and rule of the first of steps 1 to 6 of SPEC.md section 10 that fails;
            IoError.
    """
    if isinstance(link, str | os.PathLike):
        return Link(_native.open_link(absolute(link), None))
    return Link(_native.open_link(None, bytes(memoryview(link))))


class _Work(TypedDict, total=False):
    """Settings of functions that take long and write."""

    replace: bool
    threads: int | None
    progress: Progress | None


class _Diff(_Work, total=False):
    """Settings of `diff`."""

    profile: Profile
    metadata: Mapping[str, str] | None


class _Apply(_Work, total=False):
    """Settings of `apply`."""

    kind: Kind | None


@overload
def diff(
    base: State | None, target: State, out: None = None, **settings: Unpack[_Diff]
) -> Link: ...
@overload
def diff(base: State | None, target: State, out: Path, **settings: Unpack[_Diff]) -> DiffReport: ...
def diff(
    base: State | None,
    target: State,
    out: Path | None = None,
    *,
    profile: Profile = "compact",
    metadata: Mapping[str, str] | None = None,
    replace: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Link | DiffReport:
    """Makes the link from one state to another.

    Each state is a safetensors file, a directory of them, a module of torch, or a mapping from
    names to tensors: of torch (those on a device are read piece by piece), numpy, anything with the
    buffer protocol, or `deltachain.Tensor`. Tensors are not copied: do not write to them during the
    call.

    Args:
        base: the state that the link is applied to; None for a snapshot.
        target: the state that it leads to.
        out: the file to write. By default, the link stays in memory.
        profile: `"compact"` for the smallest file, `"local"` for readers in place, `"direct"` for
            patches that can be read without the base.
        metadata: free text in the link.
        replace: whether a file at `out` may be replaced.
        threads: number of threads; by default, as many as processors.
        progress: called as `progress(phase, done, total)` about twenty times a second, in bytes. An
            exception from it ends the work.

    Returns:
        The link, or its figures if it was written to a file.

    Raises:
        UsageError: if a tensor is not usable (the message names it), or `out` exists.
        IoError: if files cannot be read or written.

    >>> import deltachain as dc
    >>> old, new = {"w": bytearray(b"abc")}, {"w": bytearray(b"abd")}
    >>> link = dc.diff(old, new)
    >>> link.report.changed
    1
    >>> bytes(dc.apply(old, [link])["w"].data)
    b'abd'
    """
    function("progress", progress)
    text, place = notes(metadata), maybe_absolute(out)
    settings = {"profile": profile, "metadata": text, "replace": replace}
    made = _native.diff(located(base), located(target), place, settings, threads, progress)
    link, report = made["link"], DiffReport(**made["report"])
    return report if link is None else Link(link, report)


@overload
def snapshot(state: State, out: None = None, **options: Unpack[_Diff]) -> Link: ...
@overload
def snapshot(state: State, out: Path, **options: Unpack[_Diff]) -> DiffReport: ...
def snapshot(state: State, out: Path | None = None, **options: Unpack[_Diff]) -> Link | DiffReport:
    """Makes a link that needs no base. Options are those of `diff`."""
    return diff(None, state, **options) if out is None else diff(None, state, out, **options)


@overload
def apply(
    base: State | None, links: Iterable[Link | Path], out: None = None, **settings: Unpack[_Apply]
) -> dict[str, Any]: ...
@overload
def apply(
    base: State | None, links: Iterable[Link | Path], out: Path, **settings: Unpack[_Apply]
) -> ApplyReport: ...
def apply(
    base: State | None,
    links: Iterable[Link | Path],
    out: Path | None = None,
    *,
    kind: Kind | None = None,
    replace: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any] | ApplyReport:
    """Applies links one after another, in one pass, and verifies the result.

    Args:
        base: the state that the first link is applied to, as for `diff`; None if that link is a
            snapshot.
        links: open links, or paths.
        out: the file or directory to write; then the base must be None or a path. By default, new
            tensors are made.
        kind: `"torch"`, `"numpy"` or `"deltachain"`: the kind of new tensors. By default, as the
            base's.
        replace: whether an existing `out` may be replaced.
        threads, progress: as for `diff`.

    Returns:
        A mapping from names to new tensors, or figures if files were written.

    Raises:
        WrongBaseError: if the links are for another base. Nothing has been written.
        Error: if a link has another fault; `.link` is its number.
    """
    function("progress", progress)
    base = located(base)
    given = [links] if isinstance(links, Link | str | os.PathLike) else list(links)
    if out is None:
        opened = [link if isinstance(link, Link) else open(link) for link in given]
        natives = [link._native for link in opened]
        return _native.apply_tensors(base, natives, allocator(base, kind), threads, progress)
    if base is not None and not isinstance(base, str | os.PathLike):
        raise UsageError("USAGE: to write files, the base must be None or a path")
    with tempfile.TemporaryDirectory(prefix="deltachain-") as folder:
        paths = []
        for number, link in enumerate(given):
            if isinstance(link, Link):
                # Links in memory become temporary files.
                path = link.path or os.path.join(folder, str(number))
                if link.path is None:
                    link.save(path)
                paths.append(path)
            else:
                paths.append(absolute(link))
        built = _native.apply_files(
            maybe_absolute(base), paths, absolute(out), replace, threads, progress
        )
    return ApplyReport(**built)


def digest(
    state: State, *, threads: int | None = None, progress: Progress | None = None
) -> StateDigest:
    """Computes the digest that identifies a state in links and chains. Reads the whole state.

    >>> import deltachain as dc
    >>> str(dc.digest({}))[:12]
    'f2196cc6ca6d'
    """
    function("progress", progress)
    found = _native.digest(located(state), threads, progress)
    tensors = {one.name: (one.dtype, tuple(one.shape), one.digest) for one in found["tensors"]}
    return StateDigest(found["digest"], tensors)
