"""Methods that followers call on vLLM's workers, beside vLLM's own (docs/engines.md, "What is asked of a server of
vLLM"), and their data: a fingerprint of the weights, and the follower that updates the server."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch

__all__ = ["Fingerprint", "Lease", "add_to"]

# Elements that are sampled from each parameter.
_SAMPLES = 4096

# Integer dtypes by their length in bytes.
_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprint:
    """A sample of each parameter of a model, and the objects that hold packed weights. It shows whether the weights
    were changed later, unless only a few elements were.

    Args:
        model: the model, as it is now.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._samples = [sample.clone() for sample in _samples(model)]
        self._packed = _packed(model)

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether the model still has this fingerprint. Synchronizes with the device once."""
        samples, packed = _samples(model), _packed(model)
        if [sample.shape for sample in samples] != [sample.shape for sample in self._samples]:
            return False
        # The fingerprint keeps the old objects alive, so no other object has their id.
        if [id(one) for one in packed] != [id(one) for one in self._packed]:
            return False
        differ = [(now != then).any() for now, then in zip(samples, self._samples, strict=True)]
        return not differ or not bool(torch.stack(differ).any())


def _samples(model: torch.nn.Module) -> list[torch.Tensor]:
    """Samples each storage once, since some parameters are views of others."""
    memories = {}
    for parameter in model.parameters():
        storage = parameter.untyped_storage()
        if storage.nbytes():
            memories[storage.data_ptr()] = (storage, parameter)
    found = []
    for storage, parameter in memories.values():
        width = parameter.element_size() if storage.nbytes() % parameter.element_size() == 0 else 1
        empty = torch.empty(0, dtype=_NUMBERS.get(width, torch.uint8), device=parameter.device)
        elements = empty.set_(storage)
        # An odd stride, so that samples are not all in one column.
        found.append(elements[:: max(1, elements.numel() // _SAMPLES) | 1])
    return found


def _packed(model: torch.nn.Module) -> list[Any]:
    """On CPUs, vLLM keeps packed weights in an object that a reload recreates; the parameter is then empty."""
    return [module.cpu_linear for module in model.modules() if hasattr(module, "cpu_linear")]


class Lease:
    """The follower that updates the server: one at a time, for as long as it asked for."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._seconds = self._end = 0.0

    def ask(self, follower: str, seconds: float) -> tuple[str, float] | None:
        """Takes the lease for these seconds; 0 releases it. If another follower has it, nothing changes; returns that
        follower and its remaining seconds."""
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
        return None if self._owner is None or self._owner == follower or left <= 0 else (self._owner, left)


def _deltachain_state(worker: Any, follower: str, lease: str) -> dict[str, Any]:
    # vLLM passes strings.
    state: dict[str, Any] = worker.weight_transfer_engine.state(follower, float(lease))
    return state


def _deltachain_end_update(worker: Any) -> None:
    # vLLM ends an update that fails, and this one fails, because it names no version. Without an open update vLLM
    # refuses the call.
    with suppress(Exception):
        worker.update_weights({})


def add_to(worker: type) -> None:
    """Adds the methods to a class of workers."""
    worker.deltachain_state = _deltachain_state  # type: ignore[attr-defined]
    worker.deltachain_end_update = _deltachain_end_update  # type: ignore[attr-defined]
