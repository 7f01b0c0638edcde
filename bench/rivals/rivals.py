"""Encodes and decodes pairs of checkpoints with this project and its rivals, in one run, and writes a table and a plot.

    rivals.py --tool DELTACHAIN --worker WORKER --rounds N --results RESULTS.md --plot rivals.svg FOLDER ...

The pairs come from the files `NAME_stepNUMBER.safetensors` of each folder: for each name the first step with the next
one, and with the last one. The plot shows the first pair.

Started by `cargo xtask rivals`. Methods inside a process run in workers that stay alive; commands run on files in
memory. In each round every method encodes and decodes once; the order turns by one from round to round. A first round
does not count. With one thread, a method's process and all that it starts may use only one core.
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
from method import load

HERE = Path(__file__).parent
# The project's own methods of its worker: what they are called, what their times contain, and what proves the result.
HASHED = "BLAKE3 of base and target (encode)"
# Of a publisher that knows the digests of what it published last.
HELD = "BLAKE3 of the target (encode)"
LANES = "sums of all changed elements, old and new, before anything changes"
ALL, CHANGED = "every byte, BLAKE3", "every changed element, sums"
OWN = {
    "compact": ("deltachain compact", f"{HASHED}, of the target (decode)", ALL),
    "direct": ("deltachain direct", f"{HASHED}, of the target (decode)", ALL),
    "known": ("deltachain compact, base digests known", "BLAKE3 of the target, both ways", ALL),
    "compact-in-place": (
        "deltachain compact, patched in place", f"{HELD}, and before anything changes (decode)", ALL),
    "local-in-place": ("deltachain local, patched in place", f"{HELD}; {LANES} (decode)", CHANGED),
    "direct-in-place": ("deltachain direct, patched in place", f"{HELD}; {LANES} (decode)", CHANGED),
    "patches": ("deltachain direct, unproven", f"{HELD}; CRC-32 of the link only (decode)", ""),
}


def limit(threads: int):
    """For a child, before it starts: one core if it may use one thread."""
    return (lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})) if threads == 1 else None


def environment(threads: int) -> dict[str, str]:
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"]
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    return os.environ | dict.fromkeys(names, str(threads)) | quiet


class Failed(Exception):
    """A method that cannot go on, with the reason."""


class InProcess:
    """A method that runs in a worker."""

    kind = "in process"

    def __init__(self, command: list, name: str, checks: str, proof: str, threads: int, errors: Path):
        self.name, self.checks, self.proof = name, checks, proof
        self.errors = open(errors, "w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            preexec_fn=limit(threads), env=environment(threads),
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
        """The answer, and how far resident memory rose above what it was before."""
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
        self.process.wait()


def high_water_marks(process: int, peaks: list[int]) -> None:
    """Notes a program's high-water mark of resident memory until it ends. It never falls, so the last one counts."""
    try:
        while "\nVmHWM:" in (text := Path(f"/proc/{process}/status").read_text()):
            # Before it has become the program, the child is a copy of this process.
            if Path(f"/proc/{process}/exe").resolve() != Path("/proc/self/exe").resolve():
                peaks.append(int(text.split("\nVmHWM:", 1)[1].split()[0]) << 10)
            time.sleep(0.002)
    except OSError:
        pass


