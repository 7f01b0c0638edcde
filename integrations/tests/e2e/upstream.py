"""The files of upstream/vllm, with the real vLLM: their tests, their example with a real server,
and a trainer's engine that updates this server, with either kind of client. `run.py` starts this.

vLLM itself is not changed: a directory before it on the path has links to all its files, and the
new files."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import deltachain as dc
from models import tensors_of
from server import Server, fresh

UPSTREAM = Path(__file__).resolve().parents[2] / "upstream" / "vllm"


def overlay(folder: Path) -> None:
    """Makes FOLDER/vllm from the installed vLLM and the new files."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    source, made = Path(spec.origin).parent, folder / "vllm"
    # Only the directories on the path to the new files are real; the rest are links.
    for part in ("", "distributed", "distributed/weight_transfer"):
        (made / part).mkdir(parents=True)
        for one in (source / part).iterdir():
            if one.name not in ("distributed", "weight_transfer", "__pycache__"):
                (made / part / one.name).symlink_to(one)
    factory = made / "distributed" / "weight_transfer" / "factory.py"
    factory.unlink()
    shutil.copy(source / "distributed" / "weight_transfer" / "factory.py", factory)
    shutil.copy(
        UPSTREAM / "vllm" / "distributed" / "weight_transfer" / "deltachain_engine.py",
        factory.parent,
    )
    subprocess.run(["git", "apply", str(UPSTREAM / "factory.patch")], cwd=folder, check=True)


def tests(folder: Path) -> list[list[Any]]:
    """A row for each test of upstream/vllm: a name, whether it has passed, and a text."""
    report = folder / "tests.xml"
    words = [
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--quiet",
        f"--junitxml={report}",
        f"--rootdir={folder}",
    ]
    (made,) = (UPSTREAM / "tests" / "distributed").glob("test_*.py")
    ran = subprocess.run([sys.executable, *words, str(made)], cwd=folder)
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        told = [
            child.get("message", child.tag)
            for child in case
            if child.tag in ("failure", "error", "skipped")
        ]
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        rows.append([name, not told, "; ".join(told) or "passed"])
    rows.append(
        [
            "the tests end well",
            ran.returncode == 0 and len(rows) > 1,
            f"pytest ended with {ran.returncode}",
        ]
    )
    return rows


def example(base: Path, folder: Path, server: Server) -> list[list[Any]]:
    """Runs the example as its first lines say."""
    words = [
        str(UPSTREAM / "examples" / "rl" / "rlhf_deltachain.py"),
        str(base),
        str(folder / "chain"),
    ]
    words += ["--server", server.url, "--steps", "3", "--prompt", "w5 w6"]
    ran = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    good = ran.returncode == 0 and server.shown() == "2" and "step 2: reward" in ran.stdout
    return [["the example", good, ran.stdout + ran.stderr[-2000:]]]


