"""Workers that are Ray actors: started where a machine answers, and watched."""

import threading
from collections.abc import Callable
from typing import Any

from tiltyard._boundary import guarded, reason
from tiltyard.envs.pool.ray_lines import Lines
from tiltyard.envs.pool.ray_session import RayOptions, RaySession
from tiltyard.envs.pool.ray_worker import RayWorker
from tiltyard.envs.pool.workers import Host, Lost
from tiltyard.errors import ConfigurationError, EnvError, TiltyardError

WATCH_S = 0.5
"""How often the thread that watches actors looks for new ones."""


class RayWorkers:
    """A `Backend` of actors. One thread watches them all, so that one that dies is replaced before it is needed."""

    def __init__(self, options: RayOptions) -> None:
        self._session = RaySession(options)
        self.at_hand = self._session.at_hand
        self._watched: dict[Any, RayWorker] = {}
        self._last: dict[int, RayWorker] = {}
        self._stopped = threading.Event()
        self._lines = _lines(self._session)
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
        node = self._beside_silent() if number in self._last else None
        worker = self._last[number] = RayWorker(self._session, host, threads, lost, self._lines, node)
        self._watched[worker.watch.ref] = worker
        return worker

    def close(self) -> None:
        """Watch no more; the cluster is left as it is."""
        self._stopped.set()
        self._thread.join(2 * WATCH_S)  # where Ray was shut down meanwhile it may wait in there for ever
        if self._lines is not None:
            self._lines.close()

    def _beside_silent(self) -> str | None:
        """Where a worker that replaces another is to be; None leaves that to Ray.

        The other may have gone with its machine, which Ray takes for one that is there until its health checks fail.
        """
        workers = list(self._last.values())
        silent = self._session.silent({worker.node for worker in workers if worker.node is not None})
        return self._session.node_beside(silent, [worker.node for worker in workers if worker.alive])

    def _watch(self) -> None:
        while not self._stopped.is_set():
            watched = dict(self._watched)
            if not watched:
                self._stopped.wait(WATCH_S)
                continue
            try:
                gone, _ = self._session.call(
                    "watching actors", EnvError, self._session.ray.wait, list(watched), timeout=WATCH_S
                )
            except EnvError as error:
                for worker in watched.values():
                    worker.end(reason(error))
                self._watched.clear()
                continue
            for ref in gone:
                self._watched.pop(ref).ended()


def _lines(session: RaySession) -> Lines | None:
    """Where the processes of actors can dial; None where this process is not on a machine of the cluster."""
    address = session.address
    try:
        return None if address is None else Lines(address)
    except OSError:
        return None
