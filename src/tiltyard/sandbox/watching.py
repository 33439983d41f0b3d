"""The watched folders of one sandbox: events are kept until a client comes for them."""

import secrets
from typing import Any

from tiltyard.errors import BoxError
from tiltyard.sandbox.box import Box
from tiltyard.sandbox.box_files import Watch
from tiltyard.sandbox.box_model import Entry, WatchEvent
from tiltyard.sandbox.entries import event_json
from tiltyard.sandbox.refusal import RefusedError

MAX_WATCHERS = 64
"""A client that never ends its watchers is told so, at this many in one sandbox."""


class Watchers:
    """Watchers that are polled."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._watches: dict[str, tuple[Watch, bool]] = {}

    async def add(self, path: str, *, recursive: bool, with_entry: bool, user: str | None) -> str:
        """Watch a folder; returns the watcher's id.

        Raises:
            RefusedError: There are too many.
            BoxError: It cannot be watched.
        """
        if len(self._watches) >= MAX_WATCHERS:
            raise RefusedError("resource_exhausted", f"the sandbox has {MAX_WATCHERS} watchers; stop those not needed")
        watch = await self._box.watch(path, recursive, user=user)
        watcher_id = secrets.token_hex(8)
        self._watches[watcher_id] = watch, with_entry
        return watcher_id

    async def events(self, watcher_id: str) -> list[dict[str, Any]]:
        """What happened since the last call.

        Raises:
            RefusedError: There is no such watcher.
            BoxError: The sandbox is gone.
        """
        watch, with_entry = self._found(watcher_id)
        return [await self.written(event, with_entry=with_entry) for event in await watch.drain()]

    async def remove(self, watcher_id: str) -> None:
        """Stop watching.

        Raises:
            RefusedError: There is no such watcher.
        """
        watch, _ = self._found(watcher_id)
        del self._watches[watcher_id]
        await watch.close()

    async def written(self, event: WatchEvent, *, with_entry: bool) -> dict[str, Any]:
        """An event as the protocol has it."""
        return event_json(event, await self._entry(event) if with_entry else None)

    async def _entry(self, event: WatchEvent) -> Entry | None:
        if event.kind in ("remove", "rename"):
            return None
        try:
            return await self._box.stat(event.path)
        except BoxError:
            return None  # it was removed in the meantime

    def _found(self, watcher_id: str) -> tuple[Watch, bool]:
        found = self._watches.get(watcher_id)
        if found is None:
            raise RefusedError("not_found", f"there is no watcher {watcher_id!r}; it was stopped, or never was")
        return found
