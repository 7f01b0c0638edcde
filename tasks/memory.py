"""Measures the memory that the tool needs to make and apply links, against a bound that depends neither on the model's
size nor on the number of links in one pass.

    python -m tasks.memory TOOL PAIR MEBIBYTES THREADS sparse|dense

The tool reads files with positioned reads and maps nothing, so cached pages of its files do not count.
"""

import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tasks.steps import TARGET

#: The bound in MiB: a constant, and a number for each thread. The constant holds 64 MiB of segments that wait until the
#: index is known (more of them wait in a file). The number for each thread holds the pieces of both states, 32 MiB for
#: a group, and their coded form.
SPARSE, DENSE = (128, 64), (192, 192)


class Runs:
    """Two neighbouring versions of a model, the links there and back, and runs of the tool on them."""

    def __init__(self, tool, pair, folder, mebibytes, threads, density=0.01):
        self.tool, self.folder, self.threads = tool, Path(folder), threads
        subprocess.run([pair, self.path("base"), self.path("target"), str(mebibytes), str(density)], check=True)
        self.peaks = {"diff": self.diff("base", "target", "there")[0]}
        self.diff("target", "base", "back")

    def path(self, name):
        return self.folder / f"{name}.safetensors"

    def run(self, *words):
        """Runs the tool. Returns its peak memory in MiB, its seconds and its report."""
        begin = time.monotonic()
        command = [self.tool, *words, "--json", "--threads", str(self.threads)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            report = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"`{command}` failed with status {process.returncode}")
        return usage.ru_maxrss / 1024, time.monotonic() - begin, json.loads(report)

    def diff(self, base, target, link):
        return self.run("diff", self.path(base), self.path(target), "-o", self.folder / f"{link}.dcf")

    def apply(self, links):
        """Applies this many links in one pass, alternating between a link and its reverse."""
        result, turns = self.path("result"), [self.folder / "there.dcf", self.folder / "back.dcf"]
        words = [turns[number % 2] for number in range(links)]
        found = self.run("apply", "--base", self.path("base"), *words, "--force", "-o", result)
        if not filecmp.cmp(self.path("target" if links % 2 else "base"), result, shallow=False):
            sys.exit(f"the tool's result of {links} links is wrong")
        return found


def catch_up(tool, pair, mebibytes):
    """Measures the tool applying 1, 4, 16 and 64 links to a file: links, seconds, bytes written, the same in multiples
    of the file, and peak memory in MiB."""
    with tempfile.TemporaryDirectory(dir=TARGET) as folder:
        runs = Runs(tool, pair, folder, mebibytes, os.cpu_count())
        for links in 1, 4, 16, 64:
            peak, seconds, report = runs.apply(links)
            yield links, seconds, report["written"], report["written"] / runs.path("base").stat().st_size, peak


def main():
    tool, pair, *sizes, change = sys.argv[1:]
    mebibytes, threads = map(int, sizes)
    # Below the target folder, because the system's temporary folder may be in memory.
    with tempfile.TemporaryDirectory(dir=TARGET) as folder:
        runs = Runs(tool, pair, folder, mebibytes, threads, 100 if change == "dense" else 0.01)
        for name, links in ("apply", 1), ("apply 16 links", 16):
            runs.peaks[name] = runs.apply(links)[0]
        print(f"the link has {(runs.folder / 'there.dcf').stat().st_size:,} bytes")
    fixed, each = DENSE if change == "dense" else SPARSE
    bound = fixed + threads * each
    print(*(f"{name:14} peak {peak:6.0f} MiB" for name, peak in runs.peaks.items()), sep="\n")
    print(f"bound {bound} MiB = {fixed} MiB + threads * {each} MiB")
    return max(runs.peaks.values()) > bound


if __name__ == "__main__":
    sys.exit(main())
