"""Ctrl-C at any instant in a publisher: it goes on to work, or says that it is closed."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import as_bytes
from test_torn import interrupted

import deltachain as dc

PACKAGE = str(Path(dc.__file__).parent)
# Real signals, at random times.
DRAWN = 20


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Whatever started the tests may have had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def weights(number: int) -> dict[str, dc.Tensor]:
    return {"w": dc.Tensor("U8", (64,), bytes([number % 251] * 64))}


def interrupted_at(line: int, work: Callable[[], Any]) -> bool:
    """Does this, with an interrupt at a line of the package, counted as they are run. Whether it was so long."""
    left = line

    def at_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return at_line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        return at_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(before)
    return left < 0


def ended(work: Callable[[], Any]) -> Any:
    """The result of what must end, in another thread, for which nothing may be locked any more either."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it hangs"
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


CALLS: dict[str, Callable[[dc.Publisher], Any]] = {
    "publish": lambda publisher: publisher.publish(weights(1)),
    "publish with stop": lambda publisher: publisher.publish(weights(1), stop=lambda: False),
    "publish_async": lambda publisher: publisher.publish_async(weights(1)),
    "publish_async twice": lambda publisher: [publisher.publish_async(weights(number)) for number in (1, 2)],
    "wait": lambda publisher: (publisher.publish_async(weights(1)), publisher.wait()),
    "head": lambda publisher: (publisher.publish_async(weights(1)), publisher.head),
    "close": lambda publisher: (publisher.publish_async(weights(1)), publisher.close()),
}


def refusal(work: Callable[[], Any]) -> dc.Error | None:
    """Why something that must end was refused, if it was."""
    try:
        ended(work)
    except dc.Error as error:
        return error
    return None


def assert_usable(publisher: dc.Publisher, number: int, url: Path) -> None:
    error = refusal(lambda: publisher.publish(weights(number)))
    if isinstance(error, dc.ChainError) and error.rule == "R-PUB-03":
        # The request for the commit before was given up, and the store has taken it later.
        error = refusal(lambda: publisher.publish(weights(number)))
    if error is not None:
        calls = (publisher.wait, lambda: publisher.publish_async(weights(0)), lambda: publisher.head)
        for one in (error, *map(refusal, calls)):
            assert isinstance(one, dc.UsageError) and "closed" in str(one)
        ended(publisher.close)
        return
    assert publisher.last is not None and publisher.last.is_new
    if number % 8 == 0:
        with dc.Subscriber(url) as subscriber:
            subscriber.prepare(publisher.last.version).apply()
            assert as_bytes(dict(subscriber.state())["w"]) == bytes([number % 251] * 64)


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_at_any_line(call: str, tmp_path: Path) -> None:
    def use() -> None:
        CALLS[call](publisher)

    line, is_inside, publisher = 0, True, dc.Publisher(tmp_path / "chain", snapshot_every=8)
    while is_inside:
        is_inside = interrupted_at(line, use)
        assert_usable(publisher, line, tmp_path / "chain")
        if repr(publisher).endswith("closed>"):
            publisher = dc.Publisher(tmp_path / "chain", snapshot_every=8)
        line += 1
    assert line > 20
    ended(publisher.close)
    assert dc.fsck(tmp_path / "chain").problems == ()


@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_signal_at_any_time(seed: int, tmp_path: Path) -> None:
    def use() -> None:
        CALLS[draw.choice([*CALLS])](publisher)

    draw = random.Random(seed)
    publisher = dc.Publisher(tmp_path / "chain")
    for number in range(4):
        with suppress(KeyboardInterrupt):
            interrupted(draw.random() * 0.01, use)
        assert_usable(publisher, number, tmp_path / "chain")
        if repr(publisher).endswith("closed>"):
            publisher = dc.Publisher(tmp_path / "chain")
    ended(publisher.close)
    assert dc.fsck(tmp_path / "chain").problems == ()


def test_a_thread_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with dc.Publisher(tmp_path / "chain") as publisher:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(dc.IoError, match="no thread can be started") as caught:
                publisher.publish(weights(0))
            assert caught.value.retryable
        assert publisher.publish(weights(1)).version == 0


def test_a_callback_of_a_job_publishes(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        versions: list[Any] = []
        is_done = threading.Event()

        def again(_: Any) -> None:
            try:
                versions.append(publisher.publish(weights(1)).version)
            except Exception as error:
                versions.append(error)
            is_done.set()

        publisher.publish_async(weights(0)).add_done_callback(again)
        assert is_done.wait(60) and versions == [1]
