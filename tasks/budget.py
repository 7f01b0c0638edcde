"""The budget: how much code and how many names each part of the product may have.

`budget.toml` has the numbers. A count above its number is an error. So is a count far below it: whoever removes code
lowers the number, by `./task budget`. Only a dated `[[rise]]` in that file raises one. `gone.txt` has words that must
not come back.
"""

import ast
import re
import subprocess
import sys
import tomllib

from tasks.steps import ROOT

BUDGET = ROOT / "tasks/budget.toml"

#: Each part of the product, and its folder.
PARTS = {
    "library": "src",
    "store": "crates/deltachain-store",
    "tool": "crates/deltachain-cli",
    "engines": "crates/deltachain-engines",
    "exchange": "crates/deltachain-exchange",
    "python_rust": "python/src",
    "python": "python/deltachain",
    "integrations": "integrations/deltachain_integrations",
}
#: Folders of what is no product.
OTHERS = {"tests", "benches", "e2e", "examples", "benchmarks", "target", "node_modules"}
#: How far lines of code may be below their number. Counts of names are exact.
SLACK = 20
#: Where words of `gone.txt` may stand: where they are listed, and where the past is told.
HISTORY = ("tasks/gone.txt", "CHANGELOG.md")


def product():
    """All source files of the product, by part."""
    found = {part: [] for part in PARTS}
    for part, folder in PARTS.items():
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT)
            is_test = OTHERS & set(inside.parts) or path.name.endswith("tests.rs")
            if path.suffix in {".rs", ".py", ".pyi"} and not is_test:
                found[part].append(path)
    return found


def rust_code_of(text):
    """A file of Rust without the tests at its end."""
    return re.split(r"^#\[cfg\(test\)\]\n(?:pub )?mod \w+ \{", text, maxsplit=1, flags=re.MULTILINE)[0]


def rust_code(text):
    """Lines of Rust that are neither blank nor comments, up to the tests at the end of the file."""
    lines = map(str.strip, rust_code_of(text).splitlines())
    return [line for line in lines if line and not line.startswith("//")]


def python_code(text):
    """Lines of Python that are neither blank, comments nor documentation."""
    documentation = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            documentation.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return [line for number, line in lines if line and not line.startswith("#") and number not in documentation]


def code(path):
    """The lines of code of a file."""
    text = path.read_text(encoding="utf-8")
    return rust_code(text) if path.suffix == ".rs" else python_code(text)


def public_items(paths):
    """How many public items, fields not among them, there are. Lint refuses `pub` where nobody can reach it."""
    item = re.compile(r"pub (async |const |unsafe )*(const|enum|fn|macro|mod|static|struct|trait|type|union|use) ")
    return sum(bool(item.match(line)) for path in paths if path.suffix == ".rs" for line in code(path))


def options(paths):
    """How many different options the commands of the tool have."""
    text = "\n".join(line for path in paths for line in code(path))
    own = r"(?:[^\[\]]|\[[^\]]*\])*"
    declared = re.compile(rf"#\[arg\(({own}\blong\b{own})\)\](?:\s*#\[{own}\])*\s*(?:pub(?:\(\w+\))? )?(\w+):")
    found = set()
    for arguments, field in declared.findall(text):
        name = re.search(r'\blong = "([^"]+)"', arguments)
        found.add(name[1] if name else field.replace("_", "-"))
    return len(found)


def names(folder):
    """How many names a package of Python offers: those of its `__all__`, and of the lists that it takes up there."""
    modules = {}
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                modules[path.stem] = node.value.elts
    offered = modules["__init__"]
    taken = [modules[element.value.id.removesuffix("_all")] for element in offered if isinstance(element, ast.Starred)]
    return sum(isinstance(element, ast.Constant) for element in [*offered, *(one for all in taken for one in all)])


def count():
    """All counts, as `budget.toml` names them."""
    found = product()
    return {
        "lines": {part: sum(len(code(path)) for path in paths) for part, paths in found.items()},
        "public": {part: public_items(found[part]) for part in ("library", "store", "engines")},
        "names": {
            "tool_options": options(found["tool"]),
            "python": names(ROOT / PARTS["python"]),
        },
    }


def judge(budget, counted):
    """What is wrong with the counts, a sentence each."""
    rises = {}
    for rise in budget.get("rise", []):
        if not {"date", "count", "by", "issue", "reason"} <= rise.keys() or rise["by"] < 1:
            yield f"a [[rise]] has date, count, by, issue and reason; this one has not: {rise}"
            continue
        rises[rise["count"]] = rises.get(rise["count"], 0) + rise["by"]
    for group, counts in counted.items():
        slack = SLACK if group == "lines" else 0
        for name, now in counts.items():
            limit = budget[group][name] + rises.pop(f"{group}.{name}", 0)
            if now > limit:
                yield f"{group}.{name}: {now}, {now - limit} above the budget: remove, or add a [[rise]]"
            elif now < limit - slack:
                yield f"{group}.{name}: {now}, {limit - now} below the budget: lower it, `./task budget`"
    yield from (f"a [[rise]] of {name}, which is not counted" for name in rises)


def lowered(text, counted):
    """The text of the budget with numbers lowered to what is counted."""
    budget = tomllib.loads(text)
    for group, counts in counted.items():
        head, start, rest = text.partition(f"[{group}]\n")
        for name, now in counts.items():
            rises = sum(rise["by"] for rise in budget.get("rise", []) if rise["count"] == f"{group}.{name}")
            if now - rises < budget[group][name]:
                rest = re.sub(rf"^{name} = \d+$", f"{name} = {now - rises}", rest, count=1, flags=re.MULTILINE)
        text = head + start + rest
    return text


def returned():
    """Where words stand that must not come back."""
    lines = (ROOT / HISTORY[0]).read_text(encoding="utf-8").splitlines()
    words = [re.escape(line) for line in lines if line and not line.startswith("#")]
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if name in HISTORY or name.startswith("conformance/vectors/") or not (ROOT / name).is_file():
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if found := pattern.search(line):
                yield f"{name}:{number}: `{found[0]}` is gone (tasks/gone.txt)"


def main(words):
    """Checks the budget; with `--lower`, lowers it first."""
    text, counted = BUDGET.read_text(encoding="utf-8"), count()
    if words == ["--lower"]:
        text = lowered(text, counted)
        BUDGET.write_text(text, encoding="utf-8")
    for group, counts in counted.items():
        print(f"{group}: {', '.join(f'{name} {number:,}' for name, number in counts.items())}")
    print(f"lines of code: {sum(counted['lines'].values()):,}")
    flaws = [*judge(tomllib.loads(text), counted), *returned()]
    print(*flaws, sep="\n", end="\n" if flaws else "")
    return bool(flaws)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
