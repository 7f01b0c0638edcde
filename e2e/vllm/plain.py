"""A plugin of vLLM for the checks here, loaded in each of its processes. With `ENGINES_PLAIN=1`, weights are kept as
the checkpoint has them, as on GPUs: on CPUs, vLLM packs them otherwise."""

import os


def register() -> None:
    """vLLM calls this."""
    if os.environ.get("ENGINES_PLAIN") == "1":
        import vllm._custom_ops as ops

        ops._supports_onednn = False
