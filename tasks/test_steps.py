"""Tests that steps run whatever happens to others, that rows keep their order, and that missing resources are
reported."""

import contextlib
import io
import unittest
from pathlib import Path

from tasks import steps


class Steps(unittest.TestCase):
    def setUp(self):
        steps._here.rows = []
        steps.resource("a_thing", "")(lambda: Path("/a b/c"))
        steps.resource("other", "")(self.fail_to_make)
        steps.resource("third", "made of the other", "other")(lambda other: other)

    def fail_to_make(self):
        raise steps.Failed("no such thing here")

    def run_all(self, *lanes):
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            steps.side_by_side(*lanes)
            passed = steps.finish()
        return passed, said.getvalue()

    def test_lanes_keep_their_order_and_their_words(self):
        passed, said = self.run_all("a: echo one; seq 2000 | tail -n 1\nb: false\nc: echo two", "d: echo three")
        self.assertFalse(passed)
        self.assertEqual([name for name, _ in steps._here.rows], ["a", "b", "c", "d"])
        self.assertIn("==> c\n$ echo two\ntwo\n", said)
        self.assertNotIn("\0", said)
        self.assertIn("\nsteps: 3 passed, 1 failed, 0 skipped\n", said)

    def test_resources_are_quoted_and_what_is_missing_is_a_reason(self):
        recipe = "a{n}: test {a_thing} = '/a b/c' && test {n} = 7\nb: echo {third}"
        passed, said = self.run_all(lambda: steps.recipe(recipe, n=7))
        self.assertTrue(passed)
        self.assertIn("\nsteps: 1 passed, 0 failed, 2 skipped\n", said)
        names = [(name, verdict.split("  ")[-1]) for name, verdict in steps._here.rows]
        skipped = "SKIPPED: no such thing here"
        self.assertEqual(names, [("a7", "ok"), ("made of the other", skipped), ("b", skipped)])


if __name__ == "__main__":
    unittest.main()
