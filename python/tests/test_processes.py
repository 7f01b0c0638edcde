"""Other processes, other threads, signals, and the end of the interpreter."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import Chain, model, tool

import deltachain as dc

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="SKIPPED: this system has no fork")


def in_child(work) -> str:  # type: ignore[no-untyped-def]
    """Runs `work` in a forked child, which has 60 seconds, and returns its answer."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            text = work()
        except BaseException as error:  # the parent judges it
            text = f"{type(error).__name__}: {error}"
        os.write(write, str(text).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}: {said}"
    return said


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_cannot_use_its_parents_handles_and_the_parent_goes_on(chain: Chain) -> None:
    chain.publish(model(0))
    store = dc.Store(chain.url)
    subscriber = dc.Subscriber(store)
    update = subscriber.prepare()
    link = dc.snapshot({"a": b"x"})
    uses = (subscriber.poll, lambda: list(update.patches()), update.apply, subscriber.close)
    for use in (*uses, lambda: dc.log(store), lambda: dc.Subscriber(store)):
        assert in_child(use).startswith("ForkedError: this was opened before a fork"), use

    def anew() -> str:
        nonlocal subscriber, update
        # Dropping handles of the parent does not wait for threads that the child does not have.
        del subscriber, update
        own = dc.Subscriber(chain.url)
        own.prepare().apply()
        # Objects without threads and connections can be used, and so can functions, with threads of
        # the child's own.
        assert (
            str(dc.digest({"a": b"x"})) == link.target
            and bytes(dc.apply(None, [link])["a"].data) == b"x"
        )
        return f"{own.version}"

    assert in_child(anew) == "0"
    update.apply()
    chain.publish(model(1))
    subscriber.prepare().apply()
    assert subscriber.version == 1


def test_ctrl_c_ends_long_work() -> None:
    program = """
import deltachain as dc, os, signal, threading
# Whatever started the tests may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
def read(offset, length):
    if not fired.is_set():
        fired.set()
        os.kill(os.getpid(), signal.SIGINT)
    return bytes(length)
fired = threading.Event()
endless = {str(n): dc.Tensor("U8", (1 << 24,), read) for n in range(100_000)}
try:
    dc.digest(endless, threads=1)
except KeyboardInterrupt:
    print("ended", dc.digest({}).digest[:4])
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "ended f219\n"), ran.stderr


def test_the_interpreter_ends_while_a_thread_works(chain: Chain) -> None:
    chain.publish(model(0))
    program = f"""
import deltachain as dc, threading
begun = threading.Event()
def read(offset, length):
    begun.set()
    return bytes(length)
endless = {{str(n): dc.Tensor("U8", (1 << 24,), read) for n in range(100_000)}}
subscriber = dc.Subscriber({chain.url!r})
update = subscriber.prepare()
threading.Thread(target=dc.digest, args=(endless,), daemon=True).start()
begun.wait()
print("leaves")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "leaves\n", "")


def test_other_threads_run_meanwhile_and_one_handle_serves_one_of_them(chain: Chain) -> None:
    chain.publish(model(0))
    entered, leave = threading.Event(), threading.Event()

    def progress(*_: object) -> None:
        entered.set()
        leave.wait(60)

    def read(offset: int, length: int) -> bytes:
        # Runs while the caller's thread waits without holding the GIL.
        leave.set()
        return bytes(length)

    subscriber = dc.Subscriber(chain.url, progress=progress)
    worker = threading.Thread(target=subscriber.prepare)
    worker.start()
    assert entered.wait(60)
    with pytest.raises(dc.UsageError, match="another thread"):
        subscriber.poll()
    dc.digest({"w": dc.Tensor("U8", (9,), read)})
    worker.join(60)
    assert not worker.is_alive()
    subscriber.prepare().apply()


def test_the_tool_comes_along(tmp_path: Path) -> None:
    assert tool("--version").split()[0] == "deltachain"
    entry = next(iter(importlib.metadata.entry_points(group="console_scripts", name="deltachain")))
    assert entry.value == "deltachain.__main__:main" and callable(entry.load())
    wrong = subprocess.run(
        [sys.executable, "-m", "deltachain", "dif"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2 and "diff" in wrong.stderr
    refused = subprocess.run(
        [sys.executable, "-m", "deltachain", "verify", tmp_path / "missing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2 and "missing" in refused.stderr


def test_nothing_else_is_imported() -> None:
    program = (
        "import sys, deltachain; print(sorted({'numpy', 'torch', 'safetensors', 'ml_dtypes'} & "
        "set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "[]\n"
