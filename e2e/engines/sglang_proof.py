"""A real server of SGLang that `deltachain follow --engine sglang` brings to versions, also when the follower is killed
and when others change or pause the server. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltachain as dc
from follow import Follow
from models import tensors_of
from recoveries import Proxy, name_of
from server import PROMPTS, Sglang


class Case:
    """A server, the chain that it follows, and what servers say that start with its versions.

    Args:
        folder: of the model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chain, self.copy, self.log = folder / "sglang-chain", folder / "sglang-copy", folder / "sglang.log"
        for made in (self.chain, self.copy):
            shutil.rmtree(made, ignore_errors=True)
        self.fresh = {number: self._fresh(number) for number in (3, 4)}
        self.rows: list[list[Any]] = []
        # By version, the number of its weights: those of 3 and 4 in turn.
        self.numbers: list[int] = []
        self.publish()

    def _fresh(self, number: int) -> list[Any]:
        kept = self.folder / f"fresh-sglang-{number}.json"
        if not kept.is_file():
            with Sglang(self.folder / f"saved-{number}", self.log) as server:
                kept.write_text(json.dumps(server.answers()))
        found = json.loads(kept.read_text())
        assert isinstance(found, list)
        return found

    def publish(self) -> dc.Published:
        self.numbers.append(4 - len(self.numbers) % 2)
        with dc.Publisher(self.chain, like=self.folder / "base") as publisher:
            self.newest = publisher.publish(tensors_of(self.folder / f"saved-{self.numbers[-1]}"))
        return self.newest

    def follow(self, url: str) -> Follow:
        return Follow(self.chain, self.copy, url, "--engine", "sglang")

    def recovers(self, name: str, server: Sglang, following: Follow, asked: Callable[[], bool] = lambda: True) -> None:
        """It is brought to the newest version, and answers like a fresh one."""
        seconds = following.until(lambda: asked() and server.named() == name_of(self.newest) and is_running(server))
        self.rows.append([name, server.answers() == self.fresh[self.numbers[-1]], f"{seconds:.1f} s"])


def is_running(server: Sglang) -> bool:
    """Whether it makes tokens."""
    try:
        server.ask("GET", "/health_generate")
    except OSError:
        return False
    return True


def killed(case: Case, server: Sglang, proxy: Proxy) -> None:
    """Between two requests."""
    for path in ("/pause_generation", "/update_weights_from_disk", "/continue_generation"):
        case.publish()
        is_killed = threading.Event()
        with case.follow(proxy.url) as following:

            def kill(asked: str, path: str = path, following: Follow = following, event: Any = is_killed) -> None:
                if asked == path and not event.is_set():
                    following.kill()
                    event.set()

            proxy.answered = kill
            is_killed.wait(120)
        proxy.answered = lambda path: None
        said = server.named()
        with case.follow(server.url) as following:
            case.recovers(f"killed after {path}", server, following)
        case.rows[-1][2] += f"; meanwhile it said {said}"


def changed(case: Case, server: Sglang, proxy: Proxy) -> None:
    """By somebody else, while it is followed."""
    with case.follow(proxy.url) as following:
        following.until(lambda: "/model_info" in proxy.paths)
        other = {"model_path": str(case.folder / "other"), "flush_cache": True}
        server.ask("POST", "/update_weights_from_disk", other)
        proxy.paths.clear()
        asked = lambda: "/continue_generation" in proxy.paths  # noqa: E731
        case.recovers("another model by hand, under the same name", server, following, asked)
        server.ask("POST", "/pause_generation", {"mode": "retract"})
        case.recovers("paused by somebody else", server, following)
        server.ask("POST", "/update_weight_version", {"new_version": "mine", "abort_all_requests": False})
        case.recovers("named by somebody else", server, following)


def unfit(case: Case, server: Sglang, proxy: Proxy) -> None:
    """A chain whose versions do not fit: SGLang would die of it."""
    stranger, copy = case.folder / "sglang-stranger", case.folder / "sglang-stranger-copy"
    for made in (stranger, copy):
        shutil.rmtree(made, ignore_errors=True)
    with dc.Publisher(stranger) as publisher:
        publisher.publish({name: tensor[:1] for name, tensor in tensors_of(case.folder / "base").items()})
    proxy.paths.clear()
    with Follow(stranger, copy, proxy.url, "--engine", "sglang") as following:
        following.until(lambda: proxy.paths.count("/model_info") > 3 and bool(dc.status(copy).problems))
        (said, *_) = dc.status(copy).problems
    good = "not sent" in said and not {"/pause_generation", "/update_weights_from_disk"} & set(proxy.paths)
    case.rows.append(["a chain that does not fit", good and server.answers() == case.fresh[case.numbers[-1]], said])


def proof(folder: Path) -> list[list[Any]]:
    """Rows of a name, whether it went as it should, and a text."""
    case = Case(folder)
    with Sglang(folder / "other", case.log) as server, Proxy(server) as proxy:
        with case.follow(server.url) as following:
            case.recovers("version 0", server, following)
            for _ in range(3):
                version = case.publish().version
                case.recovers(f"version {version}", server, following)
        killed(case, server, proxy)
        changed(case, server, proxy)
        unfit(case, server, proxy)
    return case.rows


def kills(folder: Path, count: int) -> list[list[Any]]:
    """Followers killed at random instants, while versions are published and a client asks all the time."""
    case, chance = Case(folder), random.Random(0)
    prompt, end = PROMPTS[1], threading.Event()
    judged = {"of the version named": 0, "across an update": 0, "wrong": 0, "refused": 0}
    # Without a cache of prefixes, since numbers depend on how many tokens are computed at once.
    with Sglang(folder / "other", case.log, "--disable-radix-cache") as server:

        def ask() -> None:
            while not end.is_set():
                try:
                    meta = server.generate(prompt)["meta_info"]
                except OSError:
                    judged["refused"] += 1
                    continue
                spans = meta["weight_versions"]
                if len(spans) > 1 or meta["num_retractions"]:
                    judged["across an update"] += 1
                elif "@" in spans[0]["version"]:
                    number = case.numbers[int(spans[0]["version"].partition("@")[0])]
                    good = meta["output_token_logprobs"] == case.fresh[number][1]
                    judged["of the version named" if good else "wrong"] += 1

        with case.follow(server.url) as following:
            case.recovers("version 0", server, following)
        client = threading.Thread(target=ask)
        client.start()
        try:
            for _ in range(count):
                case.publish()
                with case.follow(server.url) as following:
                    time.sleep(chance.uniform(0.0, 1.5))
                    following.kill()
        finally:
            end.set()
            client.join()
        with case.follow(server.url) as following:
            case.recovers(f"after {count} kills", server, following)
    said = ", ".join(f"{number} {name}" for name, number in judged.items())
    good = not judged["wrong"] and not judged["refused"] and judged["of the version named"] > 0
    case.rows.append([f"answers during {count} kills", good, said])
    return case.rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    rows = kills(given.folder, given.kills) if given.kills else proof(given.folder)
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
