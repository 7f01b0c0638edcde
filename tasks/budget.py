"""The budget: the number of public items, options and names of the product, and words that must not come back.

`budget.toml` has the numbers. A commit that changes a count also changes its number; its message has the reason.
`gone.txt` has the words.
"""

import ast
import re
import subprocess
import sys
import tomllib

from tasks.steps import ROOT

BUDGET = ROOT / "tasks/budget.toml"

#: The crates whose public items are counted, and their folders.
CRATES = {
    "library": "src",
    "store": "crates/deltachain-store/src",
    "engines": "crates/deltachain-engines/src",
    "exchange": "crates/deltachain-exchange/src",
}
TOOL = "crates/deltachain-cli/src"
PACKAGE = "python/deltachain"
#: Files where words of `gone.txt` may stand: the list itself, the history, and the specification, which has the
#: format's own words.
WORDS = "tasks/gone.txt"
HISTORY = (WORDS, "CHANGELOG.md", "SPEC.md", "spec/", "conformance/vectors/")


def rust_code_of(text):
    """Returns a Rust file without the tests at its end."""
    return re.split(r"^#\[cfg\(test\)\]\n(?:pub )?mod \w+ \{", text, maxsplit=1, flags=re.MULTILINE)[0]


def rust_code(folder):
    """Returns the code of all files of a folder, without tests, comments and indentation."""
    code = []
    for path in sorted((ROOT / folder).rglob("*.rs")):
        if not path.name.endswith("tests.rs") and "tests" not in path.relative_to(ROOT).parts:
            lines = map(str.strip, rust_code_of(path.read_text(encoding="utf-8")).splitlines())
            code += [line for line in lines if not line.startswith("//")]
    return "\n".join(code)


def public_items(text):
    """Counts public items, without fields. Lint refuses `pub` for items that are not reachable."""
    kinds = "const|enum|fn|macro|mod|static|struct|trait|type|union|use"
    return len(re.findall(rf"^pub (?:async |const |unsafe )*(?:{kinds}) ", text, flags=re.MULTILINE))


def options(text):
    """Counts the different options of the tool's commands."""
    own = r"(?:[^\[\]]|\[[^\]]*\])*"
    declared = re.compile(rf"#\[arg\(({own}\blong\b{own})\)\](?:\s*#\[{own}\])*\s*(?:pub(?:\(\w+\))? )?(\w+):")
    found = set()
    for arguments, field in declared.findall(text):
        name = re.search(r'\blong = "([^"]+)"', arguments)
        found.add(name[1] if name else field.replace("_", "-"))
    return len(found)


def names(folder):
    """Counts the names that a Python package exports: those of its `__all__`, and of the lists that it includes
    there."""
    modules = {}
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                modules[path.stem] = node.value.elts
    offered = modules["__init__"]
    taken = [modules[element.value.id.removesuffix("_all")] for element in offered if isinstance(element, ast.Starred)]
    return sum(isinstance(element, ast.Constant) for element in [*offered, *(one for all in taken for one in all)])


def count():
    """Returns all counts, by their names in `budget.toml`."""
    counted = {f"public_{crate}": public_items(rust_code(folder)) for crate, folder in CRATES.items()}
    return counted | {"tool_options": options(rust_code(TOOL)), "python_names": names(ROOT / PACKAGE)}


def flaws_of(budget, counted):
    """Yields a sentence for each number that differs from its count."""
    for name, number in counted.items():
        if budget.get(name) != number:
            yield f"{name} = {number}, and tasks/budget.toml has {budget.get(name)}: change it there if that is meant"
    yield from (f"{name} is not counted: remove it from tasks/budget.toml" for name in budget.keys() - counted.keys())


def returned():
    """Yields the places of words that must not come back."""
    lines = (ROOT / WORDS).read_text(encoding="utf-8").splitlines()
    words = [re.escape(line) for line in lines if line and not line.startswith("#")]
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if name.startswith(HISTORY) or not (ROOT / name).is_file():
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if found := pattern.search(line):
                yield f"{name}:{number}: `{found[0]}` is gone (tasks/gone.txt)"


def main():
    """Compares the counts with the budget, and finds words of `gone.txt`."""
    flaws = [*flaws_of(tomllib.loads(BUDGET.read_text(encoding="utf-8")), count()), *returned()]
    print(*flaws, sep="\n", end="\n" if flaws else "")
    return bool(flaws)


if __name__ == "__main__":
    sys.exit(main())
