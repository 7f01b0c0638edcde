"""Tests of methods that need no package, of the example of README.md, and of the tables. `./task ci` runs them with
pytest."""

import datetime
import re
from pathlib import Path
from types import SimpleNamespace

import method
import pytest
import report
import rivals

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAIR = [ROOT / f"testdata/rl3e6_step{number}.safetensors" for number in (0, 1)]
EXAMPLE = re.search(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)[1]
# A method that encodes and decodes by copying.
COPY = """
import sys
from method import Facts, Program

class Copy(Program):
    facts = Facts("program")

    @staticmethod
    def encode(base, target, blob, threads):
        return [sys.executable, "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])", target, blob]

    @staticmethod
    def decode(base, blob, result, threads):
        return [sys.executable, "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])", blob, result]

METHODS = {"copy": Copy}
"""


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def run_of(folder: Path, text: str, only: str) -> dict:
    """Runs two rounds of the methods of a file, in a folder of files."""
    (folder / "methods").mkdir()
    (folder / "methods/own.py").write_text(text)
    options = SimpleNamespace(method=[folder / "methods"], only=[only], rounds=1, tool="no tool", worker="no worker")
    return rivals.measure(options, "rl3e6 0-1", *PAIR, 1, folder)


def test_the_example_of_the_readme_is_a_method(tmp_path: Path) -> None:
    assert len(EXAMPLE.splitlines()) <= 35
    run = run_of(tmp_path, EXAMPLE, "xor and zlib")
    assert run["failures"] == {}
    row = run["rows"]["xor and zlib"]
    assert row["proof"] == "every byte, CRC-32"
    assert 0 < row["bytes"] < PAIR[1].stat().st_size / 10
    text = report.report([run | {"copy": 1e9}], "command", "machine", datetime.date(2026, 1, 1), 1)
    assert "| xor and zlib | in process |" in text


def test_a_result_that_differs_is_named_and_not_measured(tmp_path: Path) -> None:
    wrong = changed(EXAMPLE, "        return state\n", "        state[name][0] ^= 1\n        return state\n")
    run = run_of(tmp_path, wrong, "xor and zlib")
    assert (run["rows"], run["failures"]) == ({}, {"xor and zlib": "the result is NOT exact"})


def test_an_exception_is_named(tmp_path: Path) -> None:
    broken = changed(EXAMPLE, "zlib.crc32(state[name]) !=", "zlib.crc32(state[name]) ==")
    failures = run_of(tmp_path, broken, "xor and zlib")["failures"]
    assert re.search("ValueError: .*: wrong checksum", failures["xor and zlib"])


def test_a_program_is_a_method(tmp_path: Path) -> None:
    run = run_of(tmp_path, COPY, "copy")
    assert run["failures"] == {}
    row = run["rows"]["copy"]
    assert (row["kind"], row["bytes"]) == ("command", PAIR[1].stat().st_size)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no METHODS"),
        (changed(COPY, '"copy"', '"ZipNN"'), "there is a method `ZipNN` already"),
        (changed(COPY, '"copy"', '"deltachain copy"'), "there is a method `deltachain copy` already"),
        (changed(COPY, '    facts = Facts("program")\n', ""), "has no `facts"),
    ],
)
def test_files_without_methods_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(SystemExit, match=reason):
        method.load([tmp_path / "own.py"])


@pytest.mark.parametrize("name", ["missing.py", "missing"])
def test_missing_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="no Python file"):
        method.load([tmp_path / name])


def test_a_run_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no method is left"):
        run_of(tmp_path, COPY, "no such name")


def test_docs_comparison_says_of_methods_what_their_files_say() -> None:
    page = (ROOT / "docs/comparison.md").read_text()
    assert report.within(page, "methods", report.facts_table(rivals.known())) == page


def test_where_ours_is_not_first_the_rival_is_named() -> None:
    def row(size: int, seconds: float, proof: str) -> dict:
        return {"bytes": size, "encode": [seconds], "decode": [seconds], "proof": proof}

    rows = {"deltachain compact": row(10, 0.2, "all"), "quick": row(1000, 0.1, ""), "same": row(10, 0.3, "all")}
    run = {"pair": "a 0-1", "threads": 1, "rows": rows}
    head, _, size, encode, *_ = report.first_table([run, run | {"threads": 2}])
    assert head == "| | a 0-1 |"
    assert size == "| bytes | **same (1.00)** |"
    assert encode == "| encode | quick (2.00) |"
