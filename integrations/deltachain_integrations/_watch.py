"""Watches a loader: which elements of which tensors it copies, and where to, below autograd and by
storage.

A mode of torch sees each operation. An intermediate tensor is followed if its elements were only
moved: the same operation then runs on their addresses.

Another way was tried: to load numbers of elements in place of values, and to see where they arrive.
It found the same places in 20 families of real models, in 240 lines less. But it notices a loader's
arithmetic only if that shows in the values: the maximum of some scalars, or a sum that becomes NaN,
gave a map that was wrong without an error. This module refuses every operation that it does not
understand. The other way also takes six loads and more in place of one, and 3 to 4 times the
model's memory."""

from __future__ import annotations

import gc
import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from deltachain import UsageError

__all__ = [
    "MOST_BOXES",
    "Place",
    "Source",
    "Storage",
    "Unknown",
    "Watch",
    "Write",
    "forms_of",
    "names_of",
]

# Operations that copy all elements of a tensor to a new one.
_SAME = frozenset({"aten::clone", "aten::_to_copy"})

# Operations that only move elements of their first argument: a tensor, or a list of them.
_MOVES = frozenset(
    {
        "aten::cat", "aten::constant_pad_nd", "aten::flip", "aten::index", "aten::index_select",
        "aten::repeat", "aten::roll", "aten::stack",
    }
)  # fmt: skip

# Operations that make a tensor with the form of another one, and read none of its elements.
_FORMS = re.compile(r"aten::(new_\w+|\w+_like)")

# Operations that write the same value everywhere.
_FILLS = frozenset({"aten::fill_", "aten::zero_"})

# Maximum number of boxes into which the elements of a new tensor, or of a copy, are divided.
MOST_BOXES = 4096

# An address has the number of a source and the number of an element of it.
_ELEMENT_BITS = 44


class Place(NamedTuple):
    """Elements of a checkpoint's tensor.

    Attributes:
        name: the tensor's name.
        offset: number of the first element.
        strides: the distance of neighbours, in each dimension of the view.
        dtype: the dtype as which the bits of an element are read.
    """

    name: str
    offset: int
    strides: tuple[int, ...]
    dtype: torch.dtype


class Unknown(NamedTuple):
    """Elements that cannot be followed: the reason, and the checkpoint's tensors that they were
    made from."""

    reason: str
    names: frozenset[str]


# The source of a tensor's elements if nothing was copied to the tensor while the loader was
# watched.
_STRANGE = Unknown("the loader copies a tensor that cannot be followed", frozenset())

_RESIZED = "its elements are viewed with another size"

# None stands for a constant.
Source = Place | Unknown | None


