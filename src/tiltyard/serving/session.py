"""One session: a fresh environment, called on this session's own thread, and closed when the session ends."""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tiltyard._boundary import guarded, reason
from tiltyard._optional import require
from tiltyard.errors import ActionRefusedError, EnvError, TiltyardError
from tiltyard.serving.frames import error_frame, frame
from tiltyard.serving.played import Played
from tiltyard.serving.socket import ServedSocket

PING_EVERY_S = 20.0
LONG_S = 0.5
"""A call that takes longer is watched: its connection is read for it, and its deadline counts."""

CLOSE_TIMEOUT_S = 30.0

ENDS_ITS_SESSION = (SystemExit, MemoryError)
"""What an environment may raise that would end the session's thread without a word, here or on the wire."""


@dataclass(slots=True)
class Call:
    """What the environment is doing, since when, and how long it may."""

    what: str
    since: float
    timeout_s: float


class Session:
    """Runs on the thread that calls `run`; `watch` is called by another one, from time to time.

    Attributes:
        closed_env: False while there is an environment that was not closed.
        failure: What went wrong when it was closed.
    """

    def __init__(
        self, socket: ServedSocket, make: Callable[[], Played], call_timeout_s: float, released: Callable[[], object]
    ) -> None:
        """Set it up.

        Args:
            socket: The connection, accepted.
            make: Makes the environment.
            call_timeout_s: How long the environment's construction, a reset or a step may take.
            released: Called once, when the session's place is free again.
        """
        self.socket = socket
        self.closed_env = True
        self.failure: str | None = None
        self._make = make
        self._timeout_s = call_timeout_s
        self._released = released
        self._free = False
        self._call: Call | None = None
        self._given_up = False
        self._pinged = time.monotonic()
        self._loads = require("orjson", "serve").loads

    def run(self) -> None:
        """Play until either side ends it."""
        played: Played | None = None
        try:
            played = self._opened()
            while played is not None and (message := self.socket.receive()) is not None:
                if not self._answer(played, message):
                    break
        finally:
            self._end(played)

    def watch(self, now: float) -> None:
        """Read for a call that takes long, and end the session when its client is gone or its time is up."""
        call = self._call
        quiet = now - self._pinged > PING_EVERY_S
        if not quiet and (call is None or now - call.since < LONG_S):
            return
        if not self.socket.lock.acquire(blocking=False):
            return
        try:
            if quiet:
                self._pinged = now
                self.socket.ping()
            call = self._call
            if call is None or now - call.since < LONG_S or self._given_up:
                return
            overdue = now - call.since > call.timeout_s
            if overdue:
                text = f"{call.what} was not done within {call.timeout_s:g} s; the session is given up"
                self.socket.send(error_frame(text, "SESSION_ERROR"))
            if overdue or not self.socket.look():
                self._given_up = True
        finally:
            self.socket.lock.release()
        if self._given_up:
            self._release()
            self.socket.abort()

    def stop(self) -> None:
        """End it from another thread: it closes its environment and its connection."""
        self.socket.abort()

    def _opened(self) -> Played | None:
        try:
            with self._calling("the environment's construction", self._timeout_s):
                played = self._make()
            self.closed_env = False
        except (TiltyardError, *ENDS_ITS_SESSION) as error:
            self._release()
            self.socket.last_word(error_frame(reason(error), "FACTORY_ERROR"))
            return None
        return played

    def _answer(self, played: Played, message: bytes) -> bool:
        """Answer one message; False ends the session."""
        try:
            asked: Any = self._loads(message)
        except ValueError as error:
            return self._send(error_frame(f"Invalid JSON: {error}", "INVALID_JSON"))
        kind = asked.get("type") if isinstance(asked, dict) else None
        if kind == "close":
            return False
        data = asked.get("data", {}) if isinstance(asked, dict) else None
        if kind not in ("step", "reset", "state"):
            return self._send(error_frame(f"Unknown message type: {kind!r}", "UNKNOWN_TYPE"))
        if not isinstance(data, dict):
            told = [{"type": "dict_type", "loc": ["data"], "msg": "Input should be an object"}]
            return self._send(error_frame("Invalid message", "VALIDATION_ERROR", errors=told))
        try:
            return self._send(self._frame(played, kind, data))
        except ENDS_ITS_SESSION as error:
            told = f"the environment's {kind} raised {reason(error)}, which ends its session"
            self._send(error_frame(told, "SESSION_ERROR"))
            return False

    def _frame(self, played: Played, kind: str, data: dict[str, Any]) -> bytes:
        try:
            with self._calling(f"the environment's {kind}", self._timeout_s):
                if kind == "step":
                    return frame("observation", played.step(data))
                if kind == "reset":
                    return frame("observation", played.reset(data))
                return frame("state", played.state())
        except ActionRefusedError as error:
            return error_frame(str(error), "VALIDATION_ERROR", errors=error.errors)
        except TiltyardError as error:
            return error_frame(str(error), "EXECUTION_ERROR", error_type=type(error).__name__)

    def _send(self, message: bytes) -> bool:
        if self._given_up:
            return False
        with self.socket.lock:
            self.socket.send(message)
        return True

    @contextmanager
    def _calling(self, what: str, timeout_s: float) -> Any:
        self._call = Call(what, time.monotonic(), timeout_s)
        try:
            yield
        finally:
            with self.socket.lock:  # not while `watch` reads
                self._call = None

    def _end(self, played: Played | None) -> None:
        """Close the environment, then free the place, then the connection: a client that closed has freed its place."""
        try:
            if played is not None:
                with self._calling("the environment's close", CLOSE_TIMEOUT_S):
                    guarded("close", EnvError, played.close)
                self.closed_env = True
        except (TiltyardError, *ENDS_ITS_SESSION) as error:
            self.failure = reason(error)
        finally:
            self._release()
            self.socket.finish()

    def _release(self) -> None:
        if not self._free:
            self._free = True
            self._released()


class Watch:
    """Looks at every session, from time to time, on a thread of its own."""

    def __init__(self, sessions: Callable[[], list[Session]], every_s: float = 0.25) -> None:
        self._sessions = sessions
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiltyard-serve-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            now = time.monotonic()
            for session in self._sessions():
                session.watch(now)
