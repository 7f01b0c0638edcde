"""The facts that a worker of a server knows of its model: the sums of the weights, tensors that a
load leaves behind; and which follower updates the server."""

from __future__ import annotations

import time
from typing import Any

import torch

from deltachain.adapters import storage_sums

__all__ = ["Lease", "SumsRow", "WeightSums", "first_names", "stranded"]

# The modulus of sums (SPEC section 24).
_MODULUS = (1 << 31) - 1

# The address of a storage, the number of 16 MiB of it, and sums of old and of new values of what
# changes there.
SumsRow = tuple[int, int, tuple[int, int], tuple[int, int]]


def first_names(model: torch.nn.Module) -> dict[str, str]:
    """The first name of each parameter, by all its names. A module that two others have gives its
    parameters two: vLLM's Transformers backend has shared experts below the experts, too."""
    firsts: dict[int, str] = {}
    return {
        name: firsts.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


class WeightSums:
    """The sums of all weights of a model, and the objects that hold packed weights. They show
    whether other code has changed the weights: any single element for certain, any other accident
    but for a chance of about 2^-60.

    Args:
        model: the model, as it is now.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = _names(model)
        self._sums = _sums(self._names)
        self._packed = _packed(model)

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether the model still has these sums. Reads all weights, on their device, and waits for
        it."""
        packed = _packed(model)
        # The sums keep the old objects alive, so no other object has their id.
        if [id(one) for one in packed] != [id(one) for one in self._packed]:
            return False
        sums = _sums(_names(model))
        # Other code may have registered the same parameters in another order.
        return sums.keys() == self._sums.keys() and all(
            torch.equal(sums[name], self._sums[name]) for name in sums
        )

    def after(self, changes: list[SumsRow]) -> WeightSums:
        """The sums after changes that have been proven. Reads nothing."""
        made = WeightSums.__new__(WeightSums)
        made._names, made._packed = self._names, self._packed
        made._sums = {name: sums.clone() for name, sums in self._sums.items()}
        for address, piece, old, new in changes:
            # Otherwise they are those of a buffer.
            if address in self._names:
                sums = made._sums[self._names[address][0]]
                change = torch.tensor(new, device=sums.device) - torch.tensor(
                    old, device=sums.device
                )
                sums[1 + piece] = (sums[1 + piece] + change).remainder(_MODULUS)
        return made


def _names(model: torch.nn.Module) -> dict[int, tuple[str, torch.Tensor]]:
    """The address of each storage, and a parameter that lies in it, since some are views of
    others."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, parameter in sorted(model.named_parameters()):
        storage = parameter.untyped_storage()
        if storage.nbytes():
            found.setdefault(storage.data_ptr(), (name, parameter))
    return found


def _sums(names: dict[int, tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The sums of each storage once."""
    with torch.inference_mode():
        return {name: storage_sums(parameter) for name, parameter in names.values()}


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
        """Takes the lease for these seconds; 0 releases it. If another follower has it, nothing
        changes; returns that follower and its remaining seconds."""
        other = self.held_by_other(follower)
        if other is None:
            self._owner, self._seconds = (follower if seconds > 0 else None), seconds
            self.renew(follower)
        return other

    def renew(self, follower: str | None) -> None:
        """Renews the lease, if this follower has it."""
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
