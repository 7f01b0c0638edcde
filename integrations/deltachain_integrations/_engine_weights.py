"""The facts that a worker of a server knows about its model: the sums of the weights, and tensors
that a load leaves behind; and the follower that updates the server."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from ._storages import Sample, Sums, batches_of, lanes_of, sums_of

__all__ = ["Lease", "SumsRow", "WeightSums", "first_names", "stranded"]

# The modulus of sums (SPEC section 24).
_MODULUS = (1 << 31) - 1

# Minimum of the seconds in which polls compare the sums of the whole model:
# `WeightSums.round_seconds`.
_ROUND = 600.0

# The address of a storage, the number of a 16 MiB piece of it, and the sums of old and of new
# values of the lanes that change there.
SumsRow = tuple[int, int, tuple[int, int], tuple[int, int]]


def first_names(model: torch.nn.Module) -> dict[str, str]:
    """Maps each name of a parameter to its first name. A parameter of a module that belongs to two
    others has two names: vLLM's Transformers backend has shared experts below the experts, too."""
    firsts: dict[int, str] = {}
    return {
        name: firsts.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


@dataclass(slots=True)
class _Memory:
    """The memory of a model's parameters.

    Attributes:
        places: the address of each parameter.
        forms: every other property that decides which elements a parameter reads there.
        names: for the address of each storage, the first parameter in it, since some parameters are
            views of others.
        lanes: by this name, all lanes of the storage.
    """

    places: dict[str, int] = field(default_factory=dict)
    forms: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    lanes: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def from_model(cls, model: torch.nn.Module) -> _Memory:
        found = cls()
        # Other code may have registered the same parameters in another order.
        for name, parameter in sorted(model.named_parameters()):
            storage = parameter.untyped_storage()
            address = storage.data_ptr()
            found.places[name] = address
            found.forms[name] = (
                parameter.device,
                storage.nbytes(),
                parameter.storage_offset(),
                parameter.dtype,
                parameter.shape,
                parameter.stride(),
            )
            if storage.nbytes() and address not in found.names:
                found.names[address] = name
                found.lanes[name] = lanes_of(storage)
        return found


class WeightSums:
    """The sums of all weights of a model, and the objects that hold packed weights. They show
    whether other code has changed the weights: a change of a single element always, any other
    accidental change except with a probability of about 2^-60.

    Reading all weights takes a device about 0.02 s for a GiB, too long for each poll. So a poll
    (`seems_to_fit`) reads a sample of each storage, and the sums of a part of the model: of all of
    it in `round_seconds`.

    Args:
        model: the model, as it is now.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        memory = _Memory.from_model(model)
        self._packed = _packed(model)
        self._batches = batches_of(memory.lanes)
        begin = time.monotonic()
        self._sums: Sums[str] = sums_of(memory.lanes, self._batches)
        self._whole_seconds = time.monotonic() - begin
        self._begin_round(memory)

    @property
    def round_seconds(self) -> float:
        """Seconds in which polls compare all sums, so that at most a hundredth of the time is spent
        on comparisons."""
        return max(_ROUND, 100 * self._whole_seconds)

    def fits(self, model: torch.nn.Module) -> bool:
        """True if the model still has these sums, even in other memory. Reads all weights on their
        device, and waits for it."""
        memory = _Memory.from_model(model)
        if memory.forms != self._forms or not self._has_packed(model):
            return False
        batches = batches_of(memory.lanes)
        begin = time.monotonic()
        if sums_of(memory.lanes, batches) != self._sums:
            return False
        self._batches, self._whole_seconds = batches, time.monotonic() - begin
        self._begin_round(memory)
        return True

    def seems_to_fit(self, model: torch.nn.Module) -> bool:
        """Answers `fits` as far as little work allows: compares addresses and forms, a new sample
        of each storage, and the sums of the part of the model that is due now."""
        memory = _Memory.from_model(model)
        if self._sample is None or memory.places != self._places:
            return self.fits(model)
        return (
            memory.forms == self._forms
            and self._has_packed(model)
            and self._sample.fits(memory.lanes)
            and self._has_due(memory)
        )

    def after(self, changes: list[SumsRow]) -> WeightSums:
        """The sums after changes that have been proven. Reads nothing: `renew_sample` does, when
        the changes are written."""
        made = copy(self)
        made._sums = self._sums.copy()
        made._sample = None
        for address, piece, old, new in changes:
            name = self._names.get(address)
            # Other sums are those of a buffer.
            if name is not None:
                first, second = made._sums[name, piece]
                made._sums[name, piece] = (
                    (first - old[0] + new[0]) % _MODULUS,
                    (second - old[1] + new[1]) % _MODULUS,
                )
        return made

    def renew_sample(self, model: torch.nn.Module) -> None:
        """Reads a sample of the model, which now has these sums."""
        self._begin_round(_Memory.from_model(model))

    def _begin_round(self, memory: _Memory) -> None:
        """Begins to compare all sums from the first one on, now that the weights are known."""
        # Keeps no lanes: they would hold memory that the model has released.
        self._places, self._forms, self._names = memory.places, memory.forms, memory.names
        self._sample: Sample[str] | None = Sample(memory.lanes)
        self._round_began, self._done = time.monotonic(), 0

    def _has_packed(self, model: torch.nn.Module) -> bool:
        # The sums keep the old objects alive, so no other object has their id.
        return [id(one) for one in _packed(model)] == [id(one) for one in self._packed]

    def _has_due(self, memory: _Memory) -> bool:
        """True if the part of the model that is due now has its sums. Starts over when a round is
        complete."""
        now, count = time.monotonic(), len(self._batches)
        share = (now - self._round_began) / self.round_seconds
        end = min(count, int(count * share))
        found = sums_of(memory.lanes, self._batches[self._done : end])
        if any(self._sums[piece] != sums for piece, sums in found.items()):
            return False
        self._done = end
        if end == count:
            self._round_began, self._done = now, 0
        return True


def _packed(model: torch.nn.Module) -> list[Any]:
    """On CPUs, vLLM keeps packed weights in an object that a reload recreates; the parameter is
    then empty."""
    return [module.cpu_linear for module in model.modules() if hasattr(module, "cpu_linear")]


def stranded(model: torch.nn.Module) -> list[str]:
    """Buffers and attributes that are views of a parameter whose memory no parameter has any more:
    vLLM has packed or replaced it. A load renews parameters, so these keep the values of another
    model, and the model may read them."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return [
        f"{place}.{name}"
        for place, module in model.named_modules()
        for name, tensor in {**vars(module), **dict(module.named_buffers(recurse=False))}.items()
        if isinstance(tensor, torch.Tensor)
        and isinstance(tensor._base, torch.nn.Parameter)
        and tensor.untyped_storage().data_ptr() not in own
    ]


class Lease:
    """The follower that updates the server: one at a time, for as long as it asked for."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._seconds = self._end = 0.0

    def ask(self, follower: str, seconds: float) -> tuple[str, float] | None:
        """Takes the lease for these seconds; 0 releases it. If another follower has the lease,
        changes nothing, and returns that follower and its remaining seconds."""
        other = self.held_by_other(follower)
        if other is None:
            self._owner, self._seconds = (follower if seconds > 0 else None), seconds
            self.renew(follower)
        return other

    def renew(self, follower: str | None) -> None:
        """Renews the lease if this follower has it."""
        if self._owner is not None and self._owner == follower:
            self._end = time.monotonic() + self._seconds

    def held_by_other(self, follower: str | None) -> tuple[str, float] | None:
        """The other follower that has the lease, and its remaining seconds."""
        left = self._end - time.monotonic()
        return (
            None
            if self._owner is None or self._owner == follower or left <= 0
            else (self._owner, left)
        )
