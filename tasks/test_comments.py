"""Tests that comments are wrapped, and that code and tables stay."""

import unittest

from tasks import comments, tokens

LONG = "word " * 24


class Comments(unittest.TestCase):
    def test_only_paragraphs_that_are_too_long_are_wrapped(self):
        short = "    /// Short,\n    /// and broken by hand.\n    ///\n"
        wrapped = comments.with_comments_wrapped(f"{short}    /// {LONG.strip()}\n    fn a() {{}}")
        self.assertTrue(wrapped.startswith(short))
        self.assertEqual(wrapped.count("word"), 24)
        self.assertLessEqual(max(map(len, wrapped.splitlines())), comments.WIDTH)

    def test_lists_are_indented_and_code_stays(self):
        code = f"//! ```\n//! let text = \"{LONG}\";\n//! ```\n//! | {LONG}|\n"
        self.assertEqual(comments.with_comments_wrapped(code), code)
        wrapped = comments.with_comments_wrapped(f"// 1. {LONG.strip()}").splitlines()
        self.assertTrue(wrapped[1].startswith("//    word"), wrapped)

    def test_docstrings_keep_names_apart(self):
        text = f'def a(x, y):\n    """Does it.\n\n    Args:\n        x: {LONG.strip()}\n        y: short.\n    """\n'
        lines = comments.with_docstrings_wrapped(text).splitlines()
        self.assertTrue(lines[5].startswith(" " * 12 + "word"), lines)
        self.assertEqual(lines[-2:], ["        y: short.", '    """'])


class Tokens(unittest.TestCase):
    def same(self, one, other):
        return tokens.normal(tokens.tokens(one)) == tokens.normal(tokens.tokens(other))

    def test_formatting_is_no_difference(self):
        broken = "match a {\n    // why\n    B => {\n        f(x, y,)\n    }\n}"
        self.assertTrue(self.same("match a { B => f(x, y), }", broken))
        self.assertTrue(self.same("fn a() { return b }", "fn a() { return b; }"))
        self.assertTrue(self.same("a(|x| x + 1)", "a(|x| {\n    x + 1\n})"))

    def test_everything_else_is_one(self):
        for one, other in [
            ("a(1)", "a(2)"),
            ('f("a b")', 'f("a  b")'),
            ("a; b", "a, b"),
            ("fn a() { b }", "fn a() { b; }"),
            ("match a { B => { c; } }", "match a { B => c, }"),
        ]:
            self.assertFalse(self.same(one, other), (one, other))


if __name__ == "__main__":
    unittest.main()
