"""Checks the test coverage of `src/codec` and `src/format`: of lines, from an lcov report on standard input, or, with
the folder of cargo-mutants' results, of mutants."""

import sys
from collections import defaultdict
from pathlib import Path

from tasks.budget import rust_code_of
from tasks.steps import ROOT

MODULES = "src/codec/", "src/format/"
LINES, MUTANTS = 95, 90


def lines(report):
    """Counts the lines of each module, and the lines that tests reach. Lines of tests do not count."""
    counts, hits = defaultdict(dict), defaultdict(lambda: [0, 0])
    for line in report:
        kind, _, value = line.strip().partition(":")
        if kind == "SF":
            file = counts[value.removeprefix(f"{ROOT}/")]
        elif kind == "DA":
            number, count = map(int, value.split(",")[:2])
            file[number] = max(file.get(number, 0), count)
    for file, reached in sorted(counts.items()):
        module = next(filter(file.startswith, MODULES), None)
        if module is None or file.endswith("tests.rs"):
            continue
        end = rust_code_of((ROOT / file).read_text(encoding="utf-8")).count("\n")
        own = {number: count for number, count in reached.items() if number <= end}
        missed = [str(number) for number, count in sorted(own.items()) if not count]
        print(f"{file:28} {len(own) - len(missed):>4} of {len(own):>4} lines  {' '.join(missed)}")
        hits[module][0] += len(own) - len(missed)
        hits[module][1] += len(own)
    return hits


def mutants(folder):
    """Counts the mutants of each module, and the mutants that tests notice, timeouts included."""
    hits = {}
    for module in MODULES:
        noticed, late, missed = (
            sum(line.startswith(module) for line in (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines())
            for name in ("caught", "timeout", "missed")
        )
        hits[module] = noticed + late, noticed + late + missed
    return hits


def main(words):
    hits, least = (mutants(Path(words[0])), MUTANTS) if words else (lines(sys.stdin), LINES)
    for module in MODULES:
        print(f"{module:28} {hits[module][0]:>4} of {hits[module][1]:>4}")
    return any(100 * hit < least * of or of == 0 for hit, of in (hits[module] for module in MODULES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
