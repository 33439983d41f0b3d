"""Blocking calls beside an event loop, and an event loop beside a caller that blocks."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any


async def on_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call on a daemon thread of its own; one that is given up on is not waited for, even at exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as caught:  # noqa: BLE001  # carried to the loop that waits
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="tiltyard-score", daemon=True).start()
    return await future


class LoopThread:
    """An event loop on a daemon thread, inside an async context for as long as this one is entered."""

    def __init__(self, context: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """Start nothing yet; `context` is entered and left on the loop."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tiltyard-beside", daemon=True)
        self._context = context()

    def submit(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Begin to run a coroutine; the future has what comes of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def __enter__(self) -> "LoopThread":
        self._thread.start()
        try:
            self.submit(self._begin()).result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.submit(self._end()).result(timeout=5.0)
        finally:
            self._stop()

    async def _begin(self) -> None:
        await self._context.__aenter__()

    async def _end(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._context.__aexit__(None, None, None)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()
