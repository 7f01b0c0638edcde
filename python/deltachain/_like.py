"""Converts a trainer's tensors to the names, dtypes, shapes and tied tensors of a reference
checkpoint."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _native
from ._errors import Error, UsageError
from ._host_copy import raw
from ._settings import is_unicode, present
from ._tensors import Tensor, kind_of, known, numpy_dtype, shaped, torch_dtype

__all__ = ["Collector", "Expected", "Like", "Names", "Reference", "pairs", "place_of"]

# Parts that wrappers add to names: torch.compile, FSDP, activation checkpoints, adapters of PEFT.
_INSIDE = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}
_BEFORE = ("module.", "base_model.model.")

# Suffixes of tied embeddings: different names for the same tensor. Checkpoints have one of them, or
# both.
_TIED = (
    "lm_head.weight",
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_out.weight",
)

# Dtypes that differ only in precision.
_FLOATS = {"F64", "F32", "F16", "BF16"}

# Maximum of names in an error message.
_LISTED = 20


class Expected(NamedTuple):
    """The expected form of a tensor, from a checkpoint."""

    dtype: str
    """Its name in safetensors."""
    shape: tuple[int, ...]
    nbytes: int


Transform = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Like:
    """A reference checkpoint, and how a trainer's tensors become its own, for `Publisher(like=)`.

    dc.Publisher(url, like=dc.Like("base/", transform=quantised, other_files=False))

    Args:
        path: a safetensors file, or a directory with one or more of them. Names of tensors in
            folders begin with the folder, such as `vae/encoder.conv_in.weight`. None: versions have
            the trainer's names, dtypes and shapes.
        transform: called with the name (without wrappers) and the tensor, before names and dtypes
            are compared with the checkpoint; returns a tensor, pairs of names and tensors, a
            mapping, or None to leave it out. With a group, each rank calls it for all tensors. For
            trainers whose checkpoint is quantised.
        other_files: whether to publish the assets of the checkpoint, such as configuration and
            tokenizer.
        exclude: patterns of other files that are not published, such as `"*.log"`: a text, or a
            list of them. In names below the directory, `*` stands for any characters. Files that
            trainers save for a resume, such as `optimizer.pt`, are never published.
        fill: whether tensors that the trainer does not give are those of the checkpoint, such as a
            frozen vision tower. Otherwise a missing tensor is an error.
    """

    path: str | os.PathLike[str] | None = None
    transform: Transform | None = None
    other_files: bool = True
    exclude: str | Sequence[str] = ()
    fill: bool = False

    def _patterns(self) -> list[str]:
        """The patterns of `exclude`."""
        return [self.exclude] if isinstance(self.exclude, str) else list(self.exclude)


class Reference:
    """A reference checkpoint: published versions take its names, dtypes and file layout.

    Args:
        path, fill: as in `Like`.

    Raises:
        UsageError: if the path is not a checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str], fill: bool = False) -> None:
        self.path, self.fill = present(path), fill
        checkpoint = _native.checkpoint(self.path)
        self.tensors: dict[str, Expected] = {}
        for one in checkpoint["tensors"]:
            shape = tuple(one.shape)
            nbytes = Tensor(one.dtype, shape, b"").nbytes
            self.tensors[one.name] = Expected(one.dtype, shape, nbytes)
        self.ties: dict[str, str] = {}
        """Names that the checkpoint leaves out, and the tensor that each is tied to."""
        self.twins: dict[str, list[str]] = {}
        """For tensors of the checkpoint, its other tensors that are tied to them."""
        # `safetensors.torch.save_model` records the names that it left out, and the tensors that
        # they are tied to.
        for name, kept in checkpoint["metadata"].items():
            if kept in self.tensors and name not in self.tensors:
                self.ties[name] = kept
        if self._ties_embeddings():
            self._tie_embeddings()
        self._names = Names(self.tensors.keys() | self.ties.keys())

    def _ties_embeddings(self) -> bool:
        try:
            with open(os.path.join(self.path, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            # The model's configuration may declare tied tensors.
            raise UsageError(
                f"USAGE: config.json of like= cannot be read: {error} (file {self.path})",
                file=self.path,
            ) from error
        return isinstance(config, dict) and config.get("tie_word_embeddings") is True

    def _tie_embeddings(self) -> None:
        there = [name for name in self.tensors if name.endswith(_TIED)]
        for name in there:
            same = [
                other
                for other in there
                if other != name and self.tensors[other] == self.tensors[name]
            ]
            if same:
                self.twins[name] = same
        if len(there) == 1:
            kept = there[0]
            for end in _TIED:
                if not kept.endswith(end):
                    self.ties[end] = kept
                    # The checkpoint has lm_head.weight, but not model.embed_tokens.weight.
                    for before in ("model.", "transformer.", "model.language_model."):
                        self.ties[before + end] = kept

    def places(self, name: str) -> list[str]:
        """Returns the tensors of the checkpoint that a trainer's tensor of this name may be written
        to."""
        name = self.bare(name)
        name = self.ties.get(name, name)
        return [name, *self.twins.get(name, ())]

    def bare(self, name: str) -> str:
        """Returns the checkpoint's name of a trainer's tensor; without one, the name without the
        parts that wrappers added."""
        return self._names.find(name)


class Names:
    """Names of a checkpoint or a chain, found independently of the parts that wrappers have added
    to either side."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        # Names without the parts of wrappers. None stands for several names.
        self._by_bare: dict[str, str | None] = {}
        for name in self._names:
            plain = _bare(name, ())
            self._by_bare[plain] = None if plain in self._by_bare else name

    def find(self, name: str) -> str:
        """Returns the matching name. If there is none, or more than one, returns the name without
        the parts that wrappers added."""
        found = _bare(name, self._names)
        if found in self._names:
            return found
        return self._by_bare.get(found) or found


def _bare(name: str, names: Container[str]) -> str:
    """Removes the parts that wrappers added from a name, until it is one of these names."""
    if name in names:
        return name
    name = ".".join(part for part in name.split(".") if part not in _INSIDE)
    while name not in names:
        before = next((before for before in _BEFORE if name.startswith(before)), None)
        if before is None:
            break
        name = name.removeprefix(before)
    return name


def pairs(weights: Any) -> Iterator[tuple[str, Any]]:
    """Names and tensors of a trainer's weights: a mapping, a module of torch, an open safetensors
    file, or a stream of pairs.

    Raises:
        UsageError: for any other type.
    """
    mapping = known(weights)
    if mapping is not None:
        return iter(mapping.items())
    if hasattr(weights, "get_tensor") and hasattr(weights, "keys"):
        return ((name, weights.get_tensor(name)) for name in weights.keys())  # noqa: SIM118
    if isinstance(weights, Iterable) and not isinstance(weights, str | bytes | os.PathLike):
        return map(_pair, weights)
    described = (
        f"the class {weights.__name__}" if isinstance(weights, type) else type(weights).__name__
    )
    raise UsageError(f"{_WEIGHTS}, not {described}")


_WEIGHTS = "USAGE: weights must be a mapping from names to tensors, or (name, tensor) pairs"


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise UsageError(f"{_WEIGHTS}, not of {type(item).__name__}")


class _Unknown(NamedTuple):
    """A tensor that the checkpoint does not have, unless it is another name of a tensor that it
    has."""

    name: str
    value: Any
    place: Any


def place_of(value: Any) -> Any:
    """Returns the place of a tensor, for comparisons with other live tensors; None if it is
    unknown. For a DTensor, returns the place of this process's part."""
    value = getattr(value, "_local_tensor", value)
    match kind_of(value):
        case "torch":
            try:
                # The storage itself: an empty part has no address.
                storage = value.untyped_storage()._cdata
                form = (value.storage_offset(), tuple(value.shape), value.stride())
            except Exception:
                # A tensor that is made of other tensors, sparse or nested.
                return None
            return (storage, form, str(value.dtype))
        case "numpy":
            address = value.__array_interface__["data"][0]
            return (address, value.shape, value.strides, value.dtype.str) if value.size else None
    # Equal bytes may be one object by coincidence.
    if isinstance(value, Tensor) and isinstance(value.data, bytearray | mmap.mmap):
        return (id(value.data), value.shape, value.dtype)
    return None


class Collector:
    """Collects the tensors of one version. All ranks see all names; each copies only the tensors of
    its own shards.

    Args:
        like: the checkpoint; without one, tensors are not converted.
        transform: converts each tensor.
        keep: called with name, tensor and its expected form, to copy it.
        same: called with name and tensor; returns whether the copy equals the tensor, or True if
            another rank has the copy.
    """

    def __init__(
        self,
        like: Reference | None,
        transform: Transform | None,
        keep: Callable[[str, Any, Expected | None], None],
        same: Callable[[str, Any], bool],
    ) -> None:
        self._like = like
        self._transform = transform
        self._keep = keep
        self._same = same
        self._seen: set[str] = set()
        # Copied under this name from a tied tensor: the tensor of this name may still follow.
        self._stand_ins: dict[str, str] = {}
        self._twins: set[str] = set()
        # Tensors that the checkpoint does not have, and the tensors that it has by their places.
        self._unknown: list[_Unknown] = []
        self._at: dict[Any, str] = {}

    def add(self, name: Any, value: Any, place: Any = None) -> None:
        """Adds a tensor of the trainer; None if only other ranks need it.

        Args:
            place: its place in the trainer's memory, from `place_of`, before it was gathered.
        """
        _check_name(name)
        plain = name if self._like is None else self._like.bare(name)
        if self._transform is None:
            self._put(plain, value, name, place)
            return
        for made, tensor in _made(plain, self._transform(plain, value)):
            _check_name(made)
            self._put(made, tensor, made, place if tensor is value else place_of(tensor))

    def _put(self, name: str, value: Any, called: str, place: Any) -> None:
        like = self._like
        if like is None:
            self._first(name)
            self._keep(name, _of_tensor(name, _settled, value), None)
            return
        expected = like.tensors.get(name)
        if expected is None:
            kept = like.ties.get(name)
            if kept is None:
                self._put_unknown(_Unknown(called, value, place))
            else:
                expected = like.tensors[kept]
                self._tied(name, kept, _of_tensor(name, _fitted, name, value, expected))
            return
        self._first(name)
        value = _of_tensor(name, _fitted, name, value, expected)
        if name in self._stand_ins:
            self._check(self._stand_ins.pop(name), name, value)
        self._keep(name, value, expected)
        if place is not None:
            self._at.setdefault(place, name)
            self._unknown = [one for one in self._unknown if not self._is_twin(one, name)]
        for twin in like.twins.get(name, ()):
            if twin not in self._seen:
                self._keep(twin, value, like.tensors[twin])
                self._twins.add(twin)

    def _put_unknown(self, unknown: _Unknown) -> None:
        """Leaves out a tensor that is another name of one that the checkpoint has."""
        twin = self._at.get(unknown.place)
        if twin is None or not self._is_twin(unknown, twin):
            self._unknown.append(unknown)

    def _is_twin(self, unknown: _Unknown, name: str) -> bool:
        """True if a tensor is another name of a tensor that was copied. A stream may have freed
        that tensor, so that another one is in its place: only the values decide."""
        if unknown.place is None or self._at.get(unknown.place) != name:
            return False
        assert self._like is not None
        expected = self._like.tensors[name]
        value = _of_tensor(unknown.name, _fitted, unknown.name, unknown.value, expected)
        return self._same(name, value)

    def _first(self, name: str) -> None:
        if name in self._seen:
            raise UsageError(f"USAGE: duplicate tensor (tensor {name!r})", tensor=name)
        self._seen.add(name)

    def _tied(self, name: str, kept: str, value: Any) -> None:
        """Adds a tensor that the checkpoint has under another name."""
        assert self._like is not None
        if kept in self._seen or kept in self._stand_ins:
            self._check(name, kept, value)
        else:
            self._keep(kept, value, self._like.tensors[kept])
            self._stand_ins[kept] = name

    def _check(self, name: str, kept: str, value: Any) -> None:
        if not self._same(kept, value):
            raise UsageError(
                f"USAGE: {name!r} and {kept!r} are tied in the checkpoint, but they differ "
                f"(tensor {name!r})",
                tensor=name,
            )

    def finish(self) -> None:
        """Checks that no tensor is missing, or takes missing tensors from the checkpoint
        (`Like.fill`).

        Raises:
            UsageError: with the missing and unexpected names.
        """
        if self._like is None:
            return
        there = self._seen | set(self._stand_ins) | self._twins
        missing = [name for name in self._like.tensors if name not in there]
        flaws = []
        if missing and self._like.fill:
            stored = raw(self._like.path)
            for name in missing:
                self._keep(name, shaped("deltachain", *stored[name]), self._like.tensors[name])
        elif missing:
            flaws.append(f"{len(missing)} missing: {_listed(missing)}")
        if self._unknown:
            names = [one.name for one in self._unknown]
            flaws.append(f"{len(names)} unexpected: {_listed(names)}")
            flaws.append("a transform= that returns None for a name leaves it out")
        if flaws:
            raise UsageError(
                f"USAGE: the tensors do not match {self._like.path}: {'; '.join(flaws)}"
            )


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise UsageError(
            f"USAGE: tensor names must be strings, not {type(name).__name__} ({name!r:.60})"
        )
    if not is_unicode(name):
        raise UsageError(f"USAGE: the name is not Unicode text (tensor {name!r})", tensor=name)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _made(name: str, result: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and tensors that a transform returned: None, a tensor, a mapping, or
    pairs."""
    if result is None:
        return iter(())
    if kind_of(result) != "deltachain" or isinstance(
        result, Tensor | bytes | bytearray | memoryview
    ):
        return iter(((name, result),))
    return pairs(result)


def _of_tensor(name: str, work: Callable[..., Any], *given: Any) -> Any:
    """Calls a function of a tensor's own library, whose errors do not name the tensor.

    Raises:
        UsageError: if the library refuses.
    """
    try:
        return work(*given)
    except Error:
        raise
    except Exception as error:
        raise UsageError(
            f"USAGE: the tensor cannot be read: {type(error).__name__}: {error} (tensor {name!r})",
            tensor=name,
        ) from error


def _fitted(name: str, value: Any, expected: Expected) -> Any:
    """Returns the tensor in the checkpoint's dtype. Its shape is checked when it is copied."""
    kind, value = kind_of(value), _settled(value)
    if expected.dtype == "F4" and _is_row_of(value, expected):
        return Tensor("F4", expected.shape, _bytes_of(value))
    if kind == "deltachain" or (kind == "torch" and not _is_dense(value)):
        return value
    try:
        wanted = torch_dtype(expected.dtype) if kind == "torch" else numpy_dtype(expected.dtype)
    except UsageError:
        if kind == "torch":
            raise
        # A dtype that numpy does not have: the tensor is not converted.
        return value
    own = value.dtype
    if own == wanted:
        return value
    text = str(own).removeprefix("torch.")
    is_float = own.is_floating_point if kind == "torch" else own.kind == "f" or text == "bfloat16"
    if not is_float or expected.dtype not in _FLOATS or "float8" in text or "float4" in text:
        raise UsageError(
            f"USAGE: the checkpoint has {expected.dtype}, this is {text}: convert it with "
            f"transform= (tensor {name!r})",
            tensor=name,
        )
    return value.to(wanted).contiguous() if kind == "torch" else value.astype(wanted)


def _is_row_of(value: Any, expected: Expected) -> bool:
    """True if the tensor is of F4 and has a shape that torch does not have, so that its bytes are
    one row."""
    is_odd = not expected.shape or bool(expected.shape[-1] % 2)
    is_f4 = kind_of(value) == "torch" and "float4" in str(value.dtype)
    return is_odd and is_f4 and value.ndim == 1 and value.nbytes == expected.nbytes


def _bytes_of(value: Any) -> Any:
    """Returns the bytes of a tensor of torch."""
    import torch

    return memoryview(value.view(torch.uint8).cpu().numpy())


def _settled(value: Any) -> Any:
    """Returns the tensor, contiguous, with its own bytes. A tensor that is not dense stays as it
    is: it cannot be copied."""
    kind = kind_of(value)
    if kind == "torch":
        value = value.detach()
        if not _is_dense(value):
            return value
        value = value.resolve_conj().resolve_neg()
        if value.is_contiguous():
            return value
        if "float4" not in str(value.dtype):
            return value.contiguous()
        import torch

        # torch copies its bytes, but not elements of four bits.
        return value.view(torch.uint8).contiguous().view(value.dtype)
    if kind == "numpy":
        if value.flags.c_contiguous:
            return value
        import numpy

        return numpy.ascontiguousarray(value)
    return value


def _is_dense(value: Any) -> bool:
    """True if a tensor of torch has all its elements in memory: it is neither sparse nor nested."""
    return str(value.layout) == "torch.strided" and not value.is_nested
