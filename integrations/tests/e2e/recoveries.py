"""A server of vLLM that `deltachain follow --engine vllm` finds in a state that the follower did
not leave: the follower was killed in the middle, another client has changed or paused the server,
or requests are refused. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import deltachain as dc
from follow import Follow
from models import tensors_of
from server import PROMPTS, Running, Server, fresh, refused


class Proxy:
    """Forwards bytes to a server and back, while the block lasts. If the server closes a
    connection, so does the proxy.

    Attributes:
        changed: may change bytes of a request, given its path.
        answered: called with a path before its answer is forwarded.
        paths: the paths of the requests.
    """

    def __init__(self, server: Running) -> None:
        self.changed: Callable[[str, bytes], bytes] = lambda path, data: data
        self.answered: Callable[[str], None] = lambda path: None
        self.paths: list[str] = []
        host, port = server.url.removeprefix("http://").split(":")
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection((host, int(port))) as there:
                    back = threading.Thread(target=self.back, args=(there,))
                    back.start()
                    with suppress(OSError):
                        while data := self.request.recv(1 << 16):
                            if data.startswith((b"GET ", b"POST ")):
                                self.path = data.split(b" ")[1].decode()
                                proxy.paths.append(self.path)
                            there.sendall(proxy.changed(self.path, data))
                    with suppress(OSError):
                        there.shutdown(socket.SHUT_RDWR)
                    back.join()

            def back(self, there: socket.socket) -> None:
                with suppress(OSError):
                    while data := there.recv(1 << 16):
                        proxy.answered(self.path)
                        self.request.sendall(data)
                with suppress(OSError):
                    self.request.shutdown(socket.SHUT_RDWR)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        return self

    def kills(self, following: Follow, path: str) -> None:
        """Kills a follower once the server has answered this request."""
        is_killed = threading.Event()

        def kill(asked: str) -> None:
            if asked == path and not is_killed.is_set():
                following.kill()
                is_killed.set()

        self.answered = kill
        is_killed.wait(120)
        self.answered = lambda path: None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def kept(chain: Path) -> str:
    """Makes a directory at the newest version of a chain, and returns its path."""
    copy = chain.with_name(f"{chain.name}-copy")
    with dc.Subscriber(chain, host_copy=copy) as subscriber:
        subscriber.prepare(timeout=60).apply()
    return str(copy)


def name_of(published: dc.reports.PublishReport) -> str:
    return f"{published.version}@{published.digest[:12]}"


def stranger(folder: Path) -> tuple[Path, dc.reports.PublishReport]:
    """Publishes a model whose tensors have the same names and other shapes. Returns its chain and
    version."""
    chain = folder / "other-kind"
    for old in (chain, folder / "other-kind-copy"):
        shutil.rmtree(old, ignore_errors=True)
    with dc.Publisher(chain, profile="local") as publisher:
        made = publisher.publish(
            {name: tensor[:1] for name, tensor in tensors_of(folder / "base").items()}
        )
    return chain, made


class Case:
    """A chain that servers follow, and the answers of servers that started with its versions. These
    have the weights of 4 and 3 in turn.

    Args:
        folder: the folder of the model.
        chain: the name of the chain.
        fresh: the answers of fresh servers, by the number of the weights.
        words: arguments of the follower's command.
    """

    def __init__(
        self, folder: Path, chain: str, fresh: dict[int, list[Any]], words: list[str]
    ) -> None:
        self.folder, self.fresh, self.words = folder, fresh, words
        self.chain, self.copy = folder / chain, folder / f"{chain}-copy"
        for made in (self.chain, self.copy):
            shutil.rmtree(made, ignore_errors=True)
        self.rows: list[list[Any]] = []
        # The number of the weights of each version.
        self.numbers: list[int] = []
        self.newest = self.publish()

    def publish(self) -> dc.reports.PublishReport:
        """Publishes the next version."""
        self.numbers.append(4 - len(self.numbers) % 2)
        with dc.Publisher(self.chain, like=self.folder / "base", profile="local") as publisher:
            self.newest = publisher.publish(tensors_of(self.folder / f"saved-{self.numbers[-1]}"))
        return self.newest

    def follow(self, url: str) -> Follow:
        return Follow(self.chain, self.copy, url, *self.words)

    def is_newest(self, server: Any) -> bool:
        """True if the server serves the newest version, and reports it."""
        raise NotImplementedError

    def is_right(self, server: Any) -> bool:
        """True if the server answers like a fresh one."""
        right: bool = server.answers() == self.fresh[self.numbers[-1]]
        return right

    def recovers(
        self, name: str, server: Any, following: Follow, asked: Callable[[], bool] = lambda: True
    ) -> None:
        """Waits until the server is updated to the newest version, and checks that it answers like
        a fresh one."""
        seconds = following.until(lambda: asked() and self.is_newest(server))
        self.rows.append([name, self.is_right(server), f"{seconds:.1f} s"])

    def unfit(self, server: Any, proxy: Proxy, stranger: Path, paths: set[str]) -> None:
        """Follows a chain whose versions do not fit, and checks that the follower sends no request
        that changes the server (`paths`)."""
        before, copy = server.answers(), stranger.with_name(f"{stranger.name}-followed")
        shutil.rmtree(copy, ignore_errors=True)
        proxy.paths.clear()
        with Follow(stranger, copy, proxy.url, *self.words) as following:
            following.until(
                lambda: (
                    copy.is_dir() and any("not sent" in said for said in dc.status(copy).problems)
                )
            )
            (said, *_) = dc.status(copy).problems
        good = not paths & set(proxy.paths) and server.answers() == before
        self.rows.append(["a chain that does not fit is not sent", good, said[:200]])

    def kills(self, server: Any, count: int, answer: Callable[[], tuple[str | None, Any]]) -> None:
        """Kills followers at random instants, while versions are published and a client sends
        requests all the time.

        `answer` returns the server's answer to the second prompt, and the version that the server
        names, or None across an update.
        """
        chance, end = random.Random(0), threading.Event()
        judged = {"of the version named": 0, "across an update": 0, "wrong": 0, "refused": 0}

        def ask() -> None:
            while not end.is_set():
                try:
                    name, said = answer()
                except OSError:
                    judged["refused"] += 1
                    continue
                if name is None or "@" not in name:
                    judged["across an update"] += 1
                else:
                    good = said == self.fresh[self.numbers[int(name.partition("@")[0])]][1]
                    judged["of the version named" if good else "wrong"] += 1

        with self.follow(server.url) as following:
            self.recovers("version 0", server, following)
        client = threading.Thread(target=ask)
        client.start()
        try:
            for _ in range(count):
                self.publish()
                with self.follow(server.url) as following:
                    time.sleep(chance.uniform(0.0, 1.5))
                    following.kill()
            # A waiting request continues now.
            with self.follow(server.url) as following:
                seconds = following.until(lambda: self.is_newest(server))
                end.set()
                client.join()
                self.rows.append(
                    [f"after {count} kills", self.is_right(server), f"{seconds:.1f} s"]
                )
        finally:
            end.set()
        said = ", ".join(f"{number} {name}" for name, number in judged.items())
        good = not judged["wrong"] and not judged["refused"] and judged["of the version named"] > 0
        self.rows.append([f"answers during {count} kills", good, said])


class Vllm(Case):
    """Servers of vLLM.

    Args:
        folder: the folder of the model.
        way: how versions get to the server: from the host copy of `follow`, from one that the
            server manages, or in place.
    """

    def __init__(self, folder: Path, way: str) -> None:
        self.is_own, self.plain = way != "copy", way == "in-place"
        fresh_of = {number: fresh(folder, number, plain=self.plain) for number in (3, 4)}
        words = ["--engine", "vllm", *(["--no-tensors"] if self.is_own else [])]
        super().__init__(folder, "recovered", fresh_of, words)
        self.configuration = {"chain": str(self.chain)} if self.is_own else {}

    def begin(self, **more: Any) -> Server:
        configuration = self.configuration | more
        return Server(
            self.folder / "other", self.folder / "server.log", configuration, plain=self.plain
        )

    def is_newest(self, server: Server) -> bool:
        # The query has no follower name and takes no lease.
        (state,) = server.call("deltachain_state", follower="", lease="0")
        is_paused = server.ask("GET", "/is_paused")["is_paused"]
        return (state["digest"], server.named(), is_paused) == (
            self.newest.digest,
            name_of(self.newest),
            False,
        )


def killed(case: Vllm, server: Server, proxy: Proxy) -> None:
    """The follower is killed between two requests."""
    for path in (
        "/pause?mode=keep",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ):
        before = case.newest
        case.publish()
        with case.follow(proxy.url) as following:
            proxy.kills(following, path)
        said = server.named()
        # A follower with the same directory owns the lease of the killed one.
        with case.follow(server.url) as following:
            case.recovers(f"killed after {path}", server, following)
        case.rows[-1][2] += f"; meanwhile it said {said}"
        if path == "/pause?mode=keep":
            case.rows[-1][1] &= said == name_of(before)
        elif path != "/finish_weight_update":
            case.rows[-1][1] &= said == "changing"


def changed(case: Vllm, server: Server, following: Follow) -> None:
    """Another client changes the server while it is followed."""
    server.call("reload_weights", weights_path=str(case.folder / "other"))
    case.recovers("reloaded behind the backend", server, following)
    server.ask("POST", "/pause?mode=keep")
    case.recovers("paused by somebody else", server, following)
    server.ask("POST", "/update_weight_version", {"new_version": "mine"})
    case.recovers("named by somebody else", server, following)


def proof(folder: Path, way: str) -> list[list[Any]]:
    """Returns rows of a name, whether the check passed, and a text."""
    case = Vllm(folder, way)
    with case.begin() as server, Proxy(server) as proxy:
        with case.follow(server.url) as following:
            case.recovers("first version", server, following)
        killed(case, server, proxy)
        if not case.is_own:
            by_hand(case, server)
        with case.follow(proxy.url) as following:
            following.until(lambda: "/is_paused" in proxy.paths)
            changed(case, server, following)
            if not case.is_own:
                refusals(case, server, proxy, following)
        server.end(signal.SIGKILL)
    if case.is_own:
        # The server loads the newest version before it opens its port, and no other version is
        # published.
        with (
            case.begin(start="newest", timeout=120.0) as server,
            case.follow(server.url) as following,
        ):
            case.recovers("started with the newest version", server, following)
    unfit, _ = stranger(folder)
    with (
        case.begin(**({"chain": str(unfit)} if case.is_own else {})) as server,
        Proxy(server) as proxy,
    ):
        case.unfit(server, proxy, unfit, {"/pause?mode=keep", "/update_weights"})
    return case.rows


def kills(folder: Path, way: str, count: int) -> list[list[Any]]:
    """Followers that are killed at random instants. Same rows as `proof`."""
    case = Vllm(folder, way)
    with case.begin() as server:

        def answer() -> tuple[str | None, Any]:
            before, said, after = server.named(), server.complete(PROMPTS[1]), server.named()
            return (before if before == after else None), said

        case.kills(server, count, answer)
    return case.rows


def by_hand(case: Vllm, server: Server) -> None:
    """Another client updates the server while no follower runs: to another model with the same
    number, and to weights that do not fit."""
    folder, rows, before = case.folder, case.rows, case.newest
    other, (unfit, theirs) = folder / "other-chain", stranger(folder)
    for made in (other, folder / "other-chain-copy"):
        shutil.rmtree(made, ignore_errors=True)
    with dc.Publisher(other, like=folder / "base") as publisher:
        its = publisher.publish(tensors_of(folder / "saved-1"))
    server.begin(host_copy=kept(other))
    server.update(its.version, its.digest)
    server.ask("POST", "/update_weight_version", {"new_version": name_of(before)})
    rows.append(
        [
            "another chain on the server",
            server.answers() not in case.fresh.values(),
            "as it was told",
        ]
    )
    with case.follow(server.url) as following:
        case.recovers("brought back from another chain", server, following)
    server.begin(host_copy=kept(unfit))
    said = refused(lambda: server.update(theirs.version, theirs.digest))
    (state,) = server.call("deltachain_state", follower="", lease="0")
    rows.append(
        [
            "a chain that does not fit, by hand",
            state["state"] == "held" and "shape" in said,
            said[:200],
        ]
    )
    with case.follow(server.url) as following:
        case.recovers("paused by hand", server, following)


def refusals(case: Vllm, server: Server, proxy: Proxy, following: Follow) -> None:
    """Updates that the server refuses, and the reports of the follower."""
    rows, second = case.rows, case.folder / "second-copy"
    shutil.rmtree(second, ignore_errors=True)
    server.ask("POST", "/start_weight_update", {})
    info = {"update_info": {"version": 0, "digest": case.newest.digest}}
    said = refused(lambda: server.ask("POST", "/update_weights", info))
    rows.append(
        ["an update by hand while it is followed", "updates this server" in said, said[:200]]
    )
    command = [
        sys.executable,
        "-m",
        "deltachain",
        "follow",
        case.chain,
        second,
        "--engine",
        "vllm",
        "--once",
    ]
    ran = subprocess.run([*command, "--server", server.url], capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    good = ran.returncode == 1 and str(case.copy) in said and case.is_right(server)
    rows.append(["a second follower", good, said[-300:]])

    # A real server refuses an update and closes that connection. Each time it resumes with the
    # version that it holds.
    def change(path: str, data: bytes) -> bytes:
        if path == "/update_weights" and proxy.paths.count(path) <= 5:
            return re.sub(b'"digest":"[0-9a-f]{64}"', b'"digest":"' + b"0" * 64 + b'"', data)
        return data

    proxy.changed = change
    proxy.paths.clear()
    before = case.newest
    case.publish()
    named = set()

    def is_there() -> bool:
        named.add(server.named())
        return case.is_newest(server)

    seconds = following.until(is_there)
    resumed, asked = proxy.paths.count("/resume"), proxy.paths.count("/update_weights")
    good = (resumed, asked) == (6, 6) and case.is_right(server)
    good = good and named <= {name_of(before), "changing", name_of(case.newest)}
    rows.append(
        ["refused 5 times", good, f"{seconds:.1f} s, resumed each time ({resumed} of {asked})"]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--way", choices=["copy", "own-copy", "in-place"], default="copy")
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    rows = (
        kills(given.folder, given.way, given.kills)
        if given.kills
        else proof(given.folder, given.way)
    )
    given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
