"""The work of SGLang's schedulers for followers: they report the version that they hold, and load
versions."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
from sglang.srt.managers.io_struct import (
    GetWeightsByNameReqOutput,
    UpdateWeightsFromTensorReqOutput,
)
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.model_loader.utils import set_default_torch_dtype

from deltachain import UnsupportedError, UsageError

from ._engine_settings import Settings, in_environment
from ._engine_weights import first_names
from ._engine_worker import EngineWorker, listed
from ._maps import Map

__all__ = ["answer", "start", "update"]

_logger = logging.getLogger("sglang.deltachain")

_METHODS = ("deltachain_state", "deltachain_is_ready")

# Settings that are known to prevent a server from following in place.
_REFUSED = (
    "cpu_offload_gb",
    "enable_lora",
    "enable_memory_saver",
    "offload_group_size",
    "speculative_algorithm",
)
_SIZES = ("dp_size", "pp_size")


class SglangWorker(EngineWorker):
    """The model of a scheduler, one in each process of a server.

    Args:
        manager: the manager of SGLang that updates weights.
    """

    _log = _logger

    def __init__(self, manager: Any) -> None:
        self._runner = manager.tp_worker.model_runner
        self.model, self.device = self._runner.model, torch.device(self._runner.device)
        group = manager.tp_cpu_group
        workers = group if torch.distributed.get_world_size(group) > 1 else None
        self._begin(in_environment(), self._runner.model_config.model_path, workers)

    def _refuse(self, settings: Settings) -> None:
        own = self._runner.server_args
        if self._runner.model_config.quantization is not None:
            raise UnsupportedError(
                "quantised models are untested in place; `deltachain follow` can keep a copy"
            )
        on = [name for name in _REFUSED if getattr(own, name, None) not in (None, False, -1)]
        on += [name for name in _SIZES if getattr(own, name, 1) != 1]
        if on:
            raise UnsupportedError(
                f"untested in place: {listed(on, ', ')}; `deltachain follow` can keep a copy"
            )
        self._runner.weight_updater._assert_weight_cache_inactive("deltachain")
        if reason := weight_updater._unsupported_derived_weight_cache_error(self.model):
            raise UnsupportedError(reason)
        super()._refuse(settings)

    def _load_all(
        self, tensors: Iterable[tuple[str, torch.Tensor]], *, is_whole: bool = True
    ) -> None:
        """Loads tensors as the server does at its start, and when it reads a directory."""
        DefaultModelLoader.restore_weights_before_loading(self.model, self.device)
        try:
            with set_default_torch_dtype(self._runner.model_config.dtype):
                DefaultModelLoader.load_weights_only(self.model, iter(tensors), self.device)
        finally:
            DefaultModelLoader.postprocess_weights(self.model, self.device)
        self._refuse_stranded()

    def _check_loaded(self, found: Map) -> None:
        """SGLang does not report missing tensors. If a copy was not seen, its place is unknown."""
        firsts = first_names(self.model)
        written = {firsts.get(name, name) for name in set().union(*found.targets.values())}
        missing = [
            name
            for name, own in self.model.named_parameters()
            if own.numel() and name not in written
        ]
        if missing and not found.reload:
            raise UsageError(
                f"USAGE: the chain has no weights for {len(missing)} parameters: "
                f"{listed(missing, ', ')}"
            )


# The worker of this process.
_worker: SglangWorker | None = None


def _of(manager: Any) -> SglangWorker:
    global _worker
    if _worker is None:
        _worker = SglangWorker(manager)
    return _worker


def start(manager: Any) -> None:
    """Loads the newest version, if the settings ask for that. SGLang has loaded its own model, and
    has not opened its port.

    Raises:
        Error: if no version can be loaded: this ends SGLang.
    """
    _of(manager)._start()


def answer(manager: Any, request: Any) -> Any:
    """Answers a follower's question. Returns None if another client asks.

    The name of the weight that is asked for is a JSON object of a method and its arguments, and the
    values are the bytes of a list with the answer of each worker.
    """
    try:
        told = json.loads(request.name)
        method, given = told["method"], told["kwargs"]
    except (ValueError, TypeError, KeyError):
        return None
    if method not in _METHODS:
        return None
    try:
        worker = _of(manager)

        def own() -> dict[str, Any]:
            if method == "deltachain_is_ready":
                begins = given["begins"] == "1"
                return worker.readiness(given["follower"], int(given["version"]), begins=begins)
            is_paused = bool(manager.scheduler._engine_paused)
            return {**worker.state(given["follower"], float(given["lease"])), "paused": is_paused}

        said: Any = worker._gathered(worker._together(own))
    except Exception as error:
        # An exception would end SGLang.
        _logger.error("deltachain: %s", error)
        said = {"error": str(error)}
    return GetWeightsByNameReqOutput(parameter=[float(byte) for byte in json.dumps(said).encode()])


def update(manager: Any, request: Any) -> Any:
    """Loads a version. Returns None if another client asks. If it fails, the model is unchanged, or
    torn."""
    if request.load_format != "deltachain":
        return None
    try:
        told = json.loads(request.serialized_named_tensors[0])
        if manager._session is not None:
            raise UsageError("USAGE: another update is open: POST /end_weight_update")
        worker = _of(manager)
        worker._receive(int(told["version"]), told["digest"], told["follower"])
        worker._preparer.go_on()
        if worker.device.type != "cpu":
            torch.accelerator.synchronize()
        success, message = True, worker.how
    except Exception as error:
        # An exception would end SGLang.
        _logger.error("deltachain: %s", error)
        success, message = False, f"{type(error).__name__}: {error}"
    if success:
        manager.record_weight_version_after_update(request.weight_version)
        success, message = manager.flush_cache_after_weight_update(request, success, message)
    torch.distributed.barrier(group=manager.tp_cpu_group)
    return UpdateWeightsFromTensorReqOutput(success=success, message=message)
