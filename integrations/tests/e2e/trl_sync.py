"""AsyncGRPOTrainer of TRL, which updates a real server of vLLM with each sync. `run.py` starts
this, in the environment of the trainers; `ENGINES_PYTHON` names the Python that has vLLM."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import save_file

import test_trl
from deltachain_integrations.trl import WeightTransfer
from server import Server, fresh
from small_model import write_checkpoint


def proof(folder: Path) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    shutil.rmtree(folder, ignore_errors=True)
    base = write_checkpoint(
        folder / "base", vocab_size=512, head_dim=32, max_position_embeddings=512
    )
    # The trainer reads the GPU's name to estimate its speed.
    torch.cuda.get_device_name = lambda *_: "no GPU"  # type: ignore[assignment]
    answers = []
    with Server(
        base, folder / "server.log", {"chain": str(folder / "chain")}, plain=False
    ) as server:
        transfer = WeightTransfer(
            folder / "chain", like=base, wait="applied", servers=[server.url], timeout=120
        )

        class Trainer(test_trl.Trainer):
            def _sync_weight(self) -> None:
                super()._sync_weight()
                saved = folder / f"saved-{len(self.synced) - 1}"
                shutil.copytree(base, saved)
                save_file(self.synced[-1], saved / "model.safetensors", metadata={"format": "pt"})
                answers.append((server.shown(), server.answers()))

        test_trl.Trainer = Trainer
        test_trl.trainer(base, folder / "out", transfer).train()
    rows = []
    for number, (shown, said) in enumerate(answers):
        good = shown == str(number) and said == fresh(folder, number, plain=False)
        rows.append(
            [
                f"version {number}",
                good,
                f"the server says it has {shown}, and answers like a fresh one",
            ]
        )
    changed = all(one[1] != other[1] for one, other in itertools.pairwise(answers))
    rows.append(
        ["answers change with each sync", changed and len(answers) == 4, f"{len(answers)} syncs"]
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.write_text(json.dumps(proof(given.folder)))


if __name__ == "__main__":
    main()
