"""Ctrl-C at any instant in a publisher: it goes on to work, or says that it is closed. And in a
subscriber with the caller's own tensors: they hold a version, or it says that they do not.

Of subscribers every third line by default; `DELTACHAIN_INTERRUPTED=all` interrupts at all of them.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import as_bytes
from test_torn import interrupted

import deltachain as dc

# Lines of a subscriber from one interrupt to the next.
STRIDE = 1 if os.environ.get("DELTACHAIN_INTERRUPTED") == "all" else 3
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
    """Does this, with an interrupt at a line of the package, counted as they are run. Whether it
    was so long."""
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
    """The result of what must end, in another thread, for which nothing may be locked any more
    either."""
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
    "publish_async twice": lambda publisher: [
        publisher.publish_async(weights(number)) for number in (1, 2)
    ],
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
        calls = (
            publisher.wait,
            lambda: publisher.publish_async(weights(0)),
            lambda: publisher.head,
        )
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

    line, is_inside, publisher = (
        0,
        True,
        dc.Publisher(tmp_path / "chain", routes=dc.RoutePlan(snapshot_every=8)),
    )
    while is_inside:
        is_inside = interrupted_at(line, use)
        assert_usable(publisher, line, tmp_path / "chain")
        if repr(publisher).endswith("closed>"):
            publisher = dc.Publisher(tmp_path / "chain", routes=dc.RoutePlan(snapshot_every=8))
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


def test_a_thread_that_cannot_be_started_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with dc.Publisher(tmp_path / "chain") as publisher:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(dc.IoError, match="no thread can be started") as caught:
                publisher.publish(weights(0))
            assert caught.value.retryable
        assert publisher.publish(weights(1)).version == 0


def masked(own: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the standard library with an interrupt, once, while `Condition` does not have
    its lock."""
    calls: list[None] = []

    def call(*given: Any, **named: Any) -> Any:
        result = own(*given, **named)
        calls.append(None)
        if len(calls) > 1:
            return result
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    return call


def masked_calls() -> dict[str, tuple[Any, str, Callable[[dc.Publisher], Any]]]:
    """Where the interrupt comes: an object, its function, and a call of a publisher that uses
    it."""
    at_start = (threading.Thread, "start")
    return {
        "publish_async, start": (*at_start, lambda own: own.publish_async(weights(7))),
        "publish, start": (*at_start, lambda own: own.publish(weights(7))),
        "publish, result": (Future, "result", lambda own: own.publish(weights(7))),
        "wait, join": (threading.Thread, "join", lambda own: own.wait()),
    }


@pytest.mark.parametrize("name", masked_calls())
def test_an_interrupt_within_the_standard_library_stays_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, function, call = masked_calls()[name]
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish_async(weights(0)).result()
        # The job that `wait` waits for.
        publisher.publish_async(weights(1))
        with monkeypatch.context() as patched:
            patched.setattr(owner, function, masked(getattr(owner, function)))
            with pytest.raises(KeyboardInterrupt):
                call(publisher)
        assert_usable(publisher, 3, tmp_path / "chain")


def test_no_thread_while_the_caller_handles_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller handles is not the cause."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with dc.Publisher(tmp_path / "chain") as publisher, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with pytest.raises(dc.IoError, match="no thread can be started"):
                publisher.publish(weights(0))


def test_an_interrupt_counts_more_than_a_tensor_that_was_refused(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, Any]]:
        yield "a", object()
        raise KeyboardInterrupt

    with dc.Publisher(tmp_path / "chain") as publisher:
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(stream())
        assert publisher.publish(weights(0)).version == 0


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


# The caller's own tensors.


def into_weights(version: int) -> dict[str, Any]:
    """Some tensors, of which lanes change with each version."""
    torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
    made = {
        "a": torch.arange(60).view(6, 10).bfloat16(),
        "b": torch.arange(40.0),
        "c": torch.arange(9).to(torch.uint8),
    }
    for name, tensor in made.items():
        tensor.view(-1)[:: 3 + len(name)] += version
    return made


