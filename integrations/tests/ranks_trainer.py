"""One of several processes that train one model and publish it together:
`ranks_trainer.py BASE OUT CHAIN`. The rank is in the environment, as torchrun sets it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from deltachain_integrations.transformers import PublishCallback
from small_model import TEXTS, transformers


def main(base: str, out: str, chain: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    rows = [torch.tensor(tokenizer(text)["input_ids"][:6]) for text in TEXTS * 4]
    callback = PublishCallback(chain, like=base, every=2)
    trainer = transformers.Trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=transformers.TrainingArguments(
            output_dir=out,
            max_steps=3,
            per_device_train_batch_size=2,
            learning_rate=1e-3,
            use_cpu=True,
            ddp_backend="gloo",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[callback],
    )
    trainer.train()
    assert torch.distributed.get_world_size() == 2
    assert callback.last is not None and callback.last.version == 1
    if torch.distributed.get_rank() == 0:
        trainer.model.save_pretrained(Path(out) / "trained")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
