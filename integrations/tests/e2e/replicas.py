"""A server of vLLM with two replicas (`--data-parallel-size 2`) that `deltachain follow` updates:
also when one replica cannot take a version, and when followers are killed. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import deltachain as dc
from recoveries import Vllm
from server import PROMPTS, Server

# Requests after each update. vLLM divides them among the replicas.
ASKED = 12


class Replicas(Vllm):
    """Servers with two replicas.

    Args:
        folder: the folder of the model.
        way: as for `Vllm`.
    """

    def __init__(self, folder: Path, way: str) -> None:
        super().__init__(folder, way)
        #: While this file exists, replica 1 cannot take versions.
        self.refusing = folder / "replica-1-refuses"
        self.refusing.unlink(missing_ok=True)

    def begin(self, **more: Any) -> Server:
        return Server(
            self.folder / "other",
            self.folder / "server.log",
            self.configuration | more,
            plain=self.plain,
            surroundings={
                "ENGINES_REFUSES": str(self.refusing),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
            },
            words=["--data-parallel-size", "2"],
        )

    def is_right(self, server: Server) -> bool:
        """True if all replicas answer like a fresh server."""
        right = self.fresh[self.numbers[-1]][1]
        return all(server.complete(PROMPTS[1]) == right for _ in range(ASKED))


def proof(folder: Path, way: str, kills: int) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    case = Replicas(folder, way)
    with case.begin() as server:
        with case.follow(server.url) as following:
            case.recovers(f"version 0, {ASKED} answers", server, following)
            # Replica 1 fails after replica 0 has loaded the version.
            case.refusing.touch()
            case.publish()
            following.until(lambda: not dc.status(case.copy).healthy)
            following.until(lambda: bool(server.ask("GET", "/is_paused")["is_paused"]))
            (first,) = server.call("deltachain_state", follower="", lease="0")
            status = dc.status(case.copy)
            good = first["digest"] == case.newest.digest and not status.healthy
            said = f"replica 0 holds version {first['version']}; {status.problems[0]!s:.200}"
            case.rows.append(["one replica cannot take a version: it stays paused", good, said])
            case.refusing.unlink()
            case.recovers("the replica can take it again", server, following)

        def answer() -> tuple[str | None, Any]:
            before, said, after = server.named(), server.complete(PROMPTS[1]), server.named()
            return (before if before == after else None), said

        case.kills(server, kills, answer)
    return case.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder that `models.py` has written")
    parser.add_argument("out", type=Path, help="file for the rows")
    parser.add_argument("--way", required=True, help="as in recoveries.py")
    parser.add_argument("--kills", type=int, default=20, help="followers that are killed")
    arguments = parser.parse_args()
    rows = proof(arguments.folder, arguments.way, arguments.kills)
    arguments.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
