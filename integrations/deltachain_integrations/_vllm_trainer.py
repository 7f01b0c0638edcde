"""The trainer's side of vLLM's backend: vLLM's interface for trainers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from deltachain import Like, Publisher, Store, UnsupportedError, UsageError
from deltachain.reports import PublishReport

from ._vllm_client import end_update, send

__all__ = ["DeltachainTrainerInitInfo", "DeltachainTrainerWeightTransferEngine"]


@dataclass
class DeltachainTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """The chain, and settings.

    Attributes:
        chain: the chain: a directory, `s3://BUCKET/PREFIX`, `gs://`, `az://`, or a
            `deltachain.Store`. Created if it does not exist.
        like: a reference checkpoint, usually the one that training started from, or a
            `deltachain.Like`: `Publisher`.
        init_info: settings for the servers' backend, as in `/init_weight_transfer_engine`:
            `{"host_copy": DIR}` for servers whose configuration names neither a chain nor a
            directory. A trainer cannot make a server open a chain.
        publisher: other arguments of `Publisher`. With `group`, all ranks make links; otherwise
            rank 0 does.
        rank: of this process, from 0. Rank 0 talks to the servers.
    """

    backend: ClassVar[str] = "deltachain"

    chain: str | os.PathLike[str] | Store
    like: str | Like | None = None
    init_info: dict[str, Any] = field(default_factory=dict)
    publisher: dict[str, Any] = field(default_factory=dict)


class DeltachainTrainerWeightTransferEngine(TrainerWeightTransferEngine[DeltachainTrainerInitInfo]):  # type: ignore[misc]
    """Publishes each version to a chain, and updates servers to it.

        init_info = DeltachainTrainerInitInfo("s3://models/run7", like="base/", rank=0)
        engine = WeightTransferTrainerFactory.trainer_init(init_info, client=client)
        engine.send_weights(model)

    The servers are those of `client`: a `DeltachainWeightSyncClient`, which pauses them and
    recovers from failures; or a client of vLLM's own, whose caller pauses and resumes them
    (docs/integrations.md, "A trainer in vLLM's words"). Other servers can follow the chain without
    the trainer's knowledge.

    All methods are called on all ranks of the trainer.
    """

    init_info_cls = DeltachainTrainerInitInfo

    def __init__(
        self,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
        is_sender: bool = True,
    ) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        if source is not None and source.held_names() is not None:
            raise UnsupportedError(
                "the backend deltachain needs a source with all tensors on each rank"
            )
        self._publisher: Publisher | None = None
        self._init_info: dict[str, Any] = {}

    @classmethod
    def trainer_init(
        cls,
        init_info: DeltachainTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> DeltachainTrainerWeightTransferEngine:
        """Opens or creates the chain, gives the servers their settings, and ends an update that a
        killed trainer left open.

        Args:
            init_info: the chain, and settings.
            client: the servers.
            source: weights for `publish` and `send_weights` without `weights`.

        Raises:
            UnsupportedError: if the source does not have all tensors on each rank.
            Error: if the chain can neither be read nor created.
            Exception: from the client; from `DeltachainWeightSyncClient`, a `TimeoutError` or an
                `IoError`.
        """
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine._init_info = dict(init_info.init_info)
        if engine.is_sender or init_info.publisher.get("group") is not None:
            engine._publisher = Publisher(
                init_info.chain, like=init_info.like, **init_info.publisher
            )
        if engine.is_sender:
            try:
                client.init_weight_transfer_engine(engine._init_info)
            except BaseException:
                engine.shutdown()
                raise
            end_update(client)
        return engine

    @property
    def last(self) -> PublishReport | None:
        """The version that this process published last; None on ranks that publish nothing."""
        return None if self._publisher is None else self._publisher.last

    def publish(self, weights: Any = None, *, metadata: Mapping[str, Any] | None = None) -> None:
        """Publishes a version, while the servers serve.

        Args:
            weights: a mapping from names to tensors, a module of torch, or a stream of (name,
                tensor) pairs; by default the source.
            metadata: names and texts for the commit, such as the step.

        Raises:
            UsageError: if there are no weights, names are missing or unexpected, or a tensor does
                not fit.
            Error: if the version cannot be stored. The chain is unchanged.
        """
        given = self.source if weights is None else weights
        if given is None:
            raise UsageError("USAGE: give weights=, or source= to trainer_init()")
        if self._publisher is None:
            # Producing the tensors may involve other ranks.
            state = given.state_dict() if hasattr(given, "state_dict") else given
            deque(state.items() if isinstance(state, Mapping) else state, maxlen=0)
        else:
            self._publisher.publish(given, metadata=metadata)

    def update_servers(self) -> None:
        """Updates the servers to the version that was published last. Can be repeated after a
        failure.

        Raises:
            UsageError: if none was published.
            Exception: from the client; from `DeltachainWeightSyncClient`, an `IoError`. With vLLM's
                own clients, a server may then hold parts of two versions: leave it paused, and
                update it again.
        """
        if not self.is_sender:
            return
        if self.last is None:
            raise UsageError("USAGE: call publish() before update_servers()")
        # Servers that were restarted have forgotten their settings.
        self.client.init_weight_transfer_engine(self._init_info)
        send(self.client, self.last)

    def send_weights(
        self, weights: Any = None, *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Publishes a version, and updates the servers to it: `publish`, then `update_servers`.

        Raises:
            Exception: the same as from these.
        """
        self.publish(weights, metadata=metadata)
        self.update_servers()

    def shutdown(self) -> None:
        """Closes the publisher. The caller closes the client."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
