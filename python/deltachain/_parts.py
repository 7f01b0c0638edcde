"""Places of a checkpoint's tensors in tensors of torch: whole tensors, or parts in several
processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ._errors import UsageError
from ._like import Names
from ._native import TensorPlace
from ._tensors import BITS, kind_of, name_of

__all__ = ["Form", "Part", "address_of", "bound", "located", "overlapping", "parts_of"]


class Form(Protocol):
    """Name and shape of a checkpoint's tensor, as the native module gives them."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...


class Part:
    """A tensor that holds a part of a checkpoint's tensor, for `Subscriber(into=)`. Other processes
    may hold the others, with `group=`.

    Args:
        tensor: of torch; it is written to. It may be a view of a larger tensor: rows or columns of
            a fused one, the matrix of one expert, a transposed one.
        index: which part: a slice of each dimension of the checkpoint's tensor, from the first on.
            Dimensions without one are whole. Steps are 1.

        into={ "up_proj.weight": dc.Part(up, slice(rank * rows, (rank + 1) * rows)), # rows
            "down_proj.weight": dc.Part(down, (slice(None), slice(rank * columns, (rank + 1) *
            columns))), "experts.5.w1": fused[5 - first_expert], # whole; ranks without this expert
            omit the name
        }
    """

    __slots__ = ("index", "tensor")

    def __init__(self, tensor: Any, index: slice | Sequence[slice] = ()) -> None:
        self.tensor = tensor
        self.index = (index,) if isinstance(index, slice) else tuple(index)

    def __repr__(self) -> str:
        return f"Part({tuple(self.tensor.shape)}, {self.index})"


