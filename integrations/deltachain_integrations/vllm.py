"""The weight transfer backend `deltachain` for vLLM: servers follow a chain, and trainers update
them.

    vllm serve MODEL --weight-transfer-config '{"backend": "deltachain"}'

vLLM finds the installed package by its entry point `vllm.general_plugins`. See
docs/integrations.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._vllm_client import DeltachainWeightSyncClient
    from ._vllm_engine import (
        DeltachainInitInfo,
        DeltachainUpdateInfo,
        DeltachainWeightTransferEngine,
    )
    from ._vllm_trainer import DeltachainTrainerInitInfo, DeltachainTrainerWeightTransferEngine

__all__ = [
    "DeltachainInitInfo",
    "DeltachainTrainerInitInfo",
    "DeltachainTrainerWeightTransferEngine",
    "DeltachainUpdateInfo",
    "DeltachainWeightSyncClient",
    "DeltachainWeightTransferEngine",
    "register",
]

# Imported on first use: vLLM calls `register` in all its processes, even without this backend.
_MODULES = {
    "DeltachainInitInfo": "_vllm_engine",
    "DeltachainTrainerInitInfo": "_vllm_trainer",
    "DeltachainTrainerWeightTransferEngine": "_vllm_trainer",
    "DeltachainUpdateInfo": "_vllm_engine",
    "DeltachainWeightSyncClient": "_vllm_client",
    "DeltachainWeightTransferEngine": "_vllm_engine",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __package__), name)


def register() -> None:
    """Registers both sides of the backend. vLLM calls this in each of its processes, in some of
    them twice; a trainer calls it before `WeightTransferTrainerFactory.trainer_init`."""
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )

    from ._vllm_replies import mend

    for factory, name in (
        (WeightTransferEngineFactory, "DeltachainWeightTransferEngine"),
        (WeightTransferTrainerFactory, "DeltachainTrainerWeightTransferEngine"),
    ):
        if "deltachain" not in factory._registry:
            factory.register_engine("deltachain", f"{__package__}.{_MODULES[name]}", name)
    mend()
