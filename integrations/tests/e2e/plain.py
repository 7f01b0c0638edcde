"""A plugin of vLLM for the tests in this folder, loaded in each of its processes. With
`ENGINES_PLAIN=1`, weights are kept as in the checkpoint, as on GPUs; on CPUs, vLLM packs them
otherwise. The CPU kernel for experts then reads them in a wrong order: the answers are meaningless,
but equal for equal weights. With `ENGINES_PLAIN=2`, experts are packed."""

import os


def register() -> None:
    """Applies the settings. vLLM calls this."""
    plain = os.environ.get("ENGINES_PLAIN")
    if plain in ("1", "2"):
        import vllm._custom_ops as ops

        ops._supports_onednn = False
    if plain == "1":
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

        CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
