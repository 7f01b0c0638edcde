"""Runs the benchmarks of `crates/deltachain-bench`, and writes criterion's results into two pages: a summary into
docs/benchmarks.md, all figures into bench/RESULTS.md.

    python -m tasks.bench TOOL PAIR N,N,... COMMAND CHECKPOINTS
"""

import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tasks import memory
from tasks.steps import ROOT, TARGET, output

#: Beginning of the figures in each page.
MARK = "<!-- figures: written by ./task bench -->\n"
#: The pages with the summary and with all figures.
SUMMARY, RESULTS = ROOT / "docs/benchmarks.md", ROOT / "bench/RESULTS.md"
#: Groups of the summary, which other pages quote.
QUOTED = "128 MiB, 1 %", "catch-up, 128 MiB, 0.35 % each, in memory"
#: Size in MiB of the file for the test of several links.
CATCH_UP = 128
DIFF, APPLY = "diff compact, base digests known", "apply compact, with result digest"
TARGET_READ = "(memcmp + BLAKE3 of the target)"


@dataclass
class Figure:
    """The results of criterion for one function, in bytes and seconds."""

    name: str
    bytes: float
    median: float
    fastest: float
    slowest: float

    @property
    def threads(self):
        found = re.search(r", (\d+) threads?$", self.name)
        return int(found[1]) if found else 1


class Figures(defaultdict):
    """Figures by group, in the order of criterion's results."""

    def __init__(self, notes):
        super().__init__(list)
        for sample in sorted(notes.rglob("new/sample.json"), key=lambda path: path.stat().st_mtime_ns):
            names = "benchmark", "sample", "estimates"
            about, times, estimates = (json.loads(sample.with_name(f"{name}.json").read_text()) for name in names)
            each = [time / runs / 1e9 for time, runs in zip(times["times"], times["iters"], strict=True)]
            median = estimates["median"]["point_estimate"] / 1e9
            size = about["throughput"]["Bytes"]
            self[about["group_id"]].append(Figure(about["function_id"], size, median, min(each), max(each)))

    def find(self, group, name):
        return next((figure for figure in self.get(group, ()) if figure.name == name), None)

    def time(self, group, name, threads="1 thread"):
        """Returns the seconds of an operation; NaN if it was not measured."""
        found = self.find(group, f"{name}, {threads}")
        return found.median if found else math.nan

    def per_byte(self, name):
        found = self.find("kernels", name)
        return found.median / found.bytes if found else math.nan


def goals(figures, catch_up):
    """Yields bounds on ratios of two figures of this run: description, whether the bound is a maximum, the bound, the
    figure."""
    time, dense, sparse = figures.time, "128 MiB, 1 %", "128 MiB, 0.35 %"
    for what, name, bound in (
        ("diff, encode and target digest, 1 % of BF16, x memcpy", DIFF, 0.2),
        ("apply compact with result digest, x memcpy", APPLY, 0.2),
        ("prepare: one link, 1 % of BF16, all digests, x memcpy", "prepare compact", 0.35),
        ("the pause at 1 %, x memcpy", "the pause", 3.0),
        ("direct to patches, x memcpy", "direct to patches", 2.0),
    ):
        yield f"{what}, 1 thread", False, bound, time(dense, "memcpy") / time(dense, name)
    for name in DIFF, APPLY:
        yield f"{name}, 2 threads x 1 thread", False, 1.8, time(dense, name) / time(dense, name, "2 threads")
    read = time(sparse, "memcmp") + time(sparse, "BLAKE3 of the target")
    copy = time(sparse, "memcpy")
    sums = {profile: time(sparse, f"diff {profile} with sums, base digests known") for profile in ("local", "compact")}
    for what, bound, measured in (
        ("sums of memory, 1 thread: time x memcpy", 0.8, time(sparse, "sums of memory") / copy),
        (f"diff local with sums, base digests known, 1 thread, x {TARGET_READ}", 1.4, sums["local"] / read),
        (f"{DIFF}, 1 thread: time with sums x without", 1.15, sums["compact"] / time(sparse, DIFF)),
        *((f"in place: {name}, 1 thread: time x memcpy", bound, time(sparse, f"in place: {name}") / copy)
          for name, bound in (("prove local", 0.8), ("prove direct", 0.8), ("pause", 0.15))),
    ):
        yield f"{sparse}: {what}", True, bound, measured
    for group in filter(lambda group: group.startswith("in place, "), figures):
        measured = time(group, "16 links") / time(group, "1 link of as many lanes")
        yield f"{group}, 1 thread: 16 links, x 1 link of as many lanes", True, 1.2, measured
    for group in figures:
        step = re.search(r" (\d+)-(\d+)$", group)
        if step and int(step[1]) + 1 == int(step[2]):
            read = time(group, "memcmp") + time(group, "BLAKE3 of the target")
            yield f"{group}: {DIFF}, 1 thread, x {TARGET_READ}", True, 2.2, time(group, DIFF) / read
            last = time(group, "publish, base published last") / time(group, DIFF)
            yield f"{group}: publish, base published last, 1 thread, x {DIFF}", True, 1.1, last
    # The time that each link after the first adds, divided by the time to copy 16 MiB and apply a piece of the same
    # density to the copy, minus the time to copy, without digests.
    alone = figures.per_byte("copy and apply compact, 0.35 %") - figures.per_byte("memcpy")
    for group in filter(lambda group: group.startswith("catch-up, "), figures):
        if one := figures.find(group, "1 link, 1 thread"):
            for links in 4, 16, 64:
                each = (time(group, f"{links} links") - one.median) / (links - 1)
                what = f"each of links 2 to {links}, x (copy and apply compact - memcpy)"
                yield f"{group}, 1 thread: {what}", True, 1.1, each / (alone * one.bytes)
    written = {links: times for links, _, _, times, _ in catch_up}
    if 16 in written:
        yield "bytes that the tool writes for 16 links in one pass, x the model", True, 1.02, written[16]
    for kibibytes in 2, 16:
        one, many = f"1 x {70_000 * kibibytes} KiB, 0.1 %", f"70000 x {kibibytes} KiB, 0.1 %"
        for name in DIFF, APPLY:
            what = f"{name}, 1 thread: time of 70,000 tensors of {kibibytes} KiB x one"
            yield what, True, 1.5, time(many, name) / time(one, name)


