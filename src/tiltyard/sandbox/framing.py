"""Connect over HTTP: how remote calls are read and answered, one message at a time or as a stream of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiltyard.sandbox.fields import parsed_object
from tiltyard.sandbox.refusal import RefusedError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A request that is held in memory as a whole is at most this long; files are not, and have no limit here."""

HEADER_BYTES = 5
END, COMPRESSED = 0x02, 0x01

STREAM_TYPE = "application/connect+json"


def frame(message: Any, flags: int = 0) -> bytes:
    """One message of a stream."""
    return raw_frame(json.dumps(message, separators=(",", ":")).encode(), flags)


def raw_frame(data: bytes, flags: int = 0) -> bytes:
    """One message of a stream, as JSON that is already written."""
    return bytes((flags,)) + len(data).to_bytes(4) + data


async def whole_body(request: Request) -> bytes:
    """The body of a request that is short.

    Raises:
        RefusedError: It is too long.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_MESSAGE_BYTES:
            raise RefusedError(
                "too_large", f"the request is longer than {MAX_MESSAGE_BYTES} bytes; write a file instead"
            )
    return bytes(data)


async def unary_request(request: Request) -> dict[str, Any]:
    """The message of a remote call that has one.

    Raises:
        RefusedError: It is no JSON object, or too long.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind != "application/json":
        raise RefusedError("invalid_argument", f"this server speaks Connect with JSON, got content-type {kind!r}")
    return parsed_object(await whole_body(request))


class FrameReader:
    """Messages out of a stream's bytes, as they come."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are whole now.

        Raises:
            RefusedError: A message is compressed, too long or no JSON object.
        """
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            flags, length = self._data[0], int.from_bytes(self._data[1:HEADER_BYTES])
            if length > MAX_MESSAGE_BYTES:
                raise RefusedError("too_large", f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are taken")
            if flags & COMPRESSED:
                raise RefusedError("unimplemented", "compressed messages are not taken")
            if len(self._data) < HEADER_BYTES + length:
                return
            body = bytes(self._data[HEADER_BYTES : HEADER_BYTES + length])
            del self._data[: HEADER_BYTES + length]
            yield parsed_object(body)


async def messages(request: Request) -> AsyncIterator[dict[str, Any]]:
    """The messages of a request that is a stream.

    Raises:
        RefusedError: As `FrameReader.feed`.
    """
    reader = FrameReader()
    async for chunk in request.stream():
        for message in reader.feed(chunk):
            yield message


async def first_message(request: Request) -> dict[str, Any]:
    """The one message of a request whose answer is a stream.

    Raises:
        RefusedError: There is none, or it is no JSON object.
    """
    data = await whole_body(request)
    for message in FrameReader().feed(data):
        return message
    raise RefusedError("invalid_argument", f"a request of {len(data)} bytes holds no message of a Connect stream")


class FrameStream(Response):
    """An answer that is a stream of messages, until it ends, its client leaves, or the sandbox dies."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        super().__init__(media_type=STREAM_TYPE)
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is to send."""
        del scope
        headers = [(b"content-type", STREAM_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        pump = asyncio.ensure_future(self._pump(send))
        left = asyncio.ensure_future(_client_left(receive))
        try:
            await asyncio.wait((pump, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not pump.done():
                pump.cancel()
            await asyncio.gather(pump, left, return_exceptions=True)
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:  # pyright: ignore[reportArgumentType]  # always a generator
            try:
                async for data in frames:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                end: dict[str, Any] = {}
            except RefusedError as refusal:
                end = {"error": refusal.as_connect()}
        await send({"type": "http.response.body", "body": frame(end, END), "more_body": False})


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
