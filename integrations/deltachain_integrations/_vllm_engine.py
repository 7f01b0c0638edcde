"""The backend that vLLM's workers call to update weights: it waits for a version, compares its
digest, and loads it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from deltachain import UnsupportedError, UsageError

from . import _vllm_api
from ._engine_settings import Settings, fixed
from ._engine_weights import first_names
from ._engine_worker import EngineWorker, listed
from ._vllm_replies import are_whole
from ._vllm_worker import add_to

# Checked before anything of vLLM is imported, so that one error names all that is missing.
_vllm_api.check()

from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed.weight_transfer.base import (  # noqa: E402
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger  # noqa: E402
from vllm.v1.worker.worker_base import WorkerBase  # noqa: E402

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

__all__ = ["DeltachainInitInfo", "DeltachainUpdateInfo", "DeltachainWeightTransferEngine"]

# vLLM's own logger, so that servers show its messages.
_logger = init_logger("vllm.deltachain")

# Methods of speculative decoding without weights of their own.
_WITHOUT_WEIGHTS = frozenset({None, "ngram", "ngram_gpu", "suffix"})

# Added here and not in the plugin, so that only workers with this backend have the methods.
add_to(WorkerBase)


@dataclass
class DeltachainInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The settings (`Settings`) that a request may give. It may only repeat settings of the
    server's configuration.

    Attributes:
        chain: only to repeat the configuration.
        host_copy: a directory on this machine that another process manages: `deltachain follow`.
        mode, kv, timeout: as in `Settings`.
    """

    chain: str | None = None
    host_copy: str | None = None
    mode: str | None = None
    kv: str | None = None
    timeout: float | None = None


