"""Files of the sandbox: read, written, listed and moved as the sandbox's own user."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

from tiltyard.sandbox.guest.loop import Link
from tiltyard.sandbox.guest.wire import CHUNK, DATA, DONE, ENTRIES, GRANT, NUMBER, USER, USER_ID, WINDOW

_MOST_ENTRIES = 50_000
_ENTRIES_AT_ONCE = 128
_CHARS_AT_ONCE, _MOST_CHARS = 128 * 1024, 6 * 1024 * 1024
"""Of paths: a byte of one that is not UTF-8 takes six in a frame, which holds a megabyte."""
_MOST_METADATA = 64 * 1024
_XATTR = "user.e2b."
_OWNERS = {0: "root", USER_ID: USER, 65534: "root"}  # what the namespace has no number for is the host's, read-only


class NotRegularError(ValueError):
    """Something that is not a file with a beginning and an end."""


def entry(path: str) -> dict:
    """What there is at a path; a link is told with what it points to.

    Raises:
        OSError: Nothing is there, or it may not be seen.
    """
    found = os.lstat(path)
    kind, target, mode = _kind(found.st_mode), None, found.st_mode
    if kind == "symlink":
        target = os.path.realpath(path)
        try:
            mode = os.stat(path).st_mode
            kind = _kind(mode)
        except OSError:
            pass
    return {
        "name": os.path.basename(path.rstrip("/")) or "/",
        "path": path,
        "kind": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode) & 0o777,
        "permissions": stat.filemode(found.st_mode),
        "owner": _OWNERS.get(found.st_uid, str(found.st_uid)),
        "group": _OWNERS.get(found.st_gid, str(found.st_gid)),
        "modified_ns": found.st_mtime_ns,
        "symlink_target": target,
        "metadata": _metadata(path),
    }


def _kind(mode: int) -> str:
    for test, name in ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink")):
        if test(mode):
            return name
    return "other"


def _metadata(path: str) -> dict:
    try:
        names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith(_XATTR)]
        told = {name[len(_XATTR) :]: os.getxattr(path, name).decode("utf-8", "replace") for name in names}
    except OSError:
        return {}
    return told if sum(map(len, [*told, *told.values()])) <= _MOST_METADATA else {}


def _forget_metadata(fd: int) -> None:
    for name in os.listxattr(fd):
        if name.startswith(_XATTR):
            os.removexattr(fd, name)


def walk(path: str, depth: int) -> Iterator[list[dict]]:
    """A folder's entries in portions, a folder before what is in it; links are not followed.

    Raises:
        OSError: The folder itself cannot be read.
        ValueError: There are more than can be told.
    """
    portion, held, count, chars = [], 0, 0, 0
    pending = [(child, 1) for child in reversed(_children(path))]
    while pending:
        child, level = pending.pop()
        try:
            found = entry(child)
        except OSError:  # gone since: the rest can still be told
            continue
        if level < depth and stat.S_ISDIR(os.lstat(child).st_mode):
            pending += [(below, level + 1) for below in reversed(_readable(child))]
        portion.append(found)
        size = len(child) + len(found["symlink_target"] or "") + sum(map(len, found["metadata"].values()))
        held, chars, count = held + size, chars + size, count + 1
        if count > _MOST_ENTRIES:
            raise ValueError(f"more than {_MOST_ENTRIES} entries below {path}")
        if chars > _MOST_CHARS:
            raise ValueError(f"paths of more than {_MOST_CHARS} characters below {path}")
        if len(portion) >= _ENTRIES_AT_ONCE or held > _CHARS_AT_ONCE:
            yield portion
            portion, held = [], 0
    yield portion


def _readable(path: str) -> list[str]:
    """What is in a folder below the one that is listed; nothing where that may not be seen, or is gone."""
    try:
        return _children(path)
    except OSError:
        return []


def _children(path: str) -> list[str]:
    return [os.path.join(path, name) for name in sorted(os.listdir(path))]


def remove(path: str) -> Iterator[None]:
    """Remove what is at a path, with all that is in it, a few at a time.

    Raises:
        OSError: Something could not be removed.
    """
    stack = [(path, False)]
    while stack:
        current, emptied = stack.pop()
        if emptied:
            os.rmdir(current)
        elif stat.S_ISDIR(os.lstat(current).st_mode):
            stack.append((current, True))
            stack += [(child, False) for child in _children(current)]
        else:
            os.unlink(current)
        if len(stack) % _ENTRIES_AT_ONCE == 0:
            yield


def move(old: str, new: str) -> dict:
    """Move a file or folder; makes the folders above the new place.

    Raises:
        OSError: It cannot be moved.
    """
    os.lstat(old)
    make_parents(new)
    os.rename(old, new)
    return entry(new)


def make_parents(path: str) -> None:
    """Make the folders above a path.

    Raises:
        OSError: They cannot be made.
    """
    try:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(20, os.strerror(20), error.filename) from None


class Reading:
    """One file on its way to the host, as far as the host takes it."""

    def __init__(self, link: Link, channel: int, path: str) -> None:
        self._link = link
        self._channel = channel
        self._credit = WINDOW
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(21, os.strerror(21), path)
            raise NotRegularError(f"not a regular file: {path}")

    @property
    def ready(self) -> bool:
        """True when the host takes more of it."""
        return self._credit > 0 and not self._link.full

    def grant(self, count: int) -> None:
        """The host takes so many bytes more."""
        self._credit += count

    def step(self) -> bool:
        """Send a piece; false when that was the last.

        Raises:
            OSError: It cannot be read on.
        """
        data = os.read(self._fd, min(CHUNK, self._credit))
        if not data:
            self.close()
            self._link.tell(DONE, self._channel, None)
            return False
        self._credit -= len(data)
        self._link.send(DATA, self._channel, data)
        return True

    def close(self) -> None:
        """Read no further."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Writing:
    """One file on its way from the host."""

    def __init__(self, link: Link, channel: int, path: str, metadata: dict) -> None:
        self._link = link
        self._channel = channel
        self._path = path
        make_parents(path)
        new = not os.path.lexists(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        found = os.fstat(self._fd)
        try:
            if not stat.S_ISREG(found.st_mode):
                raise NotRegularError(f"not a regular file: {path}")
            if found.st_size:
                os.ftruncate(self._fd, 0)
            if new:
                os.fchmod(self._fd, 0o644)
            if metadata or not new:
                _forget_metadata(self._fd)
            for name, value in metadata.items():
                os.setxattr(self._fd, _XATTR + name, value.encode())
        except BaseException:
            self.close()
            raise

    def feed(self, data: bytes) -> None:
        """A piece of it.

        Raises:
            OSError: It cannot be written.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._link.send(GRANT, self._channel, NUMBER.pack(len(data)))

    def end(self) -> dict:
        """That was all of it; returns its entry.

        Raises:
            OSError: It cannot be written.
        """
        self.close()
        return entry(self._path)

    def close(self) -> None:
        """Write no further."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class Work:
    """A long operation in small steps, so that it holds up nothing else."""

    def __init__(self, link: Link, channel: int, steps: Iterator, answer: Callable[[int, object], None]) -> None:
        self._link = link
        self._channel = channel
        self._steps = steps
        self._answer = answer

    @property
    def ready(self) -> bool:
        """True when the host has taken what was found so far."""
        return not self._link.full

    def step(self) -> bool:
        """Do a little; false when that was the last of it.

        Raises:
            OSError: It cannot go on.
            ValueError: There is too much of it.
        """
        for portion in self._steps:
            if portion is not None:
                self._link.tell(ENTRIES, self._channel, portion)
            return True
        self._answer(self._channel, None)
        return False

    def close(self) -> None:
        """Do no more."""
