"""The parts of tasks: recipes, whose lines are shell commands, and resources, which commands name in braces.

Each line of a recipe is a step: its name, a colon, and its command. A resource is made when the first command needs it;
if it cannot be made, the steps that need it are SKIPPED. Steps that use one processor run side by side, in lanes: the
output of a step is kept until it has ended, so that the lines of two steps are never mixed.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")


class Failed(Exception):
    """The error of a step that has failed, with the reason."""


class _Here(threading.local):
    """The state of each thread: the file that keeps the output of its step, and the rows of its steps."""

    def __init__(self):
        self.kept, self.rows = None, []


_here = _Here()
_resources = {}


def say(line):
    """Prints a line as part of the step's output."""
    print(line, file=_here.kept or sys.stdout, flush=True)


def run(command):
    """Runs a shell command in the root. Raises an error unless it succeeds."""
    say(f"$ {command}")
    kept = _here.kept
    status = subprocess.run(["sh", "-c", command], cwd=ROOT, stdout=kept, stderr=kept and subprocess.STDOUT).returncode
    if status:
        raise Failed(f"`{command}` failed with status {status}")


def output(command):
    """Returns the output of a shell command. Raises an error unless it succeeds."""
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"`{command}` failed: {done.stderr}")
    return done.stdout


def has(command):
    """True if a command succeeds."""
    return subprocess.run(["sh", "-c", command], capture_output=True).returncode == 0


def step(name, work):
    """Runs a step. Returns the function's result, True for None, and False if it fails, which does not stop other
    steps."""
    if _here.kept:
        _here.kept.seek(0)
        _here.kept.truncate()
    say(f"\n==> {name}")
    begin = time.monotonic()
    try:
        made = work()
        made, verdict = True if made is None else made, "ok"
    except (Failed, OSError, ValueError) as error:
        say(f"{name}: {error}")
        made, verdict = False, "FAILED"
    _here.rows.append((name, f"{time.monotonic() - begin:7.1f} s  {verdict}"))
    if _here.kept:
        _here.kept.seek(0)
        # Printed at once, so that output of other lanes cannot mix with it.
        print(_here.kept.read(), end="", flush=True)
    return made


def skip(name, reason):
    """Notes a step that cannot be run."""
    print(f"\n==> {name}\nSKIPPED: {reason}", flush=True)
    _here.rows.append((name, f"{'-':>7} s  SKIPPED: {reason}"))
    return False


class Missing(str):
    """The reason why a resource is missing. It is false in conditions."""

    def __bool__(self):
        return False


def resource(name, label, *needs):
    """Makes a function the resource of this name. The function gets the resources that it needs, and returns a path or
    words for commands. With a label, making the resource is a step."""

    def add(make):
        _resources[name] = label, needs, make, threading.Lock(), []
        return make

    return add


def get(name):
    """Returns a resource, which is made on first use; Missing if it cannot be made."""
    label, needs, make, lock, made = _resources[name]
    with lock:
        if not made:
            needed = [get(need) for need in needs]
            reason = ", ".join(found for found in needed if not found)
            if reason:
                made.append(Missing(reason))
                if label:
                    skip(label, reason)
            elif label:
                made.append(step(label, lambda: make(*needed)) or Missing(f"no {name.replace('_', ' ')}"))
            else:
                try:
                    found = make(*needed)
                    made.append(True if found is None else found)
                except Failed as error:
                    made.append(Missing(error))
        return made[0]


def filled(command, **values):
    """Returns a command with its resources filled in, and the ones that are missing."""
    found = {name: values[name] if name in values else get(name) for name in re.findall(r"\{(\w+)\}", command)}
    words = {name: shlex.quote(str(value)) if isinstance(value, Path) else value for name, value in found.items()}
    missing = sorted({value for value in found.values() if isinstance(value, Missing)})
    return re.sub(r"\{(\w+)\}", lambda name: str(words[name[1]]), command), ", ".join(missing)


def recipe(text, **values):
    """Runs the steps of a recipe. Words in braces are resources, or these values. Returns whether all steps have
    passed."""
    passed = True
    for line in filter(None, map(str.strip, text.splitlines())):
        line, missing = filled(line, **values)
        name, _, command = line.partition(": ")
        done = skip(name, missing) if missing else step(name, lambda command=command: run(command))
        passed = bool(done) and passed
    return passed


def side_by_side(*lanes):
    """Runs recipes and functions side by side, as many at a time as there are processors, in the given order. The rows
    of the table keep that order."""

    def one(lane):
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as _here.kept:
            _here.rows = []
            recipe(lane) if isinstance(lane, str) else lane()
            _here.kept = None
        return _here.rows

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for rows in threads.map(one, lanes):
            _here.rows += rows


def finish():
    """Prints a table of all steps. Returns True unless one has failed."""
    width = max((len(name) for name, _ in _here.rows), default=0)
    print(*(f"\n{name:{width}}  {verdict}" for name, verdict in _here.rows), sep="")
    failed = sum(verdict.endswith("FAILED") for _, verdict in _here.rows)
    skipped = sum("SKIPPED" in verdict for _, verdict in _here.rows)
    passed = len(_here.rows) - failed - skipped
    print(f"\nsteps: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return not failed


def environment(name, *requirements):
    """Returns the programs of a virtual Python environment in the target folder. It is made if it is missing or its
    requirements have changed. The last file of requirements is installed; it includes the others."""
    folder = TARGET / name
    wanted = "".join((ROOT / file).read_text(encoding="utf-8") for file in requirements)
    installed = folder / "installed.txt"
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        run(f"{shlex.quote(sys.executable)} -m venv --clear {shlex.quote(str(folder))}")
        pip(folder / "bin", f"--requirement {requirements[-1]}")
        installed.write_text(wanted, encoding="utf-8")
    return folder / "bin"


def pip(programs, words):
    """Installs packages into an environment."""
    run(f"{shlex.quote(str(programs))}/python -m pip install --quiet --disable-pip-version-check {words}")


def installed(name, version):
    """Installs this version of a Cargo subcommand into the target folder if it is missing there. Returns its path."""
    folder = TARGET / name
    listed = folder / ".crates.toml"
    if not (listed.exists() and f'"{name} {version} ' in listed.read_text(encoding="utf-8")):
        where = shlex.quote(str(folder))
        run(f"cargo install {name} --locked --version {version} --target-dir {where}/build --root {where}")
    return folder / "bin" / name
