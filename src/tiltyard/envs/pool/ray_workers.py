"""Workers that are Ray actors."""

import itertools
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

from tiltyard._boundary import guarded, reason
from tiltyard.envs.pool.faults import packed, packed_error
from tiltyard.envs.pool.ray_session import CONTROL, RayOptions, RaySession
from tiltyard.envs.pool.workers import Host, Lost
from tiltyard.errors import ConfigurationError, EnvError, TiltyardError, WorkerLostError

WATCH_S = 0.5
"""How often the thread that watches actors looks for new ones."""

END_TIMEOUT_S = 5.0
"""How long an actor that was killed may take to be gone."""


class HostActor:
    """What runs in an actor: a host that it was sent. Every call of it blocks a thread of the actor."""

    def __init__(self, host: bytes, path: list[str]) -> None:
        self._maker = host
        # Ray passes on the folder of the script that is run, and no other.
        sys.path += [folder for folder in path if folder not in sys.path]
        self._host: Host | None = None

    def start(self) -> tuple[bytes, int, str]:
        """Make the host: its first answer packed, this process, and its machine in the cluster."""
        try:
            host: Host = pickle.loads(self._maker)()  # noqa: S301  # from the process that started this one
            ready = packed(host.start(), "start")
            self._host = host
        except BaseException as error:  # noqa: BLE001  # told to the process that waits for it
            ready = packed_error(error, "the worker's start")
        import ray  # noqa: PLC0415  # this is an actor of it

        return ready, os.getpid(), ray.get_runtime_context().get_node_id()

    def run(self, number: int, request: bytes) -> bytes:
        """The answer to a request."""
        assert self._host is not None
        answers: list[bytes] = []
        done = threading.Lock()
        done.acquire()

        def answer(result: bytes) -> None:
            answers.append(result)
            done.release()

        self._host.begin(number, request, answer)
        done.acquire()
        return answers[0]

    def so_far(self, number: int) -> bytes:
        """What there is of an answer."""
        assert self._host is not None
        return self._host.so_far(number)

    def close(self) -> bytes:
        """The host's last answer."""
        assert self._host is not None
        return self._host.close()

    def watch(self) -> None:
        """Never returns: whoever waits for it is told when the actor is gone."""
        threading.Event().wait()


