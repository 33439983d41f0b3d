"""Where sessions live: in this process, up to a number of them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tiltyard.serving.played import Played
from tiltyard.serving.session import Session, Watch
from tiltyard.serving.socket import ServedSocket


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What became of the sessions of a server.

    Attributes:
        sessions: How many there were.
        active: How many still have their place.
        leaked: How many environments were not closed, because a call or their `close` hung or raised.
        failures: What was raised.
    """

    sessions: int
    active: int
    leaked: int
    failures: tuple[str, ...] = ()


class Place(Protocol):
    """Takes sessions, each on the thread that brings its connection."""

    capacity: int

    @property
    def active(self) -> int:
        """How many sessions there are."""
        ...

    def admit(self, socket: ServedSocket) -> bool:
        """Take a connection whose request is read and not answered; False, and nothing done, when there is no room."""
        ...

    def report(self) -> ServerReport:
        """What became of the sessions so far."""
        ...

    def stop(self, timeout_s: float) -> None:
        """End every session; one whose environment hangs is not waited for beyond `timeout_s`."""
        ...


class LocalPlace:
    """Sessions in this process."""

    def __init__(
        self,
        make: Callable[[], Played],
        capacity: int,
        call_timeout_s: float,
        released: Callable[[], object] | None = None,
    ) -> None:
        """Set the places up; `released` is called each time that one is free again."""
        self.capacity = capacity
        self._make = make
        self._timeout_s = call_timeout_s
        self._said = released
        self._lock = threading.Lock()
        self._reserved = 0
        self._sessions: dict[Session, threading.Thread] = {}
        self._opened = 0
        self._failures: list[str] = []
        self._stopped = False
        self._watch = Watch(self._living)

    @property
    def active(self) -> int:
        """How many places are taken."""
        return self._reserved

    def admit(self, socket: ServedSocket) -> bool:
        """Play a session on this thread, until it ends; False at once when all places are taken."""
        with self._lock:
            if self._stopped or self._reserved >= self.capacity:
                return False
            self._reserved += 1
        if not socket.accept():
            self._release()
            return True
        session = Session(socket, self._make, self._timeout_s, self._release)
        with self._lock:
            self._opened += 1
            self._sessions[session] = threading.current_thread()
            stopped = self._stopped
        if stopped:
            session.stop()
        try:
            session.run()
        finally:
            with self._lock:
                if session.failure is not None:
                    self._failures.append(session.failure)
                if session.closed_env:
                    del self._sessions[session]
        return True

    def report(self) -> ServerReport:
        """What became of the sessions so far; those that are under way have not leaked."""
        with self._lock:
            over = sum(not thread.is_alive() for thread in self._sessions.values())
            hung = over if not self._stopped else len(self._sessions)
            return ServerReport(self._opened, self._reserved, hung, tuple(self._failures))

    def stop(self, timeout_s: float) -> None:
        """End every session and wait for their threads, for `timeout_s` all together."""
        with self._lock:
            self._stopped = True
            sessions = dict(self._sessions)
        for session in sessions:
            session.stop()
        end = time.monotonic() + timeout_s
        for thread in sessions.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        self._watch.stop()

    def _living(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)

    def _release(self) -> None:
        with self._lock:
            self._reserved -= 1
        if self._said is not None:
            self._said()
