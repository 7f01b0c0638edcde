"""Tests that each lint finds its findings, and nothing else."""

import unittest

from tasks import style

RUST = """\
// Whoever reads this.
fn a(x: (u8, u8), f: impl Fn(u8, u8, u8)) -> (u8, u8, u8) {
    let (one, two) = (1, 2);
    let (left, right, rest) = split(x);
    rows.iter().map(|(a, b, c): (u8, u8, u8)| a).filter(|row| row > 0)
}

/// Returns the sum.
/// Of all rows.
fn b<T: Into<(u8, u8)>>((x, y, z): (u8, u8, u8), rows: &[(u8, u8, T)], one: (u8,)) {
    let (one, two, three) = (1, f(2, 3), 4);
    let (Some(a), Some(b), _) = (x, y, z) else { return };
    let found = x.filter(|_| y > 0);
}
"""


class Style(unittest.TestCase):
    def test_rust(self):
        found = sorted(style.findings("src/a.rs", RUST + "// " + "x" * 98 + "\n"))
        wanted = [
            ("comment_begins", 1),
            ("filter_as_if", 13),
            ("tuple_let", 11),
            ("tuple_let", 12),
            ("tuple_parameter", 10),
            ("tuple_parameter", 10),
            ("wide", 15),
        ]
        self.assertEqual(found, wanted)

    def test_rows_of_the_native_module_are_tuples(self):
        kinds = {kind for kind, _ in style.findings("python/src/a.rs", RUST)}
        self.assertNotIn("tuple_parameter", kinds)

    def test_python(self):
        text = '"""Of a model."""\nx = 1  # Of this\n# Those that are taken\n# Who knows\n\n# Whose\n'
        self.assertEqual(list(style.findings("a.py", text)), [("comment_begins", 1), ("comment_begins", 3)])

    def test_numbers_only_fall(self):
        lists = {"tuple_let": {"a.rs": 2}}

        def flaws(lines):
            found = {kind: {} for kind in style.ADVICE} | {"tuple_let": {"a.rs": lines} if lines else {}}
            shrunk = dict(style.shrunk(lists, found))
            return len(list(style.compared(lists, found))), shrunk["tuple_let"]

        self.assertEqual(flaws([1, 2]), (0, {"a.rs": 2}))
        self.assertEqual(flaws([1, 2, 3]), (1, {"a.rs": 2}))
        self.assertEqual(flaws([1]), (1, {"a.rs": 1}))
        self.assertEqual(flaws([]), (1, {}))


if __name__ == "__main__":
    unittest.main()