class RayWorkers:
    """A `Backend` of actors. One thread watches them all, so that one that dies is replaced before it is needed."""

    def __init__(self, options: RayOptions) -> None:
        self._session = RaySession(options)
        self.at_hand = self._session.at_hand
        self._watched: dict[Any, RayWorker] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tiltyard-ray-watch", daemon=True)
        self._thread.start()

    def check(self, workers: int) -> None:
        """Whether the cluster has room for them; see `RaySession.check`."""
        self._session.check(workers)

    def pickled(self, maker: Callable[[], Host], what: str) -> bytes:
        """What makes a host, as bytes. What the user's script or a function defines is sent by value.

        Raises:
            ConfigurationError: It cannot be pickled.
        """
        try:
            return guarded(f"pickling {what}", EnvError, self._session.ray.cloudpickle.dumps, maker)
        except TiltyardError as error:
            raise ConfigurationError(f"{what} cannot be sent to a worker: {error}") from error

    def start(self, number: int, host: bytes, threads: int, lost: Lost) -> "RayWorker":
        """Start an actor.

        Raises:
            EnvError: The cluster does not take it.
        """
        del number
        worker = RayWorker(self._session, host, threads, lost)
        self._watched[worker.watch] = worker
        return worker

    def close(self) -> None:
        """Watch no more; the cluster is left as it is."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            watched = dict(self._watched)
            if not watched:
                self._stopped.wait(WATCH_S)
                continue
            try:
                gone, _ = guarded("watching actors", EnvError, self._session.ray.wait, list(watched), timeout=WATCH_S)
            except EnvError as error:
                for worker in watched.values():
                    worker.end(reason(error))
                self._watched.clear()
                continue
            for ref in gone:
                self._watched.pop(ref).ended()


class RayWorker:
    """A `Worker` that is an actor."""

    def __init__(self, session: RaySession, host: bytes, threads: int, lost: Lost) -> None:
        self._session = session
        self._ray = session.ray
        self._lost = lost
        self._actor = session.actor(HostActor, threads=threads, arguments=(host, list(sys.path)))
        self.name = f"actor {self._actor._actor_id.hex()[:8]}"
        self.pid: int | None = None
        self.node: str | None = None
        self.alive = True
        self._numbers = itertools.count(1)
        self._closing = False
        self._starting = self._remote("start")
        self.watch = self._remote("watch", group=CONTROL)

    def ready(self, timeout_s: float | None) -> bytes | None:
        """The packed first answer; see `Worker`."""
        answer = self._get(self._starting, timeout_s)
        if answer is None:
            return None
        ready, self.pid, self.node = answer
        return ready

    def ask(self, request: bytes, timeout_s: float | None) -> "RayAsked":
        """Send a request; see `Worker`. Ray takes it at once."""
        del timeout_s
        number = next(self._numbers)
        return RayAsked(self, number, self._remote("run", number, request))

    def get(self, ref: Any, timeout_s: float | None) -> bytes | None:
        """The answer of a call; None when it is not there in time.

        Raises:
            WorkerLostError: The actor is gone.
        """
        return self._get(ref, timeout_s)

    def ask_so_far(self, number: int, timeout_s: float) -> bytes | None:
        """Ask for what there is of an answer."""
        return self._get(self._remote("so_far", number, group=CONTROL), timeout_s)

    def close(self, timeout_s: float) -> bytes | None:
        """Let the host close; see `Worker`."""
        self._closing = True
        last = None
        try:
            last = self._get(self._remote("close", group=CONTROL), timeout_s)
        except WorkerLostError:
            self._closing = True  # it is gone, which is what was asked for
        if last is None:
            self.kill()
        try:
            self._kill_actor()
            self._get(self.watch, END_TIMEOUT_S)
        except (EnvError, WorkerLostError):
            self.alive = False
        return last

    def kill(self) -> None:
        """End the actor, and its process: one that hangs does not hear of the end of its actor."""
        if not self.alive:
            return
        try:
            self._kill_actor()
            if self.pid is not None and self.node is not None:
                guarded(f"killing {self.name}", EnvError, self._session.end_process, self.node, self.pid)
        except EnvError:
            self.alive = False  # there is no cluster any more

    def _kill_actor(self) -> None:
        guarded(f"killing {self.name}", EnvError, self._ray.kill, self._actor)

    def ended(self) -> None:
        """The call that never returns has returned."""
        try:
            self._get(self.watch, 0)
        except WorkerLostError as error:
            self.end(str(error))

    def end(self, why: str) -> None:
        """The actor is gone: tell."""
        self.alive = False
        if not self._closing:
            self._lost(self, why)

    def _remote(self, method: str, *arguments: Any, group: str | None = None) -> Any:
        call = getattr(self._actor, method)
        if group is not None:
            call = call.options(concurrency_group=group)
        return guarded(self.name, WorkerLostError, call.remote, *arguments)

    def _get(self, ref: Any, timeout_s: float | None) -> Any:
        try:
            return guarded(self.name, WorkerLostError, self._ray.get, ref, timeout=timeout_s)
        except WorkerLostError as error:
            cause = error.__cause__
            if isinstance(cause, self._ray.exceptions.GetTimeoutError):
                return None
            assert isinstance(cause, Exception)
            raise WorkerLostError(f"{self.name} is gone ({_first_line(cause)})") from cause


class RayAsked:
    """An `Asked` of an actor."""

    __slots__ = ("_number", "_ref", "_worker")

    def __init__(self, worker: RayWorker, number: int, ref: Any) -> None:
        self._worker = worker
        self._number = number
        self._ref = ref

    def wait(self, timeout_s: float | None) -> bytes | None:
        """The answer; see `Asked`."""
        return self._worker.get(self._ref, timeout_s)

    def so_far(self, timeout_s: float) -> bytes | None:
        """What there is of it; see `Asked`."""
        return self._worker.ask_so_far(self._number, timeout_s)


def _first_line(error: Exception) -> str:
    return reason(error).strip().split("\n")[0]
