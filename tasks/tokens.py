"""Compares the tokens of all Rust files with those of a revision, to show that a change only formats.

    python -m tasks.tokens REVISION

Comments do not count. What rustfmt may add or remove does not count either: a comma before a closing bracket, braces
around the one expression of an arm or a closure, and `;` after a last `return`, `break` or `continue`. Everything else
does, and literals character by character.
"""

import re
import subprocess
import sys

from tasks.steps import ROOT

TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<raw>b?c?r(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<text>[bc]?"(?:[^"\\]|\\.)*")
    | (?P<char>b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))')
    | (?P<lifetime>'\w+)
    | (?P<word>(?:r\#)?\w+)
    | (?P<sign>=>|->|::|\.\.=|\.\.\.|\.\.|&&|\|\||<<=|>>=|[-+*/%^&|=!<>]=|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)
OPENING = {"(": ")", "[": "]", "{": "}"}


def tokens(text):
    """Returns the tokens of a file, without comments."""
    found = []
    at = 0
    for match in TOKEN.finditer(text):
        if text[at : match.start()].strip():
            raise ValueError(f"no token: {text[at : match.start()]!r}")
        at = match.end()
        if match["comment"] is None:
            found.append(match[0])
    return found


def closing(found, at):
    """Returns the index of the bracket that closes the one at this index."""
    depth = 0
    for end in range(at, len(found)):
        depth += (found[end] in OPENING) - (found[end] in OPENING.values())
        if depth == 0:
            return end
    raise ValueError("a bracket is not closed")


def is_one_expression(body):
    """True if these tokens of a block are one expression: no statement ends and no item or binding begins in them."""
    if not body or body[0] in {"let", "use", "fn", "const", "static", "#"}:
        return False
    depth = 0
    for at, token in enumerate(body):
        depth += (token in OPENING) - (token in OPENING.values())
        if depth == 0 and token == ";":
            return False
        # `if a {} b` are two expressions.
        if depth == 0 and token == "}" and at + 1 < len(body) and body[at + 1] not in {".", "?", "else", ","}:
            return body[at + 1] in {"=>", "==", "+", "|", "|=", "&", "&&", "||", "as"}
    return True


def without_last_semicolon(found, at):
    """True if the `;` at this index ends a last `return`, `break` or `continue` of a block."""
    if found[at] != ";" or at + 1 >= len(found) or found[at + 1] != "}":
        return False
    depth = 0
    for start in range(at - 1, -1, -1):
        depth += (found[start] in OPENING.values()) - (found[start] in OPENING)
        if depth < 0 or (depth == 0 and found[start] in {";", "}"}):
            return found[start + 1] in {"return", "break", "continue"}
    return False


def normal(found):
    """Returns the tokens without those that rustfmt may add or remove."""
    found = [token for at, token in enumerate(found) if not without_last_semicolon(found, at)]
    removed = set()
    commas = set()
    for at, token in enumerate(found):
        # `=> {` and `| {`. The second may be an operator before a block, which is then the same on both sides.
        if token != "{" or at == 0 or found[at - 1] not in {"=>", "|", "||"}:
            continue
        end = closing(found, at)
        if is_one_expression(found[at + 1 : end]):
            removed |= {at, end}
            if found[at - 1] == "=>":
                commas.add(end)
        elif found[at - 1] == "=>":
            commas.add(end)
    result = []
    for at, token in enumerate(found):
        if at not in removed:
            result.append(token)
        if at in commas and found[at + 1 : at + 2] != [","]:
            result.append(",")
    return [token for at, token in enumerate(result) if token != "," or result[at + 1] not in {")", "]", "}", ">", "|"}]


def main(words):
    """Prints the files whose tokens differ, with the first difference."""
    (revision,) = words

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout

    names = [name for name in git("ls-tree", "-r", "--name-only", revision).splitlines() if name.endswith(".rs")]
    differing = 0
    total = 0
    for name in names:
        old = normal(tokens(git("show", f"{revision}:{name}")))
        new = normal(tokens((ROOT / name).read_text(encoding="utf-8")))
        total += len(new)
        if old != new:
            differing += 1
            at = next((at for at, pair in enumerate(zip(old, new)) if pair[0] != pair[1]), min(len(old), len(new)))
            print(f"{name}: {' '.join(old[at - 8 : at + 12])}\n    now: {' '.join(new[at - 8 : at + 12])}")
    print(f"{len(names)} files, {total:,} tokens: {differing} files differ")
    return differing > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
