"""The plugin of SGLang, with stand-ins for the parts of SGLang 0.5.23 that it imports: its answers,
loads and refusals. `e2e/sglang_proof.py` and `sglang_maps.py` test it with the real one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from ahead import published, until  # noqa: E402
from deltachain_integrations import sglang as plugin  # noqa: E402


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The model that `ahead` publishes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
        self.bias = torch.nn.Parameter(torch.zeros(8))

    def load_weights(self, tensors: Any) -> None:
        own = dict(self.named_parameters())
        for name, tensor in tensors:
            own[name].data.copy_(tensor)


class Loader:
    """model_loader/loader.py"""

    restore_weights_before_loading = postprocess_weights = staticmethod(lambda model, device: None)

    @staticmethod
    def load_weights_only(model: Any, tensors: Any, device: Any) -> None:
        model.load_weights(tensors)


class Server:
    """A manager as in managers/scheduler_components/weight_updater.py, with the parts that the
    plugin uses."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.model = Model()
        own = {"dp_size": 1, "pp_size": 1, "enable_lora": None, "cpu_offload_gb": 0, **arguments}
        updater = SimpleNamespace(_assert_weight_cache_inactive=lambda what: None)
        config = SimpleNamespace(
            model_path=str(folder / "own"), dtype=torch.bfloat16, quantization=None
        )
        runner = SimpleNamespace(
            model=self.model, device="cpu", model_config=config, weight_updater=updater
        )
        runner.server_args = SimpleNamespace(**own)
        self.tp_worker = SimpleNamespace(model_runner=runner)
        self.scheduler = SimpleNamespace(_engine_paused=False)
        self.tp_cpu_group = self._session = self.named = None

    def record_weight_version_after_update(self, name: str) -> None:
        self.named = name

    def flush_cache_after_weight_update(
        self, request: Any, success: bool, message: str
    ) -> tuple[bool, str]:
        return success, message

    def ask(self, method: str, **told: str) -> Any:
        """Returns the worker's answer; None if the plugin does not answer."""
        name = json.dumps({"method": method, "kwargs": {"follower": "me", **told}})
        found = plugin._ask(lambda *_: None, self, SimpleNamespace(name=name))
        return None if found is None else json.loads(bytes(int(byte) for byte in found.parameter))

    def readiness(self, version: int, *, begins: bool = False) -> tuple[bool, str | None]:
        told = {"version": str(version), "begins": str(int(begins))}
        (said,) = self.ask("deltachain_is_ready", **told)
        return said["ready"], said["why"]

    def state(self) -> Any:
        (state,) = self.ask("deltachain_state", lease="90")
        return state

    def update(self, version: int, digest: str | None, follower: str = "me") -> tuple[bool, str]:
        told = json.dumps({"version": version, "digest": digest, "follower": follower}).encode()
        request = SimpleNamespace(
            load_format="deltachain",
            serialized_named_tensors=[told],
            weight_version=f"{version}@x",
            flush_cache=True,
        )
        found = plugin._update(lambda *_: None, self, request)
        return found.success, found.message