def located(into: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields names, the values given for them in `into=`, and the local tensors.

    Raises:
        UsageError: if a name is not a text.
    """
    for name, given in into.items():
        if not isinstance(name, str):
            raise UsageError(f"USAGE: names of tensors must be strings, not {name!r:.60}")
        for one in given if isinstance(given, list | tuple) else [given]:
            tensor = one.tensor if isinstance(one, Part) else one
            yield name, one, tensor.to_local() if hasattr(tensor, "to_local") else tensor


def parts_of(
    into: Mapping[str, Any], is_group: bool
) -> Iterator[tuple[str, Any, tuple[slice, ...] | None]]:
    """Yields names, local tensors and the parts that they hold (None: all), from the value of
    `into=`.

    Raises:
        UsageError: if a tensor cannot be written to in place, or shares a part of its memory with
            another one.
    """
    views = []
    for name, one, tensor in located(into):
        index = one.index if isinstance(one, Part) else None
        whole = one.tensor if isinstance(one, Part) else one
        if whole is not tensor:
            if not is_group or index is not None:
                raise _refused(
                    name, "the tensor is spread over processes (DTensor): give group=, and no Part"
                )
            index = _placed(name, whole)
        if kind_of(tensor) == "torch":
            _check(name, tensor)
            views.append((name, tensor))
        yield name, tensor, index
    found = overlapping(views)
    if found is not None:
        raise _refused(
            found[1], f"it shares a part of its memory with {found[0]!r}: give each part once"
        )


def overlapping(views: Iterable[tuple[str, Any]]) -> tuple[str, str] | None:
    """Returns the names of two tensors of torch that share some of their memory, which
    `Subscriber(into=)` refuses; None if there are none. Tensors in the same place, with the same
    shape and strides, do not count: they are tied."""
    distinct: dict[tuple[Any, ...], tuple[str, Any]] = {}
    for name, tensor in views:
        if tensor.numel():
            place = (tensor.device, tensor.data_ptr(), tensor.nbytes, _extent(tensor))
            # Contiguous tensors may have different shapes: `ties` reports these names.
            form = () if tensor.is_contiguous() else (tuple(tensor.shape), tensor.stride())
            distinct.setdefault((*place, *form), (name, tensor))
    # Tensors that begin before others have ended.
    together: list[tuple[str, Any]] = []
    device, last = None, 0
    for name, tensor in sorted(
        distinct.values(), key=lambda one: (str(one[1].device), one[1].data_ptr())
    ):
        if tensor.device != device or tensor.data_ptr() >= last:
            found = _marked(together)
            if found is not None:
                return found
            together, device, last = [], tensor.device, 0
        together.append((name, tensor))
        last = max(last, tensor.data_ptr() + _extent(tensor))
    return _marked(together)


def _extent(tensor: Any) -> int:
    """Returns the bytes from the first to the last element of a tensor."""
    reach = sum(
        (length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return int((1 + reach) * tensor.element_size())


def _marked(views: Sequence[tuple[str, Any]]) -> tuple[str, str] | None:
    """Returns the names of two tensors that share an element, among tensors whose ranges of memory
    overlap."""
    if len(views) < 2:
        return None
    import torch

    names = (views[0][0], views[1][0])
    begin, width = views[0][1].data_ptr(), views[0][1].element_size()
    if all(tensor.is_contiguous() for _, tensor in views):
        return names
    if any(
        tensor.element_size() != width or (tensor.data_ptr() - begin) % width for _, tensor in views
    ):
        return names
    end = max(tensor.data_ptr() + _extent(tensor) for _, tensor in views)
    marks = torch.zeros((end - begin) // width, dtype=torch.bool)
    for number, (name, tensor) in enumerate(views):
        own = marks.as_strided(tensor.shape, tensor.stride(), (tensor.data_ptr() - begin) // width)
        if bool(own.any()):
            if len(views) == 2:
                return names
            return next(
                found for other in views[:number] if (found := _marked([other, (name, tensor)]))
            )
        own.fill_(True)
    return None


def _refused(name: str, text: str) -> UsageError:
    return UsageError(f"USAGE: {text} (tensor {name!r})", tensor=name)


def _check(name: str, tensor: Any) -> None:
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        raise _refused(name, "the tensor is sparse or nested: give a dense one")
    if tensor.device.type == "meta":
        raise _refused(name, "the tensor is on the device meta, so it has no data")
    # A tensor that is made of others has no memory either; `TensorPlace` reports it.
    is_own = not hasattr(tensor, "__tensor_flatten__")
    if is_own and tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        raise _refused(name, "the tensor has no data: its storage was freed")
    reach = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if tensor.numel() and length > 1 and stride <= reach:
            raise _refused(
                name,
                "some elements of the tensor share their memory: give one that is not expanded",
            )
        reach += (length - 1) * stride
    if tensor.is_conj() or tensor.is_neg():
        raise _refused(name, "the tensor is a lazy view: give tensor.resolve_conj().resolve_neg()")
    if name_of(tensor) not in BITS:
        raise _refused(name, f"unknown dtype {str(tensor.dtype).removeprefix('torch.')}")


def _placed(name: str, tensor: Any) -> tuple[slice, ...]:
    """Returns the part of a DTensor that this process holds."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return (slice(0, 0),)
    box = [[0, length] for length in tensor.shape]
    for place, size, placement in zip(
        coordinate, tensor.device_mesh.shape, tensor.placements, strict=True
    ):
        kind = type(placement).__name__
        if kind == "Replicate":
            continue
        if kind != "Shard":
            raise _refused(name, f"the placement {placement} is not supported: give a Part")
        # Divided like `torch.chunk`: the last parts may have fewer rows, or none.
        begin, end = box[placement.dim]
        each = -(-(end - begin) // size)
        box[placement.dim] = [min(begin + place * each, end), min(begin + (place + 1) * each, end)]
    return tuple(slice(begin, end) for begin, end in box)


# Maximum number of flaws in a message.
_LISTED = 10


def bound(
    forms: Sequence[Form],
    given: Sequence[tuple[TensorPlace, tuple[slice, ...] | None]],
    is_group: bool,
    strict: bool,
) -> list[tuple[str, TensorPlace, list[tuple[int, int]]]]:
    """Returns names of the chain's tensors, the objects given for them, and begin and end of the
    part that each holds, in the first dimensions. Given names may have the parts that wrappers add.

    Raises:
        UsageError: if a name is not in the chain, or one is missing (unless other processes may
            have it, or `strict` is false), if none is in the chain, or if an index does not fit the
            tensor.
    """
    known = {form.name: form for form in forms}
    names = Names(known)
    named = [(names.find(place.name), place, index) for place, index in given]
    ours = [one for one in named if one[0] in known]
    # Tied to another given tensor, as in transformers' models, and written with it.
    addresses = {address_of(place.tensor) for _, place, _ in ours} - {None}
    others = {
        place.name
        for name, place, _ in named
        if name not in known and address_of(place.tensor) not in addresses
    }
    flaws = [f"{name!r} is not in the chain" for name in others if strict or not ours]
    if strict and not is_group:
        flaws += [f"{name!r} is missing" for name in known.keys() - {name for name, _, _ in ours}]
    if forms and not ours and not flaws and not is_group:
        flaws = ["it has none of them"]
    if flaws:
        more = f", and {len(flaws) - _LISTED} more" if len(flaws) > _LISTED else ""
        raise UsageError(
            "USAGE: the tensors are not those of the chain: "
            f"{', '.join(sorted(flaws)[:_LISTED])}{more}"
        )
    return [(name, place, _indices(known[name], index or ())) for name, place, index in ours]


def address_of(tensor: Any) -> tuple[Any, int] | None:
    """Returns the place of a tensor of torch, if it has any bytes."""
    return (
        (tensor.device, tensor.data_ptr())
        if hasattr(tensor, "data_ptr") and tensor.numel()
        else None
    )


def _indices(form: Form, index: tuple[slice, ...]) -> list[tuple[int, int]]:
    """Returns begin and end of each slice of an index."""
    if not index:
        return []
    name, shape = form.name, form.shape
    if len(index) > len(shape) or any(part.step not in (None, 1) for part in index):
        raise _refused(
            name,
            f"the index {index} must be slices without a step, of the shape {shape}",
        )
    ranges = [part.indices(length)[:2] for part, length in zip(index, shape, strict=False)]
    return [(begin, max(begin, end)) for begin, end in ranges]
