"""One sandbox: its commands, its files, and its end."""

import asyncio
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard.errors import BoxArgumentError, BoxGoneError, BoxPathMissingError
from tiltyard.sandbox.box_files import BoxFiles, Homes, Reading, Watch, pieces
from tiltyard.sandbox.box_link import BoxLink
from tiltyard.sandbox.box_model import BoxLimits, BoxMetrics, Entry, ProcessInfo, Template
from tiltyard.sandbox.box_process import Command, Process
from tiltyard.sandbox.box_state import BoxState
from tiltyard.sandbox.cgroups import GroupOrder
from tiltyard.sandbox.keeping import Keeping, Kept

MAX_ARGUMENT = 128 * 1024 - 1
"""The kernel takes no single argument or variable that is longer."""

BASE_ENVS = {
    "PATH": "/home/user/.local/bin:/.tiltyard/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "SHELL": "/bin/bash",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # the system's packages are read-only here: nothing of them can be broken
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


@dataclass(frozen=True, slots=True)
class BoxParts:
    """What a `Box` is put together from."""

    link: BoxLink
    keeping: Keeping
    kept: Kept
    pid: int
    groups: GroupOrder
    python: tuple[str, ...]
    homes: Homes


class Box:
    """A sandbox that runs. Every method but `kill` and `wait_dead` raises `BoxGoneError` once it is dead.

    Attributes:
        id: Names it.
        template: What it was made from.
        limits: What it may use.
        envs: Variables of every command, beside those of the template.
        python: The command for an interpreter in it.
        homes: Where the home folders of its users are.
    """

    def __init__(self, box_id: str, template: Template, limits: BoxLimits, parts: BoxParts) -> None:
        self.id = box_id
        self.template = template
        self.limits = limits
        self.envs: dict[str, str] = {}
        self.python = parts.python
        self.homes = parts.homes
        self._parts = parts
        self._link = parts.link
        self._files = BoxFiles(parts.link)
        self._state = BoxState(parts.link, parts.pid, parts.groups)
        self._processes: dict[int, Process] = {}
        self._why: str | None = None

    @property
    def paused(self) -> bool:
        """True between `pause` and `resume`; calls then wait."""
        return self._state.paused

    @property
    def alive(self) -> bool:
        """False once it is dead or being killed."""
        return self._link.gone is None and not self._parts.kept.ended.done()

    async def wait_dead(self) -> str:
        """Wait until nothing is left of it; returns why it ended."""
        told = await asyncio.shield(self._parts.kept.ended)
        self._link.close(self._reason(told))
        return self._why or self._reason(told)

    def _reason(self, told: dict[str, Any]) -> str:
        for text in told["told"].values():
            if any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in text.splitlines()):
                return "the sandbox ran out of memory"
        return self._link.gone or told["stderr"].strip() or "the sandbox ended"

    async def kill(self, why: str = "the sandbox was killed") -> None:
        """Kill all of it; returns when nothing is left."""
        if self._why is None:
            self._why = why
        self._link.close(why)
        await self.clear_away()

    async def clear_away(self) -> None:
        """Kill what is left of it, for whatever reason it ended; returns when nothing is left."""
        try:
            await self._parts.keeping.kill(self.id)
        except BoxGoneError:  # the keeper is gone, and took the sandbox with it
            return
        await asyncio.shield(self._parts.kept.ended)

    async def spawn(
        self,
        cmd: str,
        args: Sequence[str] = (),
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        tag: str | None = None,
    ) -> Process:
        """Start a command.

        Args:
            cmd: A program, looked for in `PATH`.
            args: Its arguments.
            envs: Variables on top of those of the template and the sandbox.
            cwd: A folder; None = the user's home.
            user: "user" or "root"; root has its own home and name here, not more rights.
            stdin: Whether its standard input stays open; it is empty otherwise.
            pty: Rows and columns of a terminal; None = pipes.
            tag: Names it.

        Raises:
            BoxError: It cannot be started.
        """
        home = self.homes.of(user)
        name = user or "user"
        variables = {**BASE_ENVS, "HOME": home, "USER": name, "LOGNAME": name}
        if pty is not None:
            variables["TERM"] = "xterm-256color"
        variables = {**variables, **self.template.envs, **self.envs, **(envs or {})}
        for text in (cmd, *args, *(f"{key}={value}" for key, value in variables.items())):
            if "\0" in text:
                raise BoxArgumentError(f"an argument cannot have a NUL in it, got {text[:80]!r}")
            if len(text.encode("utf-8", "surrogateescape")) > MAX_ARGUMENT:
                raise BoxArgumentError(
                    f"an argument of {len(text)} characters is too long for a command, at most {MAX_ARGUMENT} bytes; "
                    f"write it to a file first"
                )
        folder = self.homes.path(cwd or "", user)
        command = Command(cmd, tuple(args), variables, folder, tag, stdin, pty)
        process = Process(self._link, command, self._ended)
        try:
            await process.start()
        except BoxPathMissingError as error:
            if str(error).endswith(f": {folder}"):
                raise BoxPathMissingError(f"no such working folder: {folder}") from error
            raise
        if process.exited is None:
            self._processes[process.pid] = process
        return process

    def _ended(self, process: Process) -> None:
        if self._processes.get(process.pid) is process:
            del self._processes[process.pid]

    def processes(self) -> list[ProcessInfo]:
        """The commands that were started and run."""
        return [process.info for process in self._processes.values()]

    def process(self, pid: int | None = None, tag: str | None = None) -> Process:
        """A command that runs, by its number or its tag.

        Raises:
            BoxPathMissingError: There is none.
        """
        for process in self._processes.values():
            if process.pid == pid or (tag is not None and process.tag == tag):
                return process
        raise BoxPathMissingError(
            f"no process with {'pid ' + str(pid) if tag is None else 'tag ' + repr(tag)} is running"
        )

    async def read_file(self, path: str, *, user: str | None = None) -> Reading:
        """Open a file for reading; iterate over what is returned, and close it when that is not to the end.

        Raises:
            BoxError: It cannot be read.
        """
        return await Reading(self._link, self.homes.path(path, user)).ready()

    async def write_file(
        self,
        path: str,
        chunks: bytes | AsyncIterable[bytes],
        *,
        user: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Write a file, with the folders above it; what was in it is gone.

        Raises:
            BoxError: It cannot be written.
        """
        return await self._files.write(self.homes.path(path, user), pieces(chunks), metadata or {})

    async def stat(self, path: str, *, user: str | None = None) -> Entry:
        """What is at a path.

        Raises:
            BoxError: Nothing, or it cannot be seen.
        """
        return await self._files.one("stat", path=self.homes.path(path, user))

    async def list_dir(self, path: str, depth: int = 1, *, user: str | None = None) -> list[Entry]:
        """What is in a folder, down to a depth, each folder before what is in it.

        Raises:
            BoxError: It cannot be listed.
        """
        if depth < 1:
            raise BoxArgumentError(f"depth must be >= 1, got {depth!r}")
        return await self._files.list(self.homes.path(path, user), depth)

    async def make_dir(self, path: str, *, user: str | None = None) -> Entry:
        """Make a folder, with those above it.

        Raises:
            BoxError: It cannot be made, or something is there.
        """
        return await self._files.one("make_dir", path=self.homes.path(path, user))

    async def move(self, source: str, target: str, *, user: str | None = None) -> Entry:
        """Move a file or folder.

        Raises:
            BoxError: It cannot be moved.
        """
        return await self._files.one("move", path=self.homes.path(source, user), to=self.homes.path(target, user))

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens where nothing is.

        Raises:
            BoxError: It cannot be removed.
        """
        await self._files.remove(self.homes.path(path, user))

    async def watch(self, path: str, recursive: bool = False, *, user: str | None = None) -> Watch:
        """Watch a folder, and with `recursive` those below it, those to come too.

        Raises:
            BoxError: It cannot be watched.
        """
        return await Watch(self._link, self.homes.path(path, user), recursive).ready()

    async def pause(self) -> None:
        """Stop everything in it; calls wait until `resume`.

        Raises:
            BoxGoneError: It is dead.
        """
        await self._state.pause()

    async def resume(self) -> None:
        """Let it go on.

        Raises:
            BoxGoneError: It is dead.
        """
        await self._state.resume()

    async def halt(self) -> None:
        """Stop what runs in it now; what is started after that runs.

        Raises:
            BoxGoneError: It is dead.
        """
        await self._link.call("stop")

    async def go_on(self) -> None:
        """Let go on what `halt` stopped.

        Raises:
            BoxGoneError: It is dead.
        """
        await self._link.call("go_on")

    async def metrics(self) -> BoxMetrics:
        """What it uses now; CPU since the last time that this was asked.

        Raises:
            BoxError: It is dead or paused.
        """
        return await self._state.metrics(self.limits)
