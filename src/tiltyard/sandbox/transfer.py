"""Whole files: downloads, and uploads as they are or as a form, compressed or not."""

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tiltyard.errors import BoxError
from tiltyard.sandbox.access import sandbox_of, signed_for, user_of
from tiltyard.sandbox.box_files import Reading
from tiltyard.sandbox.entries import uploaded_json
from tiltyard.sandbox.fields import checked_text
from tiltyard.sandbox.forms import FilePart, file_parts
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import LiveSandbox
from tiltyard.sandbox.refusal import RefusedError

GZIP_WBITS = 31
GZIP_LEVEL = 1
METADATA_PREFIX = "x-metadata-"


class Transfer:
    """Answers `/files`."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def read(self, request: Request) -> Response:
        """Download a file."""
        sandbox = await self._sandbox(request, "read")
        path = _path(request)
        if path is None:
            raise RefusedError("invalid_argument", "the query has no path: which file?")
        reading = await sandbox.box.read_file(path, user=_user(request))
        return Download(reading, compressed=request.headers.get("accept-encoding") == "gzip")

    async def write(self, request: Request) -> Response:
        """Upload a file, or several as a form."""
        sandbox = await self._sandbox(request, "write")
        path, user, metadata = _path(request), _user(request), _metadata(request)
        written = []
        async for part in _parts(request, path):
            chunks = _unzipped(part.chunks) if request.headers.get("content-encoding") == "gzip" else part.chunks
            entry = await sandbox.box.write_file(part.path, chunks, user=user, metadata=metadata)
            written.append(uploaded_json(entry))
        if not written:
            raise RefusedError("invalid_argument", "the form has no part named 'file'")
        return JSONResponse(written)

    async def _sandbox(self, request: Request, operation: str) -> LiveSandbox:
        signed = signed_for(request, self._sandboxes.all(), operation)
        return signed or await sandbox_of(request, self._sandboxes)


class Download(Response):
    """A file as the answer; the connection closes when it cannot be read to its end."""

    def __init__(self, reading: Reading, *, compressed: bool) -> None:
        super().__init__()
        self._reading = reading
        self._zip = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WBITS) if compressed else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, a chunk at a time."""
        del scope, receive
        headers = [(b"content-type", b"application/octet-stream")]
        if self._zip is not None:
            headers.append((b"content-encoding", b"gzip"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._reading) as reading:
            try:
                async for chunk in reading:
                    await self._send(send, chunk)
            except BoxError:
                return
        last = b"" if self._zip is None else self._zip.flush()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        data = chunk if self._zip is None else self._zip.compress(chunk)
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})


async def _parts(request: Request, path: str | None) -> AsyncIterator[FilePart]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        only = path
        async for part in file_parts(request):
            yield FilePart(only or _checked(part.path), part.chunks)
        return
    if kind != "application/octet-stream":
        raise RefusedError("invalid_argument", f"a file is sent as multipart/form-data or octet-stream, got {kind!r}")
    if path is None:
        raise RefusedError("invalid_argument", "the query has no path: where should the file be?")
    yield FilePart(path, request.stream())


async def _unzipped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    unzip = zlib.decompressobj(GZIP_WBITS)
    try:
        async for chunk in chunks:
            data = unzip.decompress(chunk, 1 << 20)
            while data:
                yield data
                data = unzip.decompress(unzip.unconsumed_tail, 1 << 20)
    except zlib.error as error:
        raise RefusedError("invalid_argument", f"the upload is not gzip: {error}") from error
    if not unzip.eof:
        raise RefusedError("invalid_argument", "the upload's gzip data ends too early")


def _path(request: Request) -> str | None:
    path = request.query_params.get("path")
    return _checked(path) if path else None


def _checked(path: str) -> str:
    return checked_text("path", path)


def _user(request: Request) -> str | None:
    return request.query_params.get("username") or user_of(request)


def _metadata(request: Request) -> Mapping[str, str]:
    return {
        name.removeprefix(METADATA_PREFIX): value
        for name, value in request.headers.items()
        if name.startswith(METADATA_PREFIX)
    }
