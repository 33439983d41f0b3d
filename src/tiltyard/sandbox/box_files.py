"""Files of a sandbox. Every operation is done inside it: a link that was planted there leads nowhere else."""

import asyncio
import json
import posixpath
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, get_args

from tiltyard.errors import BoxArgumentError, BoxError, BoxPathMissingError
from tiltyard.sandbox.box_link import NONSENSE, BoxLink, Channel
from tiltyard.sandbox.box_model import Entry, WatchEvent
from tiltyard.sandbox.guest.wire import DATA, ENTRIES, EVENT, HOME, USER, WINDOW

_KINDS = ("file", "directory", "symlink", "other")
_EVENTS = get_args(WatchEvent.__dataclass_fields__["kind"].type)
_MOST_LISTED_BYTES = 48 * 1024 * 1024
"""What a listing may come to on the wire; an honest first process stops well before."""

_MOST_EVENTS = 10_000
_LONGEST_EVENT = 8192
_LARGEST_NUMBER = 1 << 100


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the home folders of a sandbox's users are.

    Attributes:
        outside: The folder that stands in for both where a sandbox is not isolated; None where it has its own.
    """

    outside: str | None = None

    def of(self, user: str | None) -> str:
        """The home folder of a user by name.

        Raises:
            BoxArgumentError: There is no such user.
        """
        if user not in (None, "", USER, "root"):
            raise BoxArgumentError(f"a sandbox has the users {USER!r} and 'root', not {user!r}")
        return self.outside or ("/root" if user == "root" else HOME)

    def path(self, path: str, user: str | None = None) -> str:
        """A path as the sandbox takes it: absolute; what is not, is below the user's home folder.

        Raises:
            BoxArgumentError: It has a NUL in it.
        """
        if "\0" in path:
            raise BoxArgumentError(f"a path cannot have a NUL in it, got {path!r}")
        home = self.of(user)
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        if self.outside and (path == HOME or path.startswith(f"{HOME}/")):
            path = self.outside + path[len(HOME) :]
        return posixpath.normpath(posixpath.join(home, path)) if path else home


def entry_of(told: Any) -> Entry:
    """An entry as the sandbox tells it.

    Raises:
        ValueError: It makes no sense; so do `KeyError` and `TypeError`.
    """
    if told["kind"] not in _KINDS:
        raise ValueError("no such kind of entry")
    if max(abs(int(told["size"])), abs(int(told["modified_ns"]))) > _LARGEST_NUMBER:
        raise ValueError("no file has such numbers")
    target = told["symlink_target"]
    return Entry(
        name=str(told["name"]),
        path=str(told["path"]),
        kind=told["kind"],
        size=int(told["size"]),
        mode=int(told["mode"]) & 0o777,
        permissions=str(told["permissions"]),
        owner=str(told["owner"]),
        group=str(told["group"]),
        modified_ns=int(told["modified_ns"]),
        symlink_target=None if target is None else str(target),
        metadata={str(name): str(value) for name, value in dict(told["metadata"]).items()},
    )


class Reading:
    """A file that is being read: an async iterator of its bytes."""

    def __init__(self, link: BoxLink, path: str) -> None:
        self._pieces: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._unread = 0
        self._read = 0
        self._done = False
        self._channel = link.open("read", {"path": path}, self._receive)
        self._channel.answer.add_done_callback(lambda _: self._news.set())

    async def ready(self) -> Self:
        """Wait until the file is open.

        Raises:
            BoxError: It cannot be read.
        """
        while not self._pieces and not self._channel.answer.done():
            self._news.clear()
            await self._news.wait()
        if not self._pieces:
            self.close()
            await self._channel.answer
        return self

    def _receive(self, kind: int, payload: bytes) -> None:
        self._unread += len(payload)
        if kind != DATA or self._unread > WINDOW:
            raise ValueError("more of a file than was granted")
        self._pieces.append(payload)
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        await self.ready()
        if not self._pieces:
            raise StopAsyncIteration
        piece = self._pieces.popleft()
        self._unread -= len(piece)
        if not self._channel.answer.done():
            self._channel.grant(len(piece))
        return piece

    def close(self) -> None:
        """Read no further."""
        if not self._done:
            self._done = True
            self._channel.close(cancel=not self._channel.answer.done())

    async def aclose(self) -> None:
        """As `close`."""
        self.close()


class Watch:
    """A folder under watch: an async iterator of what happens in it, until `close`."""

    def __init__(self, link: BoxLink, path: str, recursive: bool) -> None:
        self._events: deque[WatchEvent] = deque(maxlen=_MOST_EVENTS)
        self._news = asyncio.Event()
        self._closed = False
        self._error: BoxError | None = None
        self._channel: Channel = link.open("watch", {"path": path, "recursive": recursive}, self._receive)
        self._channel.lost = self._lost

    async def ready(self) -> Self:
        """Wait until the watch is on.

        Raises:
            BoxError: The folder cannot be watched.
        """
        try:
            await self._channel.answer
        except BoxError:
            self._channel.close()
            raise
        return self

    async def drain(self) -> list[WatchEvent]:
        """What happened since the last time, with all that calls did which were answered by now.

        Raises:
            BoxGoneError: The sandbox is dead.
        """
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        events = list(self._events)
        self._events.clear()
        return events

    def _receive(self, kind: int, payload: bytes) -> None:
        told = json.loads(payload)
        if kind != EVENT or told["kind"] not in _EVENTS or len(payload) > 2 * _LONGEST_EVENT:
            raise ValueError("no such event")
        self._events.append(WatchEvent(told["kind"], str(told["name"]), str(told["path"])))
        self._news.set()

    def _lost(self, error: BoxError) -> None:
        self._error = error
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    async def close(self) -> None:
        """Watch no longer."""
        if not self._closed:
            self._closed = True
            self._channel.close(cancel=True)
            self._news.set()


class BoxFiles:
    """What can be done with files in one sandbox; paths are complete."""

    def __init__(self, link: BoxLink) -> None:
        self._link = link

    async def one(self, op: str, **arguments: Any) -> Entry:
        """An operation that answers with one entry.

        Raises:
            BoxError: It could not be done.
        """
        told = await self._link.call(op, **arguments)
        try:
            return entry_of(told)
        except NONSENSE as error:
            raise self._link.broke("an entry that makes no sense") from error

    async def list(self, path: str, depth: int) -> list[Entry]:
        """What is in a folder, a folder before what is in it.

        Raises:
            BoxError: It cannot be listed.
        """
        found: list[Entry] = []
        told_bytes = 0

        def receive(kind: int, payload: bytes) -> None:
            nonlocal told_bytes
            told_bytes += len(payload)
            if kind != ENTRIES or told_bytes > _MOST_LISTED_BYTES:
                raise ValueError("entries without an end")
            found.extend(entry_of(told) for told in json.loads(payload))

        channel = self._link.open("list", {"path": path, "depth": depth}, receive)
        try:
            await channel.answer
        finally:
            channel.close(cancel=not channel.answer.done())
        return found

    async def remove(self, path: str) -> None:
        """Remove what is at a path, if anything is.

        Raises:
            BoxError: It cannot be removed.
        """
        try:
            await self._link.call("remove", path=path)
        except BoxPathMissingError:
            return

    async def write(self, path: str, chunks: AsyncIterable[bytes], metadata: Mapping[str, str]) -> Entry:
        """Write a file, with the folders above it.

        Raises:
            BoxError: It cannot be written.
        """
        channel = self._link.open("write", {"path": path, "metadata": dict(metadata)})
        try:
            async for chunk in chunks:
                await channel.send(chunk)
                if channel.answer.done():
                    break
            channel.end()
            told = await channel.answer
        except BaseException:
            channel.close(cancel=True)
            raise
        channel.close()
        try:
            return entry_of(told)
        except NONSENSE as error:
            raise self._link.broke("an entry that makes no sense") from error


async def pieces(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Bytes, or what comes as bytes, in pieces."""
    if isinstance(data, bytes):
        yield data
        return
    async for piece in data:
        yield piece
