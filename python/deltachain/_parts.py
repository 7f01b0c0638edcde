"""Where the tensors of a checkpoint lie in tensors of torch: as a whole, or divided among processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import UsageError
from ._sums import as_lanes, extent
from ._tensors import BITS, PACKED, SIGNED, name_of

if TYPE_CHECKING:
    import torch

__all__ = ["Box", "Held", "Info", "Part", "bound", "covers", "located", "overlapping", "parts_of", "ties"]

# Name, dtype and shape of a checkpoint's tensor.
Info = tuple[str, str, list[int]]

# Begin and end in each dimension of a checkpoint's tensor.
Box = tuple[tuple[int, int], ...]


class Part:
    """A tensor that holds a part of a checkpoint's tensor, for `Subscriber(into=)`. Other processes may hold
    the others, with `group=`.

    Args:
        tensor: of torch; it is written to. A view of a larger tensor will do: rows or columns of a fused one, the
            matrix of one expert, a transposed one.
        index: which part: a slice of each dimension of the checkpoint's tensor, from the first on. Dimensions without
            one are whole. Steps are 1.

        into={
            "up_proj.weight": dc.Part(up, slice(rank * rows, (rank + 1) * rows)),  # rows
            "down_proj.weight": dc.Part(down, (slice(None), slice(rank * columns, (rank + 1) * columns))),
            "experts.5.w1": fused[5 - first_expert],  # whole; ranks without this expert omit the name
        }
    """

    __slots__ = ("index", "tensor")

    def __init__(self, tensor: Any, index: slice | Sequence[slice] = ()) -> None:
        self.tensor = tensor
        self.index = (index,) if isinstance(index, slice) else tuple(index)

    def __repr__(self) -> str:
        return f"Part({tuple(self.tensor.shape)}, {self.index})"


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Lanes of a checkpoint's tensor that a tensor of this process holds.

    Attributes:
        name: of the checkpoint's tensor.
        lanes: the memory, as numbers; from the first to the last of these lanes, others may lie between them.
        is_signed: whether the dtype is sign-magnitude.
        part: which these are: begin and end in each dimension of the checkpoint's tensor.
        shape: of the checkpoint's tensor, in lanes; dimensions of which all is here are joined with the one before.
        box: begin and end in these dimensions.
        strides: how far apart in `lanes` the neighbours in these dimensions are; None: all lie in a row.
        place: where the tensor lay when it was bound.
    """

    name: str
    lanes: torch.Tensor
    is_signed: bool
    part: Box
    shape: tuple[int, ...]
    box: Box
    strides: tuple[int, ...] | None = None
    place: _native.Place | None = None

    def check(self) -> None:
        """Refuses memory that does not lie where it did."""
        if self.place is not None:
            self.place.check()

    @property
    def count(self) -> int:
        """How many lanes of the tensor these are."""
        return _size(self.box)

    @property
    def is_plain(self) -> bool:
        """Whether `lanes` are all lanes of the tensor, in its order."""
        return self.strides is None and bool(self.lanes.numel() == math.prod(self.shape))

    def span(self) -> tuple[int, int]:
        """The number of its first lane, and the one after its last."""
        first = last = 0
        for length, (begin, end) in zip(self.shape, self.box, strict=True):
            first, last = first * length + begin, last * length + end - 1
        return first, last + 1

    def below(self, number: int) -> int:
        """How many of its lanes come before a lane of the checkpoint's tensor."""
        if not self.lanes.numel():
            return 0
        count, rest, stride, own = 0, number, math.prod(self.shape), self.count
        for length, (begin, end) in zip(self.shape, self.box, strict=True):
            stride, own = stride // length, own // (end - begin)
            place, rest = divmod(rest, stride)
            count += (min(max(place, begin), end) - begin) * own
            if not begin <= place < end:
                break
        return count

    def find(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of some lanes of the checkpoint's tensor these are, and where they are.

        Args:
            numbers: of lanes, ascending.

        Returns:
            Places in `numbers`, ascending, and for each the place in `lanes`.
        """
        import torch

        is_own = torch.ones_like(numbers, dtype=torch.bool)
        own = torch.zeros_like(numbers)
        rest, stride = numbers, math.prod(self.shape)
        for dimension, (length, (begin, end)) in enumerate(zip(self.shape, self.box, strict=True)):
            stride //= length
            place = rest.div(stride, rounding_mode="floor") if stride > 1 else rest
            rest = rest - place * stride
            if (begin, end) != (0, length):
                is_own &= (place >= begin) & (place < end)
            if self.strides is None:
                own = own * (end - begin) + (place - begin)
            else:
                own = own + (place - begin) * self.strides[dimension]
            if stride == 1:
                break
        which = is_own.nonzero().view(-1)
        return which, own.index_select(0, which)

    def stretch(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers of some of these lanes in the checkpoint's tensor, and the lanes. They are counted in the
        checkpoint's order."""
        import torch

        rest = torch.arange(begin, end, dtype=torch.int64, device=self.lanes.device)
        numbers, places = torch.zeros_like(rest), torch.zeros_like(rest)
        stride = self.count
        for dimension, (length, (first, last)) in enumerate(zip(self.shape, self.box, strict=True)):
            stride //= last - first
            place = rest.div(stride, rounding_mode="floor")
            rest = rest - place * stride
            numbers = numbers * length + place + first
            if self.strides is not None:
                places += place * self.strides[dimension]
        return numbers, self.lanes[begin:end] if self.strides is None else self.lanes.index_select(0, places)

    def write(self, lanes: torch.Tensor) -> None:
        """Writes these lanes, from all lanes of the checkpoint's tensor."""
        self.check()
        lengths = [end - begin for begin, end in self.box]
        own = self.lanes.view(lengths) if self.strides is None else self.lanes.as_strided(lengths, self.strides)
        own.copy_(lanes.view(self.shape)[tuple(slice(begin, end) for begin, end in self.box)])


def located(into: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Names, what `into=` is given for them, one by one, and the local tensors.

    Raises:
        UsageError: if something else was given.
    """
    import torch

    for name, given in into.items():
        if not isinstance(name, str):
            raise UsageError(f"USAGE: names of tensors must be strings, not {name!r:.60}")
        for one in given if isinstance(given, list | tuple) else [given]:
            tensor = one.tensor if isinstance(one, Part) else one
            if not isinstance(tensor, torch.Tensor):
                raise _refused(name, f"the value is of type {type(tensor).__name__}, not a tensor of torch")
            yield name, one, tensor.to_local() if hasattr(tensor, "to_local") else tensor


def parts_of(into: Mapping[str, Any], is_group: bool) -> Iterator[tuple[str, Any, tuple[slice, ...] | None]]:
    """Names, local tensors and the parts that they hold (None: all), of what `into=` is given.

    Raises:
        UsageError: if a tensor cannot be written to in place, or shares a part of its memory with another one.
    """
    views = []
    for name, one, tensor in located(into):
        index = one.index if isinstance(one, Part) else None
        whole = one.tensor if isinstance(one, Part) else one
        if whole is not tensor:
            if not is_group or index is not None:
                raise _refused(name, "the tensor is spread over processes (DTensor): give group=, and no Part")
            index = _placed(name, whole)
        _check(name, tensor)
        views.append((name, tensor))
        yield name, tensor, index
    found = overlapping(views)
    if found is not None:
        raise _refused(found[1], f"it shares a part of its memory with {found[0]!r}: give each part once")


def overlapping(views: Iterable[tuple[str, Any]]) -> tuple[str, str] | None:
    """The names of two tensors that share some of their memory. Those that lie in the same place do not count."""
    distinct: dict[tuple[Any, ...], tuple[str, Any]] = {}
    for name, tensor in views:
        if tensor.numel():
            place = (tensor.device, tensor.data_ptr(), tensor.nbytes, _extent(tensor))
            # In a row, shapes may differ: of such names, `ties` says more.
            form = () if tensor.is_contiguous() else (tuple(tensor.shape), tensor.stride())
            distinct.setdefault((*place, *form), (name, tensor))
    # Those that begin before others have ended.
    together: list[tuple[str, Any]] = []
    device, last = None, 0
    for name, tensor in sorted(distinct.values(), key=lambda one: (str(one[1].device), one[1].data_ptr())):
        if tensor.device != device or tensor.data_ptr() >= last:
            found = _marked(together)
            if found is not None:
                return found
            together, device, last = [], tensor.device, 0
        together.append((name, tensor))
        last = max(last, tensor.data_ptr() + _extent(tensor))
    return _marked(together)


def _extent(tensor: Any) -> int:
    """Bytes from the first to the last element of a tensor."""
    return int(extent(tensor.shape, tensor.stride()) * tensor.element_size())


def _marked(views: Sequence[tuple[str, Any]]) -> tuple[str, str] | None:
    """The names of two tensors that share an element, of tensors whose first and last elements enclose each other's."""
    import torch

    if len(views) < 2:
        return None
    names = (views[0][0], views[1][0])
    begin, width = views[0][1].data_ptr(), views[0][1].element_size()
    if all(tensor.is_contiguous() for _, tensor in views):
        return names
    if any(tensor.element_size() != width or (tensor.data_ptr() - begin) % width for _, tensor in views):
        return names
    end = max(tensor.data_ptr() + _extent(tensor) for _, tensor in views)
    marks = torch.zeros((end - begin) // width, dtype=torch.bool)
    for number, (name, tensor) in enumerate(views):
        own = marks.as_strided(tensor.shape, tensor.stride(), (tensor.data_ptr() - begin) // width)
        if bool(own.any()):
            if len(views) == 2:
                return names
            return next(found for other in views[:number] if (found := _marked([other, (name, tensor)])))
        own.fill_(True)
    return None


def _refused(name: str, text: str) -> UsageError:
    return UsageError(f"USAGE: {text} (tensor {name!r})", tensor=name)


def _check(name: str, tensor: Any) -> None:
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        raise _refused(name, "the tensor is sparse or nested: give a dense one")
    if tensor.device.type == "meta":
        raise _refused(name, "the tensor is on the device meta, so it has no data")
    reach = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if tensor.numel() and length > 1 and stride <= reach:
            raise _refused(name, "some elements of the tensor share their memory: give one that is not expanded")
        reach += (length - 1) * stride
    if tensor.is_conj() or tensor.is_neg():
        raise _refused(name, "the tensor is a lazy view: give tensor.resolve_conj().resolve_neg()")
    if name_of(tensor) not in BITS:
        raise _refused(name, f"unknown dtype {str(tensor.dtype).removeprefix('torch.')}")


def _placed(name: str, tensor: Any) -> tuple[slice, ...]:
    """The part of a DTensor that this process holds."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return (slice(0, 0),)
    box = [[0, length] for length in tensor.shape]
    for place, size, placement in zip(coordinate, tensor.device_mesh.shape, tensor.placements, strict=True):
        kind = type(placement).__name__
        if kind == "Replicate":
            continue
        if kind != "Shard":
            raise _refused(name, f"the placement {placement} is not supported: give a Part")
        # As `torch.chunk` divides: the last ones may have fewer rows, or none.
        begin, end = box[placement.dim]
        each = -(-(end - begin) // size)
        box[placement.dim] = [min(begin + place * each, end), min(begin + (place + 1) * each, end)]
    return tuple(slice(begin, end) for begin, end in box)


# As many flaws are listed at once.
_LISTED = 10


def bound(
    infos: Sequence[Info], given: Sequence[tuple[str, Any, tuple[slice, ...] | None]], is_group: bool
) -> dict[str, list[Held]]:
    """The lanes of each of the chain's tensors that are here, of what `parts_of` has found.

    Raises:
        UsageError: if a name is not in the chain, one is missing (unless other processes may have it), or a tensor is
            not of the chain's dtype and shape.
    """
    known = {info[0]: info for info in infos}
    # Tied to one of these, as transformers' models have them: written with it.
    places = {(tensor.device, tensor.data_ptr()) for name, tensor, _ in given if name in known and tensor.numel()}
    given = [one for one in given if one[0] in known or (one[1].device, one[1].data_ptr()) not in places]
    flaws = [
        f"{name!r} is not in the chain" for name in dict.fromkeys(name for name, _, _ in given) if name not in known
    ]
    if not is_group:
        flaws += [f"{name!r} is missing" for name in known.keys() - {name for name, _, _ in given}]
    if flaws:
        more = f", and {len(flaws) - _LISTED} more" if len(flaws) > _LISTED else ""
        raise UsageError(f"USAGE: the tensors are not those of the chain: {', '.join(sorted(flaws)[:_LISTED])}{more}")
    parts: dict[str, list[Held]] = {}
    for name, tensor, index in given:
        part = _held(known[name], tensor, index)
        if part.lanes.numel():
            parts.setdefault(name, []).append(part)
    return parts


def ties(parts: Mapping[str, Sequence[Held]]) -> dict[str, str]:
    """Names of tensors that lie where another one does, and that one's name.

    Raises:
        UsageError: if they have other dtypes or shapes, or are divided in another way.
    """
    first: dict[Any, str] = {}
    tied: dict[str, str] = {}
    for name, own in parts.items():
        others = {first.setdefault((part.lanes.device, part.lanes.data_ptr()), name) for part in own}
        if others == {name}:
            continue
        other = others.pop()
        forms = [
            [(part.lanes.data_ptr(), part.lanes.dtype, part.part, part.shape, part.strides) for part in parts[one]]
            for one in (name, other)
        ]
        if others or forms[0] != forms[1]:
            raise _refused(
                name, f"it shares memory with {other!r}, which is not the same part of a tensor of its shape"
            )
        tied[name] = other
    return tied


def _held(info: Info, tensor: Any, index: tuple[slice, ...] | None) -> Held:
    """The lanes of a checkpoint's tensor that a local tensor holds.

    Raises:
        UsageError: if dtype or shape do not fit.
    """
    name, dtype, shape = info
    if name_of(tensor) != dtype:
        raise _refused(name, f"the chain has {dtype}, this is {name_of(tensor)}: only memory of the chain's dtype")
    local = list(tensor.shape)
    bits = BITS[dtype]
    if dtype == "F4" and local:
        # torch counts bytes of two elements.
        local[-1] *= 2
    if index is None:
        index = ()
    if len(index) > len(shape) or any(part.step not in (None, 1) for part in index):
        raise _refused(name, f"the index {index} is not one of slices, without a step, of the shape {shape}")
    ranges = [part.indices(length)[:2] for part, length in zip(index, shape, strict=False)]
    ranges += [(0, length) for length in shape[len(index) :]]
    if [max(0, end - begin) for begin, end in ranges] != local:
        raise _refused(name, f"the tensor has the shape {local}, which is not that part of {shape}")
    lanes = as_lanes(tensor, 1 if dtype in PACKED else bits // 8)
    strides = list(tensor.stride())
    if dtype in PACKED:
        if ranges and ranges[-1] == (0, shape[-1]) and shape[-1] * bits % 8 == 0:
            ranges[-1] = (0, shape[-1] * bits // 8)
            shape = [*shape[:-1], shape[-1] * bits // 8]
        elif local == shape and tensor.is_contiguous():
            ranges, shape, strides = [(0, lanes.numel())], [lanes.numel()], [1]
        else:
            raise _refused(name, f"{dtype} cannot be divided in the last dimension")
    # Length, begin, end and stride.
    joined: list[tuple[int, int, int, int]] = []
    for length, (begin, end), stride in zip(shape, ranges, strides, strict=True):
        before = joined[-1] if joined else None
        if before is not None and (begin, end) == (0, length):
            if length == 1:
                continue
            if before[2] - before[1] == 1 or before[3] == length * stride:
                joined[-1] = (before[0] * length, before[1] * length, before[2] * length, stride)
                continue
        joined.append((length, begin, end, stride))
    # A scalar has one element.
    joined = joined or [(1, 0, 1, 1)]
    return Held(
        name,
        lanes,
        dtype in SIGNED,
        tuple(ranges),
        tuple(length for length, _, _, _ in joined),
        tuple((begin, end) for _, begin, end, _ in joined),
        None if tensor.is_contiguous() else tuple(stride for _, _, _, stride in joined),
        _native.Place(name, tensor),
    )


def covers(info: Info, ranks: Sequence[Sequence[Box]]) -> tuple[int, dict[tuple[int, int], list[int]]]:
    """Covers of a tensor that several processes make together (SPEC section 24.7): each holds every element
    exactly once, and each part is in one of them. Parts that are the whole tensor are covers by themselves.

    Args:
        info: the tensor.
        ranks: the parts that each rank has.

    Returns:
        How many there are; and for each part, by rank and place there, the numbers of those that it belongs to.

    Raises:
        UsageError: if elements are missing, or parts overlap without being the same.
    """
    name, _, shape = info
    total = math.prod(shape)
    holders: dict[Box, list[tuple[int, int]]] = {}
    is_whole = total == 0
    for rank, boxes in enumerate(ranks):
        for place, box in enumerate(boxes):
            size = _size(box)
            is_whole = is_whole or size == total
            if 0 < size < total:
                holders.setdefault(box, []).append((rank, place))
    if not holders:
        if not is_whole:
            raise _refused(name, "no process has this tensor")
        return 0, {}
    distinct = sorted(holders)
    overlap = next(((a, b) for at, a in enumerate(distinct) for b in distinct[at + 1 :] if _overlap(a, b)), None)
    if overlap is not None:
        ranks_of = [holders[box][0][0] for box in overlap]
        raise _refused(
            name, f"parts overlap: {list(overlap[0])} of rank {ranks_of[0]}, {list(overlap[1])} of rank {ranks_of[1]}"
        )
    if sum(map(_size, distinct)) != total:
        raise _refused(
            name, f"the parts of all ranks together are not all of the shape {shape}: {list(map(list, distinct))}"
        )
    count = max(map(len, holders.values()))
    joined: dict[tuple[int, int], list[int]] = {}
    for own in holders.values():
        for cover in range(count):
            # Those with fewer copies are in several covers.
            joined.setdefault(own[cover % len(own)], []).append(cover)
    return count, joined


def _size(box: Box) -> int:
    return math.prod(end - begin for begin, end in box)


def _overlap(one: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))
