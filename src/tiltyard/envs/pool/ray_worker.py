"""A worker that is a Ray actor, and what it answers."""

import itertools
import sys
import threading
from typing import Any

from tiltyard._boundary import reason
from tiltyard.envs.pool.ray_actor import HostActor
from tiltyard.envs.pool.ray_lines import Lines
from tiltyard.envs.pool.ray_session import CONTROL, RaySession
from tiltyard.envs.pool.workers import Lost
from tiltyard.errors import EnvError, WorkerLostError

END_TIMEOUT_S = 5.0
"""How long an actor that was killed may take to be gone."""

PROMPT_S = 0.1
"""How long an answer is waited for in the way that costs least, which nothing but the answer ends."""

TELLING_S = 0.25
"""How long Ray may take to tell what became of an actor whose process has ended; it knows more than that it has."""


class RayWorker:
    """A `Worker` that is an actor."""

    def __init__(
        self, session: RaySession, host: bytes, threads: int, lost: Lost, lines: Lines | None, node: str | None
    ) -> None:
        self.session = session
        self._lost = lost
        line = None if lines is None else lines.expect(self._line_ended)
        self._actor = session.actor(HostActor, threads=threads, arguments=(host, list(sys.path), line), node=node)
        self.name = f"actor {self._actor._actor_id.hex()[:8]}"
        self.pid: int | None = None
        self.node = node
        self._why: str | None = None
        self._lock = threading.Lock()
        self._waiting: set[threading.Event] = set()
        self._numbers = itertools.count(1)
        self._closing = False
        self._starting = self._remote("start")
        self.watch = self._remote("watch", group=CONTROL)

    @property
    def alive(self) -> bool:
        """False once the actor is known to be gone."""
        return self._why is None

    def ready(self, timeout_s: float | None) -> bytes | None:
        """The packed first answer; see `Worker`."""
        answer = self._starting.get(timeout_s)
        if answer is None:
            return None
        ready, self.pid, self.node = answer
        return ready

    def ask(self, request: bytes, timeout_s: float | None) -> "RayAsked":
        """Send a request; see `Worker`. Ray takes it at once."""
        del timeout_s
        number = next(self._numbers)
        return RayAsked(self, number, self._remote("run", number, request))

    def ask_so_far(self, number: int, timeout_s: float) -> bytes | None:
        """Ask for what there is of an answer."""
        return self._remote("so_far", number, group=CONTROL).get(timeout_s)

    def close(self, timeout_s: float) -> bytes | None:
        """Let the host close; see `Worker`."""
        self._closing = True
        last = None
        try:
            last = self._remote("close", group=CONTROL).get(timeout_s)
        except WorkerLostError:
            self._closing = True  # it is gone, which is what was asked for
        if last is None:
            self.kill()
        try:
            self._kill_actor()
            self.watch.get(END_TIMEOUT_S)
        except (EnvError, WorkerLostError) as error:
            self.end(reason(error))
        return last

    def kill(self) -> None:
        """End the actor, and its process: one that hangs does not hear of the end of its actor."""
        if not self.alive:
            return
        try:
            self._kill_actor()
            if self.pid is not None and self.node is not None:
                self.session.call(f"killing {self.name}", EnvError, self.session.end_process, self.node, self.pid)
        except EnvError as error:
            self.end(reason(error))  # there is no cluster any more

    def _kill_actor(self) -> None:
        self.session.call(f"killing {self.name}", EnvError, self.session.ray.kill, self._actor)

    def ended(self) -> None:
        """The call that never returns has returned."""
        try:
            self.watch.get(0)
        except WorkerLostError as error:
            self.end(str(error))

    def end(self, why: str) -> None:
        """The actor is gone: tell, once."""
        with self._lock:
            if self._why is not None:
                return
            self._why = why
            waiting = list(self._waiting)
        for one in waiting:
            one.set()
        if not self._closing:
            self._lost(self, why)

    def wait(self, ref: Any, timeout_s: float | None) -> None:
        """Wait until an answer is there, or the actor is known to be gone."""
        come = threading.Event()
        with self._lock:
            if self._why is not None:
                return
            self._waiting.add(come)
        try:
            self.session.call(self.name, WorkerLostError, ref.future).add_done_callback(lambda answered: come.set())
            come.wait(timeout_s)
        finally:
            self._waiting.discard(come)

    def gone(self) -> WorkerLostError:
        """What became of it, as an error."""
        return WorkerLostError(self._why or f"{self.name} is gone")

    def _line_ended(self) -> None:
        """Its process has ended."""
        if not self._closing:
            later = threading.Timer(TELLING_S, self._vanished)
            later.daemon = True
            later.start()

    def _vanished(self) -> None:
        if not self.alive:
            return
        self.end(f"{self.name} is gone (its process has ended)")
        try:
            self._kill_actor()  # it was the line alone, perhaps, and nobody asks the actor any more
        except EnvError:
            return  # the cluster went with it

    def _remote(self, method: str, *arguments: Any, group: str | None = None) -> "RayAnswer":
        call = getattr(self._actor, method)
        if group is not None:
            call = call.options(concurrency_group=group)
        return RayAnswer(self, self.session.call(self.name, WorkerLostError, call.remote, *arguments))


class RayAnswer:
    """The answer of an actor's call, when it is there."""

    __slots__ = ("_worker", "ref")

    def __init__(self, worker: RayWorker, ref: Any) -> None:
        self._worker = worker
        self.ref = ref

    def get(self, timeout_s: float | None) -> Any:
        """The answer; None when it is not there in time.

        Raises:
            WorkerLostError: The actor is gone.
        """
        prompt_s = PROMPT_S if self._worker.alive else 0.0
        if timeout_s is not None and timeout_s <= prompt_s:
            return self._fetched(timeout_s)
        found = self._fetched(prompt_s)
        if found is None:
            self._worker.wait(self.ref, None if timeout_s is None else timeout_s - prompt_s)
            found = self._fetched(0)
            if found is None and not self._worker.alive:
                raise self._worker.gone()
        return found

    def _fetched(self, timeout_s: float) -> Any:
        name, session = self._worker.name, self._worker.session
        try:
            return session.call(name, WorkerLostError, session.ray.get, self.ref, timeout=timeout_s)
        except WorkerLostError as error:
            cause = error.__cause__
            if cause is None:
                raise
            if isinstance(cause, session.ray.exceptions.GetTimeoutError):
                return None
            assert isinstance(cause, Exception)
            raise WorkerLostError(f"{name} is gone ({_first_line(cause)})") from cause


class RayAsked:
    """An `Asked` of an actor."""

    __slots__ = ("_answer", "_number", "_worker")

    def __init__(self, worker: RayWorker, number: int, answer: RayAnswer) -> None:
        self._worker = worker
        self._number = number
        self._answer = answer

    def wait(self, timeout_s: float | None) -> bytes | None:
        """The answer; see `Asked`."""
        return self._answer.get(timeout_s)

    def so_far(self, timeout_s: float) -> bytes | None:
        """What there is of it; see `Asked`."""
        return self._worker.ask_so_far(self._number, timeout_s)


def _first_line(error: Exception) -> str:
    return reason(error).strip().split("\n")[0]