class Write(NamedTuple):
    """Elements of a storage that were written, and their source."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    source: Source

    def form(self) -> tuple[Any, ...]:
        """The elements of the write, in the order of the storage."""
        own = (
            (stride, length)
            for length, stride in zip(self.shape, self.strides, strict=True)
            if length > 1
        )
        joined: list[tuple[int, int]] = []
        for stride, length in sorted(own):
            if joined and joined[-1][0] * joined[-1][1] == stride:
                joined[-1] = (joined[-1][0], joined[-1][1] * length)
            else:
                joined.append((stride, length))
        return (self.offset, *joined)

    def end(self) -> int:
        """The number of the element after the last one."""
        return self.offset + extent(self.shape, self.strides)


@dataclass(slots=True, eq=False)
class Storage:
    """A storage, and the sources of its elements.

    Attributes:
        ref: keeps the storage alive, so that no other storage has its id.
        begin, nbytes: its address and length.
        width: bytes of an element.
        tensor: a tensor in it, if the storage is the model's.
        names, given: the model's tensors in it.
        writes: the writes to it, in order.
    """

    ref: StorageWeakRef
    begin: int
    nbytes: int
    width: int
    tensor: torch.Tensor | None = None
    names: list[str] = field(default_factory=list)
    given: list[torch.Tensor] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Notes the effects of operations on storages."""

    def __init__(self, memory: Sequence[tuple[str, torch.Tensor]]) -> None:
        super().__init__()
        self.own: dict[int, Storage] = {}
        # Dtype and shape by name.
        self.infos: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._storages: dict[int, Storage] = {}
        # The ids of storages that are not the model's.
        self._passing: set[int] = set()
        # First addresses of the checkpoint's and the model's storages, and their ids.
        self._begins: list[tuple[int, int]] = []
        self.forms = forms_of(memory)
        for name, tensor in memory:
            if _is_seen(tensor) and tensor.untyped_storage().nbytes():
                storage = self._added(tensor, is_root=True)
                storage.names.append(name)
                storage.given.append(tensor)
                if storage.tensor is None:
                    storage.tensor = tensor.detach()
                    self.own[id(storage)] = storage
        self._passing.clear()

    def given(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the checkpoint, each tensor in a storage of its own."""
        for name, tensor in tensors:
            if name in self.infos:
                raise UsageError(f"USAGE: duplicate tensor (tensor {name!r})", tensor=name)
            self.infos[name] = (tensor.dtype, tuple(tensor.shape))
            # Only the loader has this copy: if it still exists at the end, the loader keeps it.
            tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._forget()
            if tensor.numel():
                place = Place(name, 0, tensor.stride(), tensor.dtype)
                storage = self._added(tensor, is_root=True)
                storage.writes.append(
                    Write(0, tuple(tensor.shape), tensor.stride(), tensor.dtype, place)
                )
            yield name, tensor
            del tensor

    def _added(self, tensor: torch.Tensor, *, is_root: bool = False) -> Storage:
        storage = tensor.untyped_storage()
        found = self._storages.get(storage._cdata)
        if found is None:
            ref = StorageWeakRef(storage)
            found = Storage(ref, storage.data_ptr(), storage.nbytes(), tensor.element_size())
            self._storages[storage._cdata] = found
            self._passing.add(storage._cdata)
            if is_root:
                insort(self._begins, (found.begin, storage._cdata))
        return found

    def kept(self) -> Iterator[str]:
        """The tensors of the checkpoint that are still referenced, or from which a referenced
        tensor was made."""
        gc.collect()
        self._forget()
        for key in self._passing:
            for write in self._storages[key].writes:
                yield from names_of(write.source)

    def _forget(self) -> None:
        """Forgets storages that are freed."""
        for key in [key for key in self._passing if self._storages[key].ref.expired()]:
            self._passing.remove(key)
            root = (self._storages.pop(key).begin, key)
            at = bisect_left(self._begins, root)
            if self._begins[at : at + 1] == [root]:
                del self._begins[at]

    def _found(self, tensor: Any) -> Storage | None:
        """The storage of a tensor, even if torch knows it under another id, as after a detour
        through numpy."""
        if not _is_seen(tensor) or not tensor.numel():
            return None
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is None:
            at = bisect_right(self._begins, (tensor.data_ptr(), math.inf)) - 1
            if at >= 0:
                storage = self._storages[self._begins[at][1]]
                if tensor.data_ptr() >= storage.begin + storage.nbytes or (
                    storage.tensor is None and storage.ref.expired()
                ):
                    storage = None
        return storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default:
            self._copied(args[0], args[1])
        else:
            self._done(func, args, kwargs, result)
        return result

    def _done(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Notes which tensors an operation has written or made."""
        read = [
            tensor for tensor in _tensors([*args, *kwargs.values()]) if self._is_followed(tensor)
        ]
        written = []
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[number] if number < len(args) else kwargs.get(argument.name)
                written += _tensors([given])
        name = func._schema.name
        # New tensors. Views are in a known storage.
        is_new = bool(read) and not _FORMS.fullmatch(name)
        made = [
            one
            for one in _tensors([result])
            if is_new and _is_seen(one) and one.numel() and not self._found(one)
        ]
        for tensor in written:
            if read or self._found(tensor) is not None:
                self._written(tensor, None if name in _FILLS else self._computed(name, read))
        for tensor in made:
            self._added(tensor)
            if name in _SAME:
                self._copied(tensor, args[0])
            elif name in _MOVES:
                self._moved(func, args, kwargs, tensor)
            else:
                self._written(tensor, self._computed(name, read))

    def _computed(self, operation: str, read: Sequence[torch.Tensor]) -> Unknown:
        return Unknown(
            f"the loader computes with {operation.removeprefix('aten::')}", self._names(read)
        )

    def _is_followed(self, tensor: torch.Tensor) -> bool:
        storage = self._found(tensor)
        return storage is not None and bool(storage.writes)

    def _names(self, tensors: Iterable[torch.Tensor]) -> frozenset[str]:
        """The tensors of the checkpoint that these were made from."""
        names: set[str] = set()
        for tensor in tensors:
            storage = self._found(tensor)
            begin = self._offset(tensor, storage)
            end = math.inf if begin is None else begin + extent(tensor.shape, tensor.stride())
            for write in () if storage is None else storage.writes:
                if write.offset < end and write.end() > (begin or 0):
                    names |= names_of(write.source)
        return frozenset(names)

    @staticmethod
    def _offset(tensor: torch.Tensor, storage: Storage | None) -> int | None:
        """The number of a tensor's first element in its storage; None if elements have another size
        there."""
        if storage is None or tensor.element_size() != storage.width:
            return None
        offset, rest = divmod(tensor.data_ptr() - storage.begin, storage.width)
        return None if rest else offset

    def _written(self, tensor: torch.Tensor, source: Source) -> None:
        """Notes that all elements of a tensor have this source."""
        storage = self._found(tensor)
        if storage is None:
            if not _is_seen(tensor) or not tensor.numel():
                return
            storage = self._added(tensor)
        self._put(tensor, storage, source)

    def _put(self, tensor: torch.Tensor, storage: Storage, source: Source) -> None:
        offset = self._offset(tensor, storage)
        if offset is None:
            count, unknown = storage.nbytes // storage.width, Unknown(_RESIZED, names_of(source))
            storage.writes.append(Write(0, (count,), (1,), torch.uint8, unknown))
            return
        write = Write(
            offset, tuple(tensor.shape), tensor.stride(), tensor.dtype, _cast(source, tensor.dtype)
        )
        if storage.tensor is None:
            # For an intermediate tensor, only the last write to a place matters.
            storage.writes = [other for other in storage.writes if other[:3] != write[:3]]
        storage.writes.append(write)

    def _copied(self, target: torch.Tensor, origin: torch.Tensor) -> None:
        """Notes a copy."""
        if not _is_seen(target) or not target.numel() or _is_same(target, origin):
            return
        source = self._found(origin)
        storage = self._found(target)
        if source is None or not source.writes:
            if storage is not None:
                self._written(target, _STRANGE)
            return
        if storage is None:
            storage = self._added(target)
        if origin.shape != target.shape:
            origin = origin.expand(target.shape)
        straight = self._straight(origin, source)
        if straight is not None:
            self._put(target, storage, straight)
            return
        shifted = self._shifted(target, origin, source)
        if shifted is not None:
            storage.writes += shifted
            return
        codes = _Codes(self)
        for view, one in codes.boxes(codes.of(origin), target):
            self._put(view, storage, one)

    def _shifted(
        self, target: torch.Tensor, origin: torch.Tensor, source: Storage
    ) -> list[Write] | None:
        """The writes to a range that is copied as a whole, in the same order, at their new place;
        None for other copies."""
        first, begin = self._offset(target, self._found(target)), self._offset(origin, source)
        if (
            first is None
            or begin is None
            or target.dtype != origin.dtype
            or target.stride() != origin.stride()
        ):
            return None
        end = begin + origin.numel()
        if extent(origin.shape, origin.stride()) != origin.numel():
            return None
        # Elements without a known write have another source.
        made = [Write(first, tuple(target.shape), target.stride(), target.dtype, _STRANGE)]
        for write in source.writes:
            if write.offset >= end or write.end() <= begin:
                continue
            if write.offset < begin or write.end() > end:
                return None
            made.append(write._replace(offset=write.offset + first - begin))
        return made

    def _straight(self, view: torch.Tensor, storage: Storage) -> Place | None:
        """The place that a view's elements come from, if one write covers the whole view."""
        offset = self._offset(view, storage)
        if offset is None or len(storage.writes) != 1:
            return None
        (write,) = storage.writes
        end = offset + extent(view.shape, view.stride())
        place = _seen(write.source, write.dtype, view.dtype)
        if not isinstance(place, Place) or offset < write.offset or end > write.end():
            return None
        if write.end() - write.offset != math.prod(write.shape):
            return None
        # Places in the storage and in the checkpoint's tensor must increase together.
        lanes = zip(write.shape, write.strides, place.strides, strict=True)
        if any(length > 1 and own != other for length, own, other in lanes):
            return None
        return place._replace(
            offset=place.offset + offset - write.offset, strides=tuple(view.stride())
        )

    def _moved(self, func: Any, args: Any, kwargs: Any, made: torch.Tensor) -> None:
        """Follows an operation that only moves elements: it runs on their addresses."""
        codes = _Codes(self)
        first, *rest = args
        own = tree_map_only(torch.Tensor, codes.of, first)
        rest = tree_map_only(torch.Tensor, torch.Tensor.cpu, rest)
        if func._schema.name == "aten::constant_pad_nd":
            rest, kwargs = rest[:1], {}
        moved = func(own, *rest, **kwargs)
        for view, source in codes.boxes(moved, made):
            self._put(view, self._added(made), source)


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Number of elements from the first to the last one of a nonempty tensor."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def _is_seen(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
    )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if both tensors are the same elements in the same places: a part of a tensor that is
    another parameter, too, is copied to itself."""
    forms = [
        (own.data_ptr(), own.dtype, own.device, own.shape, own.stride()) for own in (one, other)
    ]
    return forms[0] == forms[1]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def names_of(source: Source) -> frozenset[str]:
    if isinstance(source, Place):
        return frozenset({source.name})
    return frozenset() if source is None else source.names


def _cast(source: Source, dtype: torch.dtype) -> Source:
    """The source of elements that are copied to a tensor of this dtype. Casts to a wider dtype and
    back change the bits of NaN."""
    if not isinstance(source, Place) or source.dtype == dtype:
        return source
    reason = f"the loader casts {_plain(source.dtype)} to {_plain(dtype)}: publish {_plain(dtype)}"
    return Unknown(reason, frozenset({source.name}))


def _seen(source: Source, written: torch.dtype, seen: torch.dtype) -> Source:
    """The source of elements that were written as one dtype, and are read as another one of the
    same size."""
    if not isinstance(source, Place) or written == seen:
        return source
    if source.dtype == written:
        return source._replace(dtype=seen)
    return Unknown("its elements are viewed as another dtype", frozenset({source.name}))


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Codes:
    """Addresses of elements as numbers, for one operation."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        # The address of element 0, by source.
        self._numbers: dict[Source, int] = {None: 0}

    def of(self, view: torch.Tensor) -> torch.Tensor:
        """The addresses of a tensor's elements."""
        watch = self._watch
        storage = watch._found(view)
        if storage is None or not storage.writes:
            return self._all(view.shape, _STRANGE)
        offset = watch._offset(view, storage)
        if offset is None:
            return self._all(view.shape, Unknown(_RESIZED, watch._names([view])))
        straight = watch._straight(view, storage)
        if straight is not None:
            return self._all(view.shape, straight)
        flat = self._all((storage.nbytes // storage.width,), _STRANGE).contiguous()
        for write in storage.writes:
            source = _seen(write.source, write.dtype, view.dtype)
            flat.as_strided(write.shape, write.strides, write.offset).copy_(
                self._all(write.shape, source)
            )
        return flat.as_strided(view.shape, view.stride(), offset)

    def _all(self, shape: Sequence[int], source: Source) -> torch.Tensor:
        """The addresses of elements that all have one source."""
        key = source._replace(offset=0, strides=()) if isinstance(source, Place) else source
        number = self._numbers.setdefault(key, len(self._numbers) << _ELEMENT_BITS)
        numbers = torch.full((1,) * len(shape), number, dtype=torch.int64, device="cpu")
        if isinstance(source, Place):
            numbers = numbers + source.offset
            for dimension, (length, stride) in enumerate(zip(shape, source.strides, strict=True)):
                own = torch.arange(length, dtype=torch.int64, device="cpu") * stride
                numbers = numbers + own.view(
                    [-1 if at == dimension else 1 for at in range(len(shape))]
                )
        return numbers.expand(shape)

    def boxes(
        self, numbers: torch.Tensor, target: torch.Tensor
    ) -> list[tuple[torch.Tensor, Source]]:
        """Divides a tensor into boxes whose elements, by their addresses, each have one source and
        constant strides."""
        waiting = [(numbers, target)]
        found: list[tuple[torch.Tensor, Source]] = []
        while waiting:
            own, view = waiting.pop()
            places, dimension = _cut(own)
            if not places:
                found.append((view, self._source(own)))
            elif len(found) + len(waiting) + len(places) > MOST_BOXES:
                names = frozenset().union(*map(names_of, self._numbers))
                return [(target, Unknown("the loader moves elements one by one", names))]
            else:
                parts = zip(
                    own.tensor_split(places, dimension),
                    view.tensor_split(places, dimension),
                    strict=True,
                )
                waiting += reversed(list(parts))
        return found

    def _source(self, numbers: torch.Tensor) -> Source:
        corner = numbers[(slice(2),) * numbers.dim()]
        first = int(corner.flatten()[0])
        source = list(self._numbers)[first >> _ELEMENT_BITS]
        if not isinstance(source, Place):
            return source
        strides = tuple(
            int(corner.diff(dim=dimension).flatten()[:1].sum())
            for dimension in range(numbers.dim())
        )
        return source._replace(offset=first & ((1 << _ELEMENT_BITS) - 1), strides=strides)


def _cut(numbers: torch.Tensor) -> tuple[list[int], int]:
    """Places and dimension at which to divide addresses, so that each part has fewer breaks; none
    if there are no breaks. Addresses break between sources, and where a step changes: in its own
    dimension, or from row to row."""
    dimensions = range(numbers.dim())
    # The dimension of the steps (None: of the sources), and the dimension along which they must
    # stay the same.
    pairs: tuple[Iterable[tuple[int | None, int]], ...]
    pairs = (
        product([None], dimensions),
        zip(dimensions, dimensions, strict=True),
        permutations(dimensions, 2),
    )
    for stage in pairs:
        found = []
        for own, dimension in stage:
            values = numbers >> _ELEMENT_BITS if own is None else numbers.diff(dim=own)
            changes = (values.diff(dim=dimension) != 0).movedim(dimension, 0)
            places = (changes[..., None].flatten(1).any(1).nonzero().view(-1) + 1).tolist()
            if places:
                # A step to another row is a change before the row and one after it.
                found.append(
                    (len(places), dimension, [places[0] + 1] if own == dimension else places)
                )
        if found:
            _, dimension, places = min(found)
            return places, dimension
    return [], 0


def forms_of(memory: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[Any, ...]]:
    return sorted(
        (name, str(own.device), own.data_ptr(), str(own.dtype), tuple(own.shape), own.stride())
        for name, own in memory
        if _is_seen(own)
    )
