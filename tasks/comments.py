"""Wraps comments of Rust and Python, and docstrings, at 100 columns. rustfmt and ruff leave these alone.

    python -m tasks.comments           wraps comments that are too long
    python -m tasks.comments --check   lists them instead

Only paragraphs with a line that is too long are wrapped again. Lists keep their indentation. Code, tables and headings
in comments stay as they are.
"""

import ast
import re
import subprocess
import sys

from tasks.steps import ROOT

WIDTH = 100
COMMENTS = {".rs": re.compile(r"( *)(//[/!]?)( ?)(.*)"), ".py": re.compile(r"( *)(#)( ?)(.*)")}
COMMENTS[".pyi"] = COMMENTS[".py"]
#: Python that `ruff format` formats.
PYTHON = ("python/", "integrations/")
#: Beginning of a docstring's part that explains names, each at the beginning of a line.
NAMES = re.compile(r" *(Args|Attributes|Raises|Returns|Yields):$")
NAME = re.compile(r" *[\w*, ]+: ")
#: Beginning of a list item, with the text that follows.
ITEM = re.compile(r"( *(?:[-*+]|\d+[.)]) +)(.*)")
#: Lines that are not text: rows of tables, headings, quotations, link targets, and code by its indentation.
OTHER = re.compile(r" *(\||#|>|\[[^\]]+\]: )|    ")
#: Words that would change the meaning of a line if it began with them.
MARKS = re.compile(r"(?:[-*+]|#+|\d+[.)])$|[>|]|```|~~~")
#: One word, which is not broken: a code span, a link with its text, or anything without a space.
WORD = re.compile(r"(?:`[^`]*`|\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])?|[^\s`\[]|[`\[])+")


def wrapped(words, first, rest):
    """Returns the words as lines. `first` begins the first line, and `rest` the other ones."""
    lines, line = [], None
    for word in words:
        start = first if not lines else rest
        if line is None:
            line = start + word
        elif len(line) + 1 + len(word) > WIDTH and not MARKS.match(word):
            lines.append(line)
            line = rest + word
        else:
            line += f" {word}"
    return [*lines, line]


def paragraphs(lines):
    """Divides the lines of a comment into paragraphs: `(is_text, begin, end)`, as indexes of lines."""
    fence, begin = None, 0
    found = []

    def close(end):
        if begin < end:
            found.append((True, begin, end))

    for at, line in enumerate(lines):
        mark = re.match(r" *(```|~~~)", line)
        is_code = fence is not None
        if mark and (not is_code or mark[1] == fence):
            fence = None if is_code else mark[1]
            is_code = True
        if is_code or not line.strip() or (OTHER.match(line) and not ITEM.match(line)):
            close(at)
            found.append((False, at, at + 1))
            begin = at + 1
        elif ITEM.match(line):
            close(at)
            begin = at
    close(len(lines))
    return found


def rewrapped(block, comment):
    """Returns the lines of one comment, wrapped where a paragraph has a line that is too long."""
    indent, slashes = comment.match(block[0]).group(1, 2)
    texts = [comment.match(line)[4] for line in block]
    result = []
    for is_text, begin, end in paragraphs(texts):
        lines = block[begin:end]
        if is_text and max(map(len, lines)) > WIDTH:
            item = ITEM.match(texts[begin])
            marker = item[1] if item else re.match(" *", texts[begin])[0]
            words = WORD.findall(" ".join([item[2] if item else texts[begin], *texts[begin + 1 : end]]))
            lines = wrapped(words, f"{indent}{slashes} {marker}", f"{indent}{slashes} {' ' * len(marker)}")
        result += lines
    return result


def with_comments_wrapped(text, kind=".rs"):
    """Returns a file with its comments wrapped. A comment that follows code stays where it is."""
    comment = COMMENTS[kind]
    result, block, before = [], [], None
    for line in [*text.split("\n"), None]:
        found = None if line is None else comment.fullmatch(line)
        here = found and found.group(1, 2)
        if block and here != before:
            result += rewrapped(block, comment)
            block = []
        if here:
            block.append(line)
        elif line is not None:
            result.append(line)
        before = here
    return "\n".join(result)


def indent_of(line):
    return len(line) - len(line.lstrip(" "))


def rewrapped_docstring(lines):
    """Returns the lines of a docstring, wrapped where a paragraph has a line that is too long."""
    result, paragraph = [], []
    in_names = is_code = False

    def close():
        if not paragraph:
            return
        if max(map(len, paragraph)) > WIDTH:
            first = paragraph[0]
            quotes = re.match(r' *r?"""', first)
            item = ITEM.match(first)
            start = quotes[0] if quotes else item[1] if item else " " * indent_of(first)
            if len(paragraph) > 1:
                rest = " " * indent_of(paragraph[1])
            elif item:
                rest = " " * len(start)
            else:
                rest = " " * (indent_of(first) + (4 if in_names and NAME.match(first) else 0))
            texts = [first[len(start) :], *paragraph[1:]]
            result.extend(wrapped(WORD.findall(" ".join(map(str.strip, texts))), start, rest))
        else:
            result.extend(paragraph)
        paragraph.clear()

    for line in lines:
        text = line.strip()
        if is_code and text:
            result.append(line)
            continue
        is_code = False
        begins = paragraph and (
            ITEM.match(line)
            or (in_names and NAME.match(line) and indent_of(line) <= indent_of(paragraph[0]))
            or indent_of(line) < indent_of(paragraph[-1])
            or (len(paragraph) == 1 and indent_of(line) > indent_of(line_of(paragraph[0])) + 4)
        )
        if begins:
            close()
        if not text or NAMES.match(line) or text.startswith((">>>", "...", "```", "|")) or text == '"""':
            close()
            in_names = bool(NAMES.match(line)) or (in_names and (not text or text.startswith(">>>")))
            is_code = text.startswith((">>>", "..."))
            result.append(line)
        else:
            paragraph.append(line)
    close()
    return result


def line_of(line):
    """Returns a line without the quotes that begin a docstring."""
    return line.replace('"""', "", 1)


def with_docstrings_wrapped(text):
    """Returns a Python file with its docstrings wrapped."""
    lines = text.split("\n")
    places = []
    for node in ast.walk(ast.parse(text)):
        # Docstrings of modules, classes, functions and, below them, attributes.
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_constant and lines[node.lineno - 1].lstrip().startswith(('"""', 'r"""')):
            places.append((node.lineno - 1, node.end_lineno))
    for begin, end in sorted(places, reverse=True):
        lines[begin:end] = rewrapped_docstring(lines[begin:end])
    return "\n".join(lines)


def main(words):
    """Wraps comments in all Rust files, and in the formatted Python files."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    flaws = 0
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix not in COMMENTS or not path.is_file():
            continue
        if path.suffix != ".rs" and not (name.startswith(PYTHON) and "/upstream/" not in name):
            continue
        text = path.read_text(encoding="utf-8")
        wanted = with_comments_wrapped(text, path.suffix)
        if path.suffix != ".rs":
            wanted = with_docstrings_wrapped(wanted)
        if wanted == text:
            continue
        flaws += 1
        if words == ["--check"]:
            print(f"{name}: has comments beyond column {WIDTH}: run `./task format`")
        else:
            path.write_text(wanted, encoding="utf-8")
    return flaws > 0 and words == ["--check"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
