"""Goals are ratios of figures of the same run."""

import json
import math
import tempfile
import unittest
from pathlib import Path

from tasks import bench

RATES = {"memcpy": 1, "memcmp": 1, "BLAKE3 of the target": 2, bench.DIFF: 4, "the pause": 0.25}


class Bench(unittest.TestCase):
    def figures(self, **groups):
        notes = Path(self.enterContext(tempfile.TemporaryDirectory()))
        found = bench.Figures(notes)
        for group, rows in groups.items():
            found[group.replace("__", " ")] = [bench.Figure(name, 10, time, time, time) for name, time in rows.items()]
        return found

    def test_goals(self):
        rows = {f"{name}, 1 thread": time for name, time in RATES.items()} | {f"{bench.DIFF}, 2 threads": 2.5}
        figures = self.figures(rl__9__x={}, kernels={"memcpy": 10, "copy and apply compact, 0.35 %": 40})
        figures["128 MiB, 1 %"] = figures["rl 9-10"] = figures["rl 9-64"] = self.figures(a=rows)["a"]
        figures["catch-up, in memory"] = self.figures(a={"1 link, 1 thread": 100, "4 links, 1 thread": 235})["a"]
        tool = [(16, 1, 1010, 1.01, 77)]
        goals = {what: (bound, measured) for what, _, bound, measured in bench.goals(figures, tool)}
        for what, wanted in {
            "diff, encode and target digest, 1 % of BF16, x memcpy, 1 thread": 0.25,
            "the pause at 1 %, x memcpy, 1 thread": 4,
            f"{bench.DIFF}, 2 threads x 1 thread": 1.6,
            f"rl 9-10: {bench.DIFF}, 1 thread, x {bench.TARGET_READ}": 4 / 3,
            "catch-up, in memory, 1 thread: each of links 2 to 4, x (copy and apply compact - memcpy)": 1.5,
            "bytes that the tool writes for 16 links in one pass, x the model": 1.01,
        }.items():
            self.assertAlmostEqual(goals[what][1], wanted, msg=what)
        self.assertTrue(math.isnan(goals["direct to patches, x memcpy, 1 thread"][1]))
        self.assertFalse(any("9-64" in what for what in goals))
        report = list(bench.summary(figures, tool, "head"))
        self.assertIn(f"| {bench.DIFF}, 2 threads x 1 thread | 1.8 | 1.60 | MISSED |", report)
        self.assertIn("| 16 | 1.00 s | 1010 | 1.010 | 77 MiB |", report)
        row = "| memcpy, 1 thread | 1000.00 ms | 0.000 (0.000 - 0.000) | 1.00 |  |"
        self.assertEqual((report.count(row), "## 128 MiB, 1 %" in "".join(report)), (1, True))
        results = "\n".join(bench.results(figures, "head"))
        self.assertEqual([results.count(text) for text in (row, "\n## rl 9-64\n", "MISSED")], [3, 1, 0])

    def test_growth_is_an_exponent(self):
        figures = self.figures()
        for size, time in (64, 1), (256, 4):
            figures[f"{size} MiB, 1 %"] = [bench.Figure(f"{bench.DIFF}, 1 thread", 1, time, time, time)]
        self.assertIn("| 256 MiB | 4.000 s, 1.00 | nan s, nan |", list(bench.growth(figures)))

    def test_notes_of_criterion_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            new = Path(folder) / "group/name/new"
            new.mkdir(parents=True)
            for name, content in {
                "benchmark": {"group_id": "g", "function_id": "f, 2 threads", "throughput": {"Bytes": 8}},
                "sample": {"times": [2e9, 9e9], "iters": [1, 3]},
                "estimates": {"median": {"point_estimate": 2.5e9}},
            }.items():
                (new / f"{name}.json").write_text(json.dumps(content))
            (figure,) = bench.Figures(Path(folder))["g"]
        self.assertEqual(figure, bench.Figure("f, 2 threads", 8, 2.5, 2.0, 3.0))
        self.assertEqual(figure.threads, 2)


if __name__ == "__main__":
    unittest.main()
