"""Waiting calls can be cancelled under asyncio and by `stop=`: they end at once, and change
nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Chain, as_bytes, model
from stalling_store import StallingStore

import deltachain as dc

WEIGHTS = {"w": b"abc"}
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe of the README and of the example for awaiting calls."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("asyncio_follower").in_thread


async def stands(store: StallingStore) -> None:
    assert await asyncio.to_thread(store.stands.wait, 60)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_download_ends_at_once_and_can_be_done_again(in_thread: Any) -> None:
    async def main() -> None:
        with StallingStore() as store:
            with dc.Publisher(store.chain()) as pub:
                assert (await pub.publish_async(WEIGHTS)).version == 0
            # Without a cancel, the download would stall for an hour.
            store.stall, store.methods = 3600, ("GET",)
            with dc.Subscriber(store.chain(stall=3600)) as subscriber:
                task = asyncio.create_task(in_thread(subscriber.prepare))
                await stands(store)
                with pytest.raises(
                    dc.UsageError, match="another thread is using it: one at a time"
                ):
                    subscriber.poll()
                # An impatient caller cancels it twice.
                task.cancel()
                await asyncio.sleep(0)
                await cancelled(task)
                # The thread has ended, so another one can use the subscriber at once.
                assert subscriber.version is None and not subscriber.torn
                store.stands.clear()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await in_thread(subscriber.prepare)
                store.stall = 0
                update = await in_thread(subscriber.prepare, timeout=60)
                update.apply()
                assert subscriber.version == 0

    asyncio.run(main())


def test_a_wait_for_the_next_version_is_cancelled_wherever_it_is(
    chain: Chain, in_thread: Any
) -> None:
    chain.publish(model(0))

    async def main() -> None:
        with dc.Subscriber(chain.url) as subscriber:
            (await in_thread(subscriber.prepare)).apply()

            def followed(stop: threading.Event) -> dc.Update | None:
                return next(subscriber.follow(stop=stop), None)

            for turns in (0, 1, 2, 5):
                for wait in (subscriber.prepare, followed):
                    task = asyncio.ensure_future(in_thread(wait))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await cancelled(task)
            chain.publish(model(1))
            assert (await in_thread(subscriber.prepare, timeout=60)).version == 1

    asyncio.run(main())


def test_an_error_of_the_call_is_that_of_the_task(chain: Chain, in_thread: Any) -> None:
    async def main() -> None:
        with dc.Subscriber(chain.url) as subscriber:
            with pytest.raises(dc.TimeoutError):
                await in_thread(subscriber.prepare, timeout=0)
            subscriber.close()
            with pytest.raises(dc.UsageError, match="closed"):
                await in_thread(subscriber.poll)

    asyncio.run(main())


@pytest.mark.parametrize(
    "wait", ["subscriber.prepare", "lambda stop: next(subscriber.follow(stop=stop), None)"]
)
def test_the_loop_ends_although_a_task_waits_for_a_version(chain: Chain, wait: str) -> None:
    chain.publish(model(0))
    text = f"""
        import asyncio, sys
        import deltachain as dc
        from asyncio_follower import in_thread

        async def main():
            subscriber = dc.Subscriber(sys.argv[1])
            (await in_thread(subscriber.prepare)).apply()
            task = asyncio.ensure_future(in_thread({wait}))
            await asyncio.sleep(0.2)
            assert not task.done()

        asyncio.run(main())
        print("ended")
        """
    command = [sys.executable, "-c", textwrap.dedent(text), chain.url]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=EXAMPLES
    )
    assert (ran.stdout, ran.stderr) == ("ended\n", "")


def stalled_publisher(store: StallingStore) -> dc.Publisher:
    """Returns a publisher whose next uploads of links stall."""
    publisher = dc.Publisher(store.chain(stall=3600))
    store.stall = 3600
    return publisher


def test_a_publish_ends_with_the_task_that_awaits_it() -> None:
    async def main() -> None:
        with StallingStore() as store:
            publisher = stalled_publisher(store)
            job = publisher.publish_async(WEIGHTS)

            async def published() -> dc.reports.PublishReport:
                return await job

            task = asyncio.create_task(published())
            await stands(store)
            await cancelled(task)
            store.stall = 0
            # The caller cancelled the job itself, so the next call does not report its error.
            again = publisher.publish_async(WEIGHTS)
            assert job.cancelled() and (await again).version == 0
            assert (await asyncio.wrap_future(publisher.publish_async({"w": b"abd"}))).version == 1
            publisher.close()

    asyncio.run(main())


def test_a_future_says_whether_it_was_cancelled() -> None:
    with StallingStore() as store:
        publisher = stalled_publisher(store)
        job = publisher.publish_async(WEIGHTS)
        called: list[Any] = []
        job.add_done_callback(called.append)
        assert store.stands.wait(60)
        assert job.running() and not job.done() and not job.cancelled()
        assert not concurrent.futures.wait([job], timeout=0).done
        assert job.cancel()
        for ask in (job.result, job.exception):
            with pytest.raises(dc.CancelledError, match="cancelled") as caught:
                ask(60)
            assert (
                isinstance(caught.value, concurrent.futures.CancelledError) and caught.value.advice
            )
        assert job.cancelled() and job.done() and not job.running() and called == [job]
        assert not job.cancel() and job.cancelled()
        assert list(concurrent.futures.as_completed([job], timeout=60)) == [job]
        assert not [name for name in store.objects if "/commits/" in name]
        # A job that has succeeded is not cancelled, even by a later `cancel`.
        store.stall = 0
        job = publisher.publish_async(WEIGHTS)
        assert [
            done.result().version for done in concurrent.futures.as_completed([job], timeout=60)
        ] == [0]
        assert (
            not job.cancel()
            and not job.cancelled()
            and job.result().version == 0
            and job.exception() is None
        )
        publisher.close()


def after(event: threading.Event, calls: int) -> Callable[[], bool]:
    """Returns a `stop` that is true after this many calls since the event."""
    left = calls

    def stop() -> bool:
        nonlocal left
        left -= event.is_set()
        return left < 0

    return stop


def test_every_wait_ends_by_stop(chain: Chain) -> None:
    subscriber = dc.Subscriber(chain.url)
    asked = threading.Event()
    asked.set()
    for wait in (subscriber.prepare, lambda stop: subscriber.prepare(5, stop=stop)):
        with pytest.raises(dc.CancelledError, match="stopped"):
            wait(stop=after(asked, 2))
    for call in (subscriber.prepare, subscriber.poll):
        with pytest.raises(dc.CancelledError):
            call(stop=asked)  # type: ignore[operator]
        with pytest.raises(dc.UsageError, match="stop= must be an event"):
            call(stop=5)  # type: ignore[operator]
    with StallingStore() as store:
        publisher = stalled_publisher(store)
        with pytest.raises(dc.CancelledError):
            publisher.publish(WEIGHTS, stop=store.stands)
        store.stands.clear()
        job = publisher.publish_async(WEIGHTS)
        assert store.stands.wait(60)
        for wait in (publisher.wait, lambda stop: publisher.publish_async(WEIGHTS, stop=stop)):
            with pytest.raises(dc.CancelledError, match="still being published"):
                wait(stop=after(store.stands, 2))
        assert job.running()
        job.cancel()
        store.stall = 0
        assert publisher.publish(WEIGHTS, stop=threading.Event()).version == 0
        store.stands.clear()
        store.stall, store.methods = 3600, ("GET",)
        follower = dc.Subscriber(store.chain(stall=3600))
        with pytest.raises(dc.CancelledError):
            follower.prepare(stop=store.stands)
        store.stall = 0
        update = follower.prepare(timeout=60, stop=threading.Event())
        assert update.version == 0
        update.apply()
        for prove in (follower.check, follower.verify):
            with pytest.raises(dc.CancelledError):
                prove(stop=asked)
            with pytest.raises(dc.UsageError, match="stop= must be an event"):
                prove(stop=5)  # type: ignore[arg-type]
        publisher.close()


@pytest.mark.parametrize("timeout", [0.05, 0.0])
def test_a_chain_may_come_later(
    tmp_path: Path, timeout: float, caplog: pytest.LogCaptureFixture
) -> None:
    url = tmp_path / "not yet" / "a chain"
    with dc.Subscriber(url) as subscriber:
        for call in (subscriber.poll, subscriber.prepare):
            with pytest.raises(dc.UsageError, match="no such directory") as caught:
                call()  # type: ignore[operator]
            assert caught.value.file == str(url) and "timeout=" in caught.value.advice
        with pytest.raises(dc.TimeoutError):
            subscriber.prepare(timeout=timeout, poll=0.01)
        assert subscriber.poll(timeout=60) is None
        assert list(subscriber.follow(stop=lambda: "does not exist yet" in caplog.text)) == []
        with dc.Publisher(url) as publisher:
            publisher.publish(WEIGHTS)
        update = subscriber.prepare(timeout=60)
        update.apply()
        assert {name: as_bytes(tensor) for name, tensor in subscriber.state()} == WEIGHTS