def table(*columns):
    yield f"| {' | '.join(columns)} |"
    yield f"|---|{'---:|' * (len(columns) - 1)}"


def growth(figures):
    """The growth of times with the size: the exponent between the smallest and each larger size."""
    yield "\n## Growth\n\nExponent of the time over the size, against the smallest size: 1.00 is linear.\n"
    yield from table("size", DIFF, APPLY)
    sized = (re.fullmatch(r"([\d.]+) MiB, 1 %", group) for group in figures)
    sizes = sorted(float(size[1]) for size in sized if size)
    for size in sizes:
        cells = []
        for name in DIFF, APPLY:
            own, first = (figures.time(f"{of:g} MiB, 1 %", name) for of in (size, sizes[0]))
            exponent = f", {math.log(own / first) / math.log(size / sizes[0]):.2f}" if size > sizes[0] else ""
            cells.append(f"{own:.3f} s{exponent}")
        yield f"| {size:g} MiB | {' | '.join(cells)} |"


def rows(figures, groups):
    """Yields the lines of a table for each of these groups."""
    for group in groups:
        found = figures[group]
        yield f"\n## {group}\n"
        yield from table("what", "median", "GB/s per core", "x memcpy", "x 1 thread")
        for row in found:
            speeds = [row.bytes / time / 1e9 / row.threads for time in (row.median, row.slowest, row.fastest)]
            copy = next((one for one in found if one.name.startswith("memcpy") and one.threads == row.threads), None)
            alone = figures.find(group, f"{row.name.rpartition(', ')[0]}, 1 thread") if row.threads > 1 else None
            ratios = [f"{row.bytes / row.median * one.median / one.bytes:.2f}" if one else "" for one in (copy, alone)]
            speed = "{:.3f} ({:.3f} - {:.3f})".format(*speeds)
            yield f"| {row.name} | {1e3 * row.median:.2f} ms | {speed} | {' | '.join(ratios)} |"


def summary(figures, catch_up, head):
    """Yields the lines of docs/benchmarks.md about a run."""
    yield f"\n{head}\n\n## What is asked for\n"
    yield "| what | at least | measured | |\n|---|---:|---:|---|"
    for what, is_most, bound, measured in goals(figures, catch_up):
        holds = measured <= bound if is_most else measured >= bound
        verdict = "not measured" if math.isnan(measured) else "reached" if holds else "MISSED"
        shown = "-" if math.isnan(measured) else f"{measured:.2f}"
        yield f"| {what} | {'at most ' if is_most else ''}{bound:g} | {shown} | {verdict} |"
    yield from growth(figures)
    yield "\n## Catch-up by the tool\n\n`deltachain apply` with several links at once, from file to file, by all"
    yield f"threads: {CATCH_UP} MiB; links that change 1 %, there and back by turns.\n"
    yield from table("links", "time", "bytes written", "x the model's file", "peak memory")
    for links, seconds, written, times, peak in catch_up:
        yield f"| {links} | {seconds:.2f} s | {written} | {times:.3f} | {peak:.0f} MiB |"
    yield from rows(figures, [group for group in QUOTED if group in figures])


def results(figures, head):
    """Yields the lines of bench/RESULTS.md about a run."""
    yield f"\n{head}"
    yield from rows(figures, sorted(figures))


def main():
    tool, pair, sizes, command, checkpoints = sys.argv[1:]
    notes = TARGET / "bench-notes"
    # Results of earlier runs must not mix with the new ones.
    shutil.rmtree(notes, ignore_errors=True)
    load = Path("/proc/loadavg").read_text().split()[0]
    catch_up = list(memory.catch_up(tool, pair, CATCH_UP))
    settings = {"CRITERION_HOME": str(notes), "DELTACHAIN_BENCH_REAL": checkpoints, "DELTACHAIN_BENCH_MEBIBYTES": sizes}
    benches = ["cargo", "bench", "--package", "deltachain-bench", "--bench", "kernels", "--bench", "operations"]
    subprocess.run(benches, cwd=ROOT, env=os.environ | settings, check=True)
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    machine = f"{model[1] if model else 'unknown processor'}, {os.cpu_count()} cores, {platform.system().lower()}"
    head = f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, on {machine}, {output('rustc --version').strip()}."
    head += f" Load of the machine at the start: {load}."
    figures = Figures(notes)
    pages = {SUMMARY: summary(figures, catch_up, head), RESULTS: results(figures, head)}
    for page, lines in pages.items():
        text = "\n".join(lines)
        print(text)
        page.write_text(f"{page.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
