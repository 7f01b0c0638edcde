"""A plugin of SGLang: servers download a chain themselves, and write versions in place.

    DELTACHAIN_SGLANG='{"chain": "s3://models/run7"}' python -m sglang.launch_server --model-path
    MODEL

SGLang finds the installed package by its entry point `sglang.srt.plugins`. See
docs/integrations.md.
"""

from __future__ import annotations

import os
from typing import Any

from ._engine_settings import SGLANG

__all__ = ["register"]

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def register() -> None:
    """Registers what answers to followers. SGLang calls this in each of its processes. Without the
    variable, nothing is registered."""
    if not os.environ.get(SGLANG):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_MANAGER}.get_weights_by_name", _ask, HookType.AROUND)
    HookRegistry.register(f"{_MANAGER}.update_weights_from_tensor", _update, HookType.AROUND)


def _ask(own: Any, manager: Any, request: Any) -> Any:
    from ._sglang_engine import answer

    return own(manager, request) if (found := answer(manager, request)) is None else found


def _update(own: Any, manager: Any, request: Any) -> Any:
    from ._sglang_engine import update

    return own(manager, request) if (found := update(manager, request)) is None else found
