"""`_native.pyi` is written by hand, and declares exactly what the native module has."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import deltachain
from deltachain import _native

STUB = Path(deltachain.__file__).with_name("_native.pyi")


def form(item: Any) -> Any:
    """Returns the parameters of a function, or the form of each member of a class."""
    if inspect.isclass(item):
        made = {"a new one": form(inspect.signature(item))} if "__new__" in vars(item) else {}
        return made | {
            name: form(member) for name, member in vars(item).items() if not name.startswith("_")
        }
    if inspect.isdatadescriptor(item):
        return "property"
    signature = item if isinstance(item, inspect.Signature) else inspect.signature(item)
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.name != "self"
    ]
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def test_the_stub_has_what_the_module_has() -> None:
    stub: dict[str, Any] = {"__name__": "stub"}
    exec("from __future__ import annotations\n" + STUB.read_text(), stub)
    said = {
        name: form(item)
        for name, item in stub.items()
        if getattr(item, "__module__", "") == "stub" and not name.startswith("_")
    }
    has = {name: form(item) for name, item in vars(_native).items() if callable(item)}
    assert said.keys() == has.keys()
    for name, members in said.items():
        assert members == has[name], name
