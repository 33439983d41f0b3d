"""Workers that are processes of this machine, each at the other end of a socket pair."""

import itertools
import json
import os
import pickle
import pickletools
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from tiltyard.envs.pool.faults import sendable
from tiltyard.envs.pool.inbox import Inbox, Latch
from tiltyard.envs.pool.layout import processors
from tiltyard.envs.pool.process_worker import (
    ANSWER,
    ASK,
    CLOSE,
    CLOSED,
    HEADER,
    PART,
    READY,
    SETUP,
    SO_FAR,
    executing_main,
)
from tiltyard.envs.pool.starting import start_process
from tiltyard.envs.pool.workers import Host, Lost
from tiltyard.errors import ConfigurationError, WorkerLostError

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tiltyard.envs.pool.process_worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class Processes:
    """A `Backend` of processes of this machine, which end with this one."""

    def __init__(self) -> None:
        self.at_hand = processors()

    def check(self, workers: int) -> None:
        """There is room for any number.

        Raises:
            ConfigurationError: The user's script is being executed by a worker of its own.
        """
        del workers
        if executing_main():
            raise ConfigurationError(
                "a worker executes your script in order to find the classes in it, and met EnvPool there; write "
                "what starts the run under: if __name__ == '__main__':"
            )

    def pickled(self, maker: Callable[[], Host], what: str) -> bytes:
        """What makes a host, as bytes: by name.

        Raises:
            ConfigurationError: It cannot be pickled.
        """
        return sendable(maker, what)

    def start(self, number: int, host: bytes, threads: int, lost: Lost) -> "ProcessWorker":
        """Start a process.

        Raises:
            ConfigurationError: The host is defined where a worker cannot find it.
            EnvError: The system has no process left.
        """
        del number, threads
        return ProcessWorker(host, lost)

    def close(self) -> None:
        """There is nothing to give back."""
        return


class ProcessWorker:
    """A `Worker` that is a process. A thread of ours waits for its end; what it says is read by who waits for that."""

    node: str | None = None

    def __init__(self, host: bytes, lost: Lost) -> None:
        setup = pickle.dumps({"host": host, "main": _main() if _needs_main(host) else None})
        self._lost = lost
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
            try:
                self._process = start_process(command, theirs.fileno())
            except BaseException:
                self._channel.close()
                raise
        self.pid: int | None = self._process.pid
        self.name = f"process {self.pid}"
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._why: str | None = None
        self._ended = threading.Event()
        self._closing = False
        self._inbox = Inbox(self._channel, self._at_end)
        self._ready, self._closed = self._inbox.expect((READY, 0)), self._inbox.expect((CLOSED, 0))
        self._waiter = threading.Thread(target=self._wait_for_end, name=f"tiltyard-{self.name}", daemon=True)
        self._waiter.start()
        self._send(SETUP, 0, setup, None)

    @property
    def alive(self) -> bool:
        """False once the process is known to be gone."""
        return self._why is None

    def ready(self, timeout_s: float | None) -> bytes | None:
        """The packed first answer; see `Worker`."""
        return self.wait(self._ready, timeout_s)

    def ask(self, request: bytes, timeout_s: float | None) -> "ProcessAsked":
        """Send a request; see `Worker`."""
        number = next(self._numbers)
        asked = ProcessAsked(self, number, self._inbox.expect((ANSWER, number)))
        self._send(ASK, number, request, timeout_s)
        return asked

    def ask_so_far(self, number: int, timeout_s: float) -> bytes | None:
        """Ask for what there is of an answer."""
        part = self._inbox.expect((PART, number))
        self._send(SO_FAR, number, b"", timeout_s)
        return self.wait(part, timeout_s)

    def wait(self, latch: Latch, timeout_s: float | None) -> bytes | None:
        """What the process says; None when it has not within the time.

        Raises:
            WorkerLostError: The process is gone.
        """
        if not self._inbox.wait(latch, timeout_s):
            return None
        if latch.value is None:
            raise self._gone()
        return latch.value

    def close(self, timeout_s: float) -> bytes | None:
        """Let the host close; see `Worker`."""
        self._closing = True
        end = time.monotonic() + timeout_s
        last = None
        try:
            self._send(CLOSE, 0, b"", timeout_s)
            last = self.wait(self._closed, timeout_s)
        except WorkerLostError:
            self._closing = True  # it is gone, which is what was asked for
        if last is not None:
            self._waiter.join(max(end - time.monotonic(), 0.1))
        self.kill()
        self._waiter.join()
        return last

    def kill(self) -> None:
        """End the process and those that it started; the thread that waits for it sees to the rest."""
        with self._lock:
            if self._why is None:
                _kill_group(self._process.pid)

    def _send(self, kind: int, number: int, body: bytes, timeout_s: float | None) -> None:
        """Send one message, whole; a process that does not read it in time is killed."""
        left = memoryview(HEADER.pack(kind, number, len(body)) + body)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._sending:
            while left:
                try:
                    left = left[self._channel.send(left, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if not _writable(self._channel, end):
                        self.kill()
                        raise WorkerLostError(
                            f"{self.name} did not take a request within {timeout_s:g} s and was killed"
                        ) from None
                except OSError:
                    self._ended.wait(1.0)  # then it is known why
                    raise self._gone() from None

    def _wait_for_end(self) -> None:
        """Wait until the process is gone, see to it that nothing of it is left, and tell."""
        if hasattr(os, "waitid"):  # until it is waited for, its number is nobody else's
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(self._process.pid)
        code = self._process.wait()
        with self._lock:
            self._why = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._ended.set()
        self._inbox.drain()
        if not self._closing:
            self._lost(self, f"{self.name} {self._why}")

    def _at_end(self) -> None:
        """The channel is at its end. A process that has let go of it cannot be asked any more, and is ended too."""
        self.kill()
        self._ended.wait()

    def _gone(self) -> WorkerLostError:
        return WorkerLostError(f"{self.name} {self._why or 'is gone'}")


class ProcessAsked:
    """An `Asked` of a process."""

    __slots__ = ("_latch", "_number", "_worker")

    def __init__(self, worker: ProcessWorker, number: int, latch: Latch) -> None:
        self._worker = worker
        self._number = number
        self._latch = latch

    def wait(self, timeout_s: float | None) -> bytes | None:
        """The answer; see `Asked`."""
        return self._worker.wait(self._latch, timeout_s)

    def so_far(self, timeout_s: float) -> bytes | None:
        """What there is of it; see `Asked`."""
        return self._worker.ask_so_far(self._number, timeout_s)


def _writable(channel: socket.socket, end: float | None) -> bool:
    """Wait until something can be sent; False when it cannot in time."""
    if channel.fileno() < 0:
        return True  # it was closed, as the next attempt finds out
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLOUT)
    return bool(poll.poll(None if end is None else max(end - time.monotonic(), 0.0) * 1000))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # none of them is left; to macOS a group of zombies is not ours to end


def _needs_main(host: bytes) -> bool:
    """Whether a class or function in a pickle is to be looked for in the user's script."""
    return any(argument == "__main__" for _, argument, _ in pickletools.genops(host))


def _main() -> tuple[str | None, str | None]:
    """How a worker executes the user's script: as a module of this name, or the file."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is None and not (isinstance(path, str) and os.path.isfile(path)):
        raise ConfigurationError(
            "the environment is defined in an interactive session, where a worker cannot find it; put it into a module"
        )
    return (spec.name if spec is not None else None), (None if path is None else os.path.abspath(path))
