import unittest

from tasks.pseudo_code import function, made
from tasks.steps import Failed

PLAIN = ["f(a):", "    b = a", "    return b"]


class PseudoCode(unittest.TestCase):
    def test_marked_lines_stay_between_the_lines_of_the_plain_function(self):
        marked = ["  f(a):", "+     c = 1", "*     b = a + c", "  old"]
        self.assertEqual(made(PLAIN, marked), ["  f(a):", "+     c = 1", "*     b = a + c", "      return b"])
        self.assertEqual(function("\n".join(["e():", "    0", "", *PLAIN, "", "g():"]), "f(a):"), PLAIN)

    def test_a_line_without_its_counterpart_is_an_error(self):
        for marked in (["  f(a):"], ["  "] * 4):
            with self.subTest(marked), self.assertRaises(Failed):
                made(PLAIN, marked)


if __name__ == "__main__":
    unittest.main()
