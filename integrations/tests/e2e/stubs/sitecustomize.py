"""Empty modules in place of the ones that SGLang imports and does not need on a CPU: kernels and
their compilers, and other libraries. Python imports this file by itself if its folder is in
PYTHONPATH."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

EMPTY = {
    "cuda",
    "cutlass",
    "datasets",
    "decord",
    "deep_gemm",
    "flash_attn",
    "flashinfer",
    "humming",
    "kernels",
    "modelscope",
    "outlines",
    "quack",
    "sgl_kernel",
    "tilelang",
    "torch_memory_saver",
    "torchao",
}


def part(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    # SGLang uses some of them in `isinstance`.
    return EmptyType(name, (), {}) if name[0].isupper() else EmptyModule(name)


class EmptyType(type):
    def __getattr__(cls, name: str) -> Any:
        return part(name)


class EmptyModule(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, part(name))
        return self.__dict__[name]

    def __call__(self, *_: object, **__: object) -> Any:
        return EmptyModule("called")

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return ()


class Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in EMPTY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
