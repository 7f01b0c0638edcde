"""The check of the parts of vLLM that the backend uses, with modules that stand in for vLLM's."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import deltachain as dc
from deltachain_integrations import _vllm_api


class Any4:
    """A class of vLLM whose constructor has four arguments."""

    def __init__(
        self, config: object, vllm_config: object, device: object, model: object
    ) -> None: ...

    def parse_update_info(self, update_dict: object) -> None: ...


def called(count: int) -> Any:
    """Returns a function of this many arguments."""
    return eval(f"lambda {', '.join(f'a{number}' for number in range(count))}: None")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules that have all parts that the backend uses."""
    modules: dict[str, ModuleType] = {"vllm": ModuleType("vllm")}
    for module, name, count in _vllm_api._USED:
        made = modules.setdefault(module, ModuleType(module))
        if "." not in name:
            setattr(made, name, object if count is None else called(count))
    modules["vllm.distributed.weight_transfer.base"].WeightTransferEngine = Any4
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    is_version(monkeypatch, "0.32.0")
    return modules


def is_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(_vllm_api, "version", lambda package: version)


def test_a_tested_version_with_everything_is_silent(
    vllm: object, caplog: pytest.LogCaptureFixture
) -> None:
    _vllm_api.check()
    assert caplog.records == []


def test_an_untested_version_is_a_warning(
    vllm: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_version(monkeypatch, "0.99.1")
    _vllm_api.check()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name == "vllm.deltachain"
    assert "untested with vLLM 0.99.1 (tested: 0.32.x" in record.getMessage()


def test_what_is_missing_is_named(
    vllm: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_version(monkeypatch, "0.99.1")
    reload = "vllm.model_executor.model_loader.reload"
    del vllm[reload].finalize_layerwise_reload  # type: ignore[attr-defined]
    vllm[reload].initialize_layerwise_reload = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.logger", None)
    with pytest.raises(dc.UnsupportedError) as raised:
        _vllm_api.check()
    said = str(raised.value)
    assert "cannot work with vLLM 0.99.1" in said
    assert f"{reload}.finalize_layerwise_reload is missing" in said
    assert (
        f"{reload}.initialize_layerwise_reload is called in another way (too many positional"
        in said
    )
    assert "vllm.logger.init_logger is missing" in said
    assert said.count(";") == 2


def test_a_module_that_is_there_but_cannot_be_imported_is_not_called_missing(
    vllm: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def imported(name: str) -> ModuleType:
        if name == "vllm.logger":
            raise ImportError("libcuda.so.1: cannot open shared object file")
        if name == "vllm.v1.worker.worker_base":
            raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")
        return sys.modules[name]

    monkeypatch.setattr(_vllm_api.importlib, "import_module", imported)
    with pytest.raises(dc.UnsupportedError) as raised:
        _vllm_api.check()
    assert "vllm.logger cannot be imported (libcuda.so.1: cannot open" in str(raised.value)
    assert "WorkerBase is missing (No module named 'msgspec')" in str(raised.value)


def test_a_version_is_found_without_a_package(
    vllm: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(_vllm_api, "version", missing)
    assert _vllm_api._version() == "unknown"
    vllm["vllm"].__version__ = "0.33.0+cpu"  # type: ignore[attr-defined]
    assert _vllm_api._version() == "0.33.0+cpu"


@pytest.fixture
def configuration() -> SimpleNamespace:
    """A configuration with all attributes that the backend reads."""
    whole = SimpleNamespace(parallel_config=SimpleNamespace(), model_config=SimpleNamespace())
    for path in _vllm_api._READ:
        place, _, name = path.rpartition(".")
        setattr(getattr(whole, place) if place else whole, name, None)
    whole.parallel_config.data_parallel_size = 1
    return whole


def test_a_configuration_that_lacks_something(vllm: object, configuration: SimpleNamespace) -> None:
    _vllm_api.check_configuration(configuration)
    del configuration.model_config.enable_sleep_mode, configuration.parallel_config
    with pytest.raises(dc.UnsupportedError) as raised:
        _vllm_api.check_configuration(configuration)
    assert "vllm_config.model_config.enable_sleep_mode is missing" in str(raised.value)
    assert "vllm_config.parallel_config.rank is missing" in str(raised.value)


def test_replicas_that_share_experts_are_refused(
    vllm: object, configuration: SimpleNamespace
) -> None:
    # A replica of a model without experts does not know the number of replicas.
    configuration.parallel_config.data_parallel_size = 2
    with pytest.raises(dc.UnsupportedError, match="--data-parallel-size above 1"):
        _vllm_api.check_configuration(configuration)
