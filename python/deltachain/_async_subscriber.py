"""Following a chain under asyncio: each call runs in a thread, and ends with the task that awaits
it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

from ._ranks import started
from ._subscriber import Follower, Update

__all__ = ["AsyncSubscriber", "in_thread"]

_T = TypeVar("_T")


async def in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    """Calls `work(*arguments, until=...)` in a thread of its own. If the task is cancelled,
    `until()` is True from then on, and the task ends when the work has ended."""
    # Whoever awaits this has imported it. It takes as long as all of this package.
    import asyncio

    stop = threading.Event()
    # In a daemon: a loop that is given up without cancelling its tasks does not keep the
    # interpreter.
    work = partial(contextvars.copy_context().run, work, *arguments, until=stop.is_set)
    result = asyncio.wrap_future(started(work, "deltachain-async", stop=stop.set))
    cancelled: asyncio.CancelledError | None = None
    while not result.done():
        try:
            await asyncio.wait((result,))
        except asyncio.CancelledError as error:
            stop.set()
            cancelled = error
    if cancelled is not None:
        # Whether the work has failed is of no interest any more.
        result.exception()
        raise cancelled
    return result.result()


class AsyncSubscriber(Follower):
    """A `Subscriber` for asyncio. Arguments, properties and updates are those of `Subscriber`.

        async with dc.AsyncSubscriber("s3://models/run7") as subscriber:
            async for update in subscriber.follow():
                with update.applying() as patches:
                    ...

    Calls run in a thread, so the loop never waits for them. If the task of a call is cancelled, the
    call ends at once; nothing has changed then, and the subscriber can be used again. Only one task
    may use it at a time.

    Updates themselves are not asynchronous. `applying()` and `full()` patch your engine, so their
    blocks belong where the engine is; for `apply()` of a large host copy, use
    `await asyncio.to_thread(update.apply)`.
    """

    async def __aenter__(self) -> AsyncSubscriber:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Subscriber.close`."""
        await in_thread(lambda until: self._close())

    async def poll(self, *, timeout: float | None = None) -> Update | None:
        """As `Subscriber.poll`."""
        return await in_thread(self._polled, timeout)

    async def find(
        self, version: int | None = None, *, timeout: float | None = None
    ) -> Update | None:
        """As `Subscriber.find`."""
        return await in_thread(self._poll, version, timeout)

    async def prepare(
        self, version: int | None = None, *, timeout: float | None = None, poll: float = 0.5
    ) -> Update:
        """As `Subscriber.prepare`."""
        return await in_thread(self._prepared, version, timeout, poll)

    async def follow(
        self, *, poll: float = 2.0, poll_longest: float = 30.0, every: int | None = None
    ) -> AsyncIterator[Update]:
        """As `Subscriber.follow`, until the task is cancelled or the loop ends by `break`."""
        polling = self._polling(poll, poll_longest, every)
        refused = False
        while update := await in_thread(self._next, polling, refused):
            yield update
            refused = self.version != update.version

    async def check(self) -> float:
        """As `Subscriber.check`."""
        return await in_thread(self._compared)

    async def verify(self) -> None:
        """As `Subscriber.verify`."""
        await in_thread(self._verified)