@dataclass
class DeltachainUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The version to load.

    Attributes:
        version: its number.
        digest: its state digest, 64 hexadecimal digits; None accepts that of the chain that this
            server downloads.
        follower: the caller's name in `deltachain_state`; None if the caller did not call it.
    """

    version: int
    digest: str | None = None
    follower: str | None = None


class DeltachainWeightTransferEngine(
    EngineWorker,
    WeightTransferEngine[DeltachainInitInfo, DeltachainUpdateInfo],  # type: ignore[misc]
):
    """The backend, one in each worker: see `EngineWorker`."""

    init_info_cls = DeltachainInitInfo
    update_info_cls = DeltachainUpdateInfo
    supports_draft_weight_update = False
    _log = _logger

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: VllmConfig,
        device: torch.device,
        model: torch.nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        _vllm_api.check_configuration(vllm_config)
        speculative = vllm_config.speculative_config
        if speculative is not None and speculative.method not in _WITHOUT_WEIGHTS:
            raise UnsupportedError(
                f"the backend deltachain cannot update draft models ({speculative.method}): they "
                "would stay at the version that the server started with"
            )
        if self.model_config.enable_sleep_mode:
            raise UnsupportedError(
                "the backend deltachain cannot detect discarded weights: start the server without "
                "--enable-sleep-mode"
            )
        workers = _workers(vllm_config.parallel_config)
        if workers is not None and not are_whole():
            _logger.warning(
                "deltachain: after a failure of one worker, this vLLM may read old replies of the "
                "others"
            )
        self._begin(fixed(vllm_config.additional_config), self.model_config.model, workers)
        self._received: int | None = None
        # vLLM has loaded its own model, and calls this before it measures memory and captures
        # graphs.
        self._start()

    def init_transfer_engine(self, init_info: DeltachainInitInfo) -> None:
        """Opens the chain or the copy, and begins to prepare versions. Updates do so, too, if the
        configuration names a chain or a copy.

        Raises:
            UsageError: if a setting is invalid, or a request may not change it. Nothing has
                changed.
            UnsupportedError: if this server cannot be updated with these settings.
            Error: if there is no chain.
        """
        self._follow(asdict(init_info))

    def _loading(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = set_current_vllm_config(self.vllm_config)
        return context

    def _refuse(self, settings: Settings) -> None:
        if self.vllm_config.kv_transfer_config is not None and settings.kv != "keep":
            raise UnsupportedError(
                "a KV connector may keep blocks of older weights after an update: start the "
                "server without it, or use kv=keep"
            )
        if (
            self.device.type == "cpu"
            and self.model_config.quantization is not None
            and self._packed_experts()
        ):
            raise UnsupportedError(
                "quantised experts on CPUs are untested, and vLLM packs them only once"
            )
        super()._refuse(settings)

    def _why_not_sparse(self, settings: Settings) -> str | None:
        reason = super()._why_not_sparse(settings)
        if reason is None and self.vllm_config.lora_config is not None:
            reason = "the server has LoRA adapters"
        if (
            reason is None
            and settings.mode == "auto"
            and self.model_config.quantization is not None
        ):
            reason = f"the model is quantised ({self.model_config.quantization})"
        return reason

    def start_weight_update(self) -> None:
        """Begins an update."""
        self._received = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Like vLLM's own, except that CPUs are not synchronized: torch built for GPUs cannot do
        that."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: DeltachainUpdateInfo) -> None:
        """Waits until the version is on this machine, compares its digest, and loads it: see
        `EngineWorker`.

        Raises:
            UnsupportedError: for draft models.
        """
        if self.model is not self._default_model:
            raise UnsupportedError("the backend deltachain cannot update draft models")
        self._receive(update_info.version, update_info.digest, update_info.follower)
        self._received = update_info.version

    def finish_weight_update(self) -> None:
        """Allows the shared copy to be updated again.

        Raises:
            UsageError: if no version has been received.
        """
        if self._received is None:
            raise UsageError(
                "USAGE: this update has received no version: call /update_weights first"
            )
        self._received = None
        self._preparer.go_on()

    def _load_all(
        self, tensors: Iterable[tuple[str, torch.Tensor]], *, is_whole: bool = True
    ) -> None:
        """Loads tensors, layer by layer, as the server does at its start: all tensors, or those of
        whole layers."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        firsts = {_plain(name): _plain(first) for name, first in first_names(self.model).items()}
        initialize_layerwise_reload(self.model)
        expected = set(firsts.values()) - {firsts.get(name, name) for name in self._tied()}
        try:
            with torch.device(self.device), disable_mtp_completeness_check():
                named: Iterable[str] | None = self.model.load_weights(iter(tensors))
                # The loader may name a parameter by another path.
                loaded = None if named is None else {firsts.get(name, name) for name in named}
                # A loader that does not return names has loaded all parameters of a whole model.
                lost = self._lost(
                    loaded if loaded is not None else expected if is_whole else set(), firsts
                )
        finally:
            # Also called after a failure: otherwise the next load would continue this one.
            finalize_layerwise_reload(self.model, self.model_config)
        if lost:
            raise UnsupportedError(
                "vLLM's reload loses tensors that this model's loader copies by itself: "
                f"{listed(lost, ', ')}"
            )
        if is_whole and loaded is not None and self.model_config.quantization is None:
            missing = sorted(expected - loaded)
            if missing:
                raise UsageError(
                    f"USAGE: the chain has no weights for {len(missing)} parameters: {missing[:5]}"
                )
        self._pack_again()
        self._refuse_stranded()

    def _lost(self, loaded: set[str], firsts: dict[str, str]) -> list[str]:
        """The parameters that the model's loader has loaded and vLLM's reload has lost: it replaces
        the functions that load parameters, and this loader has not called them. vLLM only warns."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        lost = []
        for place, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            # Otherwise the whole layer has been loaded.
            if info.can_load():
                seen = {name for name, _ in info.loaded_weights}
                named = {
                    name: firsts.get(own := _plain(f"{place}.{name}"), own)
                    for name, _ in layer.named_parameters(recurse=False)
                }
                lost += [
                    full for name, full in named.items() if name not in seen and full in loaded
                ]
        return sorted(set(lost) - {firsts.get(name, name) for name in self._tied()})

    def _pack_again(self) -> None:
        """On CPUs, vLLM multiplies by a packed copy of the last layer's weights. If these are tied
        to the embedding, a reload does not update the copy. Fused experts are packed in place, and
        only once: a reload leaves them unpacked, but vLLM would read them as packed."""
        if self.device.type != "cpu":
            return
        for _, head in self._heads():
            if head.weight.numel():
                head.quant_method.process_weights_after_loading(head)
        for layer in self._packed_experts():
            before = dict(layer.named_parameters(recurse=False))
            layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)
            for name, parameter in before.items():
                packed = getattr(layer, name)
                # Parameters keep their places.
                if packed is not parameter and (packed.shape, packed.dtype) == (
                    parameter.shape,
                    parameter.dtype,
                ):
                    parameter.data.copy_(packed)
                    setattr(layer, name, parameter)

    def _packed_experts(self) -> list[torch.nn.Module]:
        """The layers of fused experts that vLLM packs on CPUs."""
        methods = [
            (module, getattr(module, "quant_method", None)) for module in self.model.modules()
        ]
        return [
            module for module, method in methods if getattr(method, "moe_kernel", None) is not None
        ]

    def _heads(self) -> list[tuple[str, torch.nn.Module]]:
        """The layers that compute logits, with their names."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        return [
            (name, module)
            for name, module in self.model.named_modules()
            if isinstance(module, ParallelLMHead)
        ]

    def _tied(self) -> set[str]:
        """Tied parameters, which checkpoints leave out."""
        if not getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            return set()
        heads = self._heads()
        return {
            _plain(f"{name}.{own}")
            for name, head in heads
            for own, _ in head.named_parameters(recurse=False)
        }


def _plain(name: str) -> str:
    """A parameter as loaders name it: layers that adapters can change are in others."""
    return name.replace(".base_layer.", ".")


def _workers(config: ParallelConfig) -> torch.distributed.ProcessGroup | None:
    """The group of all workers that share this server's model; None if there is only one."""
    if config.world_size == 1:
        return None
    from vllm.distributed.parallel_state import get_tp_group, get_world_group

    for group in (get_tp_group(), get_world_group()):
        if group.world_size == config.world_size:
            return group.cpu_group
    raise UnsupportedError("the backend deltachain is untested with pipelines in several replicas")