class Following:
    """Tensors that follow a chain: by the library or by torch as on a device, or that a function
    loads.

    Attributes:
        version: what they were left at by the caller.
    """

    def __init__(self, url: str, way: str) -> None:
        import torch

        self.tensors = {name: torch.zeros_like(tensor) for name, tensor in into_weights(0).items()}
        # One that lies apart.
        self.tensors["a"] = torch.zeros(10, 14, dtype=torch.bfloat16)[:, 3:9].t()
        self.subscriber = dc.Subscriber(url, into=self.load if way == "loader" else self.tensors)

    def load(self, given: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
        for name, tensor in given():
            self.tensors[name].copy_(tensor)
        return self.tensors

    def take(self, version: int) -> None:
        self.subscriber.prepare(version, timeout=60).apply()

    def holds(self, expected: dict[int, dict[str, bytes]]) -> int | None:
        """Which version they are bit for bit."""
        now = {name: as_bytes(tensor) for name, tensor in self.tensors.items()}
        return next((version for version, own in expected.items() if own == now), None)


@pytest.mark.parametrize("begin", [None, 0, 2])
@pytest.mark.parametrize("way", ["library", "device", "loader"])
def test_an_interrupt_at_any_line_of_a_subscriber(
    way: str, begin: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it loads a version as a whole, which it also does backwards, and while it takes one in
    place."""
    pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
    from deltachain import _tensor_follower
    from deltachain._device_memory import DeviceMemory

    if way == "device":
        monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
    url = str(tmp_path / "chain")
    with dc.Publisher(url, profile="local") as publisher:
        for version in range(3):
            publisher.publish(into_weights(version))
    expected = {
        version: {name: as_bytes(tensor) for name, tensor in into_weights(version).items()}
        for version in range(3)
    }
    line, is_inside, torn = 0, True, 0
    while is_inside:
        following = Following(url, way)
        subscriber = following.subscriber
        if begin is not None:
            following.take(begin)
        before = {name: as_bytes(tensor) for name, tensor in following.tensors.items()}
        is_inside = interrupted_at(line, lambda following=following: following.take(1))
        held = following.holds(expected)
        if subscriber.torn:
            torn += 1
            assert subscriber.version is None and subscriber.proof is None
        else:
            assert held in (begin, 1), line
            assert subscriber.version in (None, held), line
            if held is None:
                assert before == {
                    name: as_bytes(tensor) for name, tensor in following.tensors.items()
                }, line
        # Whatever that was, it goes on.
        ended(lambda following=following: following.take(1))
        assert (following.holds(expected), subscriber.version, subscriber.torn) == (1, 1, False), (
            line
        )
        ended(lambda following=following: following.take(2))
        assert (following.holds(expected), subscriber.version, subscriber.torn) == (2, 2, False), (
            line
        )
        ended(subscriber.check)
        subscriber.close()
        # What an interrupt's traceback still holds: it is young.
        gc.collect(1)
        line += STRIDE
    assert line > 50
    # While it is loaded as a whole it is torn for some lines, in place never, since it goes back.
    assert (torn > 0) == (begin != 0 and way != "library")


def test_errors_that_are_kept_do_not_hold_up_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tracebacks have what was handing over the tensors."""
    torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
    from deltachain import _tensor_follower

    names = [str(number) for number in range(8)]
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish({name: torch.ones(4) for name in names})
    tensors = {name: torch.zeros(4) for name in names}

    def load(given: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
        for name, tensor in given():
            tensors[name].copy_(tensor)
        return tensors

    def shaped(*_: object) -> Any:
        raise MemoryError

    kept = []
    subscriber = dc.Subscriber(tmp_path / "chain", into=load, threads=1)
    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(MemoryError) as caught:
            patched.setattr(_tensor_follower, "shaped", shaped)
            ended(lambda: subscriber.prepare(0).apply())
        kept.append(caught.value)
        assert subscriber.torn
    ended(lambda: subscriber.prepare(0).apply())
    assert subscriber.version == 0 and all(bool(tensor.all()) for tensor in tensors.values())
    subscriber.close()
