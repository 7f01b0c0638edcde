"""What followers ask of vLLM's workers beside vLLM's own calls (docs/integrations.md, "What is asked of a server of
vLLM"), and what the answers are made of: a fingerprint of the weights, and who brings versions."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch

__all__ = ["Fingerprint", "Lease", "add_to"]

# Elements that are looked at in each parameter.
_SAMPLES = 4096

# Views of memory as numbers, by their length in bytes.
_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprint:
    """Some elements of each parameter of a model, and the objects that hold weights which are packed elsewhere. It
    tells whether somebody has changed the weights since; not if only a few elements were changed.

    Args:
        model: the model, as it is now.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._samples = [sample.clone() for sample in _samples(model)]
        self._packed = _packed(model)

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether the model is still the same, as far as this tells. Asks the device once."""
        samples, packed = _samples(model), _packed(model)
        if [sample.shape for sample in samples] != [sample.shape for sample in self._samples]:
            return False
        # They are kept here, so that no other object is at their place.
        if [id(one) for one in packed] != [id(one) for one in self._packed]:
            return False
        differ = [(now != then).any() for now, then in zip(samples, self._samples, strict=True)]
        return not differ or not bool(torch.stack(differ).any())


def _samples(model: torch.nn.Module) -> list[torch.Tensor]:
    """By the memory that parameters lie in, since some are views of others."""
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
        # Odd, so that it is not the same column of each row.
        found.append(elements[:: max(1, elements.numel() // _SAMPLES) | 1])
    return found


def _packed(model: torch.nn.Module) -> list[Any]:
    """On CPUs, vLLM multiplies by weights in an object that a reload makes anew; the parameter is empty then."""
    return [module.cpu_linear for module in model.modules() if hasattr(module, "cpu_linear")]


class Lease:
    """Who brings versions to the server: one follower at a time, for as long as it says."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._seconds = self._end = 0.0

    def ask(self, follower: str, seconds: float) -> tuple[str, float] | None:
        """Takes it for these seconds, or gives it up if there are none. Who else has it, and for how long: then nothing
        has changed."""
        other = self.held_by_other(follower)
        if other is None:
            self._owner, self._seconds = (follower if seconds > 0 else None), seconds
            self.renew(follower)
        return other

    def renew(self, follower: str | None) -> None:
        """As if this follower had asked again, if it has the lease."""
        if self._owner is not None and self._owner == follower:
            self._end = time.monotonic() + self._seconds

    def held_by_other(self, follower: str | None) -> tuple[str, float] | None:
        """Who else has it, and for how many seconds."""
        left = self._end - time.monotonic()
        return None if self._owner is None or self._owner == follower or left <= 0 else (self._owner, left)


def _deltachain_state(worker: Any, follower: str, lease: str) -> dict[str, Any]:
    # vLLM passes texts.
    state: dict[str, Any] = worker.weight_transfer_engine.state(follower, float(lease))
    return state


def _deltachain_end_update(worker: Any) -> None:
    # vLLM ends an update that fails, and this one names no version. Without an update it is refused.
    with suppress(Exception):
        worker.update_weights({})


def add_to(worker: type) -> None:
    """Adds them to a class of workers."""
    worker.deltachain_state = _deltachain_state  # type: ignore[attr-defined]
    worker.deltachain_end_update = _deltachain_end_update  # type: ignore[attr-defined]
