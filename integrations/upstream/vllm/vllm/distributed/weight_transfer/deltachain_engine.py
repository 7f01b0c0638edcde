# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Both sides of the weight transfer backend "deltachain".

The classes live in the package deltachain-integrations, which is released and
tested with vLLM on its own. This module makes them available under vLLM's names.
"""

try:
    from deltachain_integrations.vllm import (
        DeltachainInitInfo,
        DeltachainTrainerInitInfo,
        DeltachainTrainerWeightTransferEngine,
        DeltachainUpdateInfo,
        DeltachainWeightSyncClient,
        DeltachainWeightTransferEngine,
    )
except ModuleNotFoundError as error:
    # Anything else is missing inside an installed package, and has its own name.
    if error.name not in ("deltachain_integrations", "deltachain_integrations.vllm"):
        raise
    raise ImportError(
        "Weight transfer with the backend 'deltachain' needs the package "
        "deltachain-integrations on trainers and servers: "
        "`uv pip install deltachain-integrations`."
    ) from error

__all__ = [
    "DeltachainInitInfo",
    "DeltachainTrainerInitInfo",
    "DeltachainTrainerWeightTransferEngine",
    "DeltachainUpdateInfo",
    "DeltachainWeightSyncClient",
    "DeltachainWeightTransferEngine",
]
