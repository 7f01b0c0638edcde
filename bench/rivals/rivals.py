"""Encodes and decodes pairs of checkpoints with this project and its rivals, in one run, and writes tables and a plot.

    rivals.py --tool DELTACHAIN --worker WORKER --rounds N --results FOLDER [--method FILE] [--only WORD] FOLDER ...

The methods are those of `methods/` and of further files. Tables and the plot go into the folder of results, and with
`--pages`, which names the repository, also into its pages.

The pairs come from the files `NAME_stepNUMBER.safetensors` of each folder: for each name, the first step with the next
one, and with the last one. The plot shows the first pair.

Started by `./task rivals`. Methods inside a process run in workers that stay alive; commands run on files in memory. In
each round every method encodes and decodes once; the order rotates by one from round to round. The first round does not
count. With one thread, a method's process and its child processes may use only one core.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import plot
import report
from checkpoint import map_file, parse
from method import Facts, Program, load

HERE = Path(__file__).parent
# The project's own methods in its worker: their names and facts.
HASHED = "BLAKE3 of base and target (encode)"
# The check of a publisher that knows the digests of what it published last.
HELD = "BLAKE3 of the target (encode)"
LANES = "sums of all changed elements, old and new, before anything changes"
ALL, CHANGED = "every byte, BLAKE3", "every changed element, sums"


def own(checks: str, proof: str, base: str = "BLAKE3 of every tensor", place: str = "a second copy") -> Facts:
    return Facts("this project", checks, proof, base, place, reshapes=place != VERIFIED)


VERIFIED, SUMS = "the only copy, after it is verified", "sums of the elements that change"
OWN = {
    "compact": ("deltachain compact", own(f"{HASHED}, of the target (decode)", ALL)),
    "direct": ("deltachain direct", own(f"{HASHED}, of the target (decode)", ALL)),
    "known": ("deltachain compact, base digests known", own("BLAKE3 of the target, both ways", ALL)),
    "compact-in-place": (
        "deltachain compact, patched in place",
        own(f"{HELD}, and before anything changes (decode)", ALL, place=VERIFIED)),
    "local-in-place": (
        "deltachain local, patched in place", own(f"{HELD}; {LANES} (decode)", CHANGED, SUMS, VERIFIED)),
    "direct-in-place": (
        "deltachain direct, patched in place", own(f"{HELD}; {LANES} (decode)", CHANGED, SUMS, VERIFIED)),
    "patches": ("deltachain direct, unverified", own(f"{HELD}; CRC-32 of the link only (decode)", "", "")),
}
TOOL = "deltachain compact, tool", own("BLAKE3 of base and target, both ways", ALL)


def limit(threads: int):
    """Returns a function for a child process before it starts: it limits one thread to one core."""
    return (lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})) if threads == 1 else None


def environment(threads: int) -> dict[str, str]:
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"]
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    return os.environ | dict.fromkeys(names, str(threads)) | quiet


class Failed(Exception):
    """The error of a method that cannot continue, with the reason."""


class InProcess:
    """A method that runs in a worker."""

    kind = "in process"

    def __init__(self, command: list, name: str, facts: Facts, threads: int, folder: Path):
        self.name, self.facts = name, facts
        self.errors = open(folder / "errors", "w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            preexec_fn=limit(threads), env=environment(threads) | {"TMPDIR": str(folder)},
        )
        self.answer()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise Failed((self.errors.read().strip().splitlines() or ["no answer"])[-1])
        return json.loads(line)

    def ask(self, request: str) -> dict:
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self.answer()

    def status(self, field: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
        raise Failed(f"no {field} in /proc")

    def measured(self, request: str) -> dict:
        """Sends a request. Returns the answer, with the rise of resident memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        before = self.status("VmRSS")
        answer = self.ask(request)
        return answer | {"memory": self.status("VmHWM") - before}

    def encode(self) -> dict:
        return self.measured("encode")

    def decode(self) -> dict:
        self.ask("prepare")
        answer = self.measured("decode")
        return answer | self.ask("exact")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


