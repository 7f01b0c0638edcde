"""A trainer in vLLM's words, with stand-ins for vLLM's servers and modules. `upstream/vllm/tests`
uses the real ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import pytest
from test_publisher import assert_version, tensors

import deltachain as dc
from deltachain_integrations import vllm
from stand_in import UPDATE, StandIn

Info = TypeVar("Info")


@dataclass
class TrainerInitInfo:
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class TrainerWeightTransferEngine(Generic[Info]):
    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender


class Factory:
    def __init__(self) -> None:
        self._registry: dict[str, Any] = {}

    def register_engine(self, name: str, module: str, class_name: str) -> None:
        assert name not in self._registry
        self._registry[name] = lambda: getattr(importlib.import_module(module), class_name)


class Source:
    """The weights of a step. The test changes the step."""

    def __init__(self) -> None:
        self.step = 0
        self.held: list[str] | None = None

    def held_names(self) -> list[str] | None:
        return self.held

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(tensors(self.step).items())


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Modules that stand in for vLLM's."""
    package = "vllm.distributed.weight_transfer"
    made = {
        name: ModuleType(name) for name in ("vllm", "vllm.distributed", package, f"{package}.base")
    }
    made |= {"factory": ModuleType(f"{package}.factory")}
    base: Any = made[f"{package}.base"]
    base.TrainerInitInfo, base.TrainerWeightTransferEngine = (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
    )
    base.VLLMWeightSyncClient = base.WeightSource = object
    factory: Any = made["factory"]
    factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory = Factory(), Factory()
    for module in made.values():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop("deltachain_integrations._vllm_trainer", None)
    yield made
    # The module is built on these classes.
    sys.modules.pop("deltachain_integrations._vllm_trainer", None)


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    with StandIn() as one, StandIn() as two:
        yield [one, two]


def client_of(servers: list[StandIn]) -> vllm.DeltachainWeightSyncClient:
    return vllm.DeltachainWeightSyncClient([one.url for one in servers], timeout=60)


def engine_of(
    client: Any, chain: Path | dc.Store, source: Any = None, rank: int = 0, **settings: Any
) -> Any:
    info = vllm.DeltachainTrainerInitInfo(chain, rank=rank, **settings)
    return vllm.DeltachainTrainerWeightTransferEngine.trainer_init(
        info, client=client, source=source
    )


def serves(server: StandIn, published: dc.reports.PublishReport | None) -> bool:
    assert published is not None
    is_named = server.version == f"{published.version}@{published.digest[:12]}"
    return (
        is_named and server.holds == (published.version, published.digest) and not server.is_paused
    )


def test_servers_get_each_version(servers: list[StandIn], tmp_path: Path) -> None:
    url, source = tmp_path / "chain", Source()
    with client_of(servers) as client:
        engine = engine_of(client, url, source, init_info={"host_copy": "/dev/shm/run7"})
        for one in servers:
            (_, _), (path, body) = one.taken()
            assert (path, body) == (
                "/init_weight_transfer_engine",
                {"init_info": {"host_copy": "/dev/shm/run7"}},
            )
        for step in range(3):
            source.step = step
            if step < 2:
                engine.send_weights(metadata={"step": step})
            else:
                engine.publish(tensors(2))
                assert [one.taken() for one in servers] == [[], []]
                engine.update_servers()
            client.resume()
            assert [[path for path, _ in one.taken()] for one in servers] == [
                [*UPDATE, "/resume"]
            ] * 2
            assert all(serves(one, engine.last) for one in servers)
            assert_version(url, step, step)
        engine.shutdown()


def test_what_cannot_be_published_is_not_sent(servers: list[StandIn], tmp_path: Path) -> None:
    url = tmp_path / "chain"
    with client_of(servers) as client:
        engine = engine_of(client, dc.Store(url, attempts=1))
        with pytest.raises(dc.UsageError, match="source="):
            engine.send_weights()
        with pytest.raises(dc.UsageError, match="publish"):
            engine.update_servers()
        engine.send_weights(tensors(0))
        client.resume()
        first = engine.last
        for one in servers:
            one.taken()
        (url / "files").rename(url / "elsewhere")
        (url / "files").write_text("not a directory")
        with pytest.raises(dc.Error, match="files"):
            engine.send_weights(tensors(1))
        assert [one.taken() for one in servers] == [[], []]
        assert all(serves(one, first) for one in servers)
        (url / "files").unlink()
        (url / "elsewhere").rename(url / "files")
        engine.send_weights(tensors(2))
        client.resume()
        assert engine.last.version == 1 and all(serves(one, engine.last) for one in servers)
        engine.shutdown()


def test_a_server_that_refuses_gets_the_same_version_later(
    servers: list[StandIn], tmp_path: Path
) -> None:
    bad, good = servers
    with client_of(servers) as client:
        engine = engine_of(client, tmp_path / "chain")
        engine.send_weights(tensors(0))
        client.resume()
        first = engine.last
        bad.fails_once, bad.tears = {"/update_weights"}, False
        with pytest.raises(dc.IoError, match="the engine says why"):
            engine.send_weights(tensors(1))
        assert serves(bad, first) and serves(good, engine.last)
        engine.update_servers()
        client.resume()
        assert all(serves(one, engine.last) for one in servers) and engine.last.version == 1
        engine.shutdown()


def test_a_trainer_that_was_killed_goes_on(servers: list[StandIn], tmp_path: Path) -> None:
    url = tmp_path / "chain"
    killed = client_of(servers)
    engine = engine_of(killed, url)
    engine.publish(tensors(0))
    killed.start_weight_update()
    for one in servers:
        one.owner = None
    with client_of(servers) as client:
        engine = engine_of(client, url)
        assert all(one.is_open and one.is_paused for one in servers)
        engine.send_weights(tensors(1))
        client.resume()
        assert engine.last.version == 1 and all(serves(one, engine.last) for one in servers)
        engine.shutdown()


def test_a_server_that_refuses_the_settings_ends_the_trainer(
    servers: list[StandIn], tmp_path: Path
) -> None:
    servers[0].fails = {"/init_weight_transfer_engine"}
    with client_of(servers) as client, pytest.raises(dc.IoError, match="the engine says why"):
        engine_of(client, tmp_path / "chain")


def test_other_ranks_read_the_weights_and_ask_nothing(
    servers: list[StandIn], tmp_path: Path
) -> None:
    url, read = tmp_path / "chain", []
    with client_of(servers) as client:
        engine = engine_of(client, url, rank=1)
        engine.send_weights((read.append(name), tensor) for name, tensor in tensors(0).items())
        engine.shutdown()
    assert read == list(tensors(0)) and not url.exists() and engine.last is None
    assert [one.taken() for one in servers] == [[], []]


def test_a_source_with_a_part_of_the_model_is_refused(
    servers: list[StandIn], tmp_path: Path
) -> None:
    source = Source()
    source.held = ["a"]
    with client_of(servers) as client, pytest.raises(dc.UnsupportedError, match="all tensors"):
        engine_of(client, tmp_path / "chain", source)
    assert not (tmp_path / "chain").exists()


def test_both_sides_are_registered_once(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltachain_integrations._vllm_replies.mend", lambda: None)
    vllm.register()
    vllm.register()
    factory = modules["factory"]
    assert set(factory.WeightTransferEngineFactory._registry) == {"deltachain"}
    found = factory.WeightTransferTrainerFactory._registry["deltachain"]()
    assert found is vllm.DeltachainTrainerWeightTransferEngine
    with pytest.raises(AttributeError, match="no attribute 'Deltachain'"):
        _ = vllm.Deltachain
