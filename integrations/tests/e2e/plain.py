"""A plugin of vLLM for the checks here, loaded in each of its processes. With `ENGINES_PLAIN=1`,
weights are kept as the checkpoint has them, as on GPUs: on CPUs, vLLM packs them otherwise. Its
kernel for experts then reads them in another order than the model means: the answers are of no use,
but equal for equal weights. With `ENGINES_PLAIN=2`, experts are packed."""

import os


def register() -> None:
    """vLLM calls this."""
    plain = os.environ.get("ENGINES_PLAIN")
    if plain in ("1", "2"):
        import vllm._custom_ops as ops

        ops._supports_onednn = False
    if plain == "1":
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

        CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
