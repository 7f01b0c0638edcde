"""Follows a chain under asyncio: each call runs in a thread, so that the event loop continues, and
ends with the task that awaits it.

    python asyncio_follower.py

Meanwhile it publishes versions to a temporary directory, and checks each version that it has
followed.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import deltachain as dc

T = TypeVar("T")
VERSIONS = 5


async def in_thread(work: Callable[..., T], *arguments: Any, **settings: Any) -> T:
    """Calls `work(*arguments, stop=..., **settings)` in a thread. If the task is cancelled, stops
    the work and waits until it has ended: only one thread at a time may use a subscriber."""
    stop = threading.Event()
    call = functools.partial(work, *arguments, stop=stop, **settings)
    # A future and not a task: the end of the loop cancels all tasks.
    done = asyncio.get_running_loop().run_in_executor(None, call)
    while not done.done():
        try:
            await asyncio.wait((done,))
        except asyncio.CancelledError:
            stop.set()
    if stop.is_set():
        # The result of the work is not needed any more.
        done.exception()
        raise asyncio.CancelledError
    return done.result()


async def follow(subscriber: dc.Subscriber) -> AsyncIterator[dc.Update]:
    """Yields each new version. Apply it before you ask for the next one."""
    while update := await in_thread(lambda stop: next(subscriber.follow(stop=stop), None)):
        yield update


async def main() -> None:
    """Follows a chain while another task publishes it."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder) / "chain"
        publisher = dc.Publisher(chain)
        await publisher.publish_async({"weight": bytes([0] * 1000)})
        with dc.Subscriber(chain) as subscriber:
            async for update in follow(subscriber):
                await asyncio.to_thread(update.apply)
                ((_, weight),) = subscriber.state()
                assert set(bytes(weight.data)) == {update.version}
                if update.version == VERSIONS - 1:
                    break
                await publisher.publish_async({"weight": bytes([update.version + 1] * 1000)})
        await asyncio.to_thread(publisher.close)
    print(f"each of {VERSIONS} versions was followed")


if __name__ == "__main__":
    asyncio.run(main())
