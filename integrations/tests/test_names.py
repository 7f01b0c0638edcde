"""The package uses only the public interface of `deltachain`: names of `__all__`, and no private
attributes."""

from __future__ import annotations

import ast
from pathlib import Path

import deltachain
import deltachain_integrations

# The public names of each module. `TimeoutError` and `open` are also builtins, so they are not in
# `__all__`.
OFFERED = {
    "deltachain": {*deltachain.__all__, "TimeoutError", "open"},
    "deltachain.adapters": set(deltachain.adapters.__all__),
    "deltachain.errors": set(deltachain.errors.__all__),
    "deltachain.reports": set(deltachain.reports.__all__),
}


def nodes(package: object) -> list[ast.AST]:
    """All syntax nodes of a package."""
    (folder,) = package.__path__
    return [
        node for path in Path(folder).glob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    ]


def private(found: list[ast.AST], *, is_read: bool) -> set[str]:
    """The private attributes that are read, or those that are set or defined."""
    names = {str(getattr(node, "name", "")) for node in found if not is_read}
    for node in found:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) == is_read:
            names.add(node.attr)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_only_what_is_offered_is_used() -> None:
    own = nodes(deltachain_integrations)
    for node in own:
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and str(node.module).split(".")[0] == "deltachain"
        ):
            assert not {name.name for name in node.names} - OFFERED[str(node.module)]
        assert not (
            isinstance(node, ast.Import)
            and any(name.name.startswith("deltachain") for name in node.names)
        )
    theirs = private(nodes(deltachain), is_read=False)
    assert {"_native", "_polling"} <= theirs
    assert not private(own, is_read=True) & theirs - private(own, is_read=False)
