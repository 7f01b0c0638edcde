"""The parts of vLLM that the backend uses, as one list, and the check that the installed vLLM has
all of them."""

from __future__ import annotations

import importlib
import inspect
import logging
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any

from deltachain import UnsupportedError

__all__ = ["check", "check_configuration"]

# vLLM shows the messages of its own loggers.
_logger = logging.getLogger("vllm.deltachain")

# Versions tested in `integrations/tests/e2e`.
_TESTED = ("0.32.",)

# Each row: a module, a name in it, and the number of arguments that the backend calls it with; None
# if it does not call it.
_USED: tuple[tuple[str, str, int | None], ...] = (
    ("vllm.config", "set_current_vllm_config", 1),
    ("vllm.logger", "init_logger", 1),
    ("vllm.v1.worker.worker_base", "WorkerBase", None),
    ("vllm.distributed.parallel_state", "get_tp_group", 0),
    ("vllm.distributed.parallel_state", "get_world_group", 0),
    ("vllm.distributed.weight_transfer.base", "WeightTransferInitInfo", 0),
    ("vllm.distributed.weight_transfer.base", "WeightTransferUpdateInfo", 0),
    ("vllm.distributed.weight_transfer.base", "WeightTransferEngine", 4),
    ("vllm.distributed.weight_transfer.base", "WeightTransferEngine.parse_update_info", 2),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "ParallelLMHead", None),
    ("vllm.model_executor.model_loader.mtp_validation", "disable_mtp_completeness_check", 0),
    ("vllm.model_executor.model_loader.reload", "initialize_layerwise_reload", 1),
    ("vllm.model_executor.model_loader.reload", "finalize_layerwise_reload", 2),
    ("vllm.model_executor.model_loader.reload.layerwise", "get_layerwise_info", 1),
)

# Attributes of vLLM's configuration.
_READ = (
    "additional_config",
    "kv_transfer_config",
    "lora_config",
    "speculative_config",
    "parallel_config.data_parallel_size",
    "parallel_config.rank",
    "parallel_config.world_size",
    "model_config.enable_sleep_mode",
    "model_config.hf_text_config",
    "model_config.quantization",
)


def check() -> None:
    """Checks functions and classes, and warns of an untested version.

    Raises:
        UnsupportedError: if anything is missing, or is called in another way; it lists all such
    parts.
    """
    _refuse(
        [
            fault
            for module, name, count in _USED
            if (fault := _fault(module, name, count)) is not None
        ]
    )
    found = _version()
    if not found.startswith(_TESTED):
        _logger.warning(
            "deltachain is untested with vLLM %s (tested: %s); this version has every function "
            "that it uses",
            found,
            ", ".join(f"{tested}x" for tested in _TESTED),
        )


def check_configuration(configuration: object) -> None:
    """Checks that vLLM's configuration has the attributes that the backend reads, and that experts
    are not divided among replicas.

    Raises:
        UnsupportedError: if not.
    """
    missing = []
    for path in _READ:
        try:
            attrgetter(path)(configuration)
        except AttributeError:
            missing.append(f"vllm_config.{path} is missing")
    _refuse(missing)
    parallel: Any = attrgetter("parallel_config")(configuration)
    # vLLM runs replicas of a model without experts as servers of one replica each, whose
    # configuration has a size of 1 (`run_engine_core`). They can be updated. Replicas of a model
    # with experts work together.
    if parallel.data_parallel_size > 1:
        raise UnsupportedError(
            "the backend deltachain is untested with replicas that share experts "
            "(--data-parallel-size above 1 and a model with experts): run a server without "
            "--data-parallel-size for each replica, and name all of them to one follower (--server)"
        )


def _fault(module: str, name: str, count: int | None) -> str | None:
    try:
        found: Any = attrgetter(name)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        # Another module that this one imports may be the missing one.
        is_own = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        return f"{module}.{name} is missing" + ("" if is_own else f" ({error})")
    except ImportError as error:
        return f"{module} cannot be imported ({error})"
    except AttributeError:
        return f"{module}.{name} is missing"
    if count is not None:
        try:
            inspect.signature(found).bind(*[None] * count)
        except TypeError as error:
            return f"{module}.{name} is called in another way ({error})"
    return None


def _refuse(faults: list[str]) -> None:
    if faults:
        raise UnsupportedError(
            f"the backend deltachain cannot work with vLLM {_version()}: {'; '.join(faults)}"
        )


def _version() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        import vllm

        return str(getattr(vllm, "__version__", "unknown"))