def high_water_marks(process: int, peaks: list[int]) -> None:
    """Notes the peak of a program's resident memory until it ends. The peak never falls, so the last value counts."""
    try:
        while "\nVmHWM:" in (text := Path(f"/proc/{process}/status").read_text()):
            # Before it executes the program, the child is a copy of this process.
            if Path(f"/proc/{process}/exe").resolve() != Path("/proc/self/exe").resolve():
                peaks.append(int(text.split("\nVmHWM:", 1)[1].split()[0]) << 10)
            time.sleep(0.002)
    except OSError:
        pass


class Command:
    """A method that is a program, run on files."""

    kind = "command"

    def __init__(self, name: str, facts: Facts, threads: int, folder: Path, target: Path, encode, decode):
        self.name, self.facts, self.threads, self.target = name, facts, threads, target
        slug = "".join(c if c.isalnum() else "-" for c in name)
        self.blob, self.result = folder / f"{slug}.blob", folder / f"{slug}.result"
        self.commands = encode(self.blob), decode(self.blob, self.result)
        for program, *_ in self.commands:
            if not shutil.which(program):
                raise Failed(f"`{program}` is not installed")

    def run(self, command: list, made: Path) -> dict:
        made.unlink(missing_ok=True)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=limit(self.threads), env=environment(self.threads),
        )
        # The peak that wait4 reports is at least that of this process, from which the child was forked.
        peaks = [0]
        watch = threading.Thread(target=high_water_marks, args=(process.pid, peaks))
        watch.start()
        process.wait()
        seconds = time.perf_counter() - start
        watch.join()
        if process.returncode:
            raise Failed(f"`{Path(command[0]).name}` failed with {process.returncode}")
        return {"seconds": seconds, "memory": max(peaks), "bytes": made.stat().st_size}

    def encode(self) -> dict:
        return self.run(self.commands[0], self.blob)

    def decode(self) -> dict:
        answer = self.run(self.commands[1], self.result)
        exact = map_file(self.result) == map_file(self.target)
        self.result.unlink()
        return answer | {"exact": exact}

    def close(self) -> None:
        self.blob.unlink(missing_ok=True)


def methods(options, base: Path, target: Path, threads: int, folder: Path):
    """Yields the names of the methods for a pair, each with a function that makes it."""
    common = [base, target, str(threads)]

    def process(name: str, facts: Facts, command: list):
        return name, lambda: InProcess(command, name, facts, threads, folder)

    for method, (name, facts) in OWN.items():
        yield process(name, facts, [options.worker, method, *common])
    tool = [options.tool, "--quiet", "--threads", str(threads)]
    yield TOOL[0], lambda: Command(
        *TOOL, threads, folder, target, lambda blob: [*tool, "diff", base, target, "-o", blob],
        lambda blob, result: [*tool, "apply", "--base", base, blob, "-o", result])
    tensors, _ = parse(map_file(base))
    bf16 = all(tensor.dtype == "BF16" for tensor in tensors.values())
    for name, method in load(options.method).items():
        if method.facts.bf16_only and not bf16:
            continue
        if issubclass(method, Program):
            yield name, lambda name=name, method=method: Command(
                name, method.facts, threads, folder, target, lambda blob: method.encode(base, target, blob, threads),
                lambda blob, result: method.decode(base, blob, result, threads))
        else:
            yield process(name, method.facts, [sys.executable, HERE / "worker.py", name, *common, *options.method])


def known() -> dict[str, Facts]:
    """Facts about all methods: ours that verify something, and all others."""
    facts = {name: facts for name, facts in [*OWN.values(), TOOL] if facts.proof}
    return facts | {name: method.facts for name, method in load().items()}


