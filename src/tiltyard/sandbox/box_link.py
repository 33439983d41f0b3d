"""The connection to the first process of a sandbox, which may have been taken over: whatever it sends is checked."""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

from tiltyard.errors import (
    BoxArgumentError,
    BoxError,
    BoxFullError,
    BoxGoneError,
    BoxLimitError,
    BoxPathExistsError,
    BoxPathKindError,
    BoxPathMissingError,
    BoxPermissionError,
)
from tiltyard.sandbox.guest.wire import (
    CALL,
    CANCEL,
    CHUNK,
    DATA,
    DONE,
    END,
    FAILED,
    GRANT,
    HEADER,
    HELLO,
    MAX_FRAME,
    NUMBER,
    WINDOW,
)

_ERRORS: dict[str, type[BoxError]] = {
    "missing": BoxPathMissingError,
    "kind": BoxPathKindError,
    "exists": BoxPathExistsError,
    "permission": BoxPermissionError,
    "full": BoxFullError,
    "limit": BoxLimitError,
    "argument": BoxArgumentError,
}
_MAX_TEXT = 2000

NONSENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, struct.error)
"""What it raises to read what makes no sense."""


class Channel:
    """One call and all that belongs to it, such as the output of the command that it started.

    `receive(kind, payload)` is called for each frame between the answers; one of `NONSENSE` from it means that the
    frame makes no sense, and ends the sandbox. `lost(error)` is called when the sandbox is gone.
    """

    def __init__(self, link: "BoxLink", number: int, receive: Callable[[int, bytes], None] | None) -> None:
        self.number = number
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.receive = receive
        self.lost: Callable[[BoxError], None] | None = None
        self._link = link
        self._credit = WINDOW
        self._granted = asyncio.Event()
        self._closed = False

    def granted(self, count: int) -> None:
        """The sandbox takes so many bytes more, and never more than a window: what it does not read waits here."""
        self._credit = min(self._credit + count, WINDOW)
        self._granted.set()

    async def send(self, data: bytes) -> None:
        """Send data as fast as the sandbox takes it; stops early when the call has failed.

        Raises:
            BoxGoneError: The sandbox is dead.
        """
        view = memoryview(data)
        while view:
            while self._credit <= 0 and not self._finished():
                self._granted.clear()
                await self._granted.wait()
            if self._finished():
                return
            piece = view[: min(CHUNK, self._credit)]
            view = view[len(piece) :]
            self._credit -= len(piece)
            self._link.send(DATA, self.number, bytes(piece))

    def _finished(self) -> bool:
        if self._link.gone is not None:
            raise BoxGoneError(self._link.gone)
        return self._closed or (self.answer.done() and self.answer.exception() is not None)

    def end(self) -> None:
        """That was all the data."""
        self._link.send(END, self.number)

    def grant(self, count: int) -> None:
        """Let the sandbox send so many bytes more."""
        if count:
            self._link.send(GRANT, self.number, NUMBER.pack(count))

    def close(self, *, cancel: bool = False) -> None:
        """Take nothing more from the channel; `cancel` tells the sandbox so."""
        self._closed = True
        self._granted.set()
        self._link.close_channel(self.number)
        if cancel:
            self._link.send(CANCEL, self.number)

    def fail(self, error: BoxError) -> None:
        """The call failed, or the sandbox is gone."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # it may be that nobody waits any more
        self._granted.set()


class BoxLink(asyncio.Protocol):
    """Calls and their channels over one socket.

    Attributes:
        gone: Why there is no connection any more; None while there is one.
        hello: Done when the first process of the sandbox has started.
    """

    def __init__(self, broken: Callable[[str], None]) -> None:
        self.gone: str | None = None
        self.hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = broken
        self._channels: dict[int, Channel] = {}
        self._last = 0
        self._arrived = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(cls, connection: socket.socket, broken: Callable[[str], None]) -> "BoxLink":
        """A link over a connected socket; `broken(why)` is called once, when it is no more."""
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: cls(broken), sock=connection)
        return link

    def open(self, op: str, arguments: dict[str, Any], receive: Callable[[int, bytes], None] | None = None) -> Channel:
        """Call and keep the channel open.

        Raises:
            BoxGoneError: The sandbox is dead.
            BoxArgumentError: The call is too large to be sent.
        """
        if self.gone is not None:
            raise BoxGoneError(self.gone)
        payload = json.dumps({"op": op, **arguments}).encode()
        if len(payload) > MAX_FRAME:
            raise BoxArgumentError(f"a call of {len(payload)} bytes is too large for a sandbox; at most {MAX_FRAME}")
        self._last += 1
        channel = self._channels[self._last] = Channel(self, self._last, receive)
        self.send(CALL, self._last, payload)
        return channel

    async def call(self, op: str, **arguments: Any) -> Any:
        """Call and wait for the answer.

        Raises:
            BoxError: The sandbox could not do it, or is dead.
        """
        channel = self.open(op, arguments)
        try:
            return await channel.answer
        finally:
            channel.close()

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame; nothing happens when the sandbox is gone."""
        if self._transport is not None and self.gone is None:
            self._transport.write(HEADER.pack(len(payload), kind, channel) + payload)

    def close_channel(self, number: int) -> None:
        """Ignore what still comes for a channel."""
        self._channels.pop(number, None)

    def close(self, why: str) -> None:
        """End the connection; all that waits for it fails."""
        if self.gone is not None:
            return
        self.gone = why
        if self._transport is not None:
            self._transport.abort()
        channels, self._channels = list(self._channels.values()), {}
        error = BoxGoneError(why)
        if not self.hello.done():
            self.hello.set_exception(error)
            self.hello.exception()
        for channel in channels:
            channel.fail(error)
            if channel.lost is not None:
                channel.lost(error)
        self._broken(why)

    def broke(self, how: str) -> BoxGoneError:
        """End the connection to a sandbox that says what makes no sense; returns the error to raise."""
        self.close(f"the sandbox broke the protocol: {how}")
        return BoxGoneError(self.gone or how)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The sandbox closed the socket."""
        self.close("the sandbox ended")

    def data_received(self, data: bytes) -> None:
        """Take apart what came."""
        self._arrived += data
        taken = 0
        while self.gone is None and len(self._arrived) - taken >= HEADER.size:
            length, kind, number = HEADER.unpack_from(self._arrived, taken)
            if length > MAX_FRAME:
                self.broke(f"a frame of {length} bytes")
                return
            start = taken + HEADER.size
            if len(self._arrived) < start + length:
                break
            taken = start + length
            try:
                self._frame(kind, number, bytes(self._arrived[start:taken]))
            except NONSENSE as error:
                self.broke(f"{type(error).__name__} in a frame of kind {kind}")
                return
        del self._arrived[:taken]

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == HELLO and not self.hello.done():
            self.hello.set_result(None)
            return
        channel = self._channels.get(number)
        if channel is None:
            return
        if kind == DONE:
            if not channel.answer.done():
                channel.answer.set_result(json.loads(payload))
        elif kind == FAILED:
            told = json.loads(payload)
            channel.fail(_ERRORS.get(str(told["code"]), BoxError)(str(told["text"])[:_MAX_TEXT]))
        elif kind == GRANT:
            channel.granted(NUMBER.unpack(payload)[0])
        elif channel.receive is not None:
            channel.receive(kind, payload)
