"""One WebSocket that holds one session: a question at a time, and dead after the first failure."""

import asyncio
import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.envs.openenv.address import is_local, shown
from tiltyard.envs.openenv.loop import SessionLoop
from tiltyard.envs.openenv.options import SessionOptions
from tiltyard.envs.openenv.wire import CLOSE_FRAME
from tiltyard.errors import EnvError, EnvTimeoutError, LostSessionError, RolloutError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PING_INTERVAL_S = 20.0
CLOSE_TIMEOUT_S = 5.0


class Blocked:
    """Where a thread waits for an answer."""

    __slots__ = ("_delivered", "_lock", "_loop", "frame")

    def __init__(self, loop: SessionLoop) -> None:
        self.frame: bytes | None = None
        self._loop = loop
        self._delivered = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def deliver(self, frame: bytes | None) -> None:
        """Give the answer, or None when there will be none; the first time counts. On the loop's thread only."""
        if not self._delivered:
            self._delivered = True
            self.frame = frame
            self._loop.let_go(self._lock)

    def wait(self, timeout_s: float | None) -> bool:
        """True when something was delivered in time."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)


class Awaited:
    """Where a coroutine waits for an answer."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[bytes | None] = loop.create_future()

    def deliver(self, frame: bytes | None) -> None:
        """Give the answer, or None when there will be none; the first time counts."""
        if not self.future.done():
            self.future.set_result(frame)


class Connection:
    """An open session on one event loop: awaited there, or asked from other threads.

    After a time-out, an interrupt, a frame that nobody asked for or a lost socket it is dead for good: an answer that
    comes late can never be taken for the answer to a later question.
    """

    def __init__(self, url: str, options: SessionOptions, socket: Any) -> None:
        self.url = url
        self.pid = os.getpid()
        self._options = options
        self._socket = socket
        self._loop: asyncio.AbstractEventLoop = socket.loop
        self._dead: str | None = None

    @classmethod
    async def dial(cls, url: str, options: SessionOptions) -> "Connection":
        """Open a socket, on the loop that runs; the session behind it is not asked for anything.

        Raises:
            OSError: The server cannot be reached.
            websockets.exceptions.WebSocketException: It is no server of WebSockets, or none at this path.
        """
        client = require("websockets.asyncio.client", "serve")
        headers = dict(options.headers)
        if options.token:
            headers["Authorization"] = f"Bearer {options.token}"
        socket = await client.connect(
            url,
            create_connection=_socket_class(),
            compression=None,
            additional_headers=headers,
            max_size=options.max_message_bytes,
            open_timeout=options.connect_timeout_s,
            ping_interval=PING_INTERVAL_S,
            # A server that computes does not answer a ping: it may take as long as its answer.
            ping_timeout=options.message_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            proxy=None if is_local(url) else True,
        )
        return cls(url, options, socket)

    @property
    def lost(self) -> bool:
        """True when no question can be asked any more: an answer that came unasked would be taken for the next one."""
        return self._dead is not None or self._socket.is_lost or bool(self._socket.early)

    async def request(self, frame: bytes, timeout_s: float | None) -> bytes:
        """Ask, on the connection's own loop.

        Raises:
            EnvTimeoutError: No answer in time; the session is dead.
            LostSessionError: The session is gone.
        """
        self._refuse_lost()
        waiter = Awaited(self._loop)
        self._send(frame, waiter)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._expire, waiter, timeout_s)
        try:
            answer = await waiter.future
        except BaseException as error:
            self.kill(f"it was interrupted by {type(error).__name__}")
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._answered(answer, timeout_s)

    def ask(self, loop: SessionLoop, frame: bytes, timeout_s: float | None) -> bytes:
        """Ask from another thread than the loop's, which waits.

        Raises:
            EnvTimeoutError: No answer in time; the session is dead.
            LostSessionError: The session is gone.
        """
        self._refuse_lost()
        waiter = Blocked(loop)
        loop.submit(self._send, frame, waiter)
        try:
            if not waiter.wait(timeout_s):
                self.kill(_late(timeout_s))
                return self._answered(None, timeout_s)
        except BaseException as error:
            self.kill(f"it was interrupted by {type(error).__name__}")
            raise
        return self._answered(waiter.frame, timeout_s)

    def kill(self, why: str) -> None:
        """End the session at once, without a word to the server; from any thread of its process."""
        if self._dead is None:
            self._dead = why
        if self.pid == os.getpid() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._socket.transport.abort)

    async def close(self) -> None:
        """Tell the server, and wait until it has given the session back, for a short time."""
        if self._dead is None:
            self._dead = "it was closed"
        if self._socket.is_lost:
            return
        self._socket.post(CLOSE_FRAME)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.wait_closed()
        except TimeoutError:
            self._socket.transport.abort()

    def _send(self, frame: bytes, waiter: Blocked | Awaited) -> None:
        socket = self._socket
        if socket.early or self.lost:
            waiter.deliver(self._last_words())
            return
        socket.waiter = waiter
        if not socket.post(frame):
            socket.waiter = None
            waiter.deliver(None)

    def _last_words(self) -> bytes | None:
        """The error that came before it was asked for; the session is dead, whatever came."""
        early = self._socket.early
        told = early.pop() if early and b'"error"' in early[-1][:100] else None
        if early and self._dead is None:
            self.kill("the server sent an answer that nobody asked for")
        return told

    def _expire(self, waiter: Awaited, timeout_s: float) -> None:
        self.kill(_late(timeout_s))
        waiter.deliver(None)

    def _answered(self, frame: bytes | None, timeout_s: float | None) -> bytes:
        if frame is not None:
            return frame
        if self._dead is not None and self._dead.startswith("it gave no answer"):
            raise EnvTimeoutError(
                f"no answer from {shown(self.url)} within {timeout_s:g} s; the session is given up. Raise the time-out "
                "above the time that the environment's construction, reset and slowest step take"
            )
        raise self.loss()

    def _refuse_lost(self) -> None:
        if self.pid != os.getpid():
            raise LostSessionError(f"the session on {shown(self.url)} belongs to the process that this one forked from")
        if self.lost and not self._socket.early:
            raise self.loss()

    def loss(self) -> RolloutError:
        """Why there is no session any more."""
        where = shown(self.url)
        if self._dead is not None:
            return LostSessionError(f"the session on {where} is gone: {self._dead}; reset() opens another")
        protocol = self._socket.protocol
        closed = protocol.close_rcvd or protocol.close_sent
        if closed is not None and closed.code == 1009:
            if protocol.close_rcvd_then_sent:  # who closes second repeats the code
                return EnvError(f"{where} refused an action as too large; uvicorn takes 16 MiB (--ws-max-size)")
            return EnvError(
                f"{where} sent an answer of more than {self._options.max_message_bytes} bytes; OpenEnvClient takes "
                "more with client_kwargs={'max_message_size_mb': …}"
            )
        return LostSessionError(f"the session on {where} is gone: {_ended(protocol)}; reset() opens another")


