"""One worker of a server whose model follows a chain: it waits for a version, compares its digest,
and loads it. `_vllm_engine` and `_sglang_engine` load models for their engine."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed

from deltachain import Error, TornError, UnsupportedError, UsageError
from deltachain.adapters import difference, misfit, version_name, without_secrets

from ._engine_copy import EngineCopy, shared_memory_directory
from ._engine_in_place import EngineInPlace, VersionUpdate
from ._engine_preparer import Preparer, Version
from ._engine_settings import Settings, merged
from ._engine_weights import Lease, WeightSums, stranded
from ._maps import Map, taken

__all__ = ["EngineWorker", "listed"]

_Result = TypeVar("_Result")

# Version of the requests of followers, which they compare: docs/engines.md.
PROTOCOL = 2

# Maximum number of tensors in a message.
_LISTED = 5

# Seconds between polls for the directory of a chain that does not exist yet, at the start.
_START_POLL = 0.1

# Seconds after which all weights are read again before an update.
_FRESH = 10.0


class EngineWorker:
    """A worker of a server.

    All work is in `_receive`, so no work is unfinished between calls of the server: a refused
    version leaves the model unchanged. If loading fails after the model was changed, the worker's
    version is unknown: the update fails, and the next update loads all tensors. An update also
    loads all tensors after other code has changed the weights, by a reload or a reset.

    In place, the first version is loaded by the model's own loader. A `Map` notes where each
    element goes. Later versions are proven and then written there. Addresses never change.
    """

    # The subclass for the engine sets these attributes.
    model: torch.nn.Module
    device: torch.device
    _log: logging.Logger

    def _begin(
        self,
        configured: Mapping[str, Any],
        files: str,
        workers: torch.distributed.ProcessGroup | None,
    ) -> None:
        """Initializes the worker. Called before any other method.

        Args:
            configured: the settings in the server's configuration.
            files: the directory that the server has read its model from.
            workers: all workers that share this server's model; None if there is one.
        """
        self._configured, self._files, self._workers = configured, files, workers
        # The preparer of versions, None until it is opened, and the settings that it was opened
        # with.
        self._opened: Preparer[Any] | None = None
        self._settings = Settings()
        self._map: Map | None = None
        # Tensors of layers that cannot be written in place, in host memory.
        self._rest: dict[str, torch.Tensor] = {}
        # Time when all weights were last found to be those of the held version.
        self._checked = -math.inf
        # True if a worker of this server downloads the chain.
        self._downloads = False
        # Worker 0 decides which follower updates the server.
        self._lease = Lease() if self._number() == 0 else None
        self._is_torn = False
        # The result of the last call of `state`.
        self._said: dict[str, Any] | None = None
        # The shapes of the last version that the model took.
        self._took: dict[str, list[int]] = {}
        # The version of the model and the sums of its weights; None if unknown, or if the model has
        # the server's initial weights.
        self._holds: tuple[int, str, WeightSums] | None = None
        self.times: dict[str, float] = {}
        self.how = ""

    def _load_all(
        self, tensors: Iterable[tuple[str, torch.Tensor]], *, is_whole: bool = True
    ) -> None:
        """Loads tensors by the model's own loader: all, or those of whole layers.

        Raises:
            Exception: if tensors are missing, or do not fit. The model is torn.
        """
        raise NotImplementedError

    def _check_loaded(self, found: Map) -> None:
        """Refuses a model if `_load_all` has left out tensors, as far as the map has seen its
        writes.

        Raises:
            UsageError: if tensors were left out. The model is torn.
        """

    def _refuse(self, settings: Settings) -> None:
        """Refuses a server that cannot follow with these settings.

        Raises:
            UnsupportedError: if the server cannot follow.
        """
        self._refuse_stranded()

    def _refuse_stranded(self) -> None:
        if lost := stranded(self.model):
            raise UnsupportedError(
                f"the server's reload does not renew {listed(lost, ', ')}, which are views of "
                "parameters that it has packed: the model would answer with parts of an older "
                "version"
            )

    def _follow(self, told: Mapping[str, Any]) -> None:
        """Opens the chain or the copy, and begins to prepare versions.

        Args:
            told: the settings that a request adds to the configuration.

        Raises:
            UsageError: if a setting is invalid, or a request may not change it. Nothing has
                changed.
            UnsupportedError: if this server cannot be updated with these settings.
            Error: if there is no chain.
        """
        settings = self._together(lambda: merged(self._configured, told))
        try:
            self._together(lambda: self._open(settings))
        except BaseException:
            # No worker follows a chain that another one could not open.
            self.shutdown()
            raise
        self._downloads = any(self._gathered(self._preparer.keeps))

    def _start(self) -> None:
        """Loads the newest version before the server serves requests, if the configuration asks for
        that (`"start": "newest"`).

        Raises:
            Error: if no version can be loaded: the server must not start.
        """
        if self._configured.get("start") != "newest":
            return
        settings = merged(self._configured, {})
        end = time.monotonic() + settings.timeout
        chain = settings.chain
        self._log.info(
            "deltachain: waits up to %.0f s for the newest version of %s, and loads it before "
            "the server starts",
            settings.timeout,
            chain or settings.host_copy,
        )
        while (
            chain is not None
            and "://" not in chain
            and not os.path.isdir(chain)
            and time.monotonic() < end
        ):
            time.sleep(_START_POLL)
        try:
            self._follow({})
            preparer = self._preparer
            # One worker decides which version is the newest: the first worker that downloads it.
            keeps = self._gathered(preparer.keeps)
            first = keeps.index(True) if True in keeps else 0
            chooses = self._number() == first or preparer.is_collective
            newest = self._together(
                lambda: preparer.take(None, None, end - time.monotonic()) if chooses else None
            )
            names = self._gathered(None if newest is None else (newest.number, newest.digest))
            (number, digest), *_ = [name for name in names if name is not None]
            taken = self._together(
                lambda: newest or preparer.take(number, digest, end - time.monotonic())
            )
            with self._loading():
                self._together(lambda: self._load(taken), TornError)
            self._together(lambda: self._settle(taken))
            self._preparer.go_on()
        except BaseException as error:
            self.shutdown()
            self._log.error(
                "deltachain: the server does not start, since no version was loaded: %s", error
            )
            raise
        self._log.info("deltachain: the server starts with version %d, %s", number, digest[:12])

    def _loading(self) -> AbstractContextManager[Any]:
        """The context in which the engine loads weights at its start."""
        return nullcontext()

    @property
    def _preparer(self) -> Preparer[Any]:
        """The preparer of versions, after `_follow`."""
        assert self._opened is not None
        return self._opened

    def _open(self, settings: Settings) -> None:
        self._refuse(settings)
        if self._opened is not None and settings == self._settings:
            return
        reason = self._why_not_sparse(settings)
        if reason is not None and settings.mode == "sparse":
            raise UnsupportedError(f"sparse updates are not possible: {reason}")
        is_sparse = reason is None and settings.mode != "reload"
        self._change_to(settings, is_sparse)
        self._log.info(
            "deltachain: follows %s, managed by %s; updates are %s%s",
            settings.chain or settings.host_copy,
            "this worker" if self._preparer.keeps else "another process",
            "sparse" if is_sparse else "full reloads",
            "" if reason is None or settings.mode == "reload" else f", since {reason}",
        )
        # A model in the files has at least one tensor, which a version without tensors would lack.
        # If such a version fits, no model was found.
        if misfit(self._files, {}) is None:
            self._log.warning(
                "deltachain: the files of %r are not on this machine: versions are not compared "
                "with the model before they are loaded",
                str(self._files),
            )

    def _change_to(self, settings: Settings, is_sparse: bool) -> None:
        """Follows a chain, in place or by a copy."""
        directory = settings.host_copy
        if directory is None and not is_sparse:
            assert settings.chain is not None
            directory = shared_memory_directory(settings.chain, self._bytes())
        # Closes the old copy first: the new one may use the same directory.
        self.shutdown()
        if directory is None:
            assert settings.chain is not None
            self._opened = EngineInPlace(
                settings.chain,
                self._load_and_map,
                self._workers,
                lambda own: all(self._gathered(own)),
                self._sums_after,
                trust=settings.signed_by,
            )
        else:
            remove = settings.host_copy is None
            self._opened = EngineCopy(
                settings.chain, directory, remove=remove, trust=settings.signed_by
            )
        self._settings = settings

    def _bytes(self) -> int:
        """Bytes of the model, of all workers."""
        own: int = sum(parameter.nbytes for parameter in self.model.parameters())
        return own * (1 if self._workers is None else self._workers.size())

    def _why_not_sparse(self, settings: Settings) -> str | None:
        """The reason why versions cannot be written in place here; None if that depends on the
        loader."""
        if settings.chain is None or settings.host_copy is not None:
            return 'the versions come from "host_copy", without their links'
        for name, parameter in self.model.named_parameters():
            if parameter.numel() == 0:
                return f"this platform packs weights ({name})"
        return None

    def _settle(self, version: Version) -> None:
        """In mode `auto`, changes to full reloads if versions cannot be written in place: then a
        copy on the host saves downloads."""
        reason = self._preparer.why_whole(version)
        if reason is None:
            return
        is_auto = self._settings.mode == "auto"
        self._log.warning(
            "deltachain: updates are full reloads%s, since %s",
            "" if is_auto else " for now",
            reason,
        )
        if is_auto:
            self._change_to(self._settings, is_sparse=False)

    def state(self, follower: str, lease: float) -> dict[str, Any]:
        """Returns the version of this worker's model, and whether this follower may update it:
        docs/engines.md."""
        other = None if self._lease is None else self._lease.ask(follower, lease)
        owner, seconds = other or (None, None)
        held = self._held(is_whole=False)
        version, digest = held or (None, None)
        state = "held" if held is not None else "torn" if self._is_torn else "other"
        self._said = {
            "protocol": PROTOCOL,
            "state": state,
            "version": version,
            "digest": digest,
            "owner": owner,
            "owner_seconds": seconds,
            "downloads": "chain" in self._configured,
        }
        return self._said

    def agrees(self, states: list[dict[str, Any]]) -> None:
        """Compares this worker's model with that of the same worker of another replica, as far as
        the last calls of `state` know both.

        Args:
            states: what the workers of the other replica have returned from `state`.

        Raises:
            Error: if they differ.
        """
        own = self._said or self.state("", 0.0)
        other = states[self._number()]
        if any(own[key] != other[key] for key in ("state", "version", "digest")):
            raise Error(
                f"USAGE: replicas differ: {_shown(own)} here, and {_shown(other)} in another one"
            )

    def is_ready(self, follower: str, version: int) -> None:
        """Refuses a version that this worker cannot load without waiting for it.

        Raises:
            Error: with the reason.
        """
        told = self.readiness(follower, version, begins=False)
        if told["why"] is not None or not told["ready"]:
            why = told["why"] or "it prepares the version"
            raise Error(f"USAGE: a replica is not ready: {why}")

    def readiness(self, follower: str, version: int, *, begins: bool) -> dict[str, Any]:
        """Returns whether this worker can load a version without waiting for it, or waiting would
        not help, why it cannot load it, and which chain it downloads. Renews the lease of this
        follower.

        Args:
            follower: the caller's name in `state`.
            version: the version.
            begins: whether this is the first question of an attempt: then a version that could not
                be prepared is tried again.
        """
        if self._lease is not None:
            self._lease.renew(follower)
        if self._opened is None:
            if not {"chain", "host_copy"} & set(self._configured):
                return {"ready": True, "why": None, "chain": None, "from": None}
            self._follow({})
        preparer = self._preparer
        is_ready = preparer.is_ready(version, begins=begins)
        why = preparer.failure(version)
        if is_ready and why is None:
            why = self._misfit(preparer.shapes)
        if is_ready and why is None:
            # The update is next. All weights are compared here, so that the pause of the server is
            # shorter.
            self._compare_before(version)
        source = without_secrets(preparer.directory)
        return {"ready": is_ready, "why": why, "chain": preparer.chain, "from": source}

    def _misfit(self, shapes: dict[str, list[int]]) -> str | None:
        """The reason why a version does not fit the model: by the files that the server started
        with, and by the last version that the model took."""
        if not shapes:
            return None
        if why := misfit(self._files, shapes):
            return why
        return difference(self._took, shapes) if self._took else None

    def _held(self, *, is_whole: bool) -> tuple[int, str] | None:
        """Number and digest of the model's version; None if it is torn or was changed.

        Args:
            is_whole: whether to read all weights. Otherwise this is a poll, which reads few
                weights: see `WeightSums`.
        """
        if self._is_torn or self._holds is None:
            return None
        number, digest, sums = self._holds
        fits = sums.fits if is_whole else sums.seems_to_fit
        if self._is_in_place() and fits(self.model):
            if is_whole:
                self._checked = time.monotonic()
            return number, digest
        self._log.warning(
            "deltachain: the weights of version %d were changed: the next update loads all", number
        )
        self._forget()
        return None

    def _known(self) -> tuple[int, str] | None:
        """Number and digest of the model's version, from all weights. Weights that `readiness` has
        just read are not read again, because the server is paused."""
        is_fresh = time.monotonic() - self._checked < _FRESH
        return self._held(is_whole=not is_fresh)

    def _compare_before(self, version: int) -> None:
        """Compares all weights before an update to a version, if that may depend on them: a copy is
        loaded as a whole, unless the model has just this version."""
        if self._preparer.is_in_place or (self._holds is not None and self._holds[0] == version):
            self._known()

    def _holds_now(self, version: Version) -> bool:
        """True if the model still has all weights of a version."""
        name = (version.number, version.digest)
        return self._holds is not None and self._holds[:2] == name and self._known() is not None

    def _is_in_place(self) -> bool:
        """True if the model's tensors are where they were mapped."""
        return self._map is None or self._map.fits(self._tensors())

    def _forget(self) -> None:
        """Records that the model's version is unknown."""
        self._holds = None
        if self._opened is not None:
            self._opened.lost()

    def _receive(self, version: int, digest: str | None, follower: str | None) -> None:
        """Waits until a version is on this machine, compares its digest, and loads it.

        Args:
            version: its number.
            digest: its state digest, 64 hexadecimal digits; None accepts that of the chain that
                this server downloads.
            follower: the caller's name in `state`; None if the caller did not call `state`.

        Raises:
            UsageError: if no chain is known, a digest is needed, or the version does not fit the
                model.
            WrongBaseError, ChainError, TimeoutError, Error: if the version is not available. The
                model is unchanged.
            TornError: if loading failed half way: stay paused, and update again.
        """
        begin = time.monotonic()
        if self._opened is None:
            self._follow({})
        try:
            self._together(lambda: self._check_update(version, digest, follower))
            # The worker that manages the copy goes first: if it fails, the others would wait in
            # vain.
            kept = self._together(lambda: self._take(version, digest, keeps=True))
            read = self._together(lambda: self._take(version, digest, keeps=False))
            taken = kept or read
            assert taken is not None
            self._together(lambda: self._refuse_misfit(taken))
            waited = time.monotonic()
            how = self._together(lambda: self._load(taken), TornError)
            self._together(lambda: self._settle(taken))
        except BaseException:
            if self._opened is not None:
                self._opened.go_on()
            raise
        finally:
            self._checked = -math.inf
            # Loading may have taken long, and the follower could not renew its lease meanwhile.
            if self._lease is not None:
                self._lease.renew(follower)
        self.times = {"wait": waited - begin, "load": time.monotonic() - waited}
        self.how = how
        self._log.info(
            "deltachain: version %d, %s, loaded %s: waited %.3f s, loaded in %.3f s",
            taken.number,
            taken.digest[:12],
            how,
            self.times["wait"],
            self.times["load"],
        )

    def _check_update(self, version: int, digest: str | None, follower: str | None) -> None:
        """Refuses an update before any worker waits for its version."""
        other = None if self._lease is None else self._lease.held_by_other(follower)
        if other is not None:
            raise UsageError(
                f"USAGE: {other[0]} updates this server; its lease ends in {other[1]:.0f} s"
            )
        if digest is None and not self._downloads:
            raise UsageError(
                f"USAGE: another process manages {self._preparer.directory}, perhaps for another "
                "chain: give the version's digest"
            )
        # If other code has changed the weights, the version is prepared as a whole.
        self._compare_before(version)

    def _take(self, version: int, digest: str | None, *, keeps: bool) -> Version | None:
        """Waits for a version, in the worker that manages the copy (`keeps`) or in the others.
        Changes nothing."""
        preparer = self._preparer
        return (
            preparer.take(version, digest, self._settings.timeout)
            if preparer.keeps == keeps
            else None
        )

    def _refuse_misfit(self, version: Version) -> None:
        if why := self._misfit(version.shapes):
            raise UsageError(f"USAGE: version {version.number} does not fit: {why}")

    def _load(self, version: Version) -> str:
        """Loads a version. Returns what was loaded, for the log."""
        preparer, before = self._preparer, self._holds
        how = "nothing, already loaded"
        if not preparer.is_held(version, self._holds_now):
            self._is_torn, self._holds = True, None
            try:
                how, sums = preparer.load(version, self._load_all, lambda: self._rest)
                if sums is None:
                    sums = WeightSums(self.model)
                else:
                    sums.renew_sample(self.model)
                self._holds = (version.number, version.digest, sums)
                self._took = version.shapes or self._took
            except BaseException as error:
                self._is_torn = preparer.is_torn(version)
                if not self._is_torn and before is not None and preparer.version == before[0]:
                    # All workers have rolled back.
                    self._holds = before
                else:
                    self._forget()
                if self._is_torn:
                    raise TornError(
                        f"version {version.number} was not loaded, and this worker may hold parts "
                        "of two versions: keep the server paused and update again, which loads "
                        f"all tensors ({type(error).__name__}: {error})"
                    ) from error
                raise
            self._is_torn = False
        preparer.taken(version)
        return how

    def _sums_after(self, version: VersionUpdate) -> WeightSums | None:
        """The sums of the weights after an update in place."""
        holds, changes = self._holds, version.update.changes()
        return None if holds is None or changes is None else holds[2].after(changes)

    def _load_and_map(
        self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    ) -> dict[str, Any] | None:
        """Loads a version as a whole, and finds where its tensors are. In mode `sparse`, the host
        keeps the tensors of layers that cannot be written in place. Returns None if the places are
        unknown, or in mode `auto`."""
        self._map, self._rest = None, {}
        # The follower proves the places that were found by the version's sums.
        found = taken(self._load_all, tensors(), self._tensors())
        self._check_loaded(found)
        if found.reload:
            reasons = [f"{name}: {reason}" for name, reason in sorted(found.reload.items())]
            self._log.warning("deltachain: cannot be written in place: %s", listed(reasons, "; "))
            names = _layers_of(found)
            if not names or self._settings.mode == "auto":
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
        return [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]

    def _together(self, act: Callable[[], _Result], kind: type[Error] = Error) -> _Result:
        """Calls a function in each worker of the server. If it fails in one, all workers raise, the
        others an error of this kind. Otherwise workers could get different versions."""
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
        """The values that all workers of the server pass here."""
        if self._workers is None:
            return [own]
        found: list[Any] = [None] * torch.distributed.get_world_size(self._workers)
        torch.distributed.all_gather_object(found, own, group=self._workers)
        return found

    def _number(self) -> int:
        """The number of this worker among the workers of the server."""
        return 0 if self._workers is None else torch.distributed.get_rank(self._workers)

    def shutdown(self) -> None:
        """Closes the copy; the model does not change."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._map = None
        self._rest = {}


def _layers_of(found: Map) -> set[str]:
    """The tensors that are loaded together with those that cannot be written in place, because they
    are of the same layers. Empty if the layers of any tensor are unknown."""
    if not found.reload.keys() <= found.targets.keys():
        return set()

    def layers(name: str) -> set[str]:
        return {target.rpartition(".")[0] for target in found.targets[name]}

    together = set().union(*map(layers, found.reload))
    return {name for name in found.targets if layers(name) & together}


def _shown(state: Mapping[str, Any]) -> str:
    """The name of the version in a worker's state, or what it has instead."""
    is_held = state["state"] == "held"
    return version_name(state["version"], state["digest"]) if is_held else str(state["state"])


def listed(texts: list[str], between: str) -> str:
    """The first texts, and how many more there are."""
    more = [f"and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return between.join(texts[:_LISTED] + more)
