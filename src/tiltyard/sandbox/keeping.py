"""The host's side of the keeper, and what it finds of keepers that are gone."""

import array
import asyncio
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiltyard.errors import BoxGoneError
from tiltyard.sandbox.alone import lay_program
from tiltyard.sandbox.keeper.clearing import clear_groups, started_at, thaw
from tiltyard.sandbox.keeper.main import MAX_MESSAGE

_KEEPER = Path(__file__).with_name("keeper")
_PROGRAM = "import sys; sys.path.insert(0, {!r}); from tiltyard.sandbox.keeper.main import main; main()"
_STALE_S = 60
_CLOSE_S = 10
_POLL_S = 0.005


@dataclass(slots=True)
class Kept:
    """What the keeper told of one sandbox.

    Attributes:
        started: Becomes the number of its first process, as the host sees it.
        ended: Becomes the keeper's last message about it.
    """

    started: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Keeping:
    """The keeper process and the folder that it removes when it ends."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.token = secrets.token_hex(6)
        self.folder = folder / f"owner-{self.token}"
        self._parent = folder
        self._python = python
        self._kept: dict[str, Kept] = {}
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the folder and start the keeper."""
        making = self._parent / f".making-{self.token}"
        (making / "boxes").mkdir(parents=True)
        (making / "boxes").chmod(0o700)
        making.chmod(0o711)
        lay_program(_KEEPER, making / "keeper")
        lock = os.open(making / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.rename(self.folder)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        program = _PROGRAM.format(str(self.folder / "keeper"))
        self._process = subprocess.Popen(  # noqa: S603 - our own program in our own interpreter
            [self._python, "-I", "-S", "-c", program, str(self.folder), str(os.getpid()), str(lock)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            pass_fds=[lock],
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        os.close(lock)  # the keeper holds it now: it is free once the keeper is gone
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._told)

    async def box(self, order: dict[str, Any], agent: socket.socket) -> Kept:
        """Have a sandbox started; its first process gets `agent` as its connection to the host.

        Raises:
            BoxGoneError: The keeper is gone.
        """
        kept = self._kept[order["id"]] = Kept()
        message = json.dumps({"op": "start", **order}).encode()
        await self._send(message, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [agent.fileno()]))])
        return kept

    async def kill(self, box: str) -> None:
        """Have a sandbox killed; does nothing when it is over."""
        if box in self._kept:
            await self._send(json.dumps({"op": "kill", "id": box}).encode())

    async def close(self) -> None:
        """Let go of the keeper, which then kills what is left and goes; returns when it is gone."""
        self._hang_up()
        if self._process is None:
            return
        process, self._process = self._process, None
        until = time.monotonic() + _CLOSE_S
        while process.poll() is None:  # without a thread: at the end of the host process there are none to be had
            if time.monotonic() > until:
                process.kill()
                process.wait()
                clear_owner(self.folder)
            await asyncio.sleep(_POLL_S)

    async def _send(self, message: bytes, ancillary: list[Any] | None = None) -> None:
        while self._socket is not None:
            try:
                self._socket.sendmsg([message], ancillary or [])
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError:
                self._hang_up()
            else:
                return
        raise BoxGoneError("the process that keeps the sandboxes is gone; start the server again")

    def _told(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        message = json.loads(data)
        kept = self._kept.get(message["id"])
        if kept is None:
            return
        if message["event"] == "started":
            kept.started.set_result(message["pid"])
            return
        del self._kept[message["id"]]
        self._end(kept, message)

    def _hang_up(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        for kept in self._kept.values():
            self._end(kept, {"code": -1, "stderr": "", "told": {}, "left": [], "keeper": "gone"})
        self._kept.clear()

    def _end(self, kept: Kept, message: dict[str, Any]) -> None:
        if not kept.started.done():
            kept.started.set_exception(BoxGoneError("the sandbox ended"))
            kept.started.exception()
        if not kept.ended.done():
            kept.ended.set_result(message)


def sweep(folder: Path) -> int:
    """Clear away what keepers left that are gone; returns how many there were."""
    cleared = 0
    for making in folder.glob(".making-*"):
        if time.time() - making.lstat().st_mtime > _STALE_S:
            shutil.rmtree(making, ignore_errors=True)
    for owner in folder.glob("owner-*"):
        try:
            lock = os.open(owner / "lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its keeper lives
            continue
        else:
            clear_owner(owner)
            cleared += 1
        finally:
            os.close(lock)
    return cleared


def clear_owner(owner: Path) -> None:
    """Kill the processes, remove the control groups and the folder of a keeper that is gone."""
    for record in (owner / "boxes").glob("*.json"):
        try:
            noted = json.loads(record.read_text())
        except (OSError, ValueError):
            continue
        thaw(noted["thaw"])
        for pid, started in noted["pids"]:
            if started and started_at(pid) == started:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
        clear_groups(noted["groups"])
    shutil.rmtree(owner, ignore_errors=True)
