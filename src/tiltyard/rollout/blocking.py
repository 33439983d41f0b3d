"""Coroutines for callers that do not await, whether an event loop is running in their thread or not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_POLL_S = 0.1


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on an event loop of its own and wait for it.

    Where a loop is running in this thread (a notebook), the coroutine runs on a thread of its own; a Ctrl-C cancels
    it there and is raised here when it has ended.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    return _Elsewhere(make).wait()


class _Elsewhere:
    """A coroutine on a thread with an event loop of its own."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._make = make
        self._result: Any = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="tiltyard-rollout", daemon=True)
        self._thread.start()

    def wait(self) -> Any:
        """The coroutine's result.

        Raises:
            BaseException: Whatever it raised.
        """
        try:
            self._join()
        except BaseException:
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            raise
        if self._error is not None:
            raise self._error
        return self._result

    def _join(self) -> None:
        waiter = asyncio.current_task()
        while self._thread.is_alive():
            self._thread.join(CANCEL_POLL_S)
            # `asyncio.run` answers the first Ctrl-C by cancelling its task, which cannot notice while it waits here.
            if waiter is not None and waiter.cancelling():
                raise asyncio.CancelledError

    def _run(self) -> None:
        try:
            self._result = asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  # carried to the thread that waits
            self._error = error

    async def _main(self) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await self._make()
