"""Shows that the suite finds mistakes: the Python reader with one deliberate fault at a time must fail it, and the
report must name the section of SPEC.md that the fault violates.

    python conformance/wrong_testees.py --runner PATH/TO/deltachain-conformance

Each fault replaces one piece of the package's source; a piece that is not there exactly once is an error, so that the
faults cannot rot. Exit status: 0 if the suite caught all of them, else 1.
"""
import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(__file__).resolve().parent / "python"


@dataclass
class Fault:
    name: str
    edits: list     # (file, right piece of its source, wrong one)
    only: str       # which cases are run: the whole suite for each fault would take minutes
    sections: set   # that the report has to name


def without(*rules):
    """The edits by which a reader does not check these rules."""
    return [(file, f"{head}\n{indent}if not condition:", f"{head}\n{indent}if not condition and rule not in {rules!r}:")
            for file, head, indent in (("errors.py", "def check(condition, rule, message, where=None):", " " * 4),
                                       ("primitives.py", "def check(self, condition, rule, message):", " " * 8))]


FAULTS = [
    Fault("gap off by one", [("codings.py", "rank += 1 + (", "rank += (")], "gap", {"8.1"}),
    Fault("big-endian index", [("index.py", 'int.from_bytes(reader.bytes(4), "little")',
                                'int.from_bytes(reader.bytes(4), "big")')], "crc", {"6.1"}),
    Fault("ignores CRCs", without("R-HDR-03", "R-IDX-01", "R-SEG-01"), "crc", {"4.1", "6", "6.1"}),
    Fault("accepts trailing bytes", without("R-HDR-10", "R-IDX-02", "R-SEG-09"), "links/", {"4.1", "6", "7.1"}),
    Fault("compares floats", [("writer.py", "if a != b]", "if a != b and {a, b} != {0, 1 << 8 * width - 1}]")], "zero",
          {"2"}),
    Fault("skips the digest of the base", without("R-APP-01"), "apply", {"9"}),
    Fault("skips the digests of the result", without("R-APP-04", "R-APP-05"), "apply", {"9"}),
    Fault("accepts any JSON", without("R-DOC-03"), "documents/", {"18"}),
    Fault("accepts a fork", without("R-CHN-04", "R-CHN-05"), "chains/", {"19"}),
]


def report(runner, fault, folder):
    """Runs the suite against a copy of the Python reader with the fault."""
    copy = Path(folder) / fault.name.replace(" ", "-")
    shutil.copytree(PYTHON, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for file, right, wrong in fault.edits:
        source = copy / "deltachain_py" / file
        text = source.read_text()
        if text.count(right) != 1:
            raise SystemExit(f"{file} does not hold {right!r} exactly once: mend the fault '{fault.name}'")
        source.write_text(text.replace(right, wrong))
    testee = shlex.join([sys.executable, str(copy / "testee.py")])
    command = [runner, "run", "--vectors", str(PYTHON.parent), "--only", fault.only, "--testee", testee]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", required=True, help="the binary deltachain-conformance")
    runner = parser.parse_args().runner
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for fault in FAULTS:
            done = report(runner, fault, folder)
            named = set(re.findall(r"SPEC\.md section (\d+(?:\.\d+)?)", done.stdout))
            summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
            good = done.returncode == 1 and fault.sections <= named
            missed += not good
            print(f"{'caught' if good else 'MISSED'}  {fault.name}: sections {', '.join(sorted(named, key=float))}\n"
                  f"        {summary}", flush=True)
    print(f"wrong testees: {len(FAULTS) - missed} of {len(FAULTS)} caught")
    return missed != 0


if __name__ == "__main__":
    sys.exit(main())
