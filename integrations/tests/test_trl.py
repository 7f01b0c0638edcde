"""The trainer of TRL that generates during training calls the transfer: followers have the
trainer's weights, bit for bit."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltachain as dc
from deltachain_integrations.transformers import as_saved
from deltachain_integrations.trl import WeightTransfer
from small_model import TEXTS, assert_is, torch, transformers, version, write_checkpoint
from stand_in import READY, UPDATE, StandIn

async_grpo = pytest.importorskip(
    "trl.experimental.async_grpo", reason="SKIPPED: trl is not installed, or too old"
)
datasets = pytest.importorskip("datasets", reason="SKIPPED: datasets is not installed")
numpy = pytest.importorskip("numpy", reason="SKIPPED: numpy is not installed")


class Worker:
    """Stands in for the process that generates: it has all its samples from the beginning."""

    def __init__(self) -> None:
        self.rollout_buffer: Any = queue.Queue()
        self.metrics_queue: Any = queue.Queue()
        self.versions: list[int] = []

    def start(self) -> None:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        for number in range(40):
            self.rollout_buffer.put(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=numpy.array([3, 4, 5, 6, 7, 8, 9 + number % 3]),
                    completion_mask=numpy.array([0, 0, 0, 1, 1, 1, 1]),
                    old_log_probs=numpy.full(7, -2.5, "float32"),
                    advantage=(-1.0) ** number,
                    model_version=1,
                    group_id=number // 2,
                    metrics={},
                )
            )

    def stop(self) -> None:
        pass

    def update_model_version(self, model_version: int) -> None:
        self.versions.append(model_version)

    def check_health(self, stale_after_s: float) -> None:
        raise AssertionError("the trainer has used up its samples")


class Trainer(async_grpo.AsyncGRPOTrainer):
    """A trainer with a loss of its own, because TRL's needs FlashAttention, and so a GPU. Keeps the
    weights of each sync."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return model(input_ids=inputs["input_ids"], labels=inputs["input_ids"]).loss

    def _sync_weight(self) -> None:
        self.synced = [
            *getattr(self, "synced", []),
            {
                name: tensor.detach().bfloat16().clone()
                for name, tensor in self.model.named_parameters()
            },
        ]
        super()._sync_weight()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # The trainer reads the GPU's name to estimate its speed.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "no GPU")


def trainer(base: Path, out: Path, transfer: WeightTransfer, **settings: Any) -> Any:
    arguments = {
        "output_dir": str(out),
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "num_generations": 2,
        "weight_sync_steps": 1,
        "max_staleness": 10,
        "token_budget": 0,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    made = Trainer(
        model=str(base),
        reward_funcs=lambda **_: 0.0,
        args=async_grpo.AsyncGRPOConfig(**{**arguments, **settings}),
        train_dataset=datasets.Dataset.from_dict({"prompt": TEXTS}),
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
        rollout_worker=Worker(),
        weight_transfer=transfer,
    )
    made.model.set_attn_implementation("eager")
    return made


def test_every_sync_is_a_version(base: Path, tmp_path: Path) -> None:
    url = tmp_path / "chain"
    transfer = WeightTransfer(url, like=base)
    trained = trainer(base, tmp_path / "out", transfer)
    trained.train()
    # One sync before the first step, and one after each step.
    assert transfer.last is not None and transfer.last.version == 3
    assert trained.rollout_worker.versions == [1, 2, 3, 4]
    assert trained.model.dtype == torch.float32
    for number, weights in enumerate(trained.synced):
        found = version(url, number)
        assert set(found) == set(weights)
        assert all(
            torch.equal(found[name].view(torch.int16), weights[name].view(torch.int16))
            for name in weights
        )
    assert_is(version(url), trained.model)
    # A second training continues, although TRL does not call `init_weight_transfer` again.
    trained.rollout_worker.start()
    trained.train()
    assert transfer.last is not None and transfer.last.version == 6
    assert_is(version(url), trained.model)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


def test_servers_have_each_version_when_the_sync_ends(
    base: Path, tmp_path: Path, server: StandIn
) -> None:
    url = tmp_path / "chain"
    digests: list[str] = []

    def seen(call: tuple[str, Any]) -> None:
        path, body = call
        if path == "/update_weights":
            digests.append(body["update_info"]["digest"])
            with dc.Subscriber(url) as subscriber:
                assert subscriber.prepare(body["update_info"]["version"]).digest == digests[-1]

    server.seen = seen
    transfer = WeightTransfer(url, like=base, wait="applied", servers=[server.url], timeout=60)
    trained = trainer(base, tmp_path / "out", transfer)
    trained.train()
    begin = ["/collective_rpc deltachain_state", "/init_weight_transfer_engine"]
    paths = [path for path, _ in server.calls]
    assert paths == [*begin, *[READY, *UPDATE, "/resume"] * 4, "/collective_rpc deltachain_state"]
    assert server.version == f"3@{digests[-1][:12]}"
    assert len(set(digests)) == 4
    assert_is(version(url), trained.model)


def test_a_server_that_fails_ends_training(base: Path, tmp_path: Path, server: StandIn) -> None:
    def seen(call: tuple[str, Any]) -> None:
        if call[0] == "/update_weights" and call[1]["update_info"]["version"] == 2:
            server.fails.add("/update_weights")

    server.seen = seen
    transfer = WeightTransfer(
        tmp_path / "chain", like=base, wait="applied", servers=[server.url], timeout=60
    )
    trained = trainer(base, tmp_path / "out", transfer)
    with pytest.raises(dc.IoError, match="the engine says why"):
        trained.train()
    assert trained.state.global_step == 2
    # The server may hold parts of two versions. Its lease is released, so another process may
    # update it.
    assert (server.version, server.is_paused, server.owner) == ("changing", True, None)


def test_experts_are_sent_as_their_checkpoint_has_them(tmp_path: Path) -> None:
    base = write_checkpoint(
        tmp_path / "base",
        "Qwen3Moe",
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    url = tmp_path / "chain"
    like = dc.Like(base, transform=lambda name, tensor: as_saved(trained.model, {name: tensor}))
    transfer = WeightTransfer(url, like=like)
    trained = trainer(base, tmp_path / "out", transfer)
    transfer.init_weight_transfer()
    trained._sync_weight()
    transfer.destroy()
    expected = {
        name: tensor.detach().bfloat16() for name, tensor in as_saved(trained.model).items()
    }
    found = version(url)
    assert set(found) == set(expected)
    assert all(
        torch.equal(found[name].view(torch.int16), expected[name].view(torch.int16))
        for name in expected
    )
