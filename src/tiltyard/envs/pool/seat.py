"""The place of one worker in a pool: who sits there now, and who follows when it is gone."""

import logging
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiltyard.envs.pool.faults import unpacked
from tiltyard.envs.pool.workers import Backend, Worker
from tiltyard.errors import EnvError, EnvTimeoutError, LostSessionError, TiltyardError, WorkerLostError
from tiltyard.leases import Leases

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the workers of a pool come from.

    Attributes:
        backend: Starts them.
        leases: Each worker is one, so that none outlives this process.
        start_timeout_s: How long a worker may take to be ready; None sets no bound.
    """

    backend: Backend
    leases: Leases
    start_timeout_s: float | None


class Seat:
    """One worker, and those that follow it: each that dies is replaced at once, and begins a new generation.

    One that died before it was used is replaced only when it is asked for: what dies at its start would die for ever.

    Attributes:
        lock: Held by whoever must not see the worker change.
        worker: The worker of today; None while there is none.
        generation: How many there were before.
        used: Set by whoever got an answer of the worker of today.
        why: What became of the last worker that is gone.
    """

    def __init__(
        self, number: int, host: bytes, threads: int, source: Source, welcome: Callable[[Any], TiltyardError | None]
    ) -> None:
        """Set the place up; nothing is started.

        Args:
            number: Its place in the pool.
            host: What makes the host, pickled.
            threads: How many requests a worker must be able to work on at one time.
            source: Where workers come from.
            welcome: Given what a new worker's host said at its start; returns an error when it cannot be used.
        """
        self.lock = threading.RLock()
        self.worker: Worker | None = None
        self.generation = 0
        self.used = False
        self.why = ""
        self._number = number
        self._host = host
        self._threads = threads
        self._source = source
        self._welcome = welcome
        self._changed = threading.Condition(self.lock)
        self._starting: Worker | None = None
        self._rebuilding = False
        self._failure: TiltyardError | None = None
        self._closed = False

    def begin(self) -> None:
        """Start a worker, and do not wait for it.

        Raises:
            EnvError: It could not be started.
        """
        worker = self._source.backend.start(self._number, self._host, self._threads, self.lost)
        self._source.leases.acquire(f"worker {self._number}, {worker.name}", worker.kill, held=lambda: worker.alive)
        with self.lock:
            self._starting = worker
            closed = self._closed
        if closed:
            worker.kill()

    def settle(self) -> None:
        """Wait until the worker that was started is ready, and give it the seat.

        Raises:
            EnvTimeoutError: It was not in time.
            EnvError: It ended, or its host could not start.
            ConfigurationError: Its host could not be made.
        """
        worker = self._starting
        assert worker is not None
        error = self._unready(worker)
        with self._changed:
            self._starting = None
            if error is None and self._closed:
                error = EnvError("the pool was closed while a worker was being started")
            if error is None:
                self.worker, self.used = worker, False
        if error is not None:
            worker.kill()
            raise error
        if not worker.alive:  # it went between its answer and now, when nobody listened
            self.lost(worker, f"{worker.name} is gone")

    def lost(self, worker: Worker, why: str) -> None:
        """This worker is gone, or is not to be used any more; what is not the worker of today is of no interest."""
        with self._changed:
            if self.worker is not worker or self._closed:
                return
            self.worker = None
            self.generation += 1
            self.why = why
            if self.used:
                self._rebuild()
        _log.warning("worker %d: %s; it is replaced", self._number, why)

    def wait(self) -> Worker:
        """The worker of today; where there is none, the next one when it is ready.

        Raises:
            LostSessionError: The pool is closed.
            TiltyardError: There is no next one; says why. The next call tries again.
        """
        bound = self._source.start_timeout_s
        end = None if bound is None else time.monotonic() + bound + 1.0  # the start itself says more
        with self._changed:
            while self.worker is None:
                if self._closed:
                    raise LostSessionError("the pool is closed")
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                self._rebuild()
                if not self._changed.wait(None if end is None else end - time.monotonic()):
                    raise EnvTimeoutError(f"worker {self._number} was not replaced within start_timeout_s={bound:g}")
            return self.worker

    def close(self, timeout_s: float) -> bytes | None:
        """End the worker of today; its last answer, None when it gave none."""
        with self._changed:
            self._closed = True
            worker, starting = self.worker, self._starting
            self.worker = None
            self._changed.notify_all()
        if starting is not None:
            starting.kill()
        return None if worker is None else worker.close(timeout_s)

    def _unready(self, worker: Worker) -> TiltyardError | None:
        """Wait for a new worker; what is wrong with it, None when nothing is."""
        bound = self._source.start_timeout_s
        try:
            ready = worker.ready(bound)
        except WorkerLostError as error:
            return EnvError(f"worker {self._number} could not be started: {error}; what it wrote to stderr says more")
        if ready is None:
            return EnvTimeoutError(
                f"worker {self._number} ({worker.name}) was not ready within start_timeout_s={bound:g}"
            )
        said = unpacked(ready, f"worker {self._number}")
        return said if isinstance(said, TiltyardError) else self._welcome(pickle.loads(said))  # noqa: S301  # our own

    def _rebuild(self) -> None:
        """Start a successor on a thread of its own, unless one is being started; the lock is held."""
        if not self._rebuilding and not self._closed:
            self._rebuilding = True
            threading.Thread(target=self._replace, name=f"tiltyard-rebuild-{self._number}", daemon=True).start()

    def _replace(self) -> None:
        failure: TiltyardError | None = None
        try:
            self.begin()
            self.settle()
        except TiltyardError as error:
            failure = error
            _log.warning("worker %d could not be replaced: %s", self._number, error)
        finally:
            with self._changed:
                self._rebuilding, self._failure = False, failure
                self._changed.notify_all()
