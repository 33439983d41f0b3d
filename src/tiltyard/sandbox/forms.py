"""Files out of a form, as they come over the network: none is held in memory as a whole."""

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from starlette.requests import Request

from tiltyard._optional import require
from tiltyard.sandbox.refusal import RefusedError


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file that is uploaded: where it goes, and its bytes, which must be read before the next part."""

    path: str
    chunks: AsyncIterator[bytes]


class _Mark(Enum):
    PART_END = 1
    FORM_END = 2


_Found = dict[bytes, bytes] | bytes | _Mark


class _Form:
    """The parts of a form in the order in which they come: headers, bytes, and where each ends."""

    def __init__(self, request: Request) -> None:
        self._multipart = require("python_multipart.multipart", "sandbox")
        _, options = self._multipart.parse_options_header(request.headers["content-type"])
        boundary = options.get(b"boundary")
        if not boundary:
            raise RefusedError("invalid_argument", "the form's content-type names no boundary")
        self._parser = self._multipart.MultipartParser(boundary, self._callbacks())
        self._stream = aiter(request.stream())
        self._found: deque[_Found] = deque()
        self._headers: dict[bytes, bytes] = {}
        self._name = b""
        self._value = b""

    async def following(self) -> _Found:
        """What comes next."""
        while not self._found:
            data = await anext(self._stream, b"")
            if not data:
                raise RefusedError("invalid_argument", "the form ends too early")
            try:
                self._parser.write(data)
            except self._multipart.MultipartParseError as error:
                raise RefusedError("invalid_argument", f"the body is no form: {error}") from error
        return self._found.popleft()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the part whose headers came last."""
        while isinstance(chunk := await self.following(), bytes):
            yield chunk

    def path_of(self, headers: dict[bytes, bytes]) -> str | None:
        """Where the part's file goes; None for a part that is no file."""
        _, options = self._multipart.parse_options_header(headers.get(b"content-disposition", b""))
        if options.get(b"name") != b"file":
            return None
        return options.get(b"filename", b"").decode(errors="replace")

    def _callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._more_value,
            "on_header_end": self._header,
            "on_headers_finished": lambda: self._found.append(self._headers),
            "on_part_data": lambda data, start, end: self._found.append(bytes(data[start:end])),
            "on_part_end": lambda: self._found.append(_Mark.PART_END),
            "on_end": lambda: self._found.append(_Mark.FORM_END),
        }

    def _begin(self) -> None:
        self._headers = {}

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _more_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""


async def file_parts(request: Request) -> AsyncIterator[FilePart]:
    """The parts of a form that are named `file`.

    Raises:
        RefusedError: The body is no form.
    """
    form = _Form(request)
    while (found := await form.following()) is not _Mark.FORM_END:
        if not isinstance(found, dict):
            continue
        path = form.path_of(found)
        if path is None:
            async for _ in form.chunks():
                pass
        else:
            yield FilePart(path, form.chunks())
