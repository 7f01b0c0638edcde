"""The budget notices what it is for."""

import tomllib
import unittest

from tasks import budget

TEXT = '[lines]\nstore = 100\n\n[names]\npython = 5\n\n[[rise]]\ndate = 2026-11-26\ncount = "lines.store"\nby = 7\n'
RISE = 'issue = 1\nreason = "a check"\n'


def flaws(lines, names, text=TEXT + RISE):
    return len(list(budget.judge(tomllib.loads(text), {"lines": {"store": lines}, "names": {"python": names}})))


class Budget(unittest.TestCase):
    def test_lines_have_slack_and_names_have_none(self):
        self.assertEqual([flaws(lines, 5) for lines in (86, 87, 107, 108)], [1, 0, 0, 1])
        self.assertEqual([flaws(100, names) for names in (4, 5, 6)], [1, 0, 1])

    def test_a_rise_says_why_and_of_what(self):
        self.assertEqual(flaws(100, 5, TEXT), 1)
        self.assertEqual(flaws(100, 5, (TEXT + RISE).replace("lines.store", "lines.stores")), 1)

    def test_numbers_are_lowered_and_never_raised(self):
        counted = {"lines": {"store": 50}, "names": {"python": 6}}
        lowered = tomllib.loads(budget.lowered(TEXT + RISE, counted))
        self.assertEqual((lowered["lines"]["store"], lowered["names"]["python"]), (43, 5))

    def test_code_is_what_is_neither_comment_nor_test(self):
        rust = "//! About.\n\nfn a() {} // why\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"
        self.assertEqual(budget.rust_code(rust), ["fn a() {} // why"])
        python = '"""About."""\n\ndef a():\n    """What."""\n    # why\n    return 1\n'
        self.assertEqual(budget.python_code(python), ["def a():", "return 1"])


if __name__ == "__main__":
    unittest.main()
