"""Who writes a run folder: a lock that the system takes back when its process ends, however it ends.

The file `writer.lock` is there while a process writes the folder, and says which one. That process holds a lock on it
(`flock`): a lock that nobody holds, in a file that is still there, is that of a process that was killed. Some shared
file systems have no such locks, or keep them to one machine; then it is told only as far as it can be told from here.
"""

import fcntl
import json
import os
import platform
import time
import warnings
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import IO, Any

from tiltyard.errors import ConfigurationError

NAME = "writer.lock"

TRIES, PAUSE_S = 10, 0.05
"""How often a folder's lock is tried: whoever looks at a run holds it for an instant."""

_held: "weakref.WeakSet[IO[Any]]" = weakref.WeakSet()


class Writing(StrEnum):
    """Whether a process writes the folder."""

    NOBODY = "nobody"
    """None does: each closed the folder."""
    GOES_ON = "goes_on"
    GONE = "gone"
    """The process that did was killed."""
    UNKNOWN = "unknown"
    """It is on another machine, or the file system has no locks."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes a run folder, and whether that process is there; `process` names it."""

    writing: Writing
    process: str = ""


class WriterLock:
    """The lock of the process that writes a folder, until `release`."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self._path = path
        self._file = file

    @classmethod
    def take(cls, folder: Path) -> "WriterLock":
        """Take the lock of a folder.

        Raises:
            ConfigurationError: Another process writes the folder, and the message names it; or nothing can be written.
        """
        path = folder / NAME
        for _ in range(TRIES):
            try:
                file = _taken(path)
            except OSError as error:
                raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
            if file is not None:
                return cls(path, file)
            time.sleep(PAUSE_S)
        raise ConfigurationError(_busy(folder, writer_of(folder)))

    def release(self) -> None:
        """Give the lock back; later calls, and those of a forked process, do nothing."""
        if not self._file.closed:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                warnings.warn(f"{self._path} cannot be taken away: {error.strerror}; delete it", stacklevel=2)
            self._file.close()


def writer_of(folder: Path) -> Writer:
    """Find out who writes a folder. Asked before the folder is read, a process that is gone has written all it will."""
    try:
        with (folder / NAME).open("rb") as file:
            locked = _lock(file, fcntl.LOCK_SH)
            there = os.fstat(file.fileno()).st_nlink
            sign = _sign(file.read())
    except FileNotFoundError:
        return Writer(Writing.NOBODY)
    except OSError:
        return Writer(Writing.UNKNOWN)
    process = f"process {sign['pid']} on {sign['host']}" if sign else ""
    if locked is False:
        return Writer(Writing.GOES_ON, process)
    if not there:
        return Writer(Writing.NOBODY)
    if sign.get("locked") and locked:
        here = _here()
        near = sign["host"] == here["host"] or (here["boot"] is not None and sign["boot"] == here["boot"])
        return Writer(Writing.GONE if near else Writing.UNKNOWN, process)
    return Writer(_seen(sign), process)


def _taken(path: Path) -> IO[str] | None:
    """Open the file and lock it, with what it says of this process; None where another has the lock."""
    with ExitStack() as undo:
        file = undo.enter_context(path.open("a+", encoding="utf-8"))
        locked = _lock(file, fcntl.LOCK_EX)
        if locked is None:
            _refuse_unlocked(path.parent)
        # A file that its holder took away in between is nobody's, and its lock is worth nothing.
        if locked is False or not os.fstat(file.fileno()).st_nlink:
            return None
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        json.dump({"pid": os.getpid(), "since": since, "locked": locked is not None, **_here()}, file)
        file.flush()
        _close_in_forks()
        _held.add(file)
        undo.pop_all()
        return file


def _sign(text: bytes) -> dict[str, Any]:
    """What `_taken` wrote; empty where it was cut."""
    try:
        sign = json.loads(text)
    except ValueError:
        return {}
    known = isinstance(sign, dict) and isinstance(sign.get("pid"), int) and {"host", "boot", "namespace"} <= sign.keys()
    return sign if known else {}


def _here() -> dict[str, str | None]:
    """This machine: its name, its start, and whose process numbers are told apart here; containers share a start."""
    return {"host": platform.node(), "boot": _start_of_machine(), "namespace": _namespace()}


@cache
def _start_of_machine() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _seen(sign: dict[str, Any]) -> Writing:
    """Whether a process without a lock is there: only its own machine can tell."""
    if not sign or any(sign[name] != value for name, value in _here().items()):
        return Writing.UNKNOWN
    try:
        os.kill(sign["pid"], 0)
    except ProcessLookupError:
        return Writing.GONE
    except PermissionError:
        return Writing.GOES_ON
    return Writing.GOES_ON


def _lock(file: IO[Any], kind: int) -> bool | None:
    """Try to take a lock; False where another has it, None where the file system has none."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _refuse_unlocked(folder: Path) -> None:
    """Without locks, what the file says decides."""
    writer = writer_of(folder)
    if writer.writing is Writing.GOES_ON:
        raise ConfigurationError(f"{_busy(folder, writer)}; if that is another program, delete {NAME} there")
    if writer.process and writer.writing is Writing.UNKNOWN:
        warnings.warn(
            f"{folder}: whether {writer.process} still writes here cannot be told: this file system has no locks",
            stacklevel=2,
        )


def _busy(folder: Path, writer: Writer) -> str:
    return f"{folder} is being written by {writer.process or 'another process'}: wait for it, or stop it first"


@cache
def _close_in_forks() -> None:
    """A process that is forked from this one does not keep its locks."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for file in list(_held):
        file.close()
