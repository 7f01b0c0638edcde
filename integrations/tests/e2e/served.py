"""An engine of vLLM in this process, and its answers, for the other programs of this folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# Set before vLLM is imported.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

PROMPTS = [[2, 3, 5, 7, 11, 13], list(range(40, 75)), [400, 17, 256, 31] * 5, [9]]
TOKENS = 12


def engine(model: object, *, plain: int = False, **settings: Any) -> Any:
    """Starts an engine that computes in the model's dtype. For `plain`, see `plain.py`."""
    os.environ["ENGINES_PLAIN"] = str(int(plain))
    import vllm

    dtype = json.loads((Path(str(model)) / "config.json").read_text())["dtype"]
    return vllm.LLM(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=dtype,
        max_model_len=256,
        max_num_seqs=4,
        seed=0,
        **settings,
    )


def answers(llm: Any, tokens: int = TOKENS) -> list[Any]:
    """Greedy tokens of each prompt, with the exact log probability of each token."""
    import vllm

    asked = vllm.SamplingParams(
        temperature=0.0, max_tokens=tokens, logprobs=1, ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    found = []
    for output in llm.generate(prompts, asked, use_tqdm=False):
        one = output.outputs[0]
        chosen = [
            float(row[token].logprob).hex()
            for token, row in zip(one.token_ids, one.logprobs, strict=True)
        ]
        found.append([list(one.token_ids), chosen])
    return found


def checksums(llm: Any) -> dict[str, str]:
    """Checksums of all tensors of the engine."""
    found: dict[str, str] = {}
    for row in llm.collective_rpc("compute_weight_checksums"):
        found |= row
    return found
