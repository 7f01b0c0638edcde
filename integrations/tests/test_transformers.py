"""The callback in trainers that really train: followers have what was trained, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import tool

import deltachain as dc
from small_model import TEXTS, assert_is, torch, transformers, version, write_checkpoint

pytest.importorskip(
    "accelerate",
    reason="SKIPPED: accelerate is not installed, without which nothing can be trained",
)

from deltachain_integrations.transformers import PublishCallback, as_saved


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


class Watch(transformers.TrainerCallback):
    """Keeps the weights of each step as a follower should get them, or calls a function at a
    step."""

    def __init__(self, at: int | None = None, do: Any = None) -> None:
        self.weights: dict[int, dict[str, Any]] = {}
        self.at, self.do = at, do

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.weights[state.global_step] = {
            name: tensor.detach().bfloat16().clone()
            for name, tensor in model.state_dict().items()
            if name != "lm_head.weight"
        }
        if state.global_step == self.at:
            self.do()


def trainer(base: Path, out: Path, *callbacks: Any, steps: int = 5, **settings: Any) -> Any:
    """A `Trainer` of the small model, in float32."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    rows = [torch.tensor(tokenizer(text)["input_ids"][:6]) for text in TEXTS]
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = {
        "output_dir": str(out),
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return transformers.Trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=transformers.TrainingArguments(**{**arguments, **settings}),
        train_dataset=data,
        eval_dataset=data,
        callbacks=list(callbacks),
    )


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return set(found) == set(expected) and all(
        torch.equal(found[name].view(torch.int16), expected[name].view(torch.int16))
        for name in expected
    )


def test_every_version_is_what_was_trained(base: Path, tmp_path: Path) -> None:
    url, watch = tmp_path / "chain", Watch()
    callback = PublishCallback(url, like=base, every=2)
    trained = trainer(base, tmp_path / "out", watch, callback)
    trained.train()
    # Steps 2 and 4, and the last step.
    assert callback.last is not None and callback.last.version == 2
    for number, step in enumerate((2, 4, 5)):
        assert same(version(url, number), watch.weights[step])
    assert_is(version(url), trained.model)
    assert [row["metadata"]["step"] for row in log(url)] == ["2", "4", "5"]
    # A follower's directory can be loaded like the checkpoint, with its tokenizer.
    tool("follow", url, tmp_path / "followed", "--once")
    current = tmp_path / "followed" / "current"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(current)
    assert_is(version(url), loaded)
    assert transformers.AutoTokenizer.from_pretrained(current)("the cat")["input_ids"]


def log(url: Path) -> list[dict[str, Any]]:
    """All versions, oldest first."""
    return list(reversed(json.loads(tool("--json", "log", url))["versions"]))


def test_supervised_fine_tuning(base: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="SKIPPED: trl is not installed")
    datasets = pytest.importorskip("datasets", reason="SKIPPED: datasets is not installed")
    url = tmp_path / "chain"
    callback = PublishCallback(url, like=base)
    trained = trl.SFTTrainer(
        model=str(base),
        args=trl.SFTConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=3,
            learning_rate=1e-3,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_dict({"text": TEXTS}),
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
        callbacks=[callback],
    )
    trained.train()
    assert callback.last is not None and callback.last.version == 2
    # The model was trained: its weights differ from the initial ones.
    assert callback.last.changed > 0
    assert_is(version(url), trained.model)


def test_training_that_is_resumed_goes_on_with_the_chain(base: Path, tmp_path: Path) -> None:
    url, out = tmp_path / "chain", tmp_path / "out"
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer(base, out, PublishCallback(url, like=base), steps=3, **saving).train()
    resumed = trainer(base, out, PublishCallback(url, like=base), steps=5, **saving)
    # Resumed from the checkpoint of step 2, so step 3 is published again.
    resumed.train(resume_from_checkpoint=str(out / "checkpoint-2"))
    rows = log(url)
    assert [row["metadata"]["step"] for row in rows] == ["1", "2", "3", "3", "4", "5"]
    # Each version has a link from the previous one.
    assert all(row["version"] - 1 in [route["from"] for route in row["routes"]] for row in rows[1:])
    assert_is(version(url), resumed.model)