class Rows:
    """A trainer's engine and a server of vLLM, step by step.

    Args:
        folder: the folder that `models.py` has made.
        chain: the chain in the server's configuration.
        server: the server.
    """

    def __init__(self, folder: Path, chain: Path, server: Server) -> None:
        self.folder, self.chain, self.server = folder, chain, server
        self.rows: list[list[Any]] = []

    def engine(self, client: Any) -> Any:
        """A trainer that has just started."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.deltachain_engine import DeltachainTrainerInitInfo

        info = DeltachainTrainerInitInfo(str(self.chain), like=str(self.folder / "base"), rank=0)
        return WeightTransferTrainerFactory.trainer_init(info, client=client)

    def row(self, name: str, number: int, published: dc.reports.PublishReport) -> None:
        """Checks that the server has this version, and answers like one that started with the model
        that the trainer saved."""
        says, answers = self.server.named(), self.server.answers()
        good = says == f"{published.version}@{published.digest[:12]}"
        good = good and answers == fresh(self.folder, number, plain=False)
        self.rows.append([name, good, f"the server says {says}"])

    def refused(
        self,
        name: str,
        number: int,
        last: dc.reports.PublishReport,
        call: Callable[[], Any],
        text: str,
    ) -> None:
        """Checks that the call fails with this text, and that the server serves its previous
        version."""
        try:
            call()
            self.rows.append([name, False, "it was not refused"])
        except Exception as error:
            told = "; ".join((str(error), *getattr(error, "__notes__", ())))
            self.row(name, number, last)
            self.rows[-1][1:] = [self.rows[-1][1] and text in told, told]


def vllms_client(made: Rows) -> None:
    """vLLM's own client, with a caller that pauses and resumes the server."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

    server, client = made.server, HTTPVLLMWeightSyncClient(made.server.url, timeout=120)
    engine = made.engine(client)
    for number, name in ((0, "a version"), (1, "after a trainer that was killed in an update")):
        if number == 1:
            server.ask("POST", "/start_weight_update", {})
            engine.shutdown()
            engine = made.engine(client)
        engine.publish(tensors_of(made.folder / f"saved-{number}"))
        server.ask("POST", "/pause?mode=keep")
        engine.update_servers()
        server.ask("POST", "/resume")
        made.row(f"vLLM's client: {name}", number, engine.last)

    def wrong() -> None:
        client.start_weight_update()
        client.update_weights({"version": engine.last.version, "digest": "0" * 64})

    made.refused("vLLM's client: a digest of another chain", 1, engine.last, wrong, "500")
    engine.shutdown()


def own_client(made: Rows) -> None:
    """The package's client."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, VLLMWeightSyncClient
    from vllm.distributed.weight_transfer.deltachain_engine import DeltachainWeightSyncClient

    server = made.server
    with DeltachainWeightSyncClient([server.url], timeout=120) as client:
        made.rows.append(["it is a client of vLLM", isinstance(client, VLLMWeightSyncClient), ""])
        engine = made.engine(client)
        engine.send_weights(tensors_of(made.folder / "saved-2"))
        client.resume()
        made.row("a version", 2, engine.last)

        def wrong() -> None:
            client.start_weight_update()
            client.update_weights({"version": engine.last.version, "digest": "0" * 64})

        made.refused("a digest of another chain", 2, engine.last, wrong, "digest")
        other = HTTPVLLMWeightSyncClient(server.url, timeout=120)
        last = engine.last
        trainer = made.engine(other)
        trainer.publish(tensors_of(made.folder / "saved-3"))
        made.refused("another trainer with vLLM's client", 2, last, trainer.update_servers, "500")
        trainer.shutdown()
        engine.shutdown()
        # A killed trainer leaves the update open like this.
        client.start_weight_update()
    with DeltachainWeightSyncClient([server.url], timeout=120) as client:
        engine = made.engine(client)
        engine.send_weights(tensors_of(made.folder / "saved-3"))
        client.resume()
        made.row("after a trainer that was killed in an update", 3, engine.last)
        client.start_weight_update()
        server.end(signal.SIGKILL)
        try:
            client.update_weights({"version": engine.last.version, "digest": engine.last.digest})
            made.rows.append(["the server is killed in an update", False, "nobody noticed"])
        except dc.IoError as error:
            notes = "; ".join(error.__notes__)
            made.rows.append(
                ["the server is killed in an update", "stays paused" in notes, f"{error}; {notes}"]
            )
        engine.shutdown()


def proof(folder: Path, work: Path) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    overlay(work)
    sys.path.insert(0, str(work))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(work), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    rows = tests(work)
    log = folder / "upstream-server.log"
    with Server(folder / "saved-0", log, {"chain": str(work / "chain")}, plain=False) as server:
        rows += example(folder / "saved-0", work, server)
        made = Rows(folder, work / "chain", server)
        vllms_client(made)
        own_client(made)
    return rows + made.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        given.out.write_text(json.dumps(proof(given.folder, Path(work))))


if __name__ == "__main__":
    main()
