"""Blocking calls of an event loop, on threads of our own."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tiltyard.rollout.workers import EnvWorkers


class LoopWorkers:
    """Awaits blocking calls that run on the threads of `EnvWorkers`, each with its deadline.

    Results that come while the loop is busy are collected together, so that a call costs a fraction of a wake-up.
    """

    def __init__(self, timeout_s: float | None) -> None:
        """Belong to the event loop that is running."""
        self._loop = asyncio.get_running_loop()
        self._workers = EnvWorkers(timeout_s, notify=self._wake)
        self._woken = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def abandoned(self) -> int:
        """How many calls have passed their deadline."""
        return self._workers.abandoned

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run one call and wait for it, without holding up the loop.

        Raises:
            EnvTimeoutError: The call passed its deadline.
            BaseException: Whatever the call raised.
        """
        future = self._loop.create_future()
        self._workers.submit(future, call)
        if self._timer is None:
            self._set_timer()
        return await future

    def stop(self) -> None:
        """Start no further call and wait for none."""
        self._stopped = True
        self._workers.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        """Tell the loop that a call has ended; from any thread."""
        if self._woken or self._stopped:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            # The loop was closed since: nobody waits any more.
            self._stopped = True

    def _collect(self) -> None:
        # First, so that a call that ends from here on wakes the loop again.
        self._woken = False
        for work in self._workers.collect(0):
            future = work.tag
            assert isinstance(future, asyncio.Future)
            if future.done():  # whoever waited was cancelled
                continue
            if work.error is None:
                future.set_result(work.result)
            else:
                future.set_exception(_settable(work.error))

    def _set_timer(self) -> None:
        deadline = self._workers.next_deadline
        if deadline is None or self._stopped:
            self._timer = None
        else:
            self._timer = self._loop.call_later(max(deadline - time.monotonic(), 0.0), self._overdue)

    def _overdue(self) -> None:
        self._collect()
        self._set_timer()


def _settable(error: BaseException) -> BaseException:
    """A `StopIteration` cannot be raised into a coroutine; it is a bug of the call like any other."""
    if isinstance(error, StopIteration):
        wrapped = RuntimeError("an environment call raised StopIteration")
        wrapped.__cause__ = error
        return wrapped
    return error
