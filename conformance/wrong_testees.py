"""Shows that the suite finds deliberate faults of readers, and asks old readers only about features that they know.

A reader with one fault at a time must fail the suite, and the report must name the sections of SPEC.md that the fault
violates. The readers of older versions in old/ must pass it.

    python conformance/wrong_testees.py --runner PATH/TO/deltachain-conformance
                                        [--reader python | javascript | rust] [--only TEXT] [--some N]

Each fault in the reader's list replaces pieces of its source. A piece that does not occur exactly once is an error, so
that the faults cannot become outdated. The JavaScript reader needs its packages (`npm ci` in js/). The library is built
for each of its faults, in `target/wrong-testees`. Old readers are run with the Python ones, unless faults are chosen by
name. Exit status: 0 if the suite caught all faults and all old readers passed, else 1.
"""
import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


@dataclass
class Fault:
    name: str
    only: str       # the cases to run: the whole suite for each fault would take hours
    sections: set   # the sections that the report must name
    edits: list     # (file, right piece of its source, wrong one), the pieces as lists of lines


def faults(path):
    found = []
    for line in path.read_text().splitlines():
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


def spoiled(fault, source):
    """Returns the files of a reader with the fault: {name: text}."""
    texts = {}
    for file, *pieces in fault.edits:
        right, wrong = map("\n".join, pieces)
        text = texts.get(file) or (source / file).read_text()
        if text.count(right) != 1:
            raise SystemExit(f"{file} does not hold {right!r} exactly once: mend the fault '{fault.name}'")
        texts[file] = text.replace(right, wrong)
    return texts


def spoil(fault, source):
    for file, text in spoiled(fault, source).items():
        (source / file).write_text(text)


class Python:
    """Makes a copy for each fault."""
    faults = HERE / "wrong_testees.txt"
    folder, package, left_out = HERE / "python", "deltachain_py", ("__pycache__", "tests")
    source, jobs = folder / package, os.cpu_count()

    def __init__(self, copies):
        self.copies = Path(copies)

    def copy(self, fault):
        copy = self.copies / re.sub(r"\W", "-", fault.name)
        shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns(*self.left_out))
        spoil(fault, copy / self.package)
        return copy

    def testee(self, fault):
        """Returns the command of the testee."""
        return [sys.executable, str(self.copy(fault) / "testee.py")]


class JavaScript(Python):
    faults = HERE / "wrong_testees_javascript.txt"
    folder, package, left_out = ROOT / "js", "src", ("node_modules", "types", "tests", "inspector")
    source = folder / package

    def testee(self, fault):
        copy = self.copy(fault)
        (copy / "node_modules").symlink_to(self.folder / "node_modules")
        return ["node", str(copy / "testee.mjs")]


class Rust:
    """One copy of the workspace, which is built for one fault after the other."""
    faults = HERE / "wrong_testees_rust.txt"
    source, jobs = ROOT, 1

    def __init__(self, copies):
        self.copies, self.target = Path(copies), ROOT / "target" / "wrong-testees"
        self.workspace = self.target / "workspace"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
        self.files = [name for name in listed.split("\0") if name.endswith((".rs", ".toml", ".lock", ".md"))]
        for name in self.files:
            self.restore(name)

    def restore(self, name):
        """Restores the right file. An unchanged file keeps its time, so that it is not built again."""
        copy, right = self.workspace / name, (ROOT / name).read_bytes()
        if not copy.exists() or copy.read_bytes() != right:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(right)

    def testee(self, fault):
        spoil(fault, self.workspace)
        build = ["cargo", "build", "--quiet", "--package", "deltachain-conformance", "--target-dir", str(self.target)]
        if subprocess.run(build, cwd=self.workspace).returncode:
            raise SystemExit(f"it does not build: mend the fault '{fault.name}'")
        for file, _, _ in fault.edits:
            self.restore(file)
        program = self.copies / "testee"
        shutil.copy(self.target / "debug" / "deltachain-conformance", program)
        return [str(program), "testee"]


READERS = {"python": Python, "javascript": JavaScript, "rust": Rust}


def report(runner, reader, fault):
    """Runs the suite against a reader with a fault."""
    testee = shlex.join(reader.testee(fault))
    command = [runner, "run", "--rules", "--vectors", str(HERE), "--only", fault.only, "--testee", testee]
    return subprocess.run(command, capture_output=True, text=True)


def old_report(runner, reader):
    """Runs the suite against a reader of an older version. The list has the cases in which that reader already
    erred."""
    testee = shlex.join([sys.executable, str(reader)])
    command = [runner, "run", "--vectors", str(HERE), "--expected-failures", str(reader.with_suffix(".txt")),
               "--testee", testee]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", required=True, help="the binary deltachain-conformance")
    parser.add_argument("--reader", choices=READERS, default="python")
    parser.add_argument("--only", default="", help="faults whose names contain this text")
    parser.add_argument("--some", type=int, metavar="N", help="only this many of them, chosen at random")
    args = parser.parse_args()
    kind, missed = READERS[args.reader], 0
    known = faults(kind.faults)
    for reader in READERS.values():  # checks all faults, whichever are run
        for fault in faults(reader.faults):
            spoiled(fault, reader.source)
    chosen = [fault for fault in known if args.only in fault.name]
    if args.some is not None and args.some < len(chosen):
        chosen = random.sample(chosen, args.some)
    old = sorted((HERE / "old").glob("*.pyz")) if kind is Python and not args.only else []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(kind.jobs) as pool:
        reader = kind(folder)
        old_reports = pool.map(lambda reader: old_report(args.runner, reader), old)
        reports = pool.map(lambda fault: report(args.runner, reader, fault), chosen)
        for fault, done in zip(chosen, reports):
            named = set(re.findall(r"(?:SPEC|spec/[a-z-]+)\.md section (\d+(?:\.\d+)?)", done.stdout))
            summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
            good = done.returncode == 1 and fault.sections <= named
            missed += not good
            print(f"{'caught' if good else 'MISSED'}  {fault.name}: sections {', '.join(sorted(named, key=float))}\n"
                  f"        {summary}", flush=True)
        failed = 0
        for one, done in zip(old, old_reports):
            good = done.returncode == 0
            failed += not good
            print("passed" if good else "FAILED", one.name, flush=True)
            if not good:
                print(done.stdout + done.stderr, flush=True)
    print(f"wrong testees: {len(chosen) - missed} of {len(chosen)} caught; old readers: {failed} of {len(old)} failed")
    return missed + failed != 0


if __name__ == "__main__":
    sys.exit(main())