def torchrun(program: str, *arguments: Path) -> None:
    """Runs two processes of a program from this folder."""
    options = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
    ]
    ran = subprocess.run(
        [sys.executable, *options, Path(__file__).with_name(program), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_processes_that_train_together_publish_together(base: Path, tmp_path: Path) -> None:
    url, out = tmp_path / "chain", tmp_path / "out"
    torchrun("ranks_trainer.py", base, out, url)
    assert [row["metadata"]["step"] for row in log(url)] == ["2", "3"]
    # Both ranks had shards of their own.
    assert len(log(url)[0]["shards"]) > 1
    assert_is(
        version(url),
        transformers.AutoModelForCausalLM.from_pretrained(out / "trained", dtype=torch.float32),
    )


def test_experts_that_are_spread_over_processes(tmp_path: Path) -> None:
    torchrun("ranks_sharded.py", with_experts(tmp_path / "base"), tmp_path / "chain")
    assert [row["metadata"]["step"] for row in log(tmp_path / "chain")] == ["1", "2"]


def test_a_trainer_trains_again(base: Path, tmp_path: Path) -> None:
    url = tmp_path / "chain"
    trained = trainer(base, tmp_path / "out", PublishCallback(url, like=base, every=2), steps=2)
    trained.train()
    trained.train()
    assert_is(version(url, 1), trained.model)


def metadata_of(url: Path) -> list[dict[str, str]]:
    """The metadata of all versions, oldest first."""
    return [version.metadata for version in reversed(dc.log(url, last=None))]


def best_of(base: Path, folder: Path, *callbacks: Any, steps: int = 3) -> Any:
    """A `Trainer` whose best step is not its last one: the learning rate is so high that the model
    gets worse."""
    return trainer(
        base,
        folder / "out",
        *callbacks,
        steps=steps,
        learning_rate=5.0,
        max_grad_norm=0.0,
        optim="sgd",
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    )


@pytest.mark.parametrize("once", [{}, {"once": "step"}])
def test_the_best_model_is_published_in_the_end(
    base: Path, tmp_path: Path, once: dict[str, str]
) -> None:
    url, watch = tmp_path / "chain", Watch()
    callback = PublishCallback(url, like=base, **once)
    trained = best_of(base, tmp_path, watch, callback)
    trained.train()
    best = int(str(trained.state.best_model_checkpoint).rpartition("-")[2])
    assert best < 3
    assert same(version(url), watch.weights[best])
    assert not same(version(url), watch.weights[3])
    # The metadata names the step of the best model; no other model has this step.
    noted = {"step": str(best), "best_step": str(best), "final_step": "3"}
    assert metadata_of(url) == [{"step": "1"}, {"step": "2"}, {"step": "3"}, noted]
    for number, row in enumerate(log(url)):
        assert same(version(url, number), watch.weights[int(row["metadata"]["step"])])
    assert callback.last is not None and callback.last.version == 3


def test_a_restart_publishes_no_step_and_no_best_model_again(base: Path, tmp_path: Path) -> None:
    url = tmp_path / "chain"
    best_of(base, tmp_path, PublishCallback(url, like=base, once="step")).train()
    rows = metadata_of(url)
    assert len(rows) == 4
    # The chain has all of these steps.
    for number in (1, 2):
        callback = PublishCallback(url, like=base, once="step")
        best_of(base, tmp_path, callback).train(
            resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{number}")
        )
        assert metadata_of(url) == rows
        assert callback.last is not None and (callback.last.version, callback.last.is_new) == (
            3,
            False,
        )
    # Training that continues publishes its new steps.
    more = best_of(base, tmp_path, PublishCallback(url, like=base, once="step"), steps=4)
    more.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    added = metadata_of(url)[4:]
    assert added[0] == {"step": "4"} and all(row["final_step"] == "4" for row in added[1:])


def broken(url: Path, number: int) -> None:
    """Makes the store fail all uploads, once this version exists."""
    version(url, number)
    (url / "files").rename(url / "files elsewhere")
    (url / "files").write_text("not a directory")


def test_a_store_that_fails_is_an_error_of_the_next_step(base: Path, tmp_path: Path) -> None:
    url = tmp_path / "chain"
    watch = Watch(at=2, do=lambda: broken(url, 0))
    trained = trainer(
        base,
        tmp_path / "out",
        watch,
        PublishCallback(dc.Store(url, attempts=1), like=base),
        steps=9,
    )
    with pytest.raises(dc.Error) as raised:
        trained.train()
    assert "files" in str(raised.value)
    # Step 2 was not stored; step 3 raised the error.
    assert trained.state.global_step == 3


def test_a_store_that_fails_is_an_error_in_the_end(base: Path, tmp_path: Path) -> None:
    url = tmp_path / "chain"
    watch = Watch(at=3, do=lambda: broken(url, 1))
    callback = PublishCallback(dc.Store(url, attempts=1), like=base)
    trained = trainer(base, tmp_path / "out", watch, callback, steps=3)
    with pytest.raises(dc.Error):
        trained.train()
    assert trained.state.global_step == 3
    assert callback.last is not None and callback.last.version == 1


def test_another_model_than_the_checkpoint_is_refused_at_once(base: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", num_hidden_layers=1)
    with pytest.raises(dc.UsageError, match=r"missing: model\.layers\.1"):
        trainer(other, tmp_path / "out", PublishCallback(tmp_path / "chain", like=base)).train()
    with pytest.raises(dc.UsageError, match="1 or more"):
        PublishCallback(tmp_path / "chain", every=0)


def with_experts(folder: Path) -> Path:
    """Writes a checkpoint whose experts transformers fuses."""
    return write_checkpoint(
        folder,
        "Qwen3Moe",
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )


def test_experts_are_published_as_their_checkpoint_has_them(tmp_path: Path) -> None:
    safetensors = pytest.importorskip(
        "safetensors.torch", reason="SKIPPED: safetensors is not installed"
    )
    base = with_experts(tmp_path / "base")
    trained = trainer(
        base, tmp_path / "out", PublishCallback(tmp_path / "chain", like=base), steps=2
    )
    trained.train()
    trained.model.save_pretrained(tmp_path / "saved")
    found = version(tmp_path / "chain")
    saved = as_saved(trained.model)
    assert set(found) == set(saved)
    assert "model.layers.0.mlp.experts.3.down_proj.weight" in found
    files = [safetensors.load_file(file) for file in (tmp_path / "saved").glob("*.safetensors")]
    expected = {name: tensor.bfloat16() for file in files for name, tensor in file.items()}
    assert same(found, expected)
