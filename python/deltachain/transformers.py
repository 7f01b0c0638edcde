"""Publishing from any trainer of transformers: Trainer, SFTTrainer, and whatever else takes its callbacks.

    from deltachain.transformers import PublishCallback

    trainer = SFTTrainer(..., callbacks=[PublishCallback("s3://models/run7", like="base/", every=10)])

Needs transformers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel, TrainerCallback

from ._errors import UsageError
from ._publisher import Published, Publisher

__all__ = ["PublishCallback", "as_saved"]


class PublishCallback(TrainerCallback):  # type: ignore[misc]
    """Publishes the model while it is trained: every `every` steps, and when training ends.

    A step copies the weights and goes on; links are made and stored while training continues. Only one version is
    published at a time: if steps are faster than the store, the next version waits for the one before, so choose a
    larger `every`. A version's metadata has its step.

    A failure is raised by the next step that publishes, or at the end of training, and ends `train()`. Resumed
    training continues the chain.

    Args:
        url: the chain: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`.
        like: the checkpoint whose names, dtypes and other files the versions get, usually the one that training began
            with. See `Publisher`. Without it, a version has the dtypes of training, and no configuration or
            tokenizer. In training these are often F32, where nearly every element changes with each step.
        every: steps of the optimizer between two versions.
        publisher: other arguments of `Publisher`, such as `keep_last` or `storage_options`. In a run of several
            processes, `group` is all of them by default, and `like` is needed.

    Models are published whole: merge adapters of PEFT first. Models that DeepSpeed's ZeRO 3 has divided are refused.

    Raises:
        UsageError: if `every` is below 1.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        like: str | os.PathLike[str] | None = None,
        every: int = 1,
        **publisher: Any,
    ) -> None:
        if every < 1:
            raise UsageError("USAGE: every must be 1 or more")
        self._url, self._like, self._every = url, like, every
        self._settings = publisher
        self._publisher: Publisher | None = None
        self._step: int | None = None
        self._last: Published | None = None

    @property
    def last(self) -> Published | None:
        """The version that was published last; it stays when training has ended."""
        return self._last if self._publisher is None else self._publisher.last

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Opens the chain, or begins it."""
        if self._publisher is not None:
            # Training ended with an exception before, so that nobody was asked to close it.
            self._close()
        self._step = None
        settings = {"group": _everybody(), **self._settings}
        self._publisher = Publisher(self._url, like=self._like, **settings)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Publishes, if it is time to."""
        if state.global_step % self._every == 0:
            self._publish(state, model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Publishes the last step, unless that has been done, and waits."""
        # The best model may have been loaded meanwhile, and is what training has led to.
        if self._step != state.global_step or args.load_best_model_at_end:
            self._publish(state, model)
        self._close()

    def _publish(self, state: Any, model: Any) -> None:
        if self._publisher is None:
            raise UsageError("USAGE: the callback publishes while a trainer trains, and none has begun")
        self._publisher.publish_async(as_saved(model), metadata={"step": state.global_step})
        self._step = state.global_step

    def _close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            try:
                publisher.close()
            finally:
                self._last = publisher.last


def as_saved(model: Any, tensors: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Names and tensors of a model as `save_pretrained` writes them. transformers holds some models in another form
    than their checkpoints: all experts of a layer are one tensor.

    Args:
        model: a module of torch; those that are no `PreTrainedModel` are taken as they are.
        tensors: some of its tensors, by the model's own names; by default, all. A trainer that gives one at a time
            can be published by `transform=lambda name, tensor: as_saved(model, {name: tensor})`, if each tensor of
            the model becomes tensors of the checkpoint by itself.

    Returns:
        The tensors, without copies, but for those whose form is another one.
    """
    state: dict[str, Any] = model.state_dict() if tensors is None else dict(tensors)
    if not isinstance(model, PreTrainedModel):
        return state
    for name in model._keys_to_ignore_on_save or ():
        state.pop(name, None)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        # Before transformers 5, models had the form of their checkpoints.
        return state
    saved: dict[str, Any] = revert_weight_conversion(model, state)
    return saved


def _everybody() -> Any:
    """All processes of the run; None for one alone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None
