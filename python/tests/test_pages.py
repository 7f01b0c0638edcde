"""The commands and programs of the READMEs and tutorials, run exactly as written, in an empty
directory.

Each page is read from top to bottom:

- A block of `sh` is run by bash in the first terminal. If it begins with `# second terminal`, it
  runs there, beside the other blocks; `# second terminal: Ctrl-C` ends that block, and so does the
  end of the page.
- A block of `python` that begins with `# NAME.py` is saved under that name; other blocks of
  `python` are run.
- A block of `text` is the output of the terminal in which the last command was typed, or of the
  second terminal, if the block begins with `# second terminal`. In the first terminal the block is
  the whole output; in the second one the output contains it, possibly after repeated lines. `...`
  stands for any text, and on a line of its own for any lines. White space counts as one space.
- Blocks that only install are left out: their packages are already installed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltachain

ROOT = Path(__file__).resolve().parent.parent.parent
SECOND = "# second terminal"
INSTALLS = ("cargo install ", "cargo run ", "pip install ", "python3 -m venv ")
# A command that hangs fails the test after this many seconds.
PATIENCE = 60
CLI = "crates/deltachain-cli"
FOLDERS = (
    "",
    "docs",
    "docs/tutorials",
    "python",
    "integrations",
    "integrations/docs",
    CLI,
    f"{CLI}/src/explain",
)
PAGES = sorted(
    str(page.relative_to(ROOT))
    for folder in FOLDERS
    for page in (ROOT / folder).glob("*.md")
    if not page.name.startswith(("SPEC", "CHANGELOG"))
)
# Other programs on this machine may use the ports of the pages, so these are replaced.
PORTS = ("8000", "9465")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def pattern(text: str) -> str:
    """Returns a regular expression for the output that a page shows."""
    lines = []
    for line in text.strip().splitlines():
        words = r"[ \t]+".join(map(re.escape, line.split())).replace(re.escape("..."), r".*?")
        lines.append(r"(?:.*\n)*?" if line.strip() == "..." else rf"[ \t]*{words}[ \t]*\n")
    return "".join(lines)


class Page:
    """A person who follows a page, with two terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = str(Path(sys.executable).parent)
        # Options of every program that the page starts.
        self.options: dict[str, Any] = {
            "cwd": folder,
            "env": os.environ
            | {"PATH": os.pathsep.join([tools, os.environ["PATH"]]), "PYTHONUNBUFFERED": "1"},
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        self.ports = {port: free_port() for port in PORTS}
        self.printed = ""
        self.is_second = False
        self.second: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.unread = ""

    def follow(self, page: str) -> int:
        """Runs the commands of the page, and returns how many commands and programs ran."""
        ran = 0
        for language, text in blocks(page):
            for port, free in self.ports.items():
                text = re.sub(rf"\b{port}\b", free, text)
            if language == "sh" and not all(
                line.startswith(INSTALLS) for line in text.splitlines()
            ):
                self.type(text)
                ran += 1
            elif language == "python":
                self.write(text)
                ran += 1
            elif language == "text":
                self.compare(text)
        self.end_second()
        return ran

    def type(self, text: str) -> None:
        self.is_second = text.startswith(SECOND)
        if self.is_second:
            self.end_second()
            if "Ctrl-C" not in text:
                self.start_second(text)
        else:
            self.printed = self.run(["bash", "-euo", "pipefail", "-c", text])

    def run(self, command: list[str]) -> str:
        """Returns the output of a command, which must succeed."""
        ran = subprocess.run(
            command,
            **self.options,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}"
        return ran.stdout

    def write(self, text: str) -> None:
        if named := re.match(r"# (\w+\.py)\n", text):
            (self.folder / named[1]).write_text(text)
        else:
            self.run([sys.executable, "-c", text])

    def compare(self, text: str) -> None:
        if not (self.is_second or text.startswith(SECOND)):
            assert re.fullmatch(pattern(text), self.printed), (
                f"the page says\n{text}\nand it printed\n{self.printed}"
            )
            return
        wanted = re.compile("^" + pattern(text.removeprefix(SECOND)), re.MULTILINE)
        while not (found := wanted.search(self.unread)):
            try:
                line = self.lines.get(timeout=PATIENCE)
            except queue.Empty:
                line = None
            assert line is not None, f"the page says\n{text}\nand it printed\n{self.unread}"
            self.unread += line
        self.unread = self.unread[found.end() :]

    def start_second(self, text: str) -> None:
        self.second = subprocess.Popen(
            ["bash", "-c", text],
            **self.options,
            start_new_session=True,
        )
        self.lines, self.unread = queue.Queue(), ""
        threading.Thread(target=self.read, args=(self.second, self.lines), daemon=True).start()

    @staticmethod
    def read(second: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert second.stdout is not None
        for line in second.stdout:
            lines.put(line)
        lines.put(None)

    def end_second(self) -> None:
        """Ends the program in the second terminal by Ctrl-C."""
        if self.second is not None:
            os.killpg(self.second.pid, signal.SIGINT)
            self.second.wait(PATIENCE)
            self.second = None


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    page = Page(tmp_path)
    yield page
    if page.second is not None:
        os.killpg(page.second.pid, signal.SIGKILL)


@pytest.mark.parametrize("readme", ["README.md", "python/README.md"])
def test_the_first_program_of_a_readme(page: Page, readme: str) -> None:
    page.write(next(text for language, text in blocks(readme) if language == "python"))


def test_the_commands_of_the_readme(page: Page) -> None:
    for number in (0, 1):
        (page.folder / f"step{number}").mkdir()
        shutil.copy(
            ROOT / f"testdata/rl3e6_step{number}.safetensors",
            page.folder / f"step{number}/model.safetensors",
        )
    (commands,) = (
        text
        for language, text in blocks("README.md")
        if language == "sh" and "deltachain init" in text
    )
    assert commands.count("\ndeltachain ") == 6
    # `follow` would run for ever.
    page.type(commands.replace("deltachain follow ", "deltachain follow --once "))
    last = (page.folder / "step1/model.safetensors").read_bytes()
    for built in ("served/current/model.safetensors", "copy/model.safetensors"):
        assert (page.folder / built).read_bytes() == last, built


def test_the_picture_of_other_tools_has_the_figures_of_the_comparison() -> None:
    picture = (ROOT / "docs/pictures/rivals.svg").read_text()
    bar = r">([^<]+)</text>\n  <rect .*\n(?:  <path .*\n)?  <text.*>([\d,]+)<"
    shown = re.findall(bar, picture)
    comparison = (ROOT / "docs/comparison.md").read_text()
    own, *others = shown
    assert f"compact, base digests known | {own[1]} |" in comparison
    for name, size in others:
        measured = f"| **{own[1]} B** | {size} B |" if "XOR" in name else f"| {name} | {size} |"
        assert measured in comparison, name
    assert len(shown) == 10


@functools.cache
def help_of(*command: str) -> str:
    tool = [sys.executable, "-m", "deltachain"]
    return subprocess.run(
        [*tool, *command, "--help"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("name", PAGES)
def test_commands_have_the_options_that_pages_name(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    for command in re.findall(
        r"(?:^|[`$(])(deltachain (?!help\b)[a-z][^`\n|>&;#]*)", text, re.MULTILINE
    ):
        words = re.sub(r"'[^']*'|\"[^\"]*\"", "", command).split()[1:]
        shown = help_of(*words[: 2 if words[0] == "key" else 1])
        for option in (
            word.split("=")[0].rstrip(",.:)") for word in words if word.startswith("--")
        ):
            assert re.search(rf"{option}\b", shown), command


@pytest.mark.parametrize("name", PAGES)
def test_programs_name_what_the_package_has(name: str) -> None:
    for language, text in blocks(name):
        if language == "python":
            compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for used in re.findall(r"\bdc\.(\w+)", text):
                assert hasattr(deltachain, used), used


def test_a_trainers_tutorial(page: Page) -> None:
    assert page.follow("docs/tutorials/trainer.md") == 9


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="SKIPPED: torch is not installed"
)
def test_a_tutorial_with_torch(page: Page) -> None:
    assert page.follow("docs/tutorials/torch.md") == 9


def test_an_implementers_tutorial(page: Page, request: pytest.FixtureRequest) -> None:
    kit = request.config.getoption("--kit")
    if kit is None:
        pytest.skip("--kit names no archive of the conformance kit")
    shutil.copy(kit, page.folder)
    assert page.follow("docs/tutorials/reader.md") == 12


def test_what_the_demo_shows(page: Page) -> None:
    assert page.follow("docs/demo.md") == 1


def test_how_a_chain_is_copied_and_comes_back(page: Page) -> None:
    assert page.follow("docs/copies.md") == 10


def test_how_a_version_is_tried_and_promoted(page: Page) -> None:
    assert page.follow("docs/canaries.md") == 9


def test_how_keys_change(page: Page) -> None:
    assert page.follow("docs/rotation.md") == 12


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl, which the page uses")
def test_an_operators_tutorial(page: Page) -> None:
    assert page.follow("docs/tutorials/operator.md") == 16
