"""Publishing from any trainer of transformers: Trainer, SFTTrainer, and others that take its
callbacks.

    from deltachain_integrations.transformers import PublishCallback

    trainer = SFTTrainer(...,
    callbacks=[PublishCallback("s3://models/run7", like="base/", every=10)])

Needs transformers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel, TrainerCallback

from deltachain import Like, Publisher, Store, UsageError
from deltachain.reports import PublishReport

__all__ = ["PublishCallback", "as_saved"]


class PublishCallback(TrainerCallback):  # type: ignore[misc]
    """Publishes the model during training: every `every` steps, and when training ends.

    A step only copies the weights; links are made and stored while training continues. Only one
    version is published at a time: if the store is slower than training, each version waits for the
    previous one, so choose a larger `every`. A version's metadata has its `step`. If
    `load_best_model_at_end` has loaded the best model, `step` and `best_step` are the step of that
    model, and `final_step` is the last step of training.

    A failure is raised by the next step that publishes, or at the end of training, and ends
    `train()`. Resumed training continues the chain; with `once="step"`, no step of it is published
    twice.

    Args:
        chain: the chain: a directory, `s3://BUCKET/PREFIX`, `gs://`, `az://`, or a
            `deltachain.Store`.
        like: a reference checkpoint, usually the one that training started from, or a
            `deltachain.Like`. Versions take its names, dtypes and assets. See `Publisher`. Without
            it, versions have training's dtypes, often F32, where nearly every element changes with
            each step, and no configuration or tokenizer.
        every: steps of the optimizer between versions.
        publisher: other arguments of `Publisher`, such as `keep_last`. In a run of several
            processes, `group` is all of them by default, and `like` is needed.

    Models are published whole: merge adapters of PEFT first. Models sharded by DeepSpeed's ZeRO 3
        are refused.

    Raises:
        UsageError: if `every` is below 1.
    """

    def __init__(
        self,
        chain: str | os.PathLike[str] | Store,
        *,
        like: str | os.PathLike[str] | Like | None = None,
        every: int = 1,
        **publisher: Any,
    ) -> None:
        if every < 1:
            raise UsageError("USAGE: every must be 1 or more")
        self._chain, self._like, self._every = chain, like, every
        self._settings = publisher
        self._publisher: Publisher | None = None
        self._step: int | None = None
        # If the newest version is the best model of a training that has ended: the step of that
        # model, and the last step of the training.
        self._ended: tuple[int, int] | None = None
        # The publisher of the last training.
        self._before: Publisher | None = None

    @property
    def last(self) -> PublishReport | None:
        """The version that was published last, or found published (`once=`). It stays after
        training has ended."""
        publisher = self._publisher or self._before
        return None if publisher is None else publisher.last

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Opens or creates the chain."""
        if self._publisher is not None:
            # The last training ended with an exception, so `on_train_end` was not called.
            self._close()
        self._step = None
        settings = {"group": _everybody(), **self._settings}
        self._publisher = Publisher(self._chain, like=self._like, **settings)
        newest = self._publisher.newest if settings.get("once") else None
        noted = {} if newest is None else newest.metadata
        self._ended = (
            (int(noted["step"]), int(noted["final_step"])) if "final_step" in noted else None
        )

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Publishes every `every` steps."""
        if state.global_step % self._every == 0:
            self._publish(model, {"step": state.global_step})

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Publishes the last step, or the best model, unless it is already published, and waits."""
        step, best = (
            state.global_step,
            state.best_model_checkpoint if args.load_best_model_at_end else None,
        )
        if best is not None and self._publisher is not None:
            # "checkpoint-12"
            own = int(str(best).rpartition("-")[2])
            self._publisher.wait()
            if own != self._step or self.last is None or not self.last.is_new:
                noted = {"step": own}
                if self._ended != (own, step):
                    # Its step is not newer than that of the last version.
                    self._publisher.allow_repeats()
                    self._ended = None
                    noted |= {"best_step": own, "final_step": step}
                self._publish(model, noted)
        elif self._step != step:
            self._publish(model, {"step": step})
        self._close()

    def _publish(self, model: Any, metadata: dict[str, int]) -> None:
        if self._publisher is None:
            raise UsageError("USAGE: the callback can publish only during training")
        step = metadata["step"]
        if self._ended is not None and step <= self._ended[1]:
            # The version exists, or was not wanted: the step of the newest version makes the
            # publisher skip it.
            metadata = {"step": self._ended[0]}
        self._publisher.publish_async(as_saved(model), metadata=metadata)
        self._step = step

    def _close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            self._before = publisher
            publisher.close()


def as_saved(model: Any, tensors: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Names and tensors of a model as `save_pretrained` writes them. transformers stores some
    models differently from their checkpoints: all experts of a layer are one tensor.

    Args:
        model: a module of torch; only a `PreTrainedModel` is converted.
        tensors: some of its tensors, by the model's own names; by default, all. For a trainer that
            gives one at a time, use
            `Like(path, transform=lambda name, tensor: as_saved(model, {name: tensor}))`, if each
            tensor can be converted alone.

    Returns:
        The tensors; only converted ones are copies.
    """
    state: dict[str, Any] = model.state_dict() if tensors is None else dict(tensors)
    if not isinstance(model, PreTrainedModel):
        return state
    for name in model._keys_to_ignore_on_save or ():
        state.pop(name, None)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        # Before transformers 5, models were stored like their checkpoints.
        return state
    saved: dict[str, Any] = revert_weight_conversion(model, state)
    return saved


def _everybody() -> Any:
    """The group of all processes of the run; None if there is only one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None
