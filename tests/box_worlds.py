"""For tests of sandboxes: as root and as an ordinary user, each with a folder of its own, and nothing left after it.

Run as root, the ordinary user is a process that gives root up; run as an ordinary user there is only that one.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - an ordinary user may not be able to import any more
import json
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tiltyard.sandbox.box import Box
from tiltyard.sandbox.box_maker import BoxMaker
from tiltyard.sandbox.box_model import BoxLimits, Exited, Template
from tiltyard.sandbox.isolation import probe

WORLDS = ["root", "user"] if os.geteuid() == 0 else ["user"]
SMALL = BoxLimits(memory_mib=128, processes=40, disk_mib=16)
BASE = Template("base", limits=SMALL)
GONE_S = 10


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    out: str
    err: str
    code: int
    signal: int | None


async def sh(box: Box, script: str, *, at_most: int | None = None, **how) -> Ran:
    """Run a shell script to its end; `at_most` bytes of output are kept."""
    process = await box.spawn("/bin/bash", ["-c", script], **how)
    kept = {"stdout": b"", "stderr": b"", "pty": b""}
    async with process.subscribe() as output:
        async for item in output:
            if isinstance(item, Exited):
                out = kept["stdout"] + kept["pty"]
                return Ran(
                    out.decode("utf-8", "replace"),
                    kept["stderr"].decode("utf-8", "replace"),
                    item.exit_code,
                    item.signal,
                )
            if at_most is None or len(kept[item.stream]) < at_most:
                kept[item.stream] += item.data
    raise AssertionError("the output ended without the command's end")


async def python(box: Box, program: str) -> Ran:
    """Run a Python program in the sandbox."""
    process = await box.spawn(box.python[0], [*box.python[1:], "-I", "-"], stdin=True)
    async with process.subscribe() as output:
        await process.send_stdin(program.encode())
        await process.close_stdin()
        kept = {"stdout": b"", "stderr": b""}
        async for item in output:
            if isinstance(item, Exited):
                return Ran(kept["stdout"].decode(), kept["stderr"].decode(), item.exit_code, item.signal)
            kept[item.stream] += item.data
    raise AssertionError("the output ended without the program's end")


async def works(box: Box) -> bool:
    """Whether a sandbox does what it should."""
    return (await sh(box, "echo well")).out == "well\n" and await box.write_file("/tmp/w", b"w") is not None


async def content(box: Box, path: str) -> bytes:
    """A whole file."""
    return b"".join([piece async for piece in await box.read_file(path)])


def play(who: str, scenario: Callable[[BoxMaker], Awaitable[None]], *templates: Template, warm: int = 0) -> None:
    """Run a scenario as root or as an ordinary user, and see that nothing is left of it."""
    folder = Path(tempfile.mkdtemp(prefix="tiltyard-test-"))
    user = None
    try:
        if who == "user" and os.geteuid() == 0:
            user = 100_000 + os.getpid() % 100_000
            os.chown(folder, user, user)
            _as_user(user, lambda: _run(folder, scenario, templates, warm))
        else:
            _run(folder, scenario, templates, warm)
        assert [path.name for path in folder.iterdir()] == []
        assert user is None or wait_for(lambda: not processes_of(user)), processes_of(user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, scenario: Callable[[BoxMaker], Awaitable[None]], templates, warm: int) -> None:
    async def whole() -> str:
        maker = BoxMaker(probe(), folder, templates or [BASE], warm=warm)
        await maker.start()
        token = next(path.name for path in folder.iterdir()).removeprefix("owner-")
        try:
            async with asyncio.timeout(60):
                await scenario(maker)
        finally:
            await maker.close()
        return token

    token = asyncio.run(whole())
    assert groups_of(token) == []  # a group that still had a process could not have been removed


def groups_of(token: str) -> list[str]:
    """The control groups of one maker: there are none for an ordinary user without groups of its own."""
    mark = f"tiltyard-{token}"
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if mark in folder]


def processes_of(user: int) -> list[str]:
    """Every process of a user, zombies left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if folder.stat().st_uid == user and state not in "ZX":
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def wait_for(true: Callable[[], object]) -> bool:
    """Wait until something is so, for as long as a busy machine may need."""
    until = time.monotonic() + GONE_S
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def hosted(who: str, scenario: Callable[[BoxMaker], Awaitable[None]]) -> Iterator["Hosted"]:
    """A process with a maker, which has done `scenario` and waits: for tests that kill it."""
    folder = Path(tempfile.mkdtemp(prefix="tiltyard-test-"))
    user = 100_000 + os.getpid() % 100_000 if who == "user" and os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user, user)

    async def whole() -> None:
        maker = BoxMaker(probe(), folder, [BASE])
        await maker.start()
        await scenario(maker)
        os.write(tell, b"ready")
        await asyncio.sleep(1000)

    told, tell = os.pipe()
    child = _fork()
    if child == 0:
        try:
            os.setsid()
            if user is not None:
                _become(user)
            asyncio.run(whole())
        except BaseException:  # noqa: BLE001 - the test sees that it is not ready
            os.write(tell, traceback.format_exc().encode())
        os._exit(1)
    os.close(tell)
    said = os.read(told, 100_000).decode()
    os.close(told)
    try:
        assert said == "ready", said
        yield Hosted(child, folder, next(folder.glob("owner-*")).name.removeprefix("owner-"), user)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Hosted:
    """A process with a maker.

    Attributes:
        pid: The process.
        folder: Its maker's folder.
        token: What its control groups are named after.
        user: The number of the ordinary user; None for this one.
    """

    pid: int
    folder: Path
    token: str
    user: int | None

    @property
    def keeper(self) -> int:
        """The keeper's process."""
        return int(next(line for line in _children_of(self.pid) if "keeper" in line).split()[0])

    def boxes(self) -> list[int]:
        """The processes that the sandboxes' records name, as far as there are any."""
        pids = []
        for record in self.folder.glob("owner-*/boxes/*.json"):
            pids += [pid for pid, started in json.loads(record.read_text())["pids"] if Path(f"/proc/{pid}").exists()]
        return pids


def _children_of(pid: int) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                    found.append(f"{folder.name} " + (folder / "cmdline").read_text().replace("\0", " "))
    return found


def gone(pid: int) -> bool:
    """Whether a process is over, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the copy starts none of them
        return os.fork()


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _as_user(user: int, action: Callable[[], None]) -> None:
    """Do something in a process that is nothing but that user."""
    told, tell = os.pipe()
    child = _fork()
    if child == 0:
        try:
            os.close(told)
            os.setsid()
            _become(user)
            action()
            failure = ""
        except BaseException:  # noqa: BLE001 - told to the test, which raises it
            failure = traceback.format_exc()
        with os.fdopen(tell, "wb") as pipe:
            pickle.dump(failure, pipe)
        os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        failure = pickle.load(pipe)
    os.waitpid(child, 0)
    if failure:
        raise AssertionError(f"as an ordinary user:\n{failure}")
