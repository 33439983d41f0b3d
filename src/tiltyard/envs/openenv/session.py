"""A session on a server: dialled when it is first needed, leased, and never replaced behind anyone's back."""

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from tiltyard.envs.openenv.address import shown, ws_url
from tiltyard.envs.openenv.connection import Connection
from tiltyard.envs.openenv.dialling import open_session
from tiltyard.envs.openenv.held import lease_session
from tiltyard.envs.openenv.loop import SessionLoop, session_loop
from tiltyard.envs.openenv.options import SessionOptions
from tiltyard.envs.openenv.wire import OWN, STATE_FRAME, BadAnswerError, RawResult, answer_data, encode, result_of
from tiltyard.errors import ConfigurationError, LostSessionError, RolloutError


class Session:
    """One episode at a time on one server, for blocking callers; `reset` dials, and dials anew what was lost.

    It is not for two threads at one time; `close` may come from any.

    Attributes:
        url: What is dialled.
        options: The bounds.
        facts: What a Tiltyard server said about its environment; empty for other servers and before the first dial.
    """

    def __init__(self, base_url: str, options: SessionOptions | None = None) -> None:
        self.url = ws_url(base_url)
        self.options = options or SessionOptions()
        self.facts: Mapping[str, Any] = {}
        self._connection: Connection | None = None
        self._ended: RolloutError | None = None
        self._in_use = threading.Lock()
        self._dialling: Future[Any] | None = None
        self._closes = 0
        self._release: Callable[[], object] = lambda: None

    @property
    def is_open(self) -> bool:
        """True while there is a session on the server."""
        return self._connection is not None and not self._connection.lost

    def open(self) -> None:
        """Dial, unless there is a living session.

        Raises:
            ServerFullError: The server had no room for `capacity_timeout_s`.
            RolloutError: It cannot be reached, or could not make its environment.
            ConfigurationError: There is no OpenEnv server at this address, and there never was.
        """
        with self._alone():
            self._open()

    def reset(self, /, **arguments: Any) -> RawResult:
        """Begin an episode, on a new session when there is no living one.

        Raises:
            RolloutError: As `open`; or the environment failed, or did not answer in time.
        """
        frame = encode("reset", arguments)
        with self._alone():
            closes = self._closes
            fresh = not self._living()
            self._open()
            try:
                data = self._ask(frame, "observation")
            except LostSessionError:
                if fresh or self._closes != closes:
                    raise
                self._open()  # it went away between two episodes; a reset may be sent twice
                data = self._ask(frame, "observation")
        return result_of(data)

    def step(self, action: Mapping[str, Any]) -> RawResult:
        """Send an action, once.

        Raises:
            LostSessionError: There is no session any more, or never was one; only `reset` opens another.
            RolloutError: The environment failed, or did not answer in time.
        """
        frame = encode("step", action)
        with self._alone():
            return result_of(self._ask(frame, "observation"))

    def state(self) -> dict[str, Any]:
        """What the server says about the state of the episode.

        Raises:
            RolloutError: As `step`.
        """
        with self._alone():
            return self._ask(STATE_FRAME, "state")

    def close(self) -> None:
        """Give the session back and wait, for a short time, until the server has it; more calls do nothing.

        Whatever another thread waits for meanwhile, an answer or the session itself, ends.
        """
        self._closes += 1
        dialling, connection, self._connection = self._dialling, self._connection, None
        if dialling is not None:
            dialling.cancel()
        if connection is None or connection.pid != os.getpid():
            return
        self._ended = self._was_closed()
        if self._in_use.locked():
            connection.kill("it was closed while a call was under way")  # its server would not listen now
        else:
            session_loop().run(connection.close())
        self._release()

    def _living(self) -> bool:
        return self.is_open and self._connection is not None and self._connection.pid == os.getpid()

    def _open(self) -> None:
        if self._living():
            return
        self._let_go()
        loop = session_loop()
        connection, state = self._dialled(loop)
        own = state.get(OWN)
        self.facts = own if isinstance(own, Mapping) else {}
        self._release = weakref.finalize(self, lease_session(loop, connection).release)
        self._connection = connection

    def _dialled(self, loop: SessionLoop) -> tuple[Connection, dict[str, Any]]:
        """A new session, which `close` of another thread can call off."""
        closes = self._closes
        self._dialling = dialling = loop.start(open_session(self.url, self.options))
        if self._closes != closes:  # before there was anything to call off
            dialling.cancel()
        try:
            connection, state = loop.wait(dialling)
        except CancelledError as error:
            raise self._was_closed() from error
        finally:
            self._dialling = None
        if self._closes != closes:  # too late to call it off
            connection.kill("it was closed while it was opened")
            raise self._was_closed()
        return connection, state

    def _was_closed(self) -> LostSessionError:
        return LostSessionError(f"the session on {shown(self.url)} was closed; reset() opens another")

    def _let_go(self) -> None:
        """Give up what is left of a session that is dead."""
        self._connection = None
        self._release()

    def _ask(self, frame: bytes, kind: str) -> dict[str, Any]:
        connection = self._connection
        if connection is None:
            raise self._ended or LostSessionError(
                f"there is no session on {shown(self.url)} yet; reset() opens one and begins an episode"
            )
        try:
            return answer_data(connection.ask(session_loop(), frame, self.options.message_timeout_s), kind)
        except RolloutError as error:
            if isinstance(error, BadAnswerError):
                connection.kill(f"it broke the protocol: {error}")
            if connection.lost:
                self._ended = _again(error)
                self._let_go()
            raise

    def _alone(self) -> "_Alone":
        return _Alone(self._in_use, self.url)


class _Alone:
    """Refuses a second thread: its answer would be the first one's."""

    __slots__ = ("_lock", "_url")

    def __init__(self, lock: threading.Lock, url: str) -> None:
        self._lock, self._url = lock, url

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConfigurationError(
                f"two threads use one session on {shown(self._url)} at the same time; make an environment for each"
            )

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def _again(error: RolloutError) -> RolloutError:
    """The same loss, for those who ask after it."""
    if isinstance(error, LostSessionError):
        return error
    return LostSessionError(f"the session is gone since: {error}; reset() opens another")
