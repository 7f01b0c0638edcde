"""The backend that vLLM's workers call to update weights: waits for a version, compares its digest, loads it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed

from . import _vllm_api
from ._engine_copy import EngineCopy, Version, shared_memory_directory
from ._engine_in_place import EngineInPlace, Staged
from ._errors import Error, TornError, UnsupportedError, UsageError
from ._maps import Map, taken
from ._native import misfit
from ._vllm_replies import are_whole
from ._vllm_settings import Settings, fixed, merged
from ._vllm_worker import Lease, WeightSums, add_to, stranded

# Before anything of vLLM is imported: it names all that is missing.
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

_Result = TypeVar("_Result")

# vLLM's own logger, so that servers show its messages.
_logger = init_logger("vllm.deltachain")

# Methods of speculative decoding without weights of their own.
_WITHOUT_WEIGHTS = frozenset({None, "ngram", "ngram_gpu", "suffix"})

# As many tensors are listed at once.
_LISTED = 5

# Seconds after which all weights are read again before an update.
_FRESH = 10.0

# Seconds between looks for the directory of a chain that does not exist yet.
_POLL = 0.1

# Here and not in the plugin, so that only workers with this backend have the methods.
add_to(WorkerBase)


@dataclass
class DeltachainInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What a request may say of the settings (`Settings`). What the server's configuration says, it may only repeat.

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
        digest: its state digest, 64 hexadecimal digits; None accepts that of the chain that this server downloads.
        follower: the caller's name in `deltachain_state`; None if it did not call that.
    """

    version: int
    digest: str | None = None
    follower: str | None = None


