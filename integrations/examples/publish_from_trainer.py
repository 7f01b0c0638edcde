"""A trainer of transformers publishes its model while it trains; a follower's directory is loaded
like the checkpoint that training began with, and computes the same logits, bit for bit.

    python publish_from_trainer.py

Needs torch, transformers and accelerate. Trains a small random model for a moment, on the CPU;
nothing is downloaded. Trainers of TRL take the same callback.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
    TrainingArguments,
)

import deltachain as dc
from deltachain_integrations.transformers import PublishCallback

TEXT = b"A delta says what has changed between two versions, and nothing else. "


def write_base(folder: Path) -> None:
    """Writes the checkpoint that training begins with, in bfloat16. A token is a byte."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.tensor([list(TEXT)])).logits


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base, chain, copy = Path(folder) / "base", Path(folder) / "chain", Path(folder) / "copy"
        write_base(base)
        tokens = torch.tensor(list(TEXT))
        publish = PublishCallback(chain, like=base, every=4)
        trainer = Trainer(
            # Training in float32; versions have the checkpoint's bfloat16.
            model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
            args=TrainingArguments(
                output_dir=str(Path(folder) / "out"),
                max_steps=10,
                per_device_train_batch_size=4,
                learning_rate=1e-5,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=[{"input_ids": tokens, "labels": tokens}] * 40,
            callbacks=[publish],
        )
        trainer.train()
        made = publish.last
        assert made is not None
        print(
            f"version {made.version}: {made.changed} of {made.elements} elements, {made.bytes} "
            "bytes"
        )

        with dc.Subscriber(chain, host_copy=copy) as subscriber:
            subscriber.prepare(timeout=60).apply()
        served = AutoModelForCausalLM.from_pretrained(copy / "current")
        expected = AutoModelForCausalLM.from_pretrained(base)
        expected.load_state_dict(trainer.model.state_dict())  # cast to bfloat16
        assert torch.equal(logits(served), logits(expected))
    print(
        f"what is served after {trainer.state.global_step} steps computes what the trainer's "
        "weights do, bit for bit"
    )


if __name__ == "__main__":
    main()
