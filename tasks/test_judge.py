"""Tests that functions choose between their mutants, and that the list of survivors is read as it is written."""

import tempfile
import unittest
from pathlib import Path

from tasks import judge

TEXT = """\
/// Adds, or not: `}`.
pub(crate) fn sum(a: u32, b: u32) -> u32 {
    fn inner(c: u32) -> bool {
        c > 1
    }
    if inner(a) { a + b } else { '}' as u32 }
}
"""


def span(text, piece, begin=0):
    at = text.index(piece, begin)
    return at, at + len(piece)


def mutant(number, span, function, replacement, is_removal=False):
    return judge.Mutant(
        file="src/a.rs",
        line=1,
        what="replace",
        span=span,
        function=function,
        replacement=replacement,
        is_removal=is_removal,
        source="the line",
        number=number,
    )


class Judge(unittest.TestCase):
    def setUp(self):
        self.outer = TEXT.index("///"), len(TEXT) - 1
        self.inner = TEXT.index("fn inner"), TEXT.index("if") - 5

    def test_a_function_has_a_body_for_each_mutant(self):
        plus = mutant(1, span(TEXT, "+"), self.outer, "-")
        above = mutant(2, span(TEXT, ">", self.inner[0] + 22), self.inner, "<")
        functions = {("src/a.rs", self.outer[0]): 7, ("src/a.rs", self.inner[0]): 8}
        made = judge.instrumented(TEXT, [plus, above], functions)
        self.assertEqual(made.count("{"), made.count("}") - made.count("'}'") - made.count("`}`"))
        self.assertIn("-> u32 { match crate::mutants::instead_of(7) {\n/*mutant 1*/1 => {", made)
        self.assertEqual(made.count("instead_of(8)"), 1)
        arms = {int(arm[1]): arm[2].decode() for arm in judge.ARM.finditer(made.encode())}
        self.assertEqual(sorted(arms), [1, 2])
        self.assertIn("a - b", arms[1])
        self.assertIn("c > 1", arms[1])
        self.assertIn("c < 1", arms[2])
        without = judge.ARM.sub(b"", made.encode()).decode()
        self.assertIn("a + b", without)
        self.assertIn("c > 1", without)

    def test_a_comma_goes_with_what_stood_before_it(self):
        text = "fn a() -> B { B { b: 1, ..c() } }"
        removed = mutant(1, span(text, "b: 1"), (0, len(text)), "", is_removal=True)
        self.assertIn("1 => { B {  ..c() } }", judge.instrumented(text, [removed], {("src/a.rs", 0): 0}))

    def test_keys_are_those_of_lines_and_not_of_their_numbers(self):
        first, second = (mutant(0, (at, at + 1), (0, 9), "-") for at in (1, 2))
        judge.number_all([first, second])
        self.assertEqual(first.key, "src/a.rs | replace | the line")
        self.assertEqual(second.key, f"{first.key} | 2")

    def test_survivors_belong_to_classes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "survivors.txt")
            path.write_text("# A comment.\n\n= words: nobody compares them\none\n\n= speed: because\ntwo\n")
            self.assertEqual(judge.known(path), {"one": "words", "two": "speed"})


class List(unittest.TestCase):
    def test_each_class_has_a_reason_and_each_survivor_is_there_once(self):
        lines = judge.LIST.read_text(encoding="utf-8").splitlines()
        for line in lines:
            if line.startswith("= "):
                self.assertRegex(line, r"^= [^:]+: .{20}")
        rows = [line for line in lines if line and not line.startswith(("#", "="))]
        self.assertEqual(len(rows), len(set(rows)))
        self.assertTrue(all(judge.known(judge.LIST).values()))


if __name__ == "__main__":
    unittest.main()
