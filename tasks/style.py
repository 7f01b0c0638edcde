"""The parts of docs/style.md that a machine can check. Each finding says what to write instead.

    python -m tasks.style            compares the files with tasks/style.toml
    python -m tasks.style --shrink   removes repaired findings from tasks/style.toml

`style.toml` lists the files that still have findings, with their number. Numbers only fall.
"""

import re
import subprocess
import sys
import tomllib

from tasks.comments import WIDTH
from tasks.steps import ROOT
from tasks.tokens import OPENING, TOKEN, closing

LISTS = ROOT / "tasks/style.toml"

#: The meaning of each finding, and what to write instead.
ADVICE = {
    "tuple_parameter": "a parameter is a tuple of more than two: make it a struct with named fields",
    "tuple_let": "one `let` binds three names or more from a tuple literal: write one statement for each",
    "filter_as_if": "`.filter(|_| ..)` decides and does not filter: write `if` or `match`",
    "comment_begins": "a comment begins with Of, Those, Who, Nobody or Whoever: begin with the subject of the sentence",
    "wide": f"a line goes beyond column {WIDTH}, which rustfmt leaves alone: break the text",
}
#: Rows of the native module are tuples on purpose: Python names their fields.
NATIVE = "python/src/"
BEGINS = re.compile(r"(?:Of|Those|Who|Nobody|Whoever)\b")


def members(tokens, begin, end):
    """Counts the members between the brackets from `begin` to `end`, at their own level."""
    depth = 0
    angles = 0
    count = 0
    is_empty = True
    for at in range(begin + 1, end):
        token = tokens[at]
        if token == "," and depth == 0 and angles == 0:
            count += 1
            is_empty = True
            continue
        depth += (token in OPENING) - (token in OPENING.values())
        angles += (token == "<") - (token == ">")
        is_empty = False
    return count + (not is_empty)


def parameters(tokens):
    """Yields the indexes of the brackets around each function's parameters."""
    for at, token in enumerate(tokens[:-1]):
        if token != "fn" or not re.match(r"[A-Za-z_]", tokens[at + 1]):
            continue
        begin = at + 2
        if tokens[begin] == "<":
            depth = 0
            while True:
                depth += (tokens[begin] == "<") - (tokens[begin] == ">") - 2 * (tokens[begin] == ">>")
                begin += 1
                if depth <= 0:
                    break
        if tokens[begin] == "(":
            yield begin, closing(tokens, begin)


def tuple_parameters(tokens):
    """Yields the indexes of parameter types that are, or contain, a tuple of more than two."""
    for begin, end in parameters(tokens):
        at = begin + 1
        while at < end:
            if tokens[at] == "(":
                closes = closing(tokens, at)
                # Not the arguments of a type such as `Fn(A, B, C)`, nor the pattern before a colon.
                is_call = bool(re.fullmatch(r"\w+", tokens[at - 1])) and tokens[at - 1] not in {"mut", "dyn", "impl"}
                is_pattern = tokens[closes + 1] == ":" and tokens[closes + 2] != ":"
                if not is_call and not is_pattern and members(tokens, at, closes) > 2:
                    yield at
                if is_call or is_pattern:
                    at = closes
            at += 1


def tuple_lets(tokens):
    """Yields the indexes of `let`s that bind three names or more from a tuple literal."""
    for at, token in enumerate(tokens[:-1]):
        if token != "let" or tokens[at + 1] != "(":
            continue
        end = closing(tokens, at + 1)
        while tokens[end] not in {"=", ";"}:
            end += 1
        if tokens[end] != "=" or tokens[end + 1] != "(":
            continue
        closes = closing(tokens, end + 1)
        if tokens[closes + 1] in {";", "else"} and members(tokens, at + 1, closing(tokens, at + 1)) > 2:
            yield at


def filters(tokens):
    """Yields the indexes of filters that ignore their argument."""
    for at in range(len(tokens) - 4):
        if tokens[at : at + 5] == [".", "filter", "(", "|", "_"] and tokens[at + 5] == "|":
            yield at


def comments(text, mark):
    """Yields the line number and text of each comment, and of each paragraph of one."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(mark, line)
        here = found[1] if found else ""
        if found and here and not before:
            yield number, here
        before = here


def findings(name, text):
    """Yields the findings in a file: the kind and the line number."""
    if name.endswith(".rs"):
        places = [match for match in TOKEN.finditer(text) if match["comment"] is None]
        tokens = [match[0] for match in places]

        def line(at):
            return text.count("\n", 0, places[at].start()) + 1

        if not name.startswith(NATIVE):
            yield from (("tuple_parameter", line(at)) for at in tuple_parameters(tokens))
        yield from (("tuple_let", line(at)) for at in tuple_lets(tokens))
        yield from (("filter_as_if", line(at)) for at in filters(tokens))
        yield from (("wide", number) for number, row in enumerate(text.splitlines(), 1) if len(row) > WIDTH)
    mark = r"\s*//[/!]? ?(.*)" if name.endswith(".rs") else r'\s*(?:#|""") ?(.*)'
    yield from (("comment_begins", number) for number, begin in comments(text, mark) if BEGINS.match(begin))


def found_in(names):
    """Returns all findings, by kind and file: the line numbers."""
    found = {kind: {} for kind in ADVICE}
    for name in names:
        path = ROOT / name
        if path.suffix in {".rs", ".py", ".pyi"} and path.is_file():
            for kind, line in findings(name, path.read_text(encoding="utf-8")):
                found[kind].setdefault(name, []).append(line)
    return found


def compared(lists, found):
    """Yields a sentence for each difference from the lists."""
    for kind, files in found.items():
        listed = lists.get(kind, {})
        for name, lines in files.items():
            if len(lines) > listed.get(name, 0):
                places = ", ".join(map(str, lines))
                yield f"{name}: lines {places}, {listed.get(name, 0)} of them listed: {ADVICE[kind]}"
        for name, number in listed.items():
            if len(files.get(name, [])) < number:
                yield f"{name}: {kind} has fallen below {number}: run `python -m tasks.style --shrink`"


def shrunk(lists, found):
    """Yields each kind with its list, without repaired findings."""
    for kind in ADVICE:
        files = lists.get(kind, {})
        now = {name: min(number, len(found[kind].get(name, []))) for name, number in files.items()}
        yield kind, {name: number for name, number in now.items() if number}


def written(lists):
    """Returns the text of `style.toml`."""
    about = "# Files that still break a lint of tasks/style.py, and how often. `--shrink` lowers numbers; none rises."
    parts = [f"{about}\n"]
    for kind, files in lists:
        parts.append(f"\n[{kind}]\n" + "".join(f'"{name}" = {number}\n' for name, number in sorted(files.items())))
    return "".join(parts)


def main(words):
    """Compares the findings with the lists."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lists, found = tomllib.loads(LISTS.read_text(encoding="utf-8")), found_in(listed.splitlines())
    if words == ["--shrink"]:
        text = written(shrunk(lists, found))
        LISTS.write_text(text, encoding="utf-8")
        lists = tomllib.loads(text)
    for kind, files in found.items():
        print(f"{kind}: {sum(map(len, files.values()))} in {len(files)} files")
    flaws = list(compared(lists, found))
    print(*flaws, sep="\n", end="\n" if flaws else "")
    return bool(flaws)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
