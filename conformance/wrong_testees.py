"""Shows that the suite finds mistakes: the Python reader with one deliberate fault at a time must fail it, and the
report must name the sections of SPEC.md that the fault violates.

    python conformance/wrong_testees.py --runner PATH/TO/deltachain-conformance [--only TEXT]

Each fault of `wrong_testees.txt` replaces pieces of the package's source; a piece that is not there exactly once is an
error, so that the faults cannot rot. Exit status: 0 if the suite caught all of them, else 1.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(__file__).resolve().parent / "python"


@dataclass
class Fault:
    name: str
    only: str       # which cases are run: the whole suite for each fault would take hours
    sections: set   # that the report has to name
    edits: list     # (file, right piece of its source, wrong one), the pieces as lists of lines


def faults():
    """Those of `wrong_testees.txt`."""
    found = []
    for line in (PYTHON.parent / "wrong_testees.txt").read_text().splitlines():
        if line.startswith("= "):
            name, only, *sections = line[2:].split(" | ")
            found.append(Fault(name, only, {section for text in sections for section in text.split(", ")}, []))
        elif line.startswith("@ "):
            found[-1].edits.append((line[2:], [], []))
        elif line.startswith("-"):
            found[-1].edits[-1][1].append(line[1:])
        elif line.startswith("+"):
            found[-1].edits[-1][2].append(line[1:])
    return found


def spoil(fault, folder):
    """A copy of the Python reader with the fault."""
    copy = Path(folder) / fault.name.replace(" ", "-")
    shutil.copytree(PYTHON, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for file, *pieces in fault.edits:
        right, wrong = map("\n".join, pieces)
        source = copy / "deltachain_py" / file
        text = source.read_text()
        if text.count(right) != 1:
            raise SystemExit(f"{file} does not hold {right!r} exactly once: mend the fault '{fault.name}'")
        source.write_text(text.replace(right, wrong))
    return copy


def report(runner, fault, copy):
    """Runs the suite against it."""
    testee = shlex.join([sys.executable, str(copy / "testee.py")])
    command = [runner, "run", "--vectors", str(PYTHON.parent), "--only", fault.only, "--testee", testee]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", required=True, help="the binary deltachain-conformance")
    parser.add_argument("--only", default="", help="faults whose names contain this text")
    args = parser.parse_args()
    chosen, missed = [fault for fault in faults() if args.only in fault.name], 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        copies = [spoil(fault, folder) for fault in chosen]
        reports = pool.map(lambda fault, copy: report(args.runner, fault, copy), chosen, copies)
        for fault, done in zip(chosen, reports):
            named = set(re.findall(r"SPEC\.md section (\d+(?:\.\d+)?)", done.stdout))
            summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
            good = done.returncode == 1 and fault.sections <= named
            missed += not good
            print(f"{'caught' if good else 'MISSED'}  {fault.name}: sections {', '.join(sorted(named, key=float))}\n"
                  f"        {summary}", flush=True)
    print(f"wrong testees: {len(chosen) - missed} of {len(chosen)} caught")
    return missed != 0


if __name__ == "__main__":
    sys.exit(main())
