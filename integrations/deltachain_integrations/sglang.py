"""A plugin of SGLang: servers download a chain themselves, and write versions in place.

    DELTACHAIN_SGLANG='{"chain": "s3://models/run7"}' python -m sglang.launch_server --model-path
    MODEL

SGLang finds the installed package by its entry point `sglang.srt.plugins`. See
docs/integrations.md.
"""

from __future__ import annotations

import os
from pkgutil import resolve_name
from typing import Any

from deltachain import Error, UnsupportedError

from ._engine_settings import SGLANG, in_environment

__all__ = ["register"]

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def register() -> None:
    """Registers the functions that answer followers. SGLang calls this in each of its processes.
    Without the variable, nothing is registered.

    Raises:
        SystemExit: if the variable is set, and the server could not follow: a setting is wrong, or
            the version of SGLang does not fit. SGLang only logs other exceptions, and would serve
            without the plugin.
    """
    if not os.environ.get(SGLANG):
        return
    try:
        in_environment()
        for name in _HOOKS:
            if not callable(getattr(resolve_name(_MANAGER), name, None)):
                raise UnsupportedError(f"{_MANAGER}.{name} is missing")
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except (Error, ImportError, AttributeError) as error:
        raise SystemExit(
            f"the server does not start: {SGLANG} is set, but it could not follow its chain with "
            f"this SGLang: {error}"
        ) from error
    for name, hook in _HOOKS.items():
        HookRegistry.register(f"{_MANAGER}.{name}", hook, HookType.AROUND)


def _begin(own: Any, manager: Any) -> None:
    from ._sglang_engine import start

    own(manager)
    start(manager)


def _ask(own: Any, manager: Any, request: Any) -> Any:
    from ._sglang_engine import answer

    return own(manager, request) if (found := answer(manager, request)) is None else found


def _update(own: Any, manager: Any, request: Any) -> Any:
    from ._sglang_engine import update

    return own(manager, request) if (found := update(manager, request)) is None else found


# Functions that replace methods of SGLang.
_HOOKS = {
    "__post_init__": _begin,
    "get_weights_by_name": _ask,
    "update_weights_from_tensor": _update,
}
