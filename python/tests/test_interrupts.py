"""Ctrl-C at any instant in a publisher: the publisher still works, or says that it is closed. And
in a subscriber with the caller's own tensors: they hold a version, or the subscriber is torn.

In subscribers, every third line is interrupted by default; `DELTACHAIN_INTERRUPTED=all` interrupts
at every line.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import as_bytes
from test_torn import interrupted

import deltachain as dc
from deltachain import _native, _publisher

# Number of lines of a subscriber between two interrupts.
STRIDE = 1 if os.environ.get("DELTACHAIN_INTERRUPTED") == "all" else 3
PACKAGE = str(Path(dc.__file__).parent)
# Number of real signals at random times.
DRAWN = 20


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Restores the handler of SIGINT, which a parent process may have set to be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def weights(number: int) -> dict[str, dc.Tensor]:
    return {"w": dc.Tensor("U8", (64,), bytes([number % 251] * 64))}


def interrupted_at(
    line: int,
    work: Callable[[], Any],
    unit: str = "line",
    kept: list[BaseException] | None = None,
) -> bool:
    """Runs `work` and interrupts it at a line of the package, counted as they run. With the unit
    `opcode`, interrupts at an instruction, also in contextlib. `kept` collects the interrupts, with
    all that their tracebacks hold. Returns whether the work lasted until the interrupt."""
    left = line
    files = (PACKAGE,) if unit == "line" else (PACKAGE, contextlib.__file__)

    def at_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == unit:
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return at_line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(files):
            return None
        frame.f_trace_opcodes = unit == "opcode"
        return at_line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt as interrupt:
        if kept is not None:
            kept.append(interrupt)
    finally:
        sys.settrace(before)
    return left < 0


def ended(work: Callable[[], Any]) -> Any:
    """Runs `work`, which must end, in another thread, for which nothing may be locked, and returns
    its result."""
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
    """Returns the error if `work`, which must end, was refused."""
    try:
        ended(work)
    except dc.Error as error:
        return error
    return None


def assert_usable(publisher: dc.Publisher, number: int, url: Path) -> None:
    error = refusal(lambda: publisher.publish(weights(number)))
    if isinstance(error, dc.ChainError) and error.rule == "R-PUB-03":
        # The request for the previous commit was given up, and the store executed it later.
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


def test_a_lock_is_given_back_at_the_end_of_its_call_or_with_it() -> None:
    lock = _native.CallLock()
    with lock.call(), pytest.raises(dc.UsageError, match="another thread is using it"):
        lock.call().__enter__()
    lost = lock.call()
    lost.__enter__()
    with pytest.raises(dc.UsageError):
        lock.call().__enter__()
    # As if an exception came right after `__enter__`, before `with` had taken over.
    del lost
    with pytest.raises(KeyboardInterrupt), lock.call():
        raise KeyboardInterrupt
    with lock.call():
        pass


def head_of(publisher: dc.Publisher) -> Any:
    return publisher.head


def refused(publisher: dc.Publisher) -> Any:
    """A call that ends with an error."""
    with suppress(dc.UsageError):
        publisher.publish(5)


@pytest.mark.parametrize("call", [head_of, dc.Publisher.wait, refused])
def test_an_interrupt_at_any_instruction_gives_the_lock_back(
    call: Callable[[dc.Publisher], Any], tmp_path: Path
) -> None:
    """The lock is released even while the interrupt, and with it the frames of the call, is
    kept."""
    publisher = dc.Publisher(tmp_path / "chain")
    kept: list[BaseException] = []
    number, is_inside = 0, True
    while is_inside:
        is_inside = interrupted_at(number, lambda: call(publisher), "opcode", kept)
        assert ended(lambda: publisher.head) is None, number
        number += 1
    assert len(kept) == number - 1 > 100
    publisher.close()


def test_an_exception_of_another_thread_at_any_time_gives_the_lock_back(tmp_path: Path) -> None:
    class Thrown(BaseException):
        pass

    publisher = dc.Publisher(tmp_path / "chain")
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    begun, caught, is_over = 0, [], False

    def run() -> None:
        nonlocal begun
        while not is_over:
            try:
                begun += 1
                while not is_over:
                    publisher.wait()
            except Thrown as thrown:
                caught.append(thrown)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for number in range(1001):
        while begun <= number and thread.is_alive():
            thread.join(0.0001)
        assert thread.is_alive(), f"another error than the exception, after {len(caught)}"
        if number < 1000:
            throw(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Thrown))
    is_over = True
    thread.join(60)
    assert not thread.is_alive() and len(caught) == 1000
    assert ended(lambda: publisher.head) is None
    publisher.close()


class Paused:
    """A call in a thread of its own that pauses at a line of the package, counted as they run."""

    def __init__(self, line: int, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self._left, self._work = line, work
        self._has_stopped, self._may_go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._has_stopped.wait(60)

    def _run(self) -> None:
        sys.settrace(self._trace)
        try:
            self.result = self._work()
        except dc.UsageError as error:
            self.result = error
        finally:
            sys.settrace(None)
            self._has_stopped.set()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._at_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _at_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._left -= 1
            if self._left < 0 and not self._has_stopped.is_set():
                self._has_stopped.set()
                assert self._may_go_on.wait(60)
        return self._at_line

    def end(self) -> Any:
        """Lets the call continue, and returns its result or raises its error."""
        self._may_go_on.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result


def test_of_two_calls_that_begin_together_one_is_done(tmp_path: Path) -> None:
    publisher = dc.Publisher(tmp_path / "chain")
    publisher.publish(weights(0))
    refused_calls = 0
    for first_line in range(12):
        for second_line in (*range(12), *range(12, 100, 8)):
            calls = [Paused(line, lambda: publisher.head) for line in (first_line, second_line)]
            results = [call.end() for call in calls]
            refusals = [result for result in results if result != 0]
            assert len(refusals) < 2, (first_line, second_line)
            assert all("another thread is using it" in str(refusal) for refusal in refusals)
            refused_calls += len(refusals)
    assert refused_calls > 0, "they were never there together"
    publisher.close()


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
    """Returns a function of the standard library that is interrupted once, while `Condition` does
    not have its lock."""
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
    """Places of the interrupt: an object, its function, and a call of a publisher that uses the
    function."""
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
    """The interrupt that the caller handles is not the cause of the error."""

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


def test_a_job_is_waited_for_although_its_thread_is_taken_for_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11 takes a thread for ended after a `Thread.join` that was interrupted."""
    has_begun, may_go_on = threading.Event(), threading.Event()

    def progress(*_: object) -> None:
        has_begun.set()
        assert may_go_on.wait(60)

    def join(_: threading.Thread, timeout: float | None = None) -> None:
        may_go_on.set()

    def waiting(*given: Any) -> Any:
        may_go_on.set()
        return wait(*given)

    with dc.Publisher(tmp_path / "chain", progress=progress) as publisher:
        job = publisher.publish_async({"w": bytearray(1 << 20)})
        assert has_begun.wait(60)
        job.cancel()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "join", join)
            patched.setattr(threading.Thread, "is_alive", lambda _: False)
            patched.setattr(_publisher, "wait", waiting)
            publisher.wait()
        assert job.cancelled()


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
    """Returns some tensors, of which lanes change with each version."""
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
    """Tensors that follow a chain: by the library, by torch as on a device, or by a function that
    loads them.

    Attributes:
        version: the version that the tensors hold, as far as the caller knows.
    """

    def __init__(self, url: str, way: str) -> None:
        import torch

        self.tensors = {name: torch.zeros_like(tensor) for name, tensor in into_weights(0).items()}
        # A tensor with gaps.
        self.tensors["a"] = torch.zeros(10, 14, dtype=torch.bfloat16)[:, 3:9].t()
        self.subscriber = dc.Subscriber(url, into=self.load if way == "loader" else self.tensors)

    def load(self, given: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
        for name, tensor in given():
            self.tensors[name].copy_(tensor)
        return self.tensors

    def take(self, version: int) -> None:
        self.subscriber.prepare(version, timeout=60).apply()

    def holds(self, expected: dict[int, dict[str, bytes]]) -> int | None:
        """Returns the version that the tensors equal bit for bit."""
        now = {name: as_bytes(tensor) for name, tensor in self.tensors.items()}
        return next((version for version, own in expected.items() if own == now), None)


@pytest.mark.parametrize("begin", [None, 0, 2])
@pytest.mark.parametrize("way", ["library", "device", "loader"])
def test_an_interrupt_at_any_line_of_a_subscriber(
    way: str, begin: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupts while the subscriber loads a version as a whole, as it does backwards, too, and
    while it updates in place."""
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
        # After any interrupt, the subscriber can continue.
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
        # Frees what the interrupt's traceback still holds: it is in a young generation.
        gc.collect(1)
        line += STRIDE
    assert line > 50
    # A load of a whole version is torn for some lines. An update in place never is: it rolls back.
    assert (torn > 0) == (begin != 0 and way != "library")


def test_errors_that_are_kept_do_not_hold_up_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracebacks of the errors hold the function that passes on the tensors."""
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
