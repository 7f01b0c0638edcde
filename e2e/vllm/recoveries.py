"""A server of vLLM that `deltachain follow --engine vllm` finds in a state that it has not left it in: the follower was
killed in the middle, somebody else has changed or paused the server, requests are refused. `run.py` starts this."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import deltachain as dc
from follow import Follow
from models import tensors_of
from server import Server, fresh


class Proxy:
    """Passes bytes on to a server and back, while the block lasts; a connection ends where the server ends it.

    Attributes:
        changed: may change bytes of a request, given its path.
        answered: called with a path before its answer is passed on.
        paths: what was asked.
    """

    def __init__(self, server: Server) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def refused(act: Callable[[], object]) -> str:
    """What a server says that refuses this; nothing if it does not."""
    try:
        act()
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")
    return ""


def kept(chain: Path) -> str:
    """A directory at the newest version of a chain."""
    copy = chain.with_name(f"{chain.name}-copy")
    with dc.Subscriber(chain, host_copy=copy) as subscriber:
        subscriber.prepare(timeout=60).apply()
    return str(copy)


def proof(folder: Path) -> list[list[Any]]:
    """Rows of a name, whether it went as it should, and a text."""
    rows: list[list[Any]] = []
    chain, copy = folder / "recovered", folder / "recovered-copy"
    second, other, stranger = folder / "second-copy", folder / "other-chain", folder / "other-kind"
    for made in (chain, copy, second, other, stranger, folder / "other-chain-copy", folder / "other-kind-copy"):
        shutil.rmtree(made, ignore_errors=True)
    fresh_of = {number: fresh(folder, number, plain=False) for number in (3, 4)}
    with dc.Publisher(chain, like=folder / "base") as publisher:
        first = publisher.publish(tensors_of(folder / "saved-4"))
    # The same number, and other weights; and weights that do not fit.
    with dc.Publisher(other, like=folder / "base") as publisher:
        its = publisher.publish(tensors_of(folder / "saved-1"))
    with dc.Publisher(stranger) as publisher:
        unfit = publisher.publish({name: tensor[:1] for name, tensor in tensors_of(folder / "base").items()})

    with Server(folder / "other", folder / "server.log", plain=False) as server, Proxy(server) as proxy:

        def is_at(published: dc.Published) -> bool:
            # Asked by nobody, for no time.
            (state,) = server.call("deltachain_state", follower="", lease="0")
            is_paused = server.ask("GET", "/is_paused")["is_paused"]
            return (state["digest"], server.named(), is_paused) == (published.digest, name_of(published), False)

        def recovers(name: str, number: int, published: dc.Published) -> None:
            """A follower brings the server to a version, and it answers like a fresh one."""
            with Follow(chain, copy, server.url, "--engine", "vllm") as following:
                seconds = following.until(lambda: is_at(published))
                good = server.answers() == fresh_of[number]
            rows.append([name, good, f"{seconds:.1f} s"])

        def name_of(published: dc.Published) -> str:
            return f"{published.version}@{published.digest[:12]}"

        recovers("first version", 4, first)

        # Killed between two requests. Versions 1 to 4 are the weights of 3 and 4 in turn.
        before, number = first, 4
        for path in ("/pause?mode=keep", "/start_weight_update", "/update_weights", "/finish_weight_update"):
            number = 7 - number
            with dc.Publisher(chain, like=folder / "base") as publisher:
                published = publisher.publish(tensors_of(folder / f"saved-{number}"))
            killed = threading.Event()
            with Follow(chain, copy, proxy.url, "--engine", "vllm") as following:

                def kill(asked: str, path: str = path, following: Follow = following, killed: Any = killed) -> None:
                    if asked == path and not killed.is_set():
                        following.kill()
                        killed.set()

                proxy.answered = kill
                killed.wait(120)
            proxy.answered = lambda path: None
            said = server.named()
            # The lease of a follower with this directory is its own.
            recovers(f"killed after {path}", number, published)
            rows[-1][2] += f"; meanwhile it said {said}"
            if path == "/pause?mode=keep":
                rows[-1][1] &= said == name_of(before)
            elif path != "/finish_weight_update":
                rows[-1][1] &= said == "changing"
            before = published

        # Somebody else updates it by hand, while nobody follows: the same number, and another model.
        server.begin(host_copy=kept(other))
        server.update(its.version, its.digest)
        server.ask("POST", "/update_weight_version", {"new_version": name_of(before)})
        rows.append(["another chain on the server", server.answers() not in fresh_of.values(), "as it was told"])
        recovers("brought back from another chain", number, before)
        server.begin(host_copy=kept(stranger))
        said = refused(lambda: server.update(unfit.version, unfit.digest))
        is_paused = server.ask("GET", "/is_paused")["is_paused"]
        rows.append(["torn by a chain that does not fit", is_paused and "two versions" in said, said[:200]])
        recovers("brought back from torn", number, before)

        with Follow(chain, copy, proxy.url, "--engine", "vllm") as following:
            following.until(lambda: "/is_paused" in proxy.paths)
            # While it is followed: weights that are changed, a pause, an update by hand, another follower.
            server.call("reload_weights", weights_path=str(folder / "other"))
            seconds = following.until(lambda: is_at(before))
            good = server.answers() == fresh_of[number]
            rows.append(["reloaded behind the backend", good, f"{seconds:.1f} s"])
            server.ask("POST", "/pause?mode=keep")
            seconds = following.until(lambda: is_at(before))
            rows.append(["paused by somebody else", server.answers() == fresh_of[number], f"{seconds:.1f} s"])
            server.ask("POST", "/start_weight_update", {})
            info = {"update_info": {"version": 0, "digest": first.digest}}
            said = refused(lambda: server.ask("POST", "/update_weights", info))
            rows.append(["an update by hand while it is followed", "updates this server" in said, said[:200]])
            command = [sys.executable, "-m", "deltachain", "follow", chain, second, "--engine", "vllm", "--once"]
            ran = subprocess.run([*command, "--server", server.url], capture_output=True, text=True)
            said = ran.stdout + ran.stderr
            good = ran.returncode == 1 and str(copy) in said and server.answers() == fresh_of[number]
            rows.append(["a second follower", good, said[-300:]])

            # The real server refuses an update, and ends that connection; each time it goes on with what it has.
            def change(path: str, data: bytes) -> bytes:
                if path == "/update_weights" and proxy.paths.count(path) <= 5:
                    return re.sub(b'"digest":"[0-9a-f]{64}"', b'"digest":"' + b"0" * 64 + b'"', data)
                return data

            proxy.changed = change
            proxy.paths.clear()
            number = 7 - number
            with dc.Publisher(chain, like=folder / "base") as publisher:
                published = publisher.publish(tensors_of(folder / f"saved-{number}"))
            named = set()

            def is_there() -> bool:
                named.add(server.named())
                return is_at(published)

            seconds = following.until(is_there)
            resumed, asked = proxy.paths.count("/resume"), proxy.paths.count("/update_weights")
            good = (resumed, asked) == (6, 6) and server.answers() == fresh_of[number]
            good = good and named <= {name_of(before), "changing", name_of(published)}
            rows.append(["refused 5 times", good, f"{seconds:.1f} s, resumed each time ({resumed} of {asked})"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.write_text(json.dumps(proof(given.folder)))


if __name__ == "__main__":
    main()
