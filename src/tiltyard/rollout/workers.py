"""Threads of our own for calls into environments, each call with a deadline."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltyard.errors import EnvTimeoutError

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Work:
    """One call, and what came of it: `result`, or `error` where it raised or passed its deadline."""

    tag: Hashable
    call: Callable[[], Any]
    deadline: float
    result: Any = None
    error: BaseException | None = None
    abandoned: bool = False
    began: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long the call itself took; None while it has not ended."""
        return None if self.began is None or self.ended is None else self.ended - self.began


class EnvWorkers:
    """Runs blocking calls on daemon threads; there are as many threads as calls that ran at one time.

    A call that passes its deadline cannot be stopped, only abandoned: its result is dropped when it comes, and the
    thread is not waited for, not even when the process exits. One thread submits and collects; it can be
    interrupted while it waits, or is told by `notify`, which the threads call each time a call has ended.

    Attributes:
        abandoned: How many calls have passed their deadline.
    """

    def __init__(
        self,
        timeout_s: float | None,
        *,
        name: str = "tiltyard-env",
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._timeout_s = timeout_s
        self._name = name
        self._notify = notify
        self._todo: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Work, Any, BaseException | None]] = queue.SimpleQueue()
        # Counts the threads that wait and that no submitted call has been promised to.
        self._idle = threading.Semaphore(0)
        self._threads = 0
        self._stopped = False
        self._woken = False
        # In the order of submission, and so in the order of the deadlines.
        self._pending: dict[Work, None] = {}
        self._stuck: set[Work] = set()
        self.abandoned = 0

    @property
    def pending(self) -> int:
        """How many calls are submitted and neither collected nor abandoned."""
        return len(self._pending)

    @property
    def next_deadline(self) -> float | None:
        """When `time.monotonic` passes the first deadline of a pending call; None where there is none."""
        first = next(iter(self._pending), None)
        return None if first is None or first.deadline == float("inf") else first.deadline

    @property
    def stuck(self) -> int:
        """How many abandoned calls still hold their thread."""
        return sum(work.ended is None for work in self._stuck)

    def submit(self, tag: Hashable, call: Callable[[], Any]) -> None:
        """Run `call` on a thread; `collect` gives it back under `tag`."""
        limit = float("inf") if self._timeout_s is None else time.monotonic() + self._timeout_s
        work = Work(tag, call, limit)
        self._pending[work] = None
        if not self._idle.acquire(blocking=False):
            self._threads += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._todo.put(work)

    def collect(self, wait_s: float | None) -> list[Work]:
        """Return the calls that have ended or passed their deadline; wait for the first one up to `wait_s`.

        None waits until there is one; with nothing pending it returns at once.
        """
        found = self._take_ended()
        if found or not self._pending or self._woken:
            self._woken = False
            return found
        now = time.monotonic()
        wake = min(now + wait_s if wait_s is not None else float("inf"), next(iter(self._pending)).deadline)
        try:
            ended = self._done.get(timeout=None if wake == float("inf") else max(wake - now, 0.0))
        except queue.Empty:
            return self._take_overdue()
        return self._accept(*ended) + self._take_ended()

    def wake(self) -> None:
        """From any thread: let `collect` return, with nothing if need be, now or the next time that it is called."""
        self._woken = True  # before the empty result, which ends the waiting
        self._done.put((Work(None, lambda: None, 0.0, abandoned=True), None, None))

    def run(self, call: Callable[[], Any]) -> Any:
        """Run one call and wait for it; nothing else may be pending.

        Raises:
            EnvTimeoutError: The call passed its deadline.
            BaseException: Whatever the call raised.
        """
        self.submit(None, call)
        found: list[Work] = []
        while not found:
            found = self.collect(None)
        if (error := found[0].error) is not None:
            raise error
        return found[0].result

    def stop(self) -> None:
        """Start no further call, and let the threads go as soon as they are free; waits for none."""
        self._stopped = True
        for _ in range(self._threads):
            self._todo.put(None)

    def _take_ended(self) -> list[Work]:
        found: list[Work] = []
        while True:
            try:
                found += self._accept(*self._done.get_nowait())
            except queue.Empty:
                return found + self._take_overdue()

    def _take_overdue(self) -> list[Work]:
        now = time.monotonic()
        found: list[Work] = []
        for work in self._pending:
            if work.deadline > now:
                break
            # One that has ended is in the queue, and is judged there by when it ended.
            if work.ended is None:
                found.append(work)
        for work in found:
            self._abandon(work)
            self._stuck.add(work)
        return found

    def _accept(self, work: Work, result: Any, error: BaseException | None) -> list[Work]:
        if work.abandoned:
            self._stuck.discard(work)
            return []
        if work.ended is not None and work.ended > work.deadline:
            self._abandon(work)
        else:
            del self._pending[work]
            work.result, work.error = result, error
        return [work]

    def _abandon(self, work: Work) -> None:
        del self._pending[work]
        work.abandoned = True
        work.error = EnvTimeoutError(
            f"the environment did not return within step_timeout_s={self._timeout_s:g} (in a manifest "
            "environment.request_timeout_s); the call is abandoned"
        )
        self.abandoned += 1

    def _serve(self) -> None:
        while (work := self._todo.get()) is not None and not self._stopped:
            result, error = None, None
            work.began = time.monotonic()
            try:
                result = work.call()
            except BaseException as caught:  # noqa: BLE001  # carried to the thread that collects
                error = caught
            work.ended = time.monotonic()
            self._done.put((work, result, error))
            self._idle.release()
            self._notify()
            # Hold nothing of the call while waiting for the next one.
            del work, result, error


@dataclass(slots=True)
class Closing:
    """The closing of several things at once, each on its own daemon thread.

    A thread is not interrupted by Ctrl-C, so a close that has begun goes on; `wait` is what can be interrupted.

    Attributes:
        errors: What the closes that have ended so far raised.
    """

    errors: list[Exception] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, closes: Sequence[Callable[[], Any]]) -> None:
        """Begin to close, waiting for nothing."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for close in closes:
            thread = threading.Thread(target=self._close, args=(close,), name="tiltyard-close", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float) -> int:
        """Wait for all, together no longer than `timeout_s`; return how many have not ended."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in self._threads)

    def _close(self, close: Callable[[], Any]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001  # kept, and raised by the owner when all are closed
            _log.warning("closing an environment failed: %r", error)
            self.errors.append(error)