def measure(options, name: str, base: Path, target: Path, threads: int, folder: Path) -> dict:
    """Runs all rounds of a pair with this number of threads."""
    alive, failures = [], {}
    for method, make in methods(options, base, target, threads, folder):
        if options.only and not any(word in method for word in options.only):
            continue
        try:
            alive.append(make())
        except Failed as error:
            failures[method] = str(error)
    rows = {
        method.name: {
            "kind": method.kind, "checks": method.facts.checks, "proof": method.facts.proof, "encode": [], "decode": [],
        } for method in alive
    }
    if not alive:
        raise SystemExit("\n".join([f"{name}: no method is left", *map(": ".join, failures.items())]))
    busy = os.getloadavg()[0]
    for number in range(options.rounds + 1):
        for method in alive[number % len(alive):] + alive[: number % len(alive)]:
            if method.name in failures:
                continue
            try:
                answers = {"encode": method.encode(), "decode": method.decode()}
                if not answers["decode"]["exact"]:
                    raise Failed("the result is NOT exact")
            except Failed as error:
                failures[method.name] = str(error)
                continue
            row = rows[method.name]
            row["bytes"] = answers["encode"]["bytes"]
            for way, answer in answers.items():
                row[f"{way} memory"] = max(row.get(f"{way} memory", 0), answer["memory"])
                if number:
                    row[way].append(answer["seconds"])
            if number and answers["decode"].get("pause"):
                row.setdefault("pause", []).append(answers["decode"]["pause"])
        print(f"{name}, {threads} threads: round {number} of {options.rounds}", flush=True)
    for method in alive:
        method.close()
    for method, reason in failures.items():
        print(f"{name}, {threads} threads: {method}: not measured: {reason}", file=sys.stderr)
    tensors, _ = parse(map_file(target))
    return {
        "pair": name, "threads": threads, "load": busy, "data": sum(tensor.data.nbytes for tensor in tensors.values()),
        "rows": {method: row for method, row in rows.items() if method not in failures}, "failures": failures,
    }


def pairs(folder: Path):
    """Yields the names and files of a folder's pairs."""
    steps: dict[str, dict[int, Path]] = {}
    for file in folder.glob("*_step*.safetensors"):
        name, number = file.stem.split("_step", 1)
        steps.setdefault(name, {})[int(number)] = file
    # Most rivals take BF16 only, so BF16 pairs come first.
    for name in sorted(steps, key=lambda name: (name.startswith("f"), name)):
        first, *later = sorted(steps[name])
        for number in dict.fromkeys(later[:1] + later[-1:]):
            yield f"{name} {first}-{number}", steps[name][first], steps[name][number]


def copy_speed(target: Path) -> float:
    """Bytes per second of a copy in memory with one thread, to compare all speeds with."""
    import numpy

    source = numpy.frombuffer(map_file(target), numpy.uint8)
    place = numpy.empty_like(source)

    def once() -> float:
        start = time.perf_counter()
        numpy.copyto(place, source)
        return source.nbytes / (time.perf_counter() - start)

    return statistics.median(once() for _ in range(12))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--command", required=True, help="the command as typed, for the table")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True, help="the folder of RESULTS.md and rivals.svg")
    parser.add_argument("--pages", type=Path, help="the repository, into whose pages tables are written")
    parser.add_argument("--method", type=Path, action="append", default=[], help="a file of methods, or a folder")
    parser.add_argument("--only", action="append", default=[], help="methods whose names contain this word")
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    runs = []
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rivals-", dir=memory if memory.is_dir() else None) as folder:
        folder = Path(folder)
        for name, *files in [pair for place in options.folders for pair in pairs(place)]:
            base, target = folder / "base.safetensors", folder / "target.safetensors"
            shutil.copy(files[0], base)
            shutil.copy(files[1], target)
            copy = copy_speed(target)
            for threads in sorted({1, cores}):
                runs.append(measure(options, name, base, target, threads, folder) | {"copy": copy})
    machine = f"{platform.machine()}, {cores} cores, {report.processor()}, {platform.system()} {platform.release()}"
    options.results.mkdir(parents=True, exist_ok=True)
    results = options.results / "RESULTS.md"
    results.write_text(report.report(runs, options.command, machine, datetime.date.today(), options.rounds))
    (options.results / "rivals.svg").write_text(plot.plot(runs[0]))
    if options.pages:
        report.write_pages(options.pages, runs, known())
    print(f"{report.summary(runs)}\n\n{results}")


if __name__ == "__main__":
    main()
