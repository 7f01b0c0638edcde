"""Parameters that a model has under two names, as vLLM's Transformers backend has those of shared
experts."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from deltachain_integrations import _vllm_api  # noqa: E402
from deltachain_integrations._engine_weights import first_names  # noqa: E402
from test_vllm_api import called, is_version  # noqa: E402

First, Second = TypeVar("First"), TypeVar("Second")


class Engine(Generic[First, Second]):
    """vLLM's base class of backends."""

    def __init__(
        self, config: object, vllm_config: object, device: object, model: object
    ) -> None: ...

    def parse_update_info(self, update_dict: object) -> None: ...


class Model(torch.nn.Module):
    """Experts that have the shared experts below them, too. The loader names the shared experts by
    that path."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.Module()
        self.experts.shared = torch.nn.Linear(3, 2, bias=False)
        self.shared = self.experts.shared
        self.norm = torch.nn.Linear(2, 1, bias=False)

    def load_weights(self, tensors: Any) -> set[str]:
        parameters = dict(self.named_parameters(remove_duplicate=False))
        loaded = set()
        for name, tensor in tensors:
            parameters[name].data.copy_(tensor)
            loaded.add(name)
        return loaded


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend of a server with this model, with modules that stand in for vLLM's."""
    modules: dict[str, ModuleType] = {"vllm": ModuleType("vllm")}
    for module, name, count in _vllm_api._USED:
        made = modules.setdefault(module, ModuleType(module))
        if "." not in name:
            setattr(made, name, type(name, (), {}) if count is None else called(count))
    base = modules["vllm.distributed.weight_transfer.base"]
    base.WeightTransferEngine = Engine  # type: ignore[attr-defined]
    for name in ("WeightTransferInitInfo", "WeightTransferUpdateInfo"):
        setattr(base, name, type(name, (), {}))
    loader = "vllm.model_executor.model_loader"
    modules[f"{loader}.mtp_validation"].disable_mtp_completeness_check = contextlib.nullcontext  # type: ignore[attr-defined]
    modules[f"{loader}.reload.layerwise"].get_layerwise_info = lambda layer: SimpleNamespace(  # type: ignore[attr-defined]
        can_load=lambda: False
    )
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    is_version(monkeypatch, "0.32.0")
    monkeypatch.delitem(sys.modules, "deltachain_integrations._vllm_engine", raising=False)
    engine = importlib.import_module("deltachain_integrations._vllm_engine")
    monkeypatch.delitem(sys.modules, "deltachain_integrations._vllm_engine")
    own = object.__new__(engine.DeltachainWeightTransferEngine)
    own.model, own.device = Model(), torch.device("cpu")
    own.model_config = SimpleNamespace(quantization=None, hf_text_config=SimpleNamespace())
    return own


def test_the_first_name_of_each_parameter() -> None:
    assert first_names(Model()) == {
        "experts.shared.weight": "experts.shared.weight",
        "shared.weight": "experts.shared.weight",
        "norm.weight": "norm.weight",
    }


@pytest.mark.parametrize("name", ["shared.weight", "experts.shared.weight"])
def test_a_parameter_is_loaded_by_any_of_its_names(backend: Any, name: str) -> None:
    weights = {name: torch.ones(2, 3), "norm.weight": torch.ones(1, 2)}
    backend._load_all(iter(weights.items()))
    assert torch.equal(backend.model.experts.shared.weight, torch.ones(2, 3))


def test_a_parameter_of_which_no_name_is_loaded_is_missing(backend: Any) -> None:
    with pytest.raises(dc.UsageError, match=r"no weights for 1 parameters.*experts\.shared"):
        backend._load_all(iter({"norm.weight": torch.ones(1, 2)}.items()))
