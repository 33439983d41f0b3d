"""What a sandbox may use, what it is made of, and what it tells: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tiltyard.errors import ConfigurationError

TEMPLATE_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/")


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """What one sandbox may use.

    Attributes:
        memory_mib: Memory of all its processes and of its files together.
        processes: Processes and threads that its commands may have at once.
        cpus: Share of the machine's processors; 0.5 is half of one.
        disk_mib: Size of its file system, which lives in memory: at most half of it, so that a full disk leaves the
            processes room to say so.
        open_files: Open files of one process.
    """

    memory_mib: int = 512
    processes: int = 128
    cpus: float = 1.0
    disk_mib: int = 256
    open_files: int = 1024

    def __post_init__(self) -> None:
        for name, least in (("memory_mib", 32), ("processes", 1), ("disk_mib", 1), ("open_files", 16)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} of a sandbox must be >= {least}, got {getattr(self, name)!r}")
        if not self.cpus > 0:
            raise ConfigurationError(f"cpus of a sandbox must be > 0, got {self.cpus!r}")
        if self.disk_mib * 2 > self.memory_mib:
            raise ConfigurationError(
                f"disk_mib of a sandbox must be at most half of memory_mib, since its files live in memory; got "
                f"disk_mib={self.disk_mib} and memory_mib={self.memory_mib}"
            )


@dataclass(frozen=True, slots=True)
class Template:
    """What sandboxes of one kind are made of.

    Attributes:
        name: What a client asks for.
        root: A folder with a Linux system in it, shown read-only below a writable top; None = this machine's `/usr`.
        setup: Shell commands run once, one after the other; what they leave on the disk is in each sandbox.
        envs: Environment variables of every command.
        limits: What a sandbox may use.
        network: True shares this machine's network, its own loopback included.
    """

    name: str
    root: Path | None = None
    setup: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    limits: BoxLimits = field(default_factory=BoxLimits)
    network: bool = False

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= TEMPLATE_NAME:
            raise ConfigurationError(f"a template's name has letters, digits and any of -_.:/ in it; got {self.name!r}")
        if self.root is not None and not Path(self.root).is_dir():
            raise ConfigurationError(f"root of template {self.name!r} must be a folder, got {str(self.root)!r}")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A command that is running in a sandbox."""

    pid: int
    cmd: str
    args: tuple[str, ...]
    envs: Mapping[str, str]
    cwd: str
    tag: str | None


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a command wrote."""

    stream: Literal["stdout", "stderr", "pty"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """How a command ended.

    Attributes:
        exit_code: Its code; -1 when a signal or the end of the sandbox ended it.
        signal: The number of the signal that ended it; None when it ended by itself.
        error: What went wrong around it, in words; None when nothing did.
    """

    exit_code: int
    signal: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a folder or something else in a sandbox.

    Attributes:
        name: The last part of `path`.
        path: Absolute; links in it are not resolved.
        kind: For a link, what it points to; "symlink" when that is nothing.
        size: Bytes.
        mode: The permission bits.
        permissions: As `ls -l` shows them.
        owner: A user's name, or a number that has none.
        group: As `owner`.
        modified_ns: Nanoseconds since 1970.
        symlink_target: For a link, the absolute path of what it points to, all links resolved; else None.
        metadata: What was given when the file was written.
    """

    name: str
    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_ns: int
    symlink_target: str | None
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something that happened in a folder under watch; `name` is relative to that folder."""

    kind: Literal["create", "write", "remove", "rename", "chmod"]
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class BoxMetrics:
    """What a sandbox uses and may use, in bytes; `timestamp` in seconds since 1970."""

    timestamp: float
    cpu_count: float
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int
