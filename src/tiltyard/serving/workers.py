"""Sessions in several processes: connections are handed to the one with the most room."""

import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from tiltyard._boundary import reason
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.serving.making import EnvSpec
from tiltyard.serving.place import ServerReport
from tiltyard.serving.socket import ServedSocket

START_TIMEOUT_S = 120.0
RESTART_DELAY_S = 1.0
PATIENCE_S = 0.25
RELEASED, STOPPED = b"r", b"s"
HEADER = 5


class Worker:
    """One process: what it is doing, and the channel on which it is given connections."""

    def __init__(self, setup: dict[str, Any]) -> None:
        """Start it and wait until it can make environments.

        Raises:
            ConfigurationError: It ended, or did not answer in time.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tiltyard.serving.worker", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: S603  # our own module
        self.channel = ours
        self.active = 0
        self.sessions = 0
        self.leaked = 0
        self.dead = False
        self._lock = threading.Lock()
        ours.sendall(json.dumps(setup).encode() + b"\n")
        ours.settimeout(START_TIMEOUT_S)
        try:
            ready = ours.recv(1)
        except TimeoutError:
            ready = b""
        if ready != RELEASED:
            self.process.kill()
            self.process.wait()
            ours.close()
            raise ConfigurationError("a worker process could not be started; what it wrote to stderr says why")
        ours.settimeout(None)

    def give(self, connection: ServedSocket) -> None:
        """Hand a connection over, with the request that was read from it.

        Raises:
            OSError: The process is gone.
        """
        head = connection.head
        with self._lock:
            socket.send_fds(self.channel, [len(head).to_bytes(HEADER, "big")], [connection.socket.fileno()])
            self.channel.sendall(head)


class WorkerPlace:
    """Sessions in `workers` processes, at most `each` in one; one that dies loses its sessions and is replaced."""

    def __init__(self, env: EnvSpec, workers: int, each: int, call_timeout_s: float) -> None:
        if not isinstance(env.spec, str) or not isinstance(env.action_cls, str | None):
            raise ConfigurationError("worker processes load classes by name: give 'module:attr'")
        self.capacity = workers * each
        self._each = each
        self._setup = {
            "spec": env.spec,
            "env_config": dict(env.env_config),
            "action_cls": env.action_cls,
            "capacity": each,
            "call_timeout_s": call_timeout_s,
            "path": sys.path,
        }
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._gone = ServerReport(0, 0, 0)
        self._workers: list[Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(Worker(self._setup))
        except BaseException:
            self.stop(0.0)
            raise
        self._threads = [
            threading.Thread(target=self._listen, args=(number,), name="tiltyard-serve-worker", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def active(self) -> int:
        """How many sessions there are, in all processes."""
        return sum(worker.active for worker in self._workers)

    def admit(self, socket: ServedSocket) -> bool:
        """Hand the connection to the process with the most room; False when none has any."""
        end = time.monotonic() + PATIENCE_S
        while not self._stopped.is_set():
            with self._lock:
                worker = min((one for one in self._workers if not one.dead), key=lambda one: one.active, default=None)
                found = worker is not None and worker.active < self._each
                if worker is not None and found:
                    worker.active += 1
                    worker.sessions += 1
            if worker is None or not found:
                if time.monotonic() > end:
                    return False
                time.sleep(0.02)  # a place that a client has just left is free as soon as its process has said so
                continue
            try:
                worker.give(socket)
            except OSError:  # the thread that listens to it replaces it
                worker.dead = True
                continue
            socket.socket.close()
            return True
        return False

    def report(self) -> ServerReport:
        """What became of the sessions so far, in all processes."""
        sessions = self._gone.sessions + sum(worker.sessions for worker in self._workers)
        return ServerReport(sessions, self.active, sum(worker.leaked for worker in self._workers))

    def stop(self, timeout_s: float) -> None:
        """Ask every process to end its sessions, and end it."""
        self._stopped.set()
        for worker in self._workers:
            try:
                worker.channel.shutdown(socket.SHUT_WR)  # its sign to stop
            except OSError:
                continue
        end = time.monotonic() + timeout_s + 1.0
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.leaked += worker.active
                worker.process.kill()
                worker.process.wait()
            worker.channel.close()
            worker.active = 0

    def _listen(self, number: int) -> None:
        """Note what a process says, and replace it when it dies."""
        while not self._stopped.is_set():
            worker = self._workers[number]
            try:
                said = worker.channel.recv(4096)
            except OSError:
                said = b""
            with self._lock:
                worker.active -= said.count(RELEASED)
                worker.leaked += said.count(STOPPED)
            if not said and not self._stopped.is_set():
                self._replace(number, worker)

    def _replace(self, number: int, worker: Worker) -> None:
        worker.dead, worker.active = True, 0
        worker.process.kill()
        code = worker.process.wait()
        print(f"tiltyard: a worker process ended ({code}); another is started", file=sys.stderr, flush=True)  # noqa: T201  # the server's own log
        while not self._stopped.wait(RESTART_DELAY_S):
            try:
                fresh = Worker(self._setup)
            except (ConfigurationError, EnvError, OSError) as error:
                print(f"tiltyard: {reason(error)}", file=sys.stderr, flush=True)  # noqa: T201  # the server's own log
                continue
            with self._lock:
                self._gone = ServerReport(self._gone.sessions + worker.sessions, 0, 0)
                self._workers[number] = fresh
            worker.channel.close()
            return
