"""What a sandbox may use, what it is made of, and what it tells: plain values."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError

TEMPLATE_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/")


_WHOLE = {
    "memory_mib": (32, 1 << 24),
    "processes": (1, 1 << 21),
    "disk_mib": (1, 1 << 23),
    "open_files": (16, 1 << 20),
}
"""The least and the most of what is counted: no kernel takes more."""

_MOST_CPUS = 4096


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
        for name, (least, most) in _WHOLE.items():
            _check_number(name, getattr(self, name), whole=True)
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} of a sandbox must be >= {least}, got {getattr(self, name)!r}")
            _check_most(name, getattr(self, name), most)
        _check_number("cpus", self.cpus, whole=False)
        if not self.cpus > 0:
            raise ConfigurationError(f"cpus of a sandbox must be > 0, got {self.cpus!r}")
        _check_most("cpus", self.cpus, _MOST_CPUS)
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
        setup: Shell commands run once, one after the other; what they leave on the disk is in each sandbox. One text is
            one command.
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
        if not isinstance(self.name, str) or not self.name or not set(self.name) <= TEMPLATE_NAME:
            raise ConfigurationError(f"a template's name has letters, digits and any of -_.:/ in it; got {self.name!r}")
        object.__setattr__(self, "root", _root(self.name, self.root))
        object.__setattr__(self, "setup", _setup(self.name, self.setup))
        _check_envs(self.name, self.envs)
        if not isinstance(self.limits, BoxLimits):
            raise ConfigurationError(f"limits of template {self.name!r} must be BoxLimits(…), got {shown(self.limits)}")
        if not isinstance(self.network, bool):
            raise ConfigurationError(f"network of template {self.name!r} must be true or false, got {self.network!r}")


def _check_number(name: str, value: Any, *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigurationError(f"{name} of a sandbox must be a {'whole ' * whole}number, got {value!r}")


def _check_most(name: str, value: float, most: int) -> None:
    if value > most:
        raise ConfigurationError(f"{name} of a sandbox must be <= {most}, got {value!r}")


def _root(name: str, root: Any) -> Path | None:
    """The folder's absolute path: sandboxes are started from another one."""
    if root is None:
        return None
    if not isinstance(root, str | os.PathLike) or not Path(root).is_dir():
        raise ConfigurationError(f"root of template {name!r} must be a folder, got {str(root)!r}")
    return Path(root).absolute()


def _setup(name: str, setup: Any) -> tuple[str, ...]:
    commands = (setup,) if isinstance(setup, str) else setup
    if not isinstance(commands, list | tuple):
        raise ConfigurationError(f"setup of template {name!r} must be a list of shell commands, got {shown(setup)}")
    for command in commands:
        if not isinstance(command, str) or not command.strip() or "\0" in command:
            raise ConfigurationError(f"setup of template {name!r} must be shell commands, one is {shown(command)}")
    return tuple(commands)


def _check_envs(name: str, envs: Any) -> None:
    if not isinstance(envs, Mapping):
        raise ConfigurationError(f"envs of template {name!r} must map names to texts, got a {type(envs).__name__}")
    for key, value in envs.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise ConfigurationError(f"{shown(key)} cannot name a variable (in envs of template {name!r})")
        if not isinstance(value, str) or "\0" in value:
            raise ConfigurationError(f"{key!r} in envs of template {name!r} must be a text without a NUL")


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
