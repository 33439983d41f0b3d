"""One background event loop for all sessions of a process."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class SessionLoop:
    """An event loop on a thread of its own, which many threads hand small things to do.

    A thread that hands something over while the loop is being woken does not wake it again: under load one wake-up
    serves many calls.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._waking = False
        self._answered: list[threading.Lock] = []
        self._thread = threading.Thread(target=self._run, name="tiltyard-sessions", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., None], *args: Any) -> None:
        """Run something short on the loop's thread, soon; it must not raise and is not waited for."""
        self._calls.append((call, args))
        if not self._waking:
            self._waking = True
            self.loop.call_soon_threadsafe(self._drain)

    def let_go(self, lock: threading.Lock) -> None:
        """Release a lock that a thread waits for, after all that can be read now is read; on the loop's thread only.

        A thread that runs between two reads takes the interpreter from the loop, and the loop takes it back: at many
        sessions that costs more than the reads.
        """
        if not self._answered:
            self.loop.call_soon(self._let_all_go)
        self._answered.append(lock)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt cancels it."""
        return self.wait(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, future: "Future[T]") -> T:
        """Wait for what was begun; an interrupt cancels it.

        Raises:
            CancelledError: It was cancelled, by another thread.
        """
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _let_all_go(self) -> None:
        answered, self._answered = self._answered, []
        for lock in answered:
            lock.release()

    def _drain(self) -> None:
        self._waking = False  # before the calls are taken: what comes from now on wakes the loop again
        calls = self._calls
        while calls:
            call, args = calls.popleft()
            call(*args)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_current: SessionLoop | None = None
_lock = threading.Lock()


def session_loop() -> SessionLoop:
    """The loop of this process, made when it is first asked for; a forked child gets one of its own."""
    global _current  # noqa: PLW0603  # one a process is the point
    if _current is None:
        with _lock:
            if _current is None:
                _current = SessionLoop()
    return _current


def _forget() -> None:
    """In a forked child: the parent's loop has no thread here, and its lock may be held for ever."""
    global _current, _lock
    _current, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
