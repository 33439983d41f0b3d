"""A program beside the host process that starts every sandbox, and leaves nothing of them when the host is gone.

It is small, so that starting a process from it costs nothing that grows with the host. The host asks over a socket, a
JSON object a message; when that socket closes, everything that was started is killed and cleared away.
"""

import array
import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tiltyard.sandbox.keeper.clearing import clear_groups, kill_orphans
from tiltyard.sandbox.keeper.kept import Kept, become

MAX_MESSAGE = 256 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_KEPT_STDERR, _READ_STDERR = 2000, 64_000


class Keeper:
    """Takes the host's orders."""

    def __init__(self, host: socket.socket, folder: Path) -> None:
        self._host = host
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._kept: dict[int, Kept] = {}
        self._by_id: dict[str, Kept] = {}
        self._over = False
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the host decides what it means
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._reap(woken))
        self._selector.register(host, selectors.EVENT_READ, self._order)

    def watch(self, host_pid: int) -> None:
        """Take the end of that process for the end of the host: a fork of it may hold the socket open."""
        if os.getppid() != host_pid:
            self._host_gone()
            return
        fd = os.pidfd_open(host_pid)
        self._selector.register(fd, selectors.EVENT_READ, lambda: (self._selector.unregister(fd), self._host_gone()))

    def _host_gone(self) -> None:
        if not self._over:
            self._over = True
            self._selector.unregister(self._host)
            for kept in list(self._kept.values()):
                kept.kill()

    def run(self) -> None:
        """Serve until the host is gone and everything is cleared away."""
        try:
            while not (self._over and not self._kept):
                for key, _ in self._selector.select():
                    if self._selector.get_map().get(key.fd) is key:  # and not gone by what was done for another
                        key.data()
        finally:
            for kept in self._kept.values():  # none, unless this program itself failed
                kept.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _order(self) -> None:
        space = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
        try:
            data, ancillary, _, _ = self._host.recvmsg(MAX_MESSAGE, space)
        except ConnectionResetError:  # it died with messages of ours unread
            data, ancillary = b"", []
        if not data:
            self._host_gone()
            return
        order = json.loads(data)
        if order["op"] == "start":
            fds = array.array("i")
            for _, _, passed in ancillary:
                fds.frombytes(passed)
            self._start(order, list(fds))
        elif order["op"] == "kill" and order["id"] in self._by_id:
            self._by_id[order["id"]].kill()

    def _start(self, order: dict[str, Any], fds: list[int]) -> None:
        """Start a sandbox; `fds` has the first process's connection to the host."""
        kept = Kept(order, self._folder / "boxes" / f"{order['id']}.json")
        if not fds:
            self._clear(kept, "no number was left to give the connection: too many open files")
            return
        try:
            (agent,) = fds
            os.set_inheritable(agent, False)
            told, tell = _pipe(fds)
            errors, error = _pipe(fds)
            kept.note()
            for folder, files in order["groups"]:
                os.mkdir(folder)
                for name, value in files:
                    Path(folder, name).write_text(value)
            kept.outer = os.fork()
        except OSError as failure:
            for fd in fds:
                os.close(fd)
            self._clear(kept, f"{failure}")
            return
        if kept.outer == 0:
            become(order, agent, tell, error)
        for fd in (agent, tell, error):
            os.close(fd)
        self._kept[kept.outer] = self._by_id[kept.id] = kept
        if order["direct"]:
            kept.info = json.dumps({"child-pid": kept.outer}).encode()
        self._selector.register(told, selectors.EVENT_READ, lambda: self._informed(kept, told))
        os.set_blocking(errors, False)
        kept.stderr_fd = errors
        self._selector.register(errors, selectors.EVENT_READ, lambda: self._complained(kept))
        self._note(kept)

    def _note(self, kept: Kept) -> bool:
        """Write down what there is of a sandbox; one that cannot be written down is ended, and false returned."""
        try:
            kept.note()
        except OSError as failure:
            kept.stderr += f"{failure}".encode()
            kept.kill()
            return False
        return True

    def _informed(self, kept: Kept, fd: int) -> None:
        """Bubblewrap tells the number of the sandbox's first process."""
        data = os.read(fd, 4096)
        if data:
            kept.info += data
            return
        self._selector.unregister(fd)
        os.close(fd)
        try:
            kept.inner_pid = json.loads(kept.info)["child-pid"]
            kept.inner = os.pidfd_open(kept.inner_pid)
        except (ValueError, ProcessLookupError):
            return
        except OSError as failure:
            kept.stderr += f"{failure}".encode()
            kept.kill()
            return
        if self._note(kept):
            self._tell({"id": kept.id, "event": "started", "pid": kept.inner_pid})

    def _complained(self, kept: Kept) -> None:
        try:
            data = os.read(kept.stderr_fd, 4096)
        except BlockingIOError:
            return
        kept.stderr = (kept.stderr + data)[-_KEPT_STDERR:]
        kept.stderr_read += len(data)
        if not data or kept.stderr_read > _READ_STDERR:
            self._hear_no_more(kept)

    def _hear_no_more(self, kept: Kept) -> None:
        if kept.stderr_fd >= 0:
            self._selector.unregister(kept.stderr_fd)
            os.close(kept.stderr_fd)
            kept.stderr_fd = -1

    def _reap(self, woken: socket.socket) -> None:
        woken.recv(4096)
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            kept = self._kept.pop(found.si_pid, None)
            if kept is None:  # an orphan of a sandbox without a namespace
                os.waitpid(found.si_pid, 0)
                continue
            del self._by_id[kept.id]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(kept.outer, signal.SIGKILL)  # a first process that was not told yet to die with bubblewrap
            _, status = os.waitpid(kept.outer, 0)
            if kept.order["direct"]:
                kill_orphans(set(self._kept))
                shutil.rmtree(kept.order["direct"], ignore_errors=True)
            if kept.inner >= 0:
                os.close(kept.inner)
            if kept.stderr_fd >= 0:
                self._complained(kept)
            self._hear_no_more(kept)
            self._clear(kept, kept.stderr.decode("utf-8", "replace"), os.waitstatus_to_exitcode(status))

    def _clear(self, kept: Kept, stderr: str, code: int = -1) -> None:
        told = {}
        for file in kept.order["asked"]:
            try:
                told[Path(file).name] = Path(file).read_text()
            except OSError:
                continue
        left = clear_groups([folder for folder, _ in kept.order["groups"]])
        if not left:
            kept.record.unlink(missing_ok=True)
        self._tell({"id": kept.id, "event": "ended", "code": code, "stderr": stderr, "told": told, "left": left})

    def _tell(self, message: dict[str, Any]) -> None:
        if not self._over:
            try:
                self._host.send(json.dumps(message).encode())
            except OSError:
                return


def _pipe(opened: list[int]) -> tuple[int, int]:
    """A pipe, whose ends are noted among what was opened."""
    pipe = os.pipe()
    opened += pipe
    return pipe


def main() -> None:
    """Serve the host at the other end of standard input; the argument is the folder that is ours to remove."""
    os.set_inheritable(int(sys.argv[3]), False)  # the lock on the folder: ours until we end, and nobody else's
    host = socket.socket(fileno=os.dup(0))
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = Keeper(host, Path(sys.argv[1]))
    keeper.watch(int(sys.argv[2]))
    keeper.run()
