"""Places to which a model loads the elements of a checkpoint, found by watching the model's own
loader once.

Loaders fuse, split, transpose and divide. `_watch` sees strided copies; this module turns them into
boxes of the checkpoint's tensors in the model's memory. Tensors whose copies cannot be followed
have to be loaded again, with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from deltachain import Part
from deltachain.adapters import overlapping

from ._storages import Sums, batches_of, lanes_of, sums_of
from ._watch import MOST_BOXES, Place, Source, Storage, Unknown, Watch, Write, forms_of, names_of

__all__ = ["Map", "taken"]


def taken(
    load: Callable[[Iterator[tuple[str, torch.Tensor]]], Any],
    tensors: Iterable[tuple[str, torch.Tensor]],
    memory: Iterable[tuple[str, torch.Tensor]],
) -> Map:
    """Runs a model's loader, and finds where it puts each tensor of a checkpoint.

    Args:
        load: the loader, which gets names and tensors one at a time.
        tensors: the checkpoint.
        memory: the parameters, buffers and other tensors of the model to follow.

    Raises:
        Exception: from the loader.
    """
    own = list(memory)
    watch = Watch(own)
    before = _sums(watch.own)
    with torch.no_grad(), watch:
        load(watch.given(tensors))
    return _made(watch, own, before)


def _sums(storages: Mapping[int, Storage]) -> Sums[int]:
    """The sums of the memory of storages of the model."""
    lanes = {
        number: lanes_of(storage.tensor.untyped_storage())
        for number, storage in storages.items()
        if storage.tensor is not None
    }
    return sums_of(lanes, batches_of(lanes))


class _Region(NamedTuple):
    """Place of a box of a checkpoint's tensor in the model."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[slice, ...]


class Map:
    """Places of a checkpoint's tensors in a model. It is valid while the model's tensors stay
    where they are.

    Attributes:
        reload: tensors of the checkpoint that have to be loaded by the model's loader, and why.
        unused: tensors of the checkpoint that the loader puts nowhere in this process.
        targets: for tensors of the checkpoint, the tensors of the model that share memory with
            copies of them, as far as the copies were seen.
    """

    def __init__(self) -> None:
        self.reload: dict[str, str] = {}
        self.unused: list[str] = []
        self.targets: dict[str, set[str]] = {}
        self._memory: list[torch.Tensor] = []
        self._forms: list[tuple[Any, ...]] = []
        self._dtypes: dict[str, torch.dtype] = {}
        self._regions: dict[str, list[_Region]] = {}

    def __repr__(self) -> str:
        return f"<deltachain Map of {len(self._regions)} tensors, {len(self.reload)} to reload>"

    def into(self) -> dict[str, list[Part]]:
        """The tensors that are mapped, as `Subscriber(into=)` takes them."""
        return {
            name: [self._part(name, region) for region in regions]
            for name, regions in self._regions.items()
        }

    def _part(self, name: str, region: _Region) -> Part:
        own = self._memory[region.storage].view(self._dtypes[name])
        return Part(own.as_strided(region.shape, region.strides, region.offset), region.box)

    def fits(self, memory: Iterable[tuple[str, torch.Tensor]]) -> bool:
        """True if the model's tensors are the ones that the map was made for, in the same
        places."""
        return self._forms == forms_of(memory)


def _made(watch: Watch, memory: Sequence[tuple[str, torch.Tensor]], before: Sums[int]) -> Map:
    """Returns the map of the writes that were seen."""
    made = Map()
    made._forms = forms_of(memory)
    made._dtypes = {name: dtype for name, (dtype, _) in watch.infos.items()}
    refused = dict.fromkeys(watch.kept(), "the model keeps another tensor that is computed from it")
    found: list[tuple[int, Write]] = []
    # Tensors that changed although no write was seen.
    hidden = {name for name, *_ in set(made._forms) - set(watch.forms)}
    for key, storage in watch.own.items():
        assert storage.tensor is not None
        made._memory.append(storage.tensor)
        for write in storage.writes:
            for name in names_of(write.source):
                made.targets.setdefault(name, set()).update(storage.names)
        kept = _settled(storage, refused)
        places = [write for write in kept if isinstance(write.source, Place)]
        for name in hidden & set(storage.names):
            for write in places:
                _refuse_all(write, f"the loader replaces {name}", refused)
        found += [(len(made._memory) - 1, write) for write in places]
        if not places and any(isinstance(tensor, torch.nn.Parameter) for tensor in storage.given):
            hidden.update(storage.names)
        # Tied tensors count once.
        lanes = {write.form(): math.prod(write.shape) for write in places}
        is_all = sum(lanes.values()) * storage.width == storage.nbytes
        # A storage that was filled with a constant counts as seen.
        is_seen = any(write.source is None for write in storage.writes) and not any(
            isinstance(write.source, Unknown) and not write.source.names for write in kept
        )
        if not is_all and not is_seen:
            own = {piece: sums for piece, sums in before.items() if piece[0] == key}
            if _sums({key: storage}) != own:
                hidden.update(storage.names)
    for number, write in found:
        place = write.source
        assert isinstance(place, Place)
        if place.name in refused:
            continue
        boxes = _boxes(number, write, place, watch.infos[place.name][1])
        if boxes is None:
            refused[place.name] = "the loader divides it, but not into boxes"
            continue
        made._regions.setdefault(place.name, []).extend(boxes)
    made.reload = refused
    made._regions = {
        name: regions for name, regions in made._regions.items() if name not in refused
    }
    for name in watch.infos:
        if name in made._regions or name in made.reload:
            continue
        if hidden:
            made.reload[name] = f"the loader was not seen to copy it, nor to fill {min(hidden)}"
        else:
            made.unused.append(name)
    return made