def module(name: str, **own: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(own)
    return made


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Gives tests a function that makes a server that follows FOLDER/chain."""
    names = [
        "sglang",
        "sglang.srt",
        "sglang.srt.managers",
        "sglang.srt.model_loader",
        "sglang.srt.model_executor",
    ]
    for name in names:
        monkeypatch.setitem(sys.modules, name, module(name))
    outputs = dict.fromkeys(
        ("GetWeightsByNameReqOutput", "UpdateWeightsFromTensorReqOutput"), SimpleNamespace
    )
    for name, own in (
        ("managers.io_struct", outputs),
        ("model_executor.model_runner_components", {}),
        ("model_executor.model_runner_components.weight_updater", {}),
        ("model_loader.loader", {"DefaultModelLoader": Loader}),
        ("model_loader.utils", {"set_default_torch_dtype": lambda dtype: nullcontext()}),
    ):
        monkeypatch.setitem(sys.modules, f"sglang.srt.{name}", module(name, **own))
    components = sys.modules["sglang.srt.model_executor.model_runner_components"]
    components.weight_updater = module(
        "x", _unsupported_derived_weight_cache_error=lambda model: None
    )
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 1)
    monkeypatch.setattr(torch.distributed, "barrier", lambda group: None)
    monkeypatch.setenv("DELTACHAIN_SGLANG", json.dumps({"chain": str(tmp_path / "chain")}))
    engine = importlib.import_module("deltachain_integrations._sglang_engine")
    yield lambda **arguments: Server(tmp_path, **arguments)
    if engine._worker is not None:
        engine._worker.shutdown()
    del sys.modules["deltachain_integrations._sglang_engine"]


def test_versions_are_written_in_place_and_told(
    tmp_path: Path, serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    digests = published(tmp_path, 3, "local")
    server = serve()
    where = [own.data_ptr() for own in server.model.parameters()]
    assert (
        server.state()["state"] == "other"
        and server.state()["downloads"]
        and not server.state()["paused"]
    )
    until(lambda: server.readiness(2) == (True, None))
    (said,) = server.ask("deltachain_is_ready", version="2", begins="0")
    store = dc.Store(tmp_path / "chain")
    assert (said["chain"], said["from"]) == (store.chain_digest(), str(tmp_path / "chain"))
    # The files that the server started with are missing.
    assert "versions are not compared" in caplog.text
    assert server.update(0, digests[0]) == (True, "all tensors")
    server.scheduler._engine_paused = True
    state = server.state()
    assert (state["state"], state["version"], state["digest"], state["paused"]) == (
        "held",
        0,
        digests[0],
        True,
    )
    assert server.update(2, digests[2]) == (True, "in place") and server.named == "2@x"
    assert server.model.weight[:4].tolist() == [1, 1, 1, 0]
    assert [own.data_ptr() for own in server.model.parameters()] == where
    # Other code writes to many elements.
    server.model.weight.data[:900] = 1
    assert server.state()["state"] == "other"
    assert server.update(2, digests[2]) == (True, "all tensors") and server.model.weight[7] == 0
    # A single element is noticed when all weights are compared, which happens before an update.
    server.model.weight.data[7] = 1
    assert server.readiness(2) == (True, None)
    assert server.state()["state"] == "other"
    assert server.update(2, digests[2]) == (True, "all tensors") and server.model.weight[7] == 0


def begun(server: Server) -> None:
    """Starts the server as SGLang does: its own code first."""
    plugin._HOOKS["__post_init__"](lambda manager: None, server)


def test_a_server_begins_with_the_newest_version(
    tmp_path: Path, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = published(tmp_path, 2, "local")
    server = serve()
    begun(server)
    assert not server.model.weight.any()
    settings = {"chain": str(tmp_path / "chain"), "start": "newest", "mode": "sparse"}
    monkeypatch.setenv("DELTACHAIN_SGLANG", json.dumps(settings))
    sys.modules["deltachain_integrations._sglang_engine"]._worker.shutdown()
    sys.modules["deltachain_integrations._sglang_engine"]._worker = None
    server = serve()
    begun(server)
    state = server.state()
    assert (state["state"], state["version"], state["digest"]) == ("held", 1, digests[1])
    assert server.model.weight[:3].tolist() == [1, 1, 0]


def test_a_server_without_a_version_to_begin_with_does_not_start(
    tmp_path: Path, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"chain": str(tmp_path / "none"), "start": "newest", "timeout": 0.1}
    monkeypatch.setenv("DELTACHAIN_SGLANG", json.dumps(settings))
    with pytest.raises(dc.Error):
        begun(serve())


def test_what_is_refused_leaves_the_model_and_the_server(
    tmp_path: Path, serve: Callable[..., Server]
) -> None:
    digests = published(tmp_path, 2, "local")
    server = serve()
    server.state()
    for version, digest, follower, why in (
        (0, digests[1], "me", "was expected"),
        (7, digests[1], "me", "no version 7"),
        (0, digests[0], "another", "updates this server"),
    ):
        success, message = server.update(version, digest, follower)
        assert not success and why in message and not server.model.weight.any()
    server._session = object()
    success, message = server.update(0, digests[0])
    assert not success and "/end_weight_update" in message
    server._session = None
    # A model whose tensors have the same names.
    from safetensors.torch import save_file

    (tmp_path / "own").mkdir()
    save_file(
        {"weight": torch.zeros(999), "bias": torch.zeros(8)}, tmp_path / "own/model.safetensors"
    )
    success, message = server.update(0, digests[0])
    assert not success and "[999]" in message and not server.model.weight.any()
    until(lambda: server.readiness(0)[0])
    assert "[999]" in str(server.readiness(0)[1])
    assert server.state()["state"] == "other"


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"weight": torch.ones(999), "bias": torch.ones(8)}, '"weight" has the shape [1000]'),
        ({"weight": torch.ones(1000)}, 'the version has no "bias"'),
        (
            {"weight": torch.ones(1000), "bias": torch.ones(8), "more": torch.ones(3)},
            'the version has "more", which its model does not have',
        ),
    ],
)
def test_a_server_that_holds_a_version_says_what_does_not_fit(
    tmp_path: Path, serve: Callable[..., Server], tensors: dict[str, torch.Tensor], why: str
) -> None:
    digests = published(tmp_path, 1, "local")
    # The files that the server started with are missing.
    server = serve()
    assert server.update(0, digests[0]) == (True, "all tensors")
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish({name: own.bfloat16() for name, own in tensors.items()})
        until(lambda: server.readiness(1)[0])
        assert why in str(server.readiness(1)[1]) and server.state()["state"] == "held"
        # The next version fits.
        fits = {"weight": torch.full((1000,), 2.0).bfloat16(), "bias": torch.ones(8)}
        publisher.publish(fits)
    until(lambda: server.readiness(2) == (True, None))
    assert server.update(2, None) == (True, "all tensors") and server.model.weight[7] == 2


def test_parameters_that_no_tensor_is_loaded_to_are_missing(
    tmp_path: Path, serve: Callable[..., Server]
) -> None:
    digests = published(tmp_path, 1, "local")
    server = serve()
    server.model.more = torch.nn.Parameter(torch.ones(3))
    success, message = server.update(0, digests[0])
    assert not success and "no weights for 1 parameters: more" in message
    assert server.state()["state"] == "torn"


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        ({"pp_size": 2}, {}, "pp_size"),
        ({"enable_lora": True}, {}, "enable_lora"),
        ({}, {"mode": "reload"}, "mode in DELTACHAIN_SGLANG"),
        ({}, {"chain": None}, '"chain" in DELTACHAIN_SGLANG'),
        ({}, {"nonsense": 1}, "nonsense"),
    ],
)
def test_servers_that_cannot_follow_say_why(
    tmp_path: Path,
    serve: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    given: dict[str, Any],
    why: str,
) -> None:
    published(tmp_path, 1, "local")
    monkeypatch.setenv("DELTACHAIN_SGLANG", json.dumps({"chain": str(tmp_path / "chain"), **given}))
    server = serve(**arguments)
    said = server.ask("deltachain_is_ready", version="0", begins="1")
    assert why in said["error"]


def test_what_is_asked_of_others_is_theirs(serve: Callable[..., Server]) -> None:
    server = serve()
    for name in ("model.embed_tokens.weight", "{}", '{"method": "other", "kwargs": {}}', "[1]"):
        assert plugin._ask(lambda *_: "own", server, SimpleNamespace(name=name)) == "own"
    assert plugin._update(lambda *_: "own", server, SimpleNamespace(load_format=None)) == "own"


def test_without_the_variable_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTACHAIN_SGLANG", raising=False)
    plugin.register()
    assert "sglang" not in sys.modules


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns what the plugin registers in an SGLang that has all methods that it uses."""
    found: dict[str, Any] = {}
    manager = type(
        "SchedulerWeightUpdaterManager",
        (),
        {name: lambda *_: None for name in plugin._HOOKS},
    )
    place = plugin._MANAGER.rpartition(".")[0]
    parts = place.split(".")
    for count in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), module("", __path__=[]))
    monkeypatch.setattr(sys.modules[place], manager.__name__, manager, raising=False)
    registry = SimpleNamespace(register=lambda name, hook, kind: found.update({name: hook}))
    for name, own in (
        ("sglang.srt.plugins", {"__path__": []}),
        (
            "sglang.srt.plugins.hook_registry",
            {"HookRegistry": registry, "HookType": SimpleNamespace(AROUND="around")},
        ),
    ):
        monkeypatch.setitem(sys.modules, name, module(name, **own))
    monkeypatch.setenv("DELTACHAIN_SGLANG", '{"chain": "run7"}')
    return found


