"""Runs the pseudo-code of the texts, which is Python but for the notation of SPEC.md section 19.1."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WORDS = {"nothing": "None", "true": "True", "false": "False"}


def block(name, tag):
    """Returns the lines of a block of code of a text."""
    return (ROOT / name).read_text(encoding="utf-8").split(f"```{tag}\n", 1)[1].split("```\n", 1)[0].splitlines()


def python(lines, shared):
    """Returns the Python code. `shared` are the names that all functions share."""
    code = []
    for line in lines:
        line = line.split("#")[0].rstrip()
        line = re.sub(r"\b(nothing|true|false)\b", lambda word: WORDS[word[0]], line)
        line = re.sub(r"^( *)loop:", r"\1while True:", line)
        line = re.sub(r"^( *for \w+) from (.+) to (.+):$", r"\1 in range(\2, \3 + 1):", line)
        line = re.sub(r"(R-[A-Z]{3}-\d\d): (.+)$", r"need(\2, '\1')", line)
        head = re.fullmatch(r"(\w+\((.*)\)):", line)
        code.append(f"def {head[1]}:" if head else line)
        if head and shared:
            code.append(f"    global {', '.join(name for name in shared if name not in head[2].split(', '))}")
    return "\n".join(code)


class Lazy(ast.NodeTransformer):
    """Turns `tried(x)` into `tried(lambda: x)`."""

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "tried":
            arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            node.args = [ast.Lambda(args=arguments, body=node.args[0])]
        return node


def defined(lines, shared, names):
    """Returns the functions of pseudo-code that may use these names, by name."""
    tree = ast.fix_missing_locations(Lazy().visit(ast.parse(python(lines, shared))))
    namespace = dict(names)
    exec(compile(tree, "pseudo-code", "exec"), namespace)
    return namespace
