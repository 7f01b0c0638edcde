"""The weight transfer backend `deltachain` for vLLM: servers follow a chain.

    vllm serve MODEL --weight-transfer-config '{"backend": "deltachain"}'

vLLM finds the installed package by its entry point `vllm.general_plugins`. See docs/integrations.md.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Registers the backend. vLLM calls this in each of its processes, in some of them twice."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from ._vllm_replies import mend

    if "deltachain" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            "deltachain", "deltachain._vllm_engine", "DeltachainWeightTransferEngine"
        )
    mend()