def _late(timeout_s: float | None) -> str:
    return f"it gave no answer within {timeout_s:g} s"


def _ended(protocol: Any) -> str:
    closed = protocol.close_rcvd or protocol.close_sent
    if closed is None:
        return "the connection was lost"
    who = "the server" if protocol.close_rcvd is not None else "the client"
    return f"{who} closed it with code {closed.code}{f' ({closed.reason})' if closed.reason else ''}"


@lru_cache(1)
def _socket_class() -> "type[ClientConnection]":
    """The socket: a message goes straight to who waits for it, without a queue or a task between."""
    client = require("websockets.asyncio.client", "serve")
    frames = require("websockets.frames", "serve")
    states = require("websockets.protocol", "serve").State
    data_opcodes = frames.DATA_OPCODES

    class SessionSocket(client.ClientConnection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.waiter: Blocked | Awaited | None = None
            self.early: list[bytes] = []
            self._parts: list[bytes] = []

        @property
        def is_lost(self) -> bool:
            return self.protocol.state is not states.OPEN

        def post(self, frame: bytes) -> bool:
            if self.is_lost:
                return False
            self.protocol.send_text(frame)
            self.send_data()
            return True

        def process_event(self, event: Any) -> None:
            if not isinstance(event, frames.Frame) or event.opcode not in data_opcodes:
                super().process_event(event)
                return
            if not event.fin or self._parts:
                self._parts.append(bytes(event.data))
                if not event.fin:
                    return
                data, self._parts = b"".join(self._parts), []
            else:
                data = event.data
            waiter, self.waiter = self.waiter, None
            if waiter is None:
                self.early.append(data)  # an error before the first question, or out of step
            else:
                waiter.deliver(data)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            waiter, self.waiter = self.waiter, None
            if waiter is not None:
                waiter.deliver(None)

    return SessionSocket
