"""A real server of SGLang that `deltachain follow --engine sglang` updates, also after the follower
is killed and when other clients change or pause the server. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from recoveries import Case, Proxy, name_of, stranger
from server import PROMPTS, Sglang


class OfSglang(Case):
    """Servers of SGLang.

    Args:
        folder: the folder of the model.
        is_own: whether the server's process downloads the chain, and writes in place.
    """

    def __init__(self, folder: Path, is_own: bool) -> None:
        self.log = folder / "sglang.log"
        fresh_of = {number: self._fresh(folder, number) for number in (3, 4)}
        self.update = "/update_weights_from_tensor" if is_own else "/update_weights_from_disk"
        words = ["--engine", "sglang", *(["--no-tensors"] if is_own else [])]
        super().__init__(folder, "sglang-chain", fresh_of, words)
        self.own = self.chain if is_own else None

    def begin(self, *words: str, chain: Path | None = None) -> Sglang:
        return Sglang(self.folder / "other", self.log, *words, chain=chain or self.own)

    def _fresh(self, folder: Path, number: int) -> list[Any]:
        kept = folder / f"fresh-sglang-{number}.json"
        if not kept.is_file():
            with Sglang(folder / f"saved-{number}", self.log) as server:
                kept.write_text(json.dumps(server.answers()))
        found = json.loads(kept.read_text())
        assert isinstance(found, list)
        return found

    def is_newest(self, server: Sglang) -> bool:
        return server.named() == name_of(self.newest) and is_running(server)


def is_running(server: Sglang) -> bool:
    """True if the server generates tokens."""
    try:
        server.ask("GET", "/health_generate")
    except OSError:
        return False
    return True


def killed(case: OfSglang, server: Sglang, proxy: Proxy) -> None:
    """The follower is killed between two requests."""
    for path in ("/pause_generation", case.update, "/continue_generation"):
        case.publish()
        with case.follow(proxy.url) as following:
            proxy.kills(following, path)
        said = server.named()
        with case.follow(server.url) as following:
            case.recovers(f"killed after {path}", server, following)
        case.rows[-1][2] += f"; meanwhile it said {said}"


def changed(case: OfSglang, server: Sglang, proxy: Proxy) -> None:
    """Another client changes the server while it is followed."""
    with case.follow(proxy.url) as following:
        following.until(lambda: "/model_info" in proxy.paths)
        other = {"model_path": str(case.folder / "other"), "flush_cache": True}
        server.ask("POST", "/update_weights_from_disk", other)
        proxy.paths.clear()
        asked = lambda: "/continue_generation" in proxy.paths  # noqa: E731
        case.recovers("another model by hand, under the same name", server, following, asked)
        server.ask("POST", "/pause_generation", {"mode": "retract"})
        case.recovers("paused by somebody else", server, following)
        server.ask(
            "POST", "/update_weight_version", {"new_version": "mine", "abort_all_requests": False}
        )
        case.recovers("named by somebody else", server, following)


def proof(folder: Path, is_own: bool) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    case = OfSglang(folder, is_own)
    with case.begin() as server, Proxy(server) as proxy:
        with case.follow(server.url) as following:
            case.recovers("version 0", server, following)
            for _ in range(3):
                version = case.publish().version
                case.recovers(f"version {version}", server, following)
        killed(case, server, proxy)
        changed(case, server, proxy)
    if is_own:
        settings = {"start": "newest", "timeout": 120.0}
        with Sglang(folder / "other", case.log, chain=case.chain, settings=settings) as server:
            said = "before a follower runs"
            case.rows.append(["started with the newest version", case.is_right(server), said])
            with case.follow(server.url) as following:
                case.recovers("and followed", server, following)
    unfit, _ = stranger(folder)
    with case.begin(chain=unfit if is_own else None) as server, Proxy(server) as proxy:
        case.unfit(server, proxy, unfit, {"/pause_generation", case.update})
    return case.rows


def kills(folder: Path, is_own: bool, count: int) -> list[list[Any]]:
    """Followers that are killed at random instants. Same rows as `proof`."""
    case = OfSglang(folder, is_own)
    # Without the prefix cache, since results depend on how many tokens are computed at once.
    with case.begin("--disable-radix-cache") as server:

        def answer() -> tuple[str | None, Any]:
            meta = server.generate(PROMPTS[1])["meta_info"]
            spans, said = meta["weight_versions"], meta["output_token_logprobs"]
            return (
                spans[0]["version"] if len(spans) == 1 and not meta["num_retractions"] else None
            ), said

        case.kills(server, count, answer)
    return case.rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--own",
        action="store_true",
        help="the server itself downloads the chain, and writes in place",
    )
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    rows = (
        kills(given.folder, given.own, given.kills)
        if given.kills
        else proof(given.folder, given.own)
    )
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
