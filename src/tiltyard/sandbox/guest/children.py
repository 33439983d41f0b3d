"""The commands that run in the sandbox: their pipes, their end, and what they leave behind."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal` costs each sandbox a megabyte
import array
import fcntl
import os
import resource
from collections.abc import Callable

from tiltyard.sandbox.guest.loop import IN, OUT, Link, Loop
from tiltyard.sandbox.guest.wire import CHUNK, EXITED, GRANT, NUMBER, PTY, STDERR, STDOUT, WINDOW

_FIONREAD, _TIOCSCTTY, _TIOCSWINSZ = 0x541B, 0x540E, 0x5414
_GHOST_EVERY_S, _MOST_GHOSTS = 0.05, 64
_MOST_FAILURE = 4096


class Child:
    """A command: the main process, whose end is the command's end whatever else holds its pipes."""

    def __init__(self, children: Children, channel: int, pid: int, stdin: int, outputs: dict[int, int]) -> None:
        self.pid = pid
        self.channel = channel
        self.outputs = outputs
        self.left: dict[int, int] = {}
        self.status: int | None = None
        self._children = children
        self._credit = WINDOW
        self._stdin = stdin
        self._pending: list[bytes | memoryview] = []
        self._stdin_over = False
        for fd in outputs:
            os.set_blocking(fd, False)
        if stdin >= 0:
            os.set_blocking(stdin, False)
        self.listen()

    def listen(self) -> None:
        """Read the outputs while the host takes more of them, and not otherwise."""
        for fd in self.outputs:
            if self._credit > 0 and not self._children.link.full:
                self._children.loop.wait_for(fd, IN, lambda _events, fd=fd: self._read(fd))
            else:
                self._children.loop.forget(fd)

    def grant(self, count: int) -> None:
        """The host takes so many bytes more."""
        self._credit += count
        self.listen()

    def _read(self, fd: int) -> None:
        if self._children.link.full:
            self.listen()
            return
        want = min(CHUNK, self._credit, self.left.get(fd, CHUNK))
        try:
            data = os.read(fd, want)
        except BlockingIOError:
            return
        except OSError:  # the other side of a terminal is closed
            data = b""
        if not data:
            self._drop(fd, keep=False)
        else:
            self._credit -= len(data)
            self._children.link.send(self.outputs[fd], self.channel, data)
            if fd in self.left:
                self.left[fd] -= len(data)
                if self.left[fd] <= 0:
                    self._drop(fd, keep=True)
        if self._credit <= 0:
            self.listen()
        self.finish()

    def _drop(self, fd: int, keep: bool) -> None:
        self._children.loop.forget(fd)
        if keep and self.outputs[fd] != PTY:
            self._children.keep_drained(fd)
        else:
            os.close(fd)
        del self.outputs[fd]

    def ended(self, status: int) -> None:
        """The main process is over: what is in its pipes by now is its output, what comes later is not."""
        self.status = status
        for fd in list(self.outputs):
            count = array.array("i", [0])
            fcntl.ioctl(fd, _FIONREAD, count)
            self.left[fd] = count[0]
            if count[0] == 0:
                self._drop(fd, keep=True)
        self.finish()

    def finish(self) -> None:
        """Say how the command ended, once it has and all of its output is on the way."""
        if self.status is None or self.outputs or self.pid not in self._children.running:
            return
        del self._children.running[self.pid]
        self._close_stdin()
        signalled = os.WIFSIGNALED(self.status)
        code = -1 if signalled else os.WEXITSTATUS(self.status)
        signal = os.WTERMSIG(self.status) if signalled else None
        self._children.link.tell(EXITED, self.channel, {"code": code, "signal": signal})
        self._children.gone(self.channel)

    def feed(self, data: bytes) -> None:
        """Bytes for the standard input."""
        if self._stdin < 0:
            self._children.link.send(GRANT, self.channel, NUMBER.pack(len(data)))
            return
        self._pending.append(data)
        self._write()

    def end_input(self) -> None:
        """Close the standard input when what is on the way there has arrived."""
        self._stdin_over = True
        self._write()

    def _write(self, _events: int = 0) -> None:
        while self._pending and self._stdin >= 0:
            try:
                sent = os.write(self._stdin, self._pending[0])
            except BlockingIOError:
                self._children.loop.wait_for(self._stdin, OUT, self._write)
                return
            except OSError:  # nobody reads it any more
                sent = sum(map(len, self._pending))
                self._pending.clear()
                self._stdin_over = True
                self._children.link.send(GRANT, self.channel, NUMBER.pack(sent))
                break
            self._children.link.send(GRANT, self.channel, NUMBER.pack(sent))
            if sent == len(self._pending[0]):
                self._pending.pop(0)
            else:
                self._pending[0] = memoryview(self._pending[0])[sent:]
        if self._stdin >= 0:
            self._children.loop.forget(self._stdin)
        if self._stdin_over:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._children.loop.forget(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def resize(self, rows: int, columns: int) -> None:
        """Tell the terminal its size; nothing happens where there is none."""
        for fd, kind in self.outputs.items():
            if kind == PTY:
                fcntl.ioctl(fd, _TIOCSWINSZ, array.array("H", [rows, columns, 0, 0]))


class Children:
    """Every command that is running."""

    def __init__(self, loop: Loop, link: Link, limits: dict, channels: dict, allow_dump: Callable[[], None]) -> None:
        self.loop = loop
        self.link = link
        self.running: dict[int, Child] = {}
        self._limits = limits
        self._channels = channels
        self._allow_dump = allow_dump
        self._ghosts: list[int] = []

    def gone(self, channel: int) -> None:
        """A command's channel carries nothing any more."""
        self._channels.pop(channel, None)

    def start(self, channel: int, call: dict) -> Child:
        """Start a command.

        Raises:
            OSError: It could not be started; `filename` names the folder or the program.
        """
        pty = call.get("pty")
        os.stat(call["cwd"])
        if pty:
            master, slave = os.openpty()
            fcntl.ioctl(master, _TIOCSWINSZ, array.array("H", [*pty, 0, 0]))
            theirs, outputs, stdin = [slave, slave, slave], {master: PTY}, os.dup(master)
        else:
            out, error = os.pipe(), os.pipe()
            entry = os.pipe() if call["stdin"] else (os.open("/dev/null", os.O_RDONLY), -1)
            theirs, outputs, stdin = [entry[0], out[1], error[1]], {out[0]: STDOUT, error[0]: STDERR}, entry[1]
        try:
            pid = self._fork(call, theirs, bool(pty))
        except OSError:
            for fd in {*outputs, stdin} - {-1}:
                os.close(fd)
            raise
        finally:
            for fd in set(theirs):
                os.close(fd)
        child = self.running[pid] = Child(self, channel, pid, stdin, outputs)
        return child

    def _fork(self, call: dict, fds: list[int], terminal: bool) -> int:
        told, tell = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(told)
            os.close(tell)
            raise
        if pid == 0:
            os.close(told)  # with a reader left in the writer itself, a write that nobody reads would never fail
            _become(call, fds, terminal, tell, self._limits, self._allow_dump)
        os.close(tell)
        with open(told, "rb", buffering=0) as pipe:
            failure = pipe.read(_MOST_FAILURE)
        if failure:
            os.waitpid(pid, 0)
            number, _, name = failure.decode("utf-8", "surrogateescape").partition(" ")
            raise OSError(int(number), os.strerror(int(number)), name)
        return pid

    def reap(self) -> None:
        """Take note of every process that ended; those that nobody started here are orphans of commands."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.running:
                self.running[pid].ended(status)

    def keep_drained(self, fd: int) -> None:
        """Read a pipe on and drop what comes, slowly: its writers should not die of a closed pipe."""
        if len(self._ghosts) >= _MOST_GHOSTS:
            os.close(self._ghosts.pop(0))
        if not self._ghosts:
            self.loop.every(_GHOST_EVERY_S, self._drain)
        self._ghosts.append(fd)

    def _drain(self) -> bool:
        for fd in list(self._ghosts):
            try:
                if os.read(fd, CHUNK):
                    continue
            except BlockingIOError:
                continue
            self._ghosts.remove(fd)
            os.close(fd)
        return bool(self._ghosts)


def bound(limit: int, value: int) -> None:
    """Let this process and its children have no more of something, and not more than this machine gives it."""
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _become(call: dict, fds: list[int], terminal: bool, tell: int, limits: dict, allow_dump: Callable) -> None:
    """In the new process: be the command, or say why that cannot be."""
    name = call["cmd"]
    try:
        os.setsid()
        tell = fcntl.fcntl(tell, fcntl.F_DUPFD_CLOEXEC, 3)
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in fds]
        for target, fd in enumerate(fds):
            os.dup2(fd, target, inheritable=True)
        if terminal:
            fcntl.ioctl(0, _TIOCSCTTY, 0)
        for number in (_signal.SIGPIPE, _signal.SIGINT, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
        allow_dump()  # without it the kernel would not let this process change its own score
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("500")
        for limit, value in limits.items():
            bound(getattr(resource, limit), value)
        name = call["cwd"]
        os.chdir(name)
        name = call["cmd"]
        os.umask(0o022)
        os.execvpe(name, [name, *call["args"]], call["envs"])  # noqa: S606 - arguments are passed on as they are
    except OSError as error:
        os.write(tell, f"{error.errno} {name}".encode("utf-8", "surrogateescape")[:_MOST_FAILURE])
    except BaseException:  # noqa: BLE001 - nothing may go on in this copy of the first process
        os.write(tell, f"22 {name}".encode("utf-8", "surrogateescape")[:_MOST_FAILURE])
    os._exit(127)