def test_with_the_variable_both_methods_are_registered(hooks: dict[str, Any]) -> None:
    plugin.register()
    assert {name.rpartition(".")[2]: hook for name, hook in hooks.items()} == plugin._HOOKS


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{", "is not valid JSON"),
        ('{"chain": "run7", "host_copy": "x"}', "host_copy in DELTACHAIN_SGLANG: not for SGLang"),
        ('{"chain": "run7", "kv": "keep"}', "kv in DELTACHAIN_SGLANG: SGLang has only 'recompute'"),
        ("{}", 'set "chain"'),
    ],
)
def test_settings_that_are_wrong_end_the_start(
    hooks: dict[str, Any], monkeypatch: pytest.MonkeyPatch, settings: str, said: str
) -> None:
    """SGLang only logs other exceptions, and would serve without the plugin."""
    monkeypatch.setenv("DELTACHAIN_SGLANG", settings)
    with pytest.raises(SystemExit, match=said):
        plugin.register()
    assert not hooks


@pytest.mark.parametrize("lacks", ["method", "class", "module"])
def test_another_sglang_ends_the_start(
    hooks: dict[str, Any], monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    place, _, name = plugin._MANAGER.rpartition(".")
    if lacks == "module":
        monkeypatch.setitem(sys.modules, place, None)
    elif lacks == "class":
        monkeypatch.delattr(sys.modules[place], name)
    else:
        monkeypatch.delattr(getattr(sys.modules[place], name), "get_weights_by_name")
    with pytest.raises(SystemExit, match="the server does not start: DELTACHAIN_SGLANG is set"):
        plugin.register()
    assert not hooks
