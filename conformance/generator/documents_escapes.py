"""Control characters in the strings of documents (SPEC section 18): each has one form."""
from .documents import spoilt
from .registry import makes_vectors_since


@makes_vectors_since("1.2")
def strings():
    rows = [(f"long-{name}", f"\\u{code:04x}", f"U+{code:04X} is written \\{letter}")
            for name, code, letter in (("backspace", 8, "b"), ("newline", 10, "n"), ("form-feed", 12, "f"),
                                       ("return", 13, "r"))]
    rows += [(f"raw-{name}", chr(code), f"U+{code:04X} as itself")
             for name, code in (("backspace", 8), ("tab", 9), ("form-feed", 12), ("return", 13))]
    for id, value, reason in rows:
        yield from spoilt("strings", "R-DOC-03", [(id, "commit", '"100"', f'"{value}"', reason)])