class DeltachainWeightTransferEngine(WeightTransferEngine[DeltachainInitInfo, DeltachainUpdateInfo]):  # type: ignore[misc]
    """The backend, one in each worker.

    All work is in `receive_weights`, so no work is unfinished between vLLM's calls: a refused version leaves the model
    unchanged. If loading fails after the model was changed, the worker's version is unknown: the update fails,
    `finish_weight_update` refuses to name a version, and the next update loads all tensors. It also does that after
    other code has changed the weights, by a reload or a reset.

    In sparse mode the first version is loaded by the model's own loader. A `Map` notes where each element goes, and
    later versions are written there, proven before. Addresses never change.
    """

    init_info_cls = DeltachainInitInfo
    update_info_cls = DeltachainUpdateInfo
    supports_draft_weight_update = False

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        _vllm_api.check_configuration(vllm_config)
        self._configured = fixed(vllm_config.additional_config)
        speculative = vllm_config.speculative_config
        if speculative is not None and speculative.method not in _WITHOUT_WEIGHTS:
            raise UnsupportedError(
                f"the backend deltachain cannot update draft models ({speculative.method}): they would stay at the "
                "version that the server started with"
            )
        if self.model_config.enable_sleep_mode:
            raise UnsupportedError(
                "the backend deltachain cannot detect discarded weights: start the server without --enable-sleep-mode"
            )
        self._workers = _workers(vllm_config.parallel_config)
        if self._workers is not None and not are_whole():
            _logger.warning("deltachain: after a failure of one worker, this vLLM may read old replies of the others")
        self._copy: EngineCopy | EngineInPlace | None = None
        # What was asked for, and what holds: `auto` decides for one mode.
        self._asked: Settings | None = None
        self._settings: Settings | None = None
        self._map: Map | None = None
        # Tensors of layers that cannot be written in place, in the host's memory.
        self._rest: dict[str, torch.Tensor] = {}
        # When all weights were last found to be those of the version held.
        self._checked = -math.inf
        # Whether a worker of this server downloads the chain.
        self._downloads = False
        # Worker 0 decides which follower updates the server.
        self._lease = Lease() if vllm_config.parallel_config.rank == 0 else None
        self._is_torn = False
        # The model's version and the sums of its weights; None if unknown, or the server's initial weights.
        self._holds: tuple[int, str, WeightSums] | None = None
        self._received: int | None = None
        self.times: dict[str, float] = {}
        self.how = ""
        if self._configured.get("start") == "newest":
            self._start()

    def init_transfer_engine(self, init_info: DeltachainInitInfo) -> None:
        """Opens the chain or the copy, and begins to prepare versions. Updates do it too if the configuration names
        one.

        Raises:
            UsageError: if a setting is invalid, or a request may not change it. Nothing has changed.
            UnsupportedError: if this server cannot be updated with these settings.
            Error: if there is no chain.
        """
        settings = self._together(lambda: merged(self._configured, asdict(init_info)))
        try:
            self._together(lambda: self._open(settings))
        except BaseException:
            # No worker follows a chain that another one could not open.
            self.shutdown()
            raise
        assert self._copy is not None
        self._downloads = any(self._gathered(self._copy.keeps))

    def _start(self) -> None:
        """Loads the newest version before the server serves. vLLM has loaded its own model, and calls this before it
        measures memory and captures graphs."""
        settings = merged(self._configured, {})
        end = time.monotonic() + settings.timeout
        chain = settings.chain
        _logger.info(
            "deltachain: waits up to %.0f s for the newest version of %s, and loads it before the server starts",
            settings.timeout,
            chain or settings.host_copy,
        )
        while chain is not None and "://" not in chain and not os.path.isdir(chain) and time.monotonic() < end:
            time.sleep(_POLL)
        try:
            self.init_transfer_engine(DeltachainInitInfo())
            copy = self._copy
            assert copy is not None
            # One worker says which is the newest: the first that downloads it.
            keeps = self._gathered(copy.keeps)
            first = keeps.index(True) if True in keeps else 0
            chooses = self._number() == first or isinstance(copy, EngineInPlace)
            newest = self._together(lambda: copy.take(None, None, end - time.monotonic()) if chooses else None)
            names = self._gathered(None if newest is None else (newest.number, newest.digest))
            (number, digest), *_ = [name for name in names if name is not None]
            taken = self._together(lambda: newest or copy.take(number, digest, end - time.monotonic()))
            with set_current_vllm_config(self.vllm_config):
                self._together(lambda: self._load(taken), TornError)
            self._together(lambda: self._settle(taken))
            assert self._copy is not None
            self._copy.go_on()
        except BaseException as error:
            self.shutdown()
            _logger.error("deltachain: the server does not start, since no version was loaded: %s", error)
            raise
        _logger.info("deltachain: the server starts with version %d, %s", number, digest[:12])

    def _open(self, settings: Settings) -> None:
        if self.vllm_config.kv_transfer_config is not None and settings.kv != "keep":
            raise UnsupportedError(
                "a KV connector may keep blocks of older weights after an update: start the server without it, or use "
                "kv=keep"
            )
        if self._copy is not None and settings == self._asked:
            return
        if self.device.type == "cpu" and self.model_config.quantization is not None and self._packed_experts():
            raise UnsupportedError("quantised experts on CPUs are untested, and vLLM packs them only once")
        self._refuse_stranded()
        reason = self._why_not_sparse(settings)
        if reason is not None and settings.mode == "sparse":
            raise UnsupportedError(f"sparse updates are not possible: {reason}")
        is_sparse = reason is None and settings.mode != "reload"
        self._change_to(settings, is_sparse)
        _logger.info(
            "deltachain: follows %s, managed by %s; updates are %s%s",
            settings.chain or settings.host_copy,
            "this worker" if self._copy is not None and self._copy.keeps else "another process",
            "sparse" if is_sparse else "full reloads",
            "" if reason is None or settings.mode == "reload" else f", since {reason}",
        )

    def _refuse_stranded(self) -> None:
        if lost := stranded(self.model):
            raise UnsupportedError(
                f"vLLM's reload does not renew {_listed(lost, ', ')}, which are views of parameters that it has "
                "packed: the model would answer with parts of an older version"
            )

    def _change_to(self, settings: Settings, is_sparse: bool) -> None:
        """Follows a chain, in place or by a copy."""
        directory = settings.host_copy
        if directory is None and not is_sparse:
            assert settings.chain is not None
            directory = shared_memory_directory(settings.chain, self._bytes())
        # Closes the old copy first: the new one may use the same directory.
        self.shutdown()
        copy: EngineCopy | EngineInPlace
        if directory is None:
            assert settings.chain is not None
            copy = EngineInPlace(
                settings.chain,
                self._load_and_map,
                self._workers,
                lambda own: all(self._gathered(own)),
                self._sums_after,
                trust=settings.trust,
                quorum=settings.quorum,
            )
        else:
            copy = EngineCopy(
                settings.chain,
                directory,
                remove=settings.host_copy is None,
                trust=settings.trust,
                quorum=settings.quorum,
            )
        self._copy, self._asked = copy, settings
        self._settings = replace(settings, mode="sparse" if is_sparse else "reload")

    def _bytes(self) -> int:
        """Bytes of the model, of all workers."""
        own: int = sum(parameter.nbytes for parameter in self.model.parameters())
        return own * int(self.vllm_config.parallel_config.world_size)

    def _why_not_sparse(self, settings: Settings) -> str | None:
        """Why versions cannot be written in place here; None if that depends on the loader."""
        if settings.chain is None or settings.host_copy is not None:
            return 'the versions come from "host_copy", without their links'
        for name, parameter in self.model.named_parameters():
            if parameter.numel() == 0:
                return f"this platform packs weights ({name})"
        if self.vllm_config.lora_config is not None:
            return "the server has LoRA adapters"
        if settings.mode == "auto" and self.model_config.quantization is not None:
            return f"the model is quantised ({self.model_config.quantization})"
        return None

    def _settle(self, taken: Version | Staged) -> None:
        """In mode `auto`, changes to full reloads if versions cannot be written in place: then a copy on the host saves
        downloads."""
        copy, asked = self._copy, self._asked
        if not isinstance(copy, EngineInPlace) or not isinstance(taken, Staged):
            return
        assert asked is not None
        base = taken.update.base
        if not copy.is_found:
            reason = "the model's loader does more than copying"
        elif base is not None and base < taken.number and taken.changes is None:
            # Back to an older one there are none.
            reason = "the chain has no links that can be taken in place: publish with the profile local"
        else:
            return
        is_auto = asked.mode == "auto"
        _logger.warning("deltachain: updates are full reloads%s, since %s", "" if is_auto else " for now", reason)
        if is_auto:
            self._change_to(asked, is_sparse=False)

    def state(self, follower: str, lease: float) -> dict[str, Any]:
        """The version of this worker's model, and whether this follower may update it: docs/engines.md."""
        other = None if self._lease is None else self._lease.ask(follower, lease)
        owner, seconds = other or (None, None)
        held = self._held()
        version, digest = held or (None, None)
        state = "held" if held is not None else "torn" if self._is_torn else "other"
        return {"state": state, "version": version, "digest": digest, "owner": owner, "owner_seconds": seconds}

    def readiness(self, follower: str, version: int) -> dict[str, Any]:
        """Whether this worker can load a version without waiting for it, or waiting would not help; and why it cannot.
        Renews the lease of this follower."""
        if self._lease is not None:
            self._lease.renew(follower)
        if self._copy is None:
            if not {"chain", "host_copy"} & set(self._configured):
                return {"ready": True, "why": None}
            self.init_transfer_engine(DeltachainInitInfo())
        assert self._copy is not None
        is_ready = self._copy.is_ready(version)
        why = self._misfit(self._copy.shapes) if is_ready else self._copy.failure
        return {"ready": is_ready, "why": why}

    def _misfit(self, shapes: dict[str, list[int]]) -> str | None:
        """Why a version does not fit the model, by the files that the server began with."""
        return misfit(self.model_config.model, shapes) if shapes else None

    def _held(self) -> tuple[int, str] | None:
        """Number and digest of the model's version; None if it is torn or was changed. Reads all weights."""
        if self._is_torn or self._holds is None:
            return None
        number, digest, sums = self._holds
        if self._is_in_place() and sums.fits(self.model):
            self._checked = time.monotonic()
            return number, digest
        _logger.warning("deltachain: the weights of version %d were changed: the next update loads all", number)
        self._forget()
        return None

    def _known(self) -> tuple[int, str] | None:
        """The same, but weights that `state` has just read are not read again: the server is paused."""
        is_fresh = time.monotonic() - self._checked < _FRESH
        if is_fresh and self._holds is not None and not self._is_torn and self._is_in_place():
            return self._holds[:2]
        return self._held()

    def _is_in_place(self) -> bool:
        """Whether the model's tensors are where they were mapped."""
        return self._map is None or self._map.fits(self._tensors())

    def _forget(self) -> None:
        """Records that the model's version is unknown."""
        self._holds = None
        if self._copy is not None:
            self._copy.lost()

    def start_weight_update(self) -> None:
        """Begins an update."""
        self._received = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Like vLLM's own, except that CPUs are not synchronized: torch built for GPUs cannot do that."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: DeltachainUpdateInfo) -> None:
        """Waits until the version is on this machine, compares its digest, and loads it.

        Raises:
            UsageError: if no chain is known, a digest is needed, or the version does not fit the model.
            UnsupportedError: for draft models.
            WrongBaseError, ChainError, TimeoutError, Error: if the version is not available. The model is unchanged.
            TornError: if loading failed half way: stay paused, and update again.
        """
        begin = time.monotonic()
        if self._copy is None:
            self.init_transfer_engine(DeltachainInitInfo())
        try:
            self._together(lambda: self._check_update(update_info))
            # First the worker that manages the copy: if it fails, the others would wait in vain.
            kept = self._together(lambda: self._take(update_info, keeps=True))
            read = self._together(lambda: self._take(update_info, keeps=False))
            self._together(lambda: self._refuse_misfit(kept or read))
            waited = time.monotonic()
            taken, how = self._together(lambda: self._load(kept or read), TornError)
            self._together(lambda: self._settle(taken))
        except BaseException:
            if self._copy is not None:
                self._copy.go_on()
            raise
        finally:
            self._checked = -math.inf
            # Loading may have taken long, and the follower could not renew meanwhile.
            if self._lease is not None:
                self._lease.renew(update_info.follower)
        self._received = taken.number
        self.times = {"wait": waited - begin, "load": time.monotonic() - waited}
        self.how = how
        _logger.info(
            "deltachain: version %d, %s, loaded %s: waited %.3f s, loaded in %.3f s",
            taken.number,
            taken.digest[:12],
            how,
            self.times["wait"],
            self.times["load"],
        )

    def _check_update(self, update_info: DeltachainUpdateInfo) -> None:
        """Refuses an update, before any worker waits for its version."""
        assert self._copy is not None
        if self.model is not self._default_model:
            raise UnsupportedError("the backend deltachain cannot update draft models")
        other = None if self._lease is None else self._lease.held_by_other(update_info.follower)
        if other is not None:
            raise UsageError(f"USAGE: {other[0]} updates this server; its lease ends in {other[1]:.0f} s")
        if update_info.digest is None and not self._downloads:
            raise UsageError(
                f"USAGE: another process manages {self._copy.directory}, perhaps for another chain: give the version's "
                "digest"
            )
        # If other code has changed the weights, the version is prepared as a whole.
        self._known()

    def _take(self, update_info: DeltachainUpdateInfo, *, keeps: bool) -> Version | Staged | None:
        """Waits for a version, in the worker that manages the copy (`keeps`) or in the others. Changes nothing."""
        copy, settings = self._copy, self._settings
        assert copy is not None
        assert settings is not None
        return copy.take(update_info.version, update_info.digest, settings.timeout) if copy.keeps == keeps else None

    def _refuse_misfit(self, taken: Version | Staged | None) -> None:
        if taken is not None and (why := self._misfit(taken.shapes)):
            raise UsageError(f"USAGE: version {taken.number} does not fit: {why}")

    def _load(self, taken: Version | Staged | None) -> tuple[Version | Staged, str]:
        """Loads a version. Returns what was loaded, for the log."""
        assert taken is not None
        if isinstance(taken, Staged):
            how = self._write(taken)
        elif self._known() == (taken.number, taken.digest):
            how = "nothing, already loaded"
        else:
            try:
                self._is_torn = True
                self._load_all(taken.tensors.items())
                self._holds = (taken.number, taken.digest, WeightSums(self.model))
            except BaseException as error:
                self._forget()
                raise _torn(taken, error) from error
            self._is_torn = False
            how = "all tensors"
        copy: Any = self._copy
        copy.taken(taken)
        return taken, how

    def _write(self, staged: Staged) -> str:
        """Writes a version in place, or loads all of it and makes the map."""
        copy, before = self._copy, self._holds
        assert isinstance(copy, EngineInPlace)
        if staged.update._native is None:
            # All workers hold it.
            return "nothing, already loaded"
        self._is_torn, self._holds = True, None
        try:
            staged.update.apply()
        except BaseException as error:
            self._is_torn = copy.is_torn
            if self._is_torn:
                self._forget()
                raise _torn(staged, error) from error
            if before is not None and copy.version == before[0]:
                # All workers have gone back.
                self._holds = before
            else:
                self._forget()
            raise
        try:
            how, sums = self._load_rest(staged), staged.extra
            self._holds = (staged.number, staged.digest, sums if sums and how == "in place" else WeightSums(self.model))
        except BaseException as error:
            self._forget()
            raise _torn(staged, error) from error
        self._is_torn = False
        return how

    def _load_rest(self, staged: Staged) -> str:
        """Loads the layers that cannot be written in place, if they have changed. Returns what was loaded."""
        if staged.changes is None:
            return "all tensors"
        own = {tensor.data_ptr() for tensor in self._rest.values()}
        if not any(memory.untyped_storage().data_ptr() in own for memory, *_ in staged.changes.lanes()):
            return "in place"
        self._load_all(self._rest.items(), is_whole=False)
        return f"in place, and {len(self._rest)} tensors by the loader"

    def _sums_after(self, staged: Staged) -> WeightSums | None:
        """The sums of the weights after an update in place."""
        holds, changes = self._holds, staged.changes
        return None if holds is None or changes is None else holds[2].after(changes)

    def _load_and_map(self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]) -> dict[str, Any] | None:
        """Loads a version as a whole, and finds where its tensors are. In mode `sparse`, the host keeps those of layers
        that cannot be written in place. None if these are unknown, or in mode `auto`."""
        self._map, self._rest = None, {}
        # The follower proves what has been found, by the version's sums.
        found = taken(self._load_all, tensors(), self._tensors())
        if found.reload:
            reasons = [f"{name}: {reason}" for name, reason in sorted(found.reload.items())]
            _logger.warning("deltachain: cannot be written in place: %s", _listed(reasons, "; "))
            names = _layers_of(found)
            assert self._asked is not None
            if not names or self._asked.mode == "auto":
                return None
            self._rest = {name: tensor.clone() for name, tensor in tensors() if name in names}
        self._map = found
        into: dict[str, list[Any]] = {name: [] for name in found.unused} | found.into()
        for name, tensor in self._rest.items():
            into.setdefault(name, []).append(tensor)
        return into

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The model's parameters and buffers."""
        model = self.model
        return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]

    def _together(self, act: Callable[[], _Result], kind: type[Error] = Error) -> _Result:
        """Runs this in each worker of the server. If it fails in one, all raise, the others an error of this kind.
        Otherwise workers could get different versions."""
        failure = None
        try:
            result = act()
        except BaseException as error:
            failure = error
        own = None if failure is None else f"{type(failure).__name__}: {failure}"
        for number, text in enumerate(self._gathered(own)):
            if failure is None and text is not None:
                failure = kind(f"worker {number} failed: {text}")
        if failure is not None:
            raise failure
        return result

    def _gathered(self, own: _Result) -> list[_Result]:
        """What each worker of the server gives here."""
        if self._workers is None:
            return [own]
        found: list[Any] = [None] * torch.distributed.get_world_size(self._workers)
        torch.distributed.all_gather_object(found, own, group=self._workers)
        return found

    def _number(self) -> int:
        """This worker's place among them."""
        return 0 if self._workers is None else torch.distributed.get_rank(self._workers)

    def finish_weight_update(self) -> None:
        """Allows the shared copy to be updated again.

        Raises:
            UsageError: if no version has been received.
        """
        if self._received is None:
            raise UsageError("USAGE: this update has received no version: call /update_weights first")
        self._received = None
        assert self._copy is not None
        self._copy.go_on()

    def shutdown(self) -> None:
        """Closes the copy; the model does not change."""
        if self._copy is not None:
            self._copy.close()
        self._copy = self._settings = self._asked = self._map = None
        self._rest = {}

    def _load_all(self, tensors: Iterable[tuple[str, torch.Tensor]], *, is_whole: bool = True) -> None:
        """Loads tensors, layer by layer, as the server did when it started: all, or those of whole layers."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        expected = {name for name, _ in self.model.named_parameters()} - self._tied()
        try:
            with torch.device(self.device), disable_mtp_completeness_check():
                loaded: Iterable[str] | None = self.model.load_weights(iter(tensors))
                # If the loader does not say which parameters it has loaded, they are all, of a whole model.
                lost = self._lost(set(loaded) if loaded is not None else expected if is_whole else set())
        finally:
            # Also after a failure: otherwise the next load would continue this one.
            finalize_layerwise_reload(self.model, self.model_config)
        if lost:
            raise UnsupportedError(
                f"vLLM's reload loses tensors that this model's loader copies by itself: {', '.join(lost[:_LISTED])}"
            )
        if is_whole and loaded is not None and self.model_config.quantization is None:
            missing = sorted(expected - set(loaded))
            if missing:
                raise UsageError(f"USAGE: the chain has no weights for {len(missing)} parameters: {missing[:5]}")
        self._pack_again()
        self._refuse_stranded()

    def _lost(self, loaded: set[str]) -> list[str]:
        """Of the parameters that the model's loader has loaded, those that vLLM's reload has lost: it replaces the
        functions that load parameters, and this loader has not called them. vLLM only warns."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        lost = []
        for place, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            # Otherwise all of the layer has been loaded.
            if info.can_load():
                seen = {name for name, _ in info.loaded_weights}
                own = {name: f"{place}.{name}" for name, _ in layer.named_parameters(recurse=False)}
                lost += [full for name, full in own.items() if name not in seen and full in loaded]
        return sorted(set(lost) - self._tied())

    def _pack_again(self) -> None:
        """On CPUs, vLLM multiplies by a packed copy of the last layer's weights. If these are tied to the embedding, a
        reload does not update the copy. Fused experts are packed in place, and only once: a reload leaves them
        unpacked, but vLLM would read them as packed."""
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
                # Parameters stay where they are.
                if packed is not parameter and (packed.shape, packed.dtype) == (parameter.shape, parameter.dtype):
                    parameter.data.copy_(packed)
                    setattr(layer, name, parameter)

    def _packed_experts(self) -> list[torch.nn.Module]:
        """The layers of fused experts that vLLM packs on CPUs."""
        methods = [(module, getattr(module, "quant_method", None)) for module in self.model.modules()]
        return [module for module, method in methods if getattr(method, "moe_kernel", None) is not None]

    def _heads(self) -> list[tuple[str, torch.nn.Module]]:
        """The layers that compute logits, with their names."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        return [(name, module) for name, module in self.model.named_modules() if isinstance(module, ParallelLMHead)]

    def _tied(self) -> set[str]:
        """Tied parameters, which checkpoints leave out."""
        if not getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            return set()
        return {f"{name}.{own}" for name, head in self._heads() for own, _ in head.named_parameters(recurse=False)}


def _workers(config: ParallelConfig) -> torch.distributed.ProcessGroup | None:
    """All workers that share this server's model; None if there is one."""
    if config.world_size == 1:
        return None
    from vllm.distributed.parallel_state import get_tp_group, get_world_group

    for group in (get_tp_group(), get_world_group()):
        if group.world_size == config.world_size:
            return group.cpu_group
    raise UnsupportedError("the backend deltachain is untested with pipelines in several replicas")


def _layers_of(found: Map) -> set[str]:
    """The tensors that are loaded together with those that cannot be written in place: of the same layers. None of them
    if the layers of one are unknown."""
    if not found.reload.keys() <= found.targets.keys():
        return set()

    def layers(name: str) -> set[str]:
        return {target.rpartition(".")[0] for target in found.targets[name]}

    together = set().union(*map(layers, found.reload))
    return {name for name in found.targets if layers(name) & together}


def _listed(texts: list[str], between: str) -> str:
    """The first of them, and how many more there are."""
    more = [f"and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return between.join(texts[:_LISTED] + more)


def _torn(version: Version | Staged, error: BaseException) -> TornError:
    return TornError(
        f"version {version.number} was not loaded, and this worker may hold parts of two versions: keep the server "
        f"paused and update again, which loads all tensors ({type(error).__name__}: {error})"
    )
