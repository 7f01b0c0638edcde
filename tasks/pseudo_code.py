"""The pseudo-code with trust (spec/signatures.md), which is made from a function of the pseudo-code in SPEC.md and the
marked lines that stand there.

    python -m tasks.pseudo_code [--check]

A line marked with `+` is added after the line above it, one marked with `*` replaces a line. All others are those of
SPEC.md, and are taken from there again. To follow a line that is new in SPEC.md, add any line without a mark here.
"""

import sys

from tasks.steps import ROOT, Failed

START, TRUST, END = "```pseudo-code\n", "```pseudo-code with trust\n", "```\n"


def block(text, start):
    """Returns the text of the block of code that begins with this line."""
    return text.split(start, 1)[1].split(END, 1)[0]


def function(code, first):
    """Returns the lines of the function that begins with this line."""
    lines = code.splitlines()
    end = start = lines.index(first)
    while end < len(lines) and lines[end]:
        end += 1
    return lines[start:end]


def made(plain, marked):
    """Returns the marked lines of a block between the lines of the plain function."""
    result, left = [], list(plain)
    for line in marked:
        if line.startswith("+ "):
            result.append(line)
        elif not left:
            raise Failed(f"SPEC.md has no line for: {line}")
        else:
            own = left.pop(0)
            result.append(line if line.startswith("* ") else f"  {own}")
    if left:
        raise Failed(f"spec/signatures.md has no line for: {left[0]}")
    return result


def main(check):
    page = ROOT / "spec/signatures.md"
    text = page.read_text(encoding="utf-8")
    old = block(text, TRUST)
    marked = old.splitlines()
    plain = function(block((ROOT / "SPEC.md").read_text(encoding="utf-8"), START), marked[0][2:])
    new = "".join(f"{line}\n" for line in made(plain, marked))
    if check and new != old:
        raise Failed("the pseudo-code with trust is not that of SPEC.md: run python -m tasks.pseudo_code")
    if not check:
        page.write_text(text.replace(old, new), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] == ["--check"])