def _settled(storage: Storage, refused: dict[str, str]) -> list[Write]:
    """The last writes to a storage. Elements that were written for several names are refused,
    unless all writes are the same: these names are tied."""
    assert storage.tensor is not None
    kept: dict[tuple[Any, ...], list[Write]] = {}
    # Names whose elements other writes have replaced, and the reasons.
    lost: dict[tuple[Any, ...], dict[str, str]] = {}
    for write in storage.writes:
        form, source = write.form(), write.source
        before, own = kept.pop(form, []), lost.setdefault(form, {})
        kept[form] = [write]
        if isinstance(source, Place):
            own.pop(source.name, None)
            places = [other for other in before if isinstance(other.source, Place)]
            kept[form] = [
                *(other for other in places if names_of(other.source) != {source.name}),
                write,
            ]
        for other in before:
            if other not in kept[form]:
                for name in names_of(other.source) - names_of(source):
                    own[name] = _reason(source, storage)
        if isinstance(source, Unknown):
            own.update(dict.fromkeys(source.names, source.reason))
    for reasons in lost.values():
        for name, reason in reasons.items():
            refused.setdefault(name, reason)
    for tied in kept.values():
        if len({_alike(write) for write in tied}) > 1:
            for write in tied:
                _refuse_all(
                    write,
                    f"several tensors are loaded to the same place in {storage.names[0]}",
                    refused,
                )
    writes = [write for tied in kept.values() for write in tied]
    while True:
        views = [
            (str(number), storage.tensor.as_strided(write.shape, write.strides, write.offset))
            for number, write in enumerate(writes)
        ]
        pair = overlapping(views)
        if pair is None:
            return writes
        first, second = sorted(map(int, pair))
        later = writes[second].source
        if isinstance(writes[first].source, Place):
            twice = f"the loader writes to a part of {storage.names[0]} twice"
            reason = twice if isinstance(later, Place) else _reason(later, storage)
            for write in (writes[first], writes[second]):
                _refuse_all(write, reason, refused)
        del writes[first]


def _alike(write: Write) -> tuple[Any, ...]:
    """The properties that are equal for tied tensors."""
    place = write.source
    return (
        (write.shape, write.strides, place.offset, place.strides)
        if isinstance(place, Place)
        else (write,)
    )


def _reason(source: Source, storage: Storage) -> str:
    return (
        source.reason
        if isinstance(source, Unknown)
        else f"the loader overwrites it in {storage.names[0]}"
    )


def _refuse_all(write: Write, reason: str, refused: dict[str, str]) -> None:
    for name in names_of(write.source):
        refused.setdefault(name, reason)


def _boxes(number: int, write: Write, place: Place, shape: tuple[int, ...]) -> list[_Region] | None:
    """Cuts a write to a storage into boxes of the checkpoint's tensor, with shape and strides in
    the order of the tensor's dimensions. Returns None if there are too many."""
    steps = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    found: list[_Region] = []
    dimensions = tuple(
        (length, theirs, own)
        for length, theirs, own in zip(write.shape, place.strides, write.strides, strict=True)
        if length > 1
    )
    waiting = [(place.offset, write.offset, dimensions)]
    while waiting:
        first, offset, rest = waiting.pop()
        box = _box(first, rest, shape, steps)
        if box is None:
            # Slices the shortest dimension, one index at a time.
            at = min(range(len(rest)), key=lambda number: rest[number][0])
            length, theirs, own = rest[at]
            if len(found) + len(waiting) + length > MOST_BOXES:
                return None
            others = rest[:at] + rest[at + 1 :]
            waiting += [
                (first + step * theirs, offset + step * own, others) for step in range(length)
            ]
            continue
        found.append(_Region(number, offset, *box))
    return found


def _box(
    first: int, rest: Sequence[tuple[int, int, int]], shape: tuple[int, ...], steps: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[slice, ...]] | None:
    """Shape, strides and index of a box, from the number of its first element, and from lengths and
    strides in the checkpoint's tensor and in the storage; None if the elements form no box."""
    begins, number = [], first
    for step in steps:
        begins.append(number // step)
        number %= step
    lengths, strides = [1] * len(shape), [0] * len(shape)
    # From the innermost dimension on, so that a write that spans several dimensions is cut there.
    waiting = sorted(rest, key=lambda one: one[1], reverse=True)
    while waiting:
        length, theirs, own = waiting.pop()
        if theirs <= 0:
            return None
        at = next(
            (number for number, step in enumerate(steps) if step == theirs and shape[number] > 1),
            None,
        )
        if at is not None and lengths[at] == 1:
            room = shape[at] - begins[at]
            if length > room:
                if begins[at] or length % room:
                    return None
                waiting.append((length // room, theirs * room, own * room))
                length = room
            lengths[at], strides[at] = length, own
            continue
        # A dimension that is divided is joined with the part of it that is there already.
        at = next(
            (number for number, step in enumerate(steps) if step < theirs and theirs % step == 0),
            None,
        )
        if (
            at is None
            or lengths[at] == 1
            or theirs != lengths[at] * steps[at]
            or own != lengths[at] * strides[at]
        ):
            return None
        if begins[at] + length * lengths[at] > shape[at]:
            return None
        lengths[at] *= length
    # Dimensions of one element may have any stride.
    for at in range(len(shape)):
        if lengths[at] == 1:
            strides[at] = max(1, math.prod(lengths[at + 1 :]))
    index = tuple(
        slice(begin, begin + length) for begin, length in zip(begins, lengths, strict=True)
    )
    return tuple(lengths), tuple(strides), index
