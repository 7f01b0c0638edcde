"""Checks that dependencies between files point one way (docs/architecture.md).

The lower modules of the library have a list of what they may use, and no files or folders of a crate use each other in
a circle. Tests may use anything. import-linter finds circles in the Python package, oxlint in the JavaScript reader.
"""

import re
import sys

from tasks.steps import ROOT

#: Paths that lower modules of the library may use: paths below `crate`, and everything below them.
LAYERS = {
    "format": "error format limits rules tensor::DescribedDtype tensor::Digest tensor::Dtype tensor::PIECE_BYTES"
    " tensor::TensorInfo varint",
    "codec": "codec error format limits rules tensor::DescribedDtype tensor::Dtype tensor::PIECE_BYTES varint",
    "tensor": "error json limits progress rules tensor varint",
    "files": "codec::piece::Profile diff error files json layout limits link::LinkReader plain_name progress"
    " replay::Replay rules setters source table tensor",
    "memory": "codec::changes codec::lane error limits memory progress rules sums::Sums table tensor",
    "chain": "chain error format::Header json limits plain_name rules tensor::Digest tensor::StateDigests"
    " tensor::TensorInfo",
}
#: Paths that reach outside the program; of these layers, only `files` may use them.
OUTSIDE = re.compile(r"(std::(env|fs|io|net|os|path|process|thread|time)|tempfile)\b")
#: Files that may use each other, and why that does no harm.
CIRCLES = {
    ("error", "rules"): "an error names its rule, and the check of a rule makes the error",
    ("codec::blocks", "codec::x86"):
    "one kernel, in plain code and in that of a processor, which fall back on each other",
}


def code_of(text):
    """Returns the code of a file, line for line, without comments, strings and test code."""
    text = re.sub(r'//[^\n]*|"(?:[^"\\]|\\[\s\S])*"', lambda found: "\n" * found[0].count("\n"), text)
    while found := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*", text):
        end, depth = found.end(), 0
        while end < len(text) and not (depth == 0 and text[end] in ";,"):
            depth += (text[end] in "{([") - (text[end] in "})]")
            end += 1
            if depth < 0 or (depth == 0 and text[end - 1] == "}"):
                break
        text = text[: found.start()] + "\n" * text.count("\n", found.start(), end) + text[end:]
    return text


def leaves(tree):
    """Yields the paths of a tree of uses, with the names that they get."""
    start, brace, rest = tree.partition("{")
    if not brace:
        path, _, name = tree.partition(" as ")
        yield path.strip(), (name or path.rpartition("::")[2]).strip()
        return
    depth, begin = 0, 0
    inner = rest[: rest.rindex("}")] + ","
    for at, sign in enumerate(inner):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            for path, name in leaves(inner[begin:at].strip()) if inner[begin:at].strip() else ():
                if path == "self":
                    path, name = "", start.strip().removesuffix("::").rpartition("::")[2]
                yield f"{start.strip()}{path}".removesuffix("::"), name
            begin = at + 1


class Crate:
    """The modules of a crate, each with the paths that it uses."""

    def __init__(self, root):
        self.files, self.uses, self.names = {}, {}, {}
        for file in sorted(root.rglob("*.rs")):
            parts = list(file.relative_to(root).with_suffix("").parts)
            if file.name in {"mod.rs", "lib.rs", "main.rs"}:
                parts.pop()
            is_program = parts[:1] == ["bin"] or (file.name == "main.rs" and (root / "lib.rs").exists())
            if file.name == "tests.rs" or is_program:
                continue
            self.files["::".join(parts)] = file
        for module, file in self.files.items():
            text = code_of(file.read_text(encoding="utf-8"))
            used, named = [], {}
            for found in re.finditer(r"\b(pub(?:\([^)]*\))? )?use ([^;]+);", text):
                line = text.count("\n", 0, found.start()) + 1
                for path, name in leaves(re.sub(r"\s+", " ", found[2])):
                    named[name if name != "*" else f"*{path}"] = path
                    if not found[1]:
                        used.append((path, line))
            body = re.sub(r"\buse [^;]+;", lambda found: "\n" * found[0].count("\n"), text)
            for found in re.finditer(r"\b(?:crate|super|self|std)(?:::\w+)+", body):
                used.append((found[0], body.count("\n", 0, found.start()) + 1))
            self.uses[module], self.names[module] = used, named

    def full(self, module, path):
        """Returns a path from the root of the crate; None for other crates."""
        first, _, rest = path.partition("::")
        if first == "crate":
            return rest
        if first == "self":
            return f"{module}::{rest}".strip(":")
        if first == "super":
            above = module.rpartition("::")[0]
            return self.full(above, rest) if rest.startswith("super") else f"{above}::{rest}".strip(":")
        inside = f"{module}::{first}".strip(":")
        return f"{module}::{path}".strip(":") if inside in self.files else None

    def definer(self, module, path, seen=()):
        """Returns the module that defines the item at a path, through any reexports."""
        full = self.full(module, path)
        if full is None or (module, path) in seen:
            return None
        at, names = "", full.split("::")
        while names and f"{at}::{names[0]}".strip(":") in self.files:
            at = f"{at}::{names.pop(0)}".strip(":")
        if names:
            named = self.names[at]
            through = [path.removesuffix("*") + names[0] for name, path in named.items() if name.startswith("*")]
            for other in filter(None, [named.get(names[0]), *through]):
                if (found := self.definer(at, other, (*seen, (module, path)))) not in (None, at):
                    return found
        return at

    def circles(self, member):
        """Yields groups of members, to which modules belong, that use each other in a circle, with a description."""
        graph = {}
        for module, used in self.uses.items():
            mine = graph.setdefault(member(module), {})
            for path, line in used:
                definer = self.definer(module, path)
                if definer is not None and member(definer) != member(module):
                    mine.setdefault(member(definer), f"{self.files[module].relative_to(ROOT)}:{line}")
        reached = {}
        for start in graph:
            waiting, found = [start], set()
            while waiting:
                new = graph[waiting.pop()].keys() - found
                found |= new
                waiting += new
            reached[start] = found
        for start in graph:
            around = {other for other in reached[start] if start in reached[other]}
            if start == min(around, default=None):
                shown = "".join(f"\n    {place} uses {to}" for one in sorted(around)
                                for to, place in graph[one].items() if to in around)
                yield tuple(sorted(around)), f"a circle:{shown}"


def flaws_of_layers(read):
    """Yields uses of lower modules that are not in their lists."""
    for module, used in read.uses.items():
        layer = module.partition("::")[0]
        for path, line in used if layer in LAYERS else ():
            full = read.full(module, path)
            allowed = any(f"{full}::".startswith(f"{may}::") for may in LAYERS[layer].split())
            if not allowed if full is not None else layer != "files" and OUTSIDE.match(path):
                yield f"{read.files[module].relative_to(ROOT)}:{line}: `{layer}` must not use `{full or path}`"


def flaws(roots):
    """Yields all violations of the directions."""
    allowed = dict.fromkeys(CIRCLES, False)
    for root in roots:
        read = Crate(root)
        if root == ROOT / "src":
            yield from flaws_of_layers(read)
        for member in (lambda module: module), (lambda module: module.partition("::")[0]):
            for members, shown in read.circles(member):
                if members not in allowed:
                    yield shown
                allowed[members] = True
    yield from (f"no circle any more: {members}" for members, there in allowed.items() if not there)


def main():
    roots = [ROOT / "src", ROOT / "python/src", *sorted(ROOT.glob("crates/*/src"))]
    found = list(flaws(roots))
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
