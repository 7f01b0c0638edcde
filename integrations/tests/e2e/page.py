"""The commands at the beginning of integrations/docs/integrations.md, as written there. `run.py`
starts this.

The only differences: packages are installed already, the two checkpoints are small random ones, and
the port is another."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from server import Server, fresh

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"

# Maximum seconds for all commands.
LONGEST = 400


def lines() -> list[str]:
    """The first block of commands in the document."""
    block = DOCUMENT.read_text().partition("```sh\n")[2].partition("\n```")[0]
    return block.splitlines()


def proof(folder: Path) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    place, memory = folder / "page", Path("/dev/shm/deltachain-page")
    shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(memory, ignore_errors=True)
    place.mkdir()
    for step, saved in (("step0", "saved-3"), ("step1", "saved-4")):
        shutil.copytree(folder / saved, place / step)
        # Files that `hf download` leaves there.
        (place / step / ".cache" / "huggingface").mkdir(parents=True)
        (place / step / ".cache" / "huggingface" / "CACHEDIR.TAG").write_text("Signature")
    install, download, *rest = lines()
    assert "pip install vllm ./python ./integrations" in install
    assert download.count("hf download") == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (
        "\n".join(["set -e", *rest])
        .replace(":8000", f":{port}")
        .replace("/dev/shm/run7", str(memory))
    )
    text = text.replace(
        "vllm serve step0", f"vllm serve step0 --port {port} --enforce-eager --served-model-name it"
    )
    programs = Path(sys.executable).absolute().parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    shell = subprocess.Popen(
        ["bash", "-c", f"{text}\nwait"],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said: list[str] = []
    try:
        timer = threading.Timer(LONGEST, lambda: os.killpg(shell.pid, signal.SIGKILL))
        timer.start()
        assert shell.stdout is not None
        for line in shell.stdout:
            said.append(line.strip())
            if '"1@' in line:
                break
        timer.cancel()
        shown = [line for line in said if "weight_version" in line]
        good = len(shown) == 2
        rows = [["the lines, as they stand there", good, " ".join(shown) or " ".join(said)[-300:]]]
        if good:
            answers = Running(f"http://127.0.0.1:{port}").answers()
            rows.append(
                ["the server answers with version 1", answers == fresh(folder, 4, plain=False), ""]
            )
        return rows
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(60)
        shutil.rmtree(memory, ignore_errors=True)


class Running(Server):
    """A server that is already running."""

    def __init__(self, url: str) -> None:
        self.url = url


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.write_text(json.dumps(proof(given.folder)))


if __name__ == "__main__":
    main()
