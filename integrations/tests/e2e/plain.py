"""A plugin of vLLM for the tests in this folder, loaded in each of its processes. With
`ENGINES_PLAIN=1`, weights are kept as in the checkpoint, as on GPUs; on CPUs, vLLM packs them
otherwise. The CPU kernel for experts then reads them in a wrong order: the answers are meaningless,
but equal for equal weights. With `ENGINES_PLAIN=2`, experts are packed.

While the file that `ENGINES_REFUSES` names exists, replica 1 cannot take versions."""

import os
from pathlib import Path
from typing import Any


def refuse(path: Path) -> None:
    """Makes replica 1 refuse versions while this file exists."""
    from deltachain import IoError
    from deltachain_integrations._engine_worker import EngineWorker

    take = EngineWorker._take

    def refusing(worker: Any, *arguments: Any, **settings: Any) -> Any:
        index = worker.vllm_config.parallel_config.data_parallel_index
        if index == 1 and path.exists():
            raise IoError("IO: as the test said")
        return take(worker, *arguments, **settings)

    EngineWorker._take = refusing  # type: ignore[method-assign]


def register() -> None:
    """Applies the settings. vLLM calls this."""
    plain = os.environ.get("ENGINES_PLAIN")
    if path := os.environ.get("ENGINES_REFUSES"):
        refuse(Path(path))
    if plain in ("1", "2"):
        import vllm._custom_ops as ops

        ops._supports_onednn = False
    if plain == "1":
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

        CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
