# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tests of the weight transfer backend "deltachain". They need no GPU.

Run `pytest tests/distributed/test_deltachain_weight_transfer.py`.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import (
    ModuleSource,
    VLLMWeightSyncClient,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

deltachain = pytest.importorskip("deltachain")
pytest.importorskip("deltachain_integrations")

ENGINE = "vllm.distributed.weight_transfer.deltachain_engine"

PROMPTS = [[2, 3, 5, 7, 11, 13], list(range(40, 75)), [9]]


def exported(name: str) -> Any:
    return getattr(importlib.import_module(ENGINE), name)


def trainer_engine(client: Any, chain: Path | deltachain.Store, source: Any = None, **settings: Any) -> Any:
    info = exported("DeltachainTrainerInitInfo")(chain, **{"rank": 0, **settings})
    return WeightTransferTrainerFactory.trainer_init(
        info, client=client, source=source
    )


class RecordingClient:
    """Stands in for servers. A call that is named in `fails` is refused."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails: set[str] = set()

    def _called(self, name: str, given: Any = None) -> None:
        self.calls.append((name, given))
        if name in self.fails:
            raise RuntimeError(f"{name} is refused")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._called("init", init_info)

    def start_weight_update(self) -> None:
        self._called("start")

    def update_weights(self, update_info: Any) -> None:
        self._called("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._called("finish", weight_version)

    def taken(self) -> list[tuple[str, Any]]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 4))


def step(module: torch.nn.Module) -> None:
    """Stands in for a step of training."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.view(-1)[::3].add_(0.25)


def followed(url: Path, number: int | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a version, as a follower gets them."""
    with deltachain.Subscriber(url, kind="torch") as subscriber:
        subscriber.prepare(number).apply()
        return dict(subscriber.state())


def assert_followed(url: Path, module: torch.nn.Module) -> None:
    found, expected = followed(url), dict(module.named_parameters())
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class TestRegistration:
    def test_worker_side(self) -> None:
        engine_cls = WeightTransferEngineFactory._registry["deltachain"]()
        assert engine_cls is exported("DeltachainWeightTransferEngine")

    def test_trainer_side(self) -> None:
        engine_cls = WeightTransferTrainerFactory._registry["deltachain"]()
        assert engine_cls is exported("DeltachainTrainerWeightTransferEngine")

    def test_configuration_accepts_the_name(self) -> None:
        assert WeightTransferConfig(backend="deltachain").backend == "deltachain"

    def test_the_plugin_registers_nothing_twice(self) -> None:
        importlib.import_module("deltachain_integrations.vllm").register()
        self.test_worker_side()
        self.test_trainer_side()

    @pytest.mark.parametrize("missing", ["deltachain_integrations", "deltachain_integrations.vllm"])
    def test_without_the_package(
        self, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        for name in (ENGINE, "deltachain_integrations.vllm"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(ImportError, match="uv pip install deltachain-integrations"):
            importlib.import_module(ENGINE)

    def test_what_the_package_lacks_keeps_its_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in (ENGINE, "deltachain_integrations._vllm_trainer"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, "deltachain_integrations._vllm_client", None)
        with pytest.raises(ModuleNotFoundError) as raised:
            importlib.import_module(ENGINE)
        assert raised.value.name == "deltachain_integrations._vllm_client"


class TestTrainer:
    def test_requests_of_a_round(self, tmp_path: Path, module: torch.nn.Module) -> None:
        client, url = RecordingClient(), tmp_path / "chain"
        assert isinstance(client, VLLMWeightSyncClient)
        told = {"host_copy": "/dev/shm/run7"}
        engine = trainer_engine(client, url, init_info=told)
        # The second call ends an update that a killed trainer has left open.
        assert client.taken() == [("init", told), ("update", {})]
        for number in range(3):
            engine.send_weights(module, metadata={"step": number})
            digest = engine.last.digest
            assert client.taken() == [
                ("init", told),
                ("start", None),
                ("update", {"version": number, "digest": digest}),
                ("finish", f"{number}@{digest[:12]}"),
            ]
            assert_followed(url, module)
            step(module)
        engine.shutdown()

    def test_a_source_is_read_anew_each_round(
        self, tmp_path: Path, module: torch.nn.Module
    ) -> None:
        client, url = RecordingClient(), tmp_path / "chain"
        engine = trainer_engine(client, url, source=ModuleSource(module))
        for _ in range(2):
            engine.send_weights()
            assert_followed(url, module)
            step(module)
        engine.shutdown()

    def test_servers_serve_while_a_version_is_published(
        self, tmp_path: Path, module: torch.nn.Module
    ) -> None:
        client = RecordingClient()
        engine = trainer_engine(client, tmp_path / "chain")
        with pytest.raises(deltachain.UsageError, match="publish"):
            engine.update_servers()
        client.taken()
        engine.publish(module)
        assert client.taken() == []
        engine.update_servers()
        assert [name for name, _ in client.taken()] == [
            "init",
            "start",
            "update",
            "finish",
        ]
        engine.shutdown()

    def test_without_weights(self, tmp_path: Path) -> None:
        client = RecordingClient()
        engine = trainer_engine(client, tmp_path / "chain")
        client.taken()
        with pytest.raises(deltachain.UsageError, match="source"):
            engine.send_weights()
        assert client.taken() == []
        engine.shutdown()

    def test_a_version_that_is_not_published_is_not_sent(
        self, tmp_path: Path, module: torch.nn.Module
    ) -> None:
        client, url = RecordingClient(), tmp_path / "chain"
        engine = trainer_engine(client, deltachain.Store(url, attempts=1))
        engine.send_weights(module)
        client.taken()
        step(module)
        (url / "files").rename(url / "elsewhere")
        (url / "files").write_text("not a directory")
        with pytest.raises(deltachain.Error, match="files"):
            engine.send_weights(module)
        assert client.taken() == []
        (url / "files").unlink()
        (url / "elsewhere").rename(url / "files")
        engine.send_weights(module)
        assert_followed(url, module)
        engine.shutdown()

    @pytest.mark.parametrize("refused", ["start", "update", "finish"])
    def test_a_refusal_leaves_no_update_open(
        self, tmp_path: Path, module: torch.nn.Module, refused: str
    ) -> None:
        client = RecordingClient()
        engine = trainer_engine(client, tmp_path / "chain")
        client.taken()
        client.fails = {refused}
        with pytest.raises(RuntimeError, match=f"{refused} is refused"):
            engine.send_weights(module)
        names = ["init", "start", "update", "finish"]
        asked = names[: names.index(refused) + 1]
        calls = client.taken()
        assert [name for name, _ in calls] == [*asked, "update"]
        assert calls[-1] == ("update", {})
        # The version is in the chain, and can be sent again.
        client.fails = set()
        engine.update_servers()
        assert client.taken()[2][1]["version"] == 0
        engine.shutdown()

    def test_a_server_that_refuses_the_settings(self, tmp_path: Path) -> None:
        client = RecordingClient()
        client.fails = {"init"}
        with pytest.raises(RuntimeError, match="init is refused"):
            trainer_engine(client, tmp_path / "chain")

    def test_other_ranks_take_part_and_ask_nothing(
        self, tmp_path: Path, module: torch.nn.Module
    ) -> None:
        client, url = RecordingClient(), tmp_path / "chain"
        taken = []

        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in module.named_parameters():
                taken.append(name)
                yield name, tensor

        engine = trainer_engine(client, url, rank=1)
        engine.send_weights(stream())
        engine.shutdown()
        assert taken == [name for name, _ in module.named_parameters()]
        assert (client.calls, engine.last, url.exists()) == ([], None, False)

    def test_a_source_that_holds_a_part(
        self, tmp_path: Path, module: torch.nn.Module
    ) -> None:
        class Stage(ModuleSource):
            def held_names(self) -> list[str]:
                return ["0.weight"]

        client, url = RecordingClient(), tmp_path / "chain"
        with pytest.raises(deltachain.UnsupportedError, match="all tensors"):
            trainer_engine(client, url, source=Stage(module))
        assert (client.calls, url.exists()) == ([], False)

    def test_a_restarted_trainer_continues_the_chain(
        self, tmp_path: Path, module: torch.nn.Module
    ) -> None:
        url = tmp_path / "chain"
        for number in range(2):
            engine = trainer_engine(RecordingClient(), url)
            engine.send_weights(module)
            assert engine.last.version == number
            engine.shutdown()
            step(module)


class InProcessClient:
    """The four methods of a client, for an `LLM` of this process."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A small random model, and the directory where it was saved."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def llm(
    trained: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM

    chain = tmp_path_factory.mktemp("chain")
    return LLM(
        model=str(trained[1]),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=4,
        seed=0,
        weight_transfer_config={"backend": "deltachain"},
        additional_config={"deltachain": {"chain": str(chain), "timeout": 30}},
    )


def answers(llm: Any) -> list[Any]:
    """Greedy tokens, and the log probability of each token."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    sampling = SamplingParams(
        temperature=0.0, max_tokens=12, logprobs=1, ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    found = []
    for output in llm.generate(prompts, sampling, use_tqdm=False):
        (one,) = output.outputs
        rows = zip(one.token_ids, one.logprobs, strict=True)
        found.append([(token, row[token].logprob) for token, row in rows])
    return found


def held(llm: Any) -> list[Any]:
    """The state of the workers' weights."""
    rows = llm.collective_rpc(
        "deltachain_state", kwargs={"follower": "", "lease": "0"}
    )
    return [(row["state"], row["version"], row["digest"]) for row in rows]


class TestInProcess:
    """A trainer's engine and an `LLM` in one process."""

    def test_each_version_answers_like_a_reload(
        self, trained: tuple[Any, Path], llm: Any, tmp_path: Path
    ) -> None:
        model, base = trained
        chain = llm.llm_engine.vllm_config.additional_config["deltachain"]["chain"]
        source = ModuleSource(model)
        engine = trainer_engine(
            InProcessClient(llm), Path(chain), source=source, like=str(base)
        )
        shown = [answers(llm)]
        for number in range(3):
            torch.manual_seed(number)
            with torch.no_grad():
                for parameter in model.parameters():
                    few = torch.rand(parameter.shape) < 0.02
                    parameter.add_(torch.randn(parameter.shape) * few)
            engine.send_weights()
            digest = engine.last.digest
            assert held(llm) == [("held", number, digest)]
            assert llm.get_weight_version() == f"{number}@{digest[:12]}"
            shown.append(answers(llm))
            saved = tmp_path / f"saved-{number}"
            model.save_pretrained(saved)
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(saved)})
            assert answers(llm) == shown[-1]
            assert shown[-1] != shown[-2]
        engine.shutdown()

    def test_a_digest_of_another_chain_changes_nothing(self, llm: Any) -> None:
        client, before = InProcessClient(llm), answers(llm)
        client.start_weight_update()
        with pytest.raises(Exception, match="digest"):
            client.update_weights({"version": 0, "digest": "0" * 64})
        assert answers(llm) == before

    def test_an_update_that_was_left_open(
        self, trained: tuple[Any, Path], llm: Any
    ) -> None:
        """As left by a trainer that was killed."""
        model, base = trained
        chain = llm.llm_engine.vllm_config.additional_config["deltachain"]["chain"]
        client = InProcessClient(llm)
        client.start_weight_update()
        with pytest.raises(RuntimeError, match="already active"):
            client.start_weight_update()
        engine = trainer_engine(client, Path(chain), like=str(base))
        engine.send_weights(model)
        assert held(llm) == [("held", engine.last.version, engine.last.digest)]
        engine.shutdown()