class Command:
    """A method that is a program, run on files."""

    kind = "command"

    def __init__(
        self, name: str, checks: str, proof: str, threads: int, folder: Path, target: Path, encode: list, decode: list,
    ):
        self.name, self.checks, self.proof, self.threads, self.target = name, checks, proof, threads, target
        slug = "".join(c if c.isalnum() else "-" for c in name)
        self.blob, self.result = folder / f"{slug}.blob", folder / f"{slug}.result"
        paths = {"BLOB": self.blob, "RESULT": self.result}
        self.commands = [[str(paths.get(word, word)) for word in command] for command in (encode, decode)]
        if not shutil.which(encode[0]):
            raise Failed(f"`{encode[0]}` is not installed")

    def run(self, command: list[str], made: Path) -> dict:
        made.unlink(missing_ok=True)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=limit(self.threads), env=environment(self.threads),
        )
        # The high-water mark that wait4 tells is at least that of this process, from which the child was forked.
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
    """Names of the methods for a pair, each with what makes it."""
    common = [base, target, str(threads)]
    errors = folder / "errors"
    for method, own in OWN.items():
        yield own[0], lambda method=method, own=own: InProcess(
            [options.worker, method, *common], *own, threads, errors)
    tool = [options.tool, "--quiet", "--threads", str(threads)]

    def command(name, checks, proof, encode, decode):
        return name, lambda: Command(name, checks, proof, threads, folder, target, encode, decode)

    yield command(
        "deltachain compact, tool", "BLAKE3 of base and target, both ways", ALL,
        [*tool, "diff", base, target, "-o", "BLOB"], [*tool, "apply", "--base", base, "BLOB", "-o", "RESULT"])
    tensors, _ = parse(map_file(base))
    bf16 = all(tensor.dtype == "BF16" for tensor in tensors.values())
    for name, method in load().items():
        if bf16 or not method.bf16_only:
            yield name, lambda name=name, method=method: InProcess(
                [sys.executable, HERE / "worker.py", name, *common], name, method.checks, method.proof, threads, errors)
    for level in (1, 3):
        zstd = ["zstd", "-q", "-f", f"-T{threads}", f"--patch-from={base}"]
        yield command(
            f"zstd -{level} --patch-from", "XXH64 of the target, both ways", "every byte, XXH64",
            [*zstd, f"-{level}", target, "-o", "BLOB"], [*zstd, "-d", "--long=31", "BLOB", "-o", "RESULT"])
    xdelta = ["xdelta3", "-f", "-B", str(max(base.stat().st_size, 1 << 20)), "-s", base]
    yield command(
        "xdelta3", "Adler-32 by window, both ways", "every byte, Adler-32",
        [*xdelta, "-e", target, "BLOB"], [*xdelta, "-d", "BLOB", "RESULT"])


def measure(options, name: str, base: Path, target: Path, threads: int, folder: Path) -> dict:
    """All rounds of a pair with this number of threads."""
    alive, failures = [], {}
    for method, make in methods(options, base, target, threads, folder):
        try:
            alive.append(make())
        except Failed as error:
            failures[method] = str(error)
    rows = {
        method.name: {
            "kind": method.kind, "checks": method.checks, "proof": method.proof, "encode": [], "decode": [],
        } for method in alive
    }
    load = os.getloadavg()[0]
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
    tensors, _ = parse(map_file(target))
    return {
        "pair": name, "threads": threads, "load": load, "data": sum(tensor.data.nbytes for tensor in tensors.values()),
        "rows": {method: row for method, row in rows.items() if method not in failures}, "failures": failures,
    }


def pairs(folder: Path):
    """Names and files of a folder's pairs."""
    steps: dict[str, dict[int, Path]] = {}
    for file in folder.glob("*_step*.safetensors"):
        name, number = file.stem.split("_step", 1)
        steps.setdefault(name, {})[int(number)] = file
    # Those that come as BF16 are what most rivals can do, and come first.
    for name in sorted(steps, key=lambda name: (name.startswith("f"), name)):
        first, *later = sorted(steps[name])
        for number in dict.fromkeys(later[:1] + later[-1:]):
            yield f"{name} {first}-{number}", steps[name][first], steps[name][number]


def copy_speed(target: Path) -> float:
    """Bytes per second of a copy in memory, by one thread: what all speeds may be compared with."""
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
    parser.add_argument("--command", required=True, help="as it was typed, for the table")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--plot", type=Path, required=True)
    parser.add_argument("--readme", type=Path, required=True, help="the project's: its table is written")
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
    options.results.write_text(report.report(runs, options.command, machine, datetime.date.today(), options.rounds))
    options.plot.write_text(plot.plot(runs[0]))
    options.readme.write_text(report.with_short_table(options.readme.read_text(), runs[0]))
    print(report.summary(runs))


main()
