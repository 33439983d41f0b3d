"""The remote calls on files: found, listed, made, moved, removed and watched."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tiltyard.errors import BoxGoneError
from tiltyard.sandbox.access import sandbox_of, user_of
from tiltyard.sandbox.box_files import Watch
from tiltyard.sandbox.entries import entry_json
from tiltyard.sandbox.fields import flag, integer, text
from tiltyard.sandbox.framing import FrameStream, first_message, frame, unary_request
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import LiveSandbox
from tiltyard.sandbox.refusal import RefusedError, sandbox_ended

KEEPALIVE_S = 50.0
MAX_DEPTH = 64


class Folders:
    """Answers `filesystem.Filesystem`."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def stat(self, request: Request) -> Response:
        """What a path is."""
        sandbox, body, user = await self._read(request)
        return JSONResponse({"entry": entry_json(await sandbox.box.stat(path_of(body, "path"), user=user))})

    async def list_dir(self, request: Request) -> Response:
        """What is in a folder, and in its folders down to a depth."""
        sandbox, body, user = await self._read(request)
        depth = integer(body, "depth", 1) or 1
        if not 1 <= depth <= MAX_DEPTH:
            raise RefusedError("invalid_argument", f"depth must be from 1 to {MAX_DEPTH}, got {depth}")
        entries = await sandbox.box.list_dir(path_of(body, "path"), depth, user=user)
        return JSONResponse({"entries": [entry_json(entry) for entry in entries]})

    async def make_dir(self, request: Request) -> Response:
        """Make a folder, and those above it."""
        sandbox, body, user = await self._read(request)
        return JSONResponse({"entry": entry_json(await sandbox.box.make_dir(path_of(body, "path"), user=user))})

    async def move(self, request: Request) -> Response:
        """Give a file or folder another path."""
        sandbox, body, user = await self._read(request)
        entry = await sandbox.box.move(path_of(body, "source"), path_of(body, "destination"), user=user)
        return JSONResponse({"entry": entry_json(entry)})

    async def remove(self, request: Request) -> Response:
        """Remove a file, or a folder with what is in it."""
        sandbox, body, user = await self._read(request)
        await sandbox.box.remove(path_of(body, "path"), user=user)
        return JSONResponse({})

    async def create_watcher(self, request: Request) -> Response:
        """Begin to keep the changes in a folder."""
        sandbox, body, user = await self._read(request)
        watcher_id = await sandbox.watchers.add(
            path_of(body, "path"), recursive=flag(body, "recursive"), with_entry=flag(body, "includeEntry"), user=user
        )
        return JSONResponse({"watcherId": watcher_id})

    async def watcher_events(self, request: Request) -> Response:
        """The changes since the last call."""
        sandbox, body, _ = await self._read(request)
        return JSONResponse({"events": await sandbox.watchers.events(text(body, "watcherId"))})

    async def remove_watcher(self, request: Request) -> Response:
        """Keep no more changes."""
        sandbox, body, _ = await self._read(request)
        await sandbox.watchers.remove(text(body, "watcherId"))
        return JSONResponse({})

    async def watch_dir(self, request: Request) -> Response:
        """Stream the changes in a folder."""
        sandbox = await sandbox_of(request, self._sandboxes)
        body = await first_message(request)
        watch = await sandbox.box.watch(path_of(body, "path"), flag(body, "recursive"), user=user_of(request))
        return FrameStream(_changes(sandbox, watch, with_entry=flag(body, "includeEntry")))

    async def _read(self, request: Request) -> tuple[LiveSandbox, dict[str, Any], str | None]:
        sandbox = await sandbox_of(request, self._sandboxes)
        return sandbox, await unary_request(request), user_of(request)


def path_of(body: dict[str, Any], name: str) -> str:
    """A path, which is not empty.

    Raises:
        RefusedError: It is empty, missing, or cannot be one.
    """
    path = text(body, name)
    if not path:
        raise RefusedError("invalid_argument", f"{name!r} is empty: give a path")
    return path


async def _changes(sandbox: LiveSandbox, watch: Watch, *, with_entry: bool) -> AsyncIterator[bytes]:
    try:
        yield frame({"start": {}})
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    event = await anext(watch)
            except TimeoutError:
                yield frame({"keepalive": {}})
                continue
            yield frame({"filesystem": await sandbox.watchers.written(event, with_entry=with_entry)})
    except BoxGoneError as error:
        raise sandbox_ended(str(error)) from error
    finally:
        await watch.close()
