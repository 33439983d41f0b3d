"""Folders under watch: what is made, written, moved and removed in them."""

from __future__ import annotations

import ctypes
import os
import stat

from tiltyard.sandbox.guest.loop import IN, Link, Loop
from tiltyard.sandbox.guest.wire import EVENT

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _IS_DIR, _ONLY_DIR = 0x4000, 0x8000, 0x40000000, 0x01000000
_ALL = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_NAMES = {
    _MODIFY: "write",
    _ATTRIB: "chmod",
    _MOVED_FROM: "rename",
    _MOVED_TO: "create",
    _CREATE: "create",
    _DELETE: "remove",
}
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT_BYTES = 16


class Watch:
    """One folder, with all below it or not."""

    def __init__(self, loop: Loop, link: Link, libc: ctypes.CDLL, channel: int, call: dict) -> None:
        self._loop = loop
        self._link = link
        self._libc = libc
        self._channel = channel
        self._root = call["path"]
        self._recursive = call["recursive"]
        self._folders: dict[int, str] = {}
        if not stat.S_ISDIR(os.stat(self._root).st_mode):
            raise NotADirectoryError(20, os.strerror(20), self._root)
        self._fd = libc.inotify_init1(_FLAGS)
        if self._fd < 0:
            raise OSError(24, "no more folders can be watched", self._root)
        self._add(self._root, quiet=True)
        if not self._folders:
            self.close()
            raise OSError(24, "no more folders can be watched", self._root)
        loop.wait_for(self._fd, IN, lambda _events: self.read())

    def _add(self, folder: str, quiet: bool) -> None:
        """Watch a folder; what is in a new one already is told as made, unless that is not news."""
        pending = self._begin(folder)
        while pending and self._recursive:
            try:
                children = list(os.scandir(pending.pop()))
            except OSError:  # gone again, or not to be read
                continue
            for child in children:
                if not quiet:
                    self._tell("create", child.path)
                if child.is_dir(follow_symlinks=False):
                    pending += self._begin(child.path)

    def _begin(self, folder: str) -> list[str]:
        """Watch this folder alone; returns it, or nothing where that cannot be."""
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _ALL | _ONLY_DIR)
        if number < 0:
            return []
        self._folders[number] = folder
        return [folder]

    def read(self) -> None:
        """Tell the host what happened up to now."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number = int.from_bytes(data[at : at + 4], "little", signed=True)
                mask = int.from_bytes(data[at + 4 : at + 8], "little")
                length = int.from_bytes(data[at + 12 : at + 16], "little")
                name = data[at + _EVENT_BYTES : at + _EVENT_BYTES + length].rstrip(b"\0")
                at += _EVENT_BYTES + length
                self._happened(number, mask, os.fsdecode(name))

    def _happened(self, number: int, mask: int, name: str) -> None:
        if mask & _IGNORED:
            self._folders.pop(number, None)
        folder = self._folders.get(number)
        if folder is None or not name:
            return
        path = os.path.join(folder, name)
        for bit, kind in _NAMES.items():
            if mask & bit:
                self._tell(kind, path)
        if self._recursive and mask & _IS_DIR and mask & (_CREATE | _MOVED_TO):
            self._add(path, quiet=False)

    def _tell(self, kind: str, path: str) -> None:
        if not self._link.full:
            self._link.tell(
                EVENT, self._channel, {"kind": kind, "path": path, "name": os.path.relpath(path, self._root)}
            )

    def close(self) -> None:
        """Watch no longer."""
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1
