# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Policy gradients with servers that get each step through a chain of deltas.

The trainer samples from the servers, makes a step, publishes what has changed
to a directory or a bucket, and updates the servers.
No GPU is shared and no process group is made, so servers may start and stop.

    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-0.6B \
        --weight-transfer-config '{"backend": "deltachain"}' \
        --additional-config '{"deltachain": {"chain": "/tmp/run7"}}'
    hf download Qwen/Qwen3-0.6B --local-dir base
    python rlhf_deltachain.py base /tmp/run7 --server http://127.0.0.1:8000

Repeat --server for more servers. The reward here is how few words of an answer
are repeated.
"""

import argparse

import requests
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm.distributed.weight_transfer import (
    ModuleSource,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.deltachain_engine import (
    DeltachainTrainerInitInfo,
    DeltachainWeightSyncClient,
)


def sample(server: str, prompt: str, count: int) -> list[str]:
    """Several answers of a server to a prompt."""
    (model, *_) = requests.get(f"{server}/v1/models").json()["data"]
    asked = {"model": model["id"], "prompt": prompt, "n": count, "max_tokens": 32}
    response = requests.post(f"{server}/v1/completions", json=asked)
    response.raise_for_status()
    return [choice["text"] for choice in response.json()["choices"]]


def reward(answer: str) -> float:
    words = answer.split()
    return len(set(words)) / max(len(words), 1)


def loss_of(model, tokenizer, prompt: str, answers: list[str]) -> torch.Tensor:
    """Answers with more reward than the average become more likely."""
    rewards = torch.tensor([reward(answer) for answer in answers])
    length = len(tokenizer(prompt).input_ids)
    losses = []
    for answer, advantage in zip(answers, rewards - rewards.mean(), strict=True):
        tokens = tokenizer(prompt + answer, return_tensors="pt").input_ids
        scores = model(tokens).logits[0, length - 1 : -1].float().log_softmax(-1)
        chosen = scores.gather(-1, tokens[0, length:, None])
        losses.append(-advantage * chosen.sum())
    return torch.stack(losses).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="directory of the checkpoint to start from")
    parser.add_argument("chain", help="a directory, or s3://BUCKET/PREFIX")
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()

    # Master weights are in F32; the chain has the checkpoint's dtype.
    model = AutoModelForCausalLM.from_pretrained(given.base, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(given.base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    init_info = DeltachainTrainerInitInfo(given.chain, like=given.base, rank=0)
    with DeltachainWeightSyncClient(given.server) as client:
        engine = WeightTransferTrainerFactory.trainer_init(
            init_info, client=client, source=ModuleSource(model)
        )
        for step in range(given.steps):
            server = given.server[step % len(given.server)]
            answers = sample(server, given.prompt, 8)
            loss_of(model, tokenizer, given.prompt, answers).backward()
            optimizer.step()
            optimizer.zero_grad()

            engine.send_weights(metadata={"step": step})
            client.resume()
            mean = sum(map(reward, answers)) / len(answers)
            print(f"step {step}: reward {mean:.3f}, version {engine.last.version}")
        engine.shutdown()


if __name__ == "__main__":
    main()
