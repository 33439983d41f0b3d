"""The places of a run over workers: each plays one episode after the other, on the worker that it belongs to."""

import pickle
import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tiltyard._boundary import reason
from tiltyard.envs.pool.faults import sendable, unpacked
from tiltyard.envs.pool.seat import Seat
from tiltyard.envs.pool.workers import Asked, Worker
from tiltyard.errors import ConfigurationError, TiltyardError, WorkerLostError
from tiltyard.rollout.episode_host import Played, Wish
from tiltyard.rollout.jobs import EpisodeOrder
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger

SEND_TIMEOUT_S = 30.0
"""How long a worker may take to read a request before it counts as hung."""


class Counts(Protocol):
    """Is told of every episode that is over."""

    def __call__(self, played: Played, *, lost: bool) -> None:
        """Count it; `lost` when it went with its worker."""
        ...


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """How patient places are.

    Attributes:
        retries: How often an episode that was lost is begun again.
        silence_timeout_s: A worker that says nothing for so long, although it is asked, is killed.
    """

    retries: int
    silence_timeout_s: float


@dataclass(frozen=True, slots=True)
class _Todo:
    index: int
    order: EpisodeOrder
    request: bytes
    tries: int


@dataclass(frozen=True, slots=True)
class _Over:
    index: int
    played: Played
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Retired:
    """A place whose worker cannot be replaced."""

    error: TiltyardError


class Places:
    """One run: a thread for each place, which gives its worker an episode, waits for it, and takes the next.

    Orders are read by whoever takes the results, and only while a place is free: so many are under way, and what is
    finished and not taken is never more than that.
    """

    def __init__(
        self, run: int, seats: Sequence[Seat], orders: Iterable[EpisodeOrder], settings: PlaceSettings, count: Counts
    ) -> None:
        """Begin; nothing is read yet.

        Args:
            run: The run's number, by which a worker knows its episodes.
            seats: Whose worker each place gives its episodes to.
            orders: The episodes.
            settings: How patient the places are.
            count: Told of every episode that is over.
        """
        self._run = run
        self._seats = seats
        self._orders: Iterator[EpisodeOrder] = iter(orders)
        self._settings = settings
        self._count = count
        self._todo: queue.SimpleQueue[_Todo | None] = queue.SimpleQueue()
        self._over: queue.SimpleQueue[_Over | _Retired | TiltyardError | None] = queue.SimpleQueue()
        self._ids: set[str] = set()
        self._given = self._under_way = self._retired = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._serve, args=(seat,), name=f"tiltyard-place-{number}", daemon=True)
            for number, seat in enumerate(seats)
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Generator[tuple[int, Played]]:
        """What came of each episode, with its place among the orders, as they finish.

        Raises:
            ConfigurationError: An episode cannot be played, or two have one id.
            TiltyardError: Something that is no failure of one episode; or no worker is left and none can be started.
        """
        while (found := self.take()) is not None:
            yield found

    def take(self) -> tuple[int, Played] | None:
        """The next of `results`; None when all are over, or the run was stopped."""
        while not self._stopped:
            self._fill()
            if not self._under_way:
                return None
            over = self._over.get()
            if isinstance(over, _Over):
                self._under_way -= 1
                self._count(over.played, lost=over.lost)
                return over.index, over.played
            if isinstance(over, _Retired):
                self._retired += 1
                if self._retired == len(self._threads):
                    raise over.error
            elif over is not None:
                raise over
        return None

    def stop(self) -> None:
        """Begin nothing more, give up what is under way, and wake whoever waits in `take`; later calls do nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._over.put(None)
        for _ in self._threads:
            self._todo.put(None)
        if not self._under_way:
            return
        wish = pickle.dumps(Wish(self._run, None))
        for seat in set(self._seats):
            if (worker := seat.worker) is not None:
                try:
                    worker.ask(wish, SEND_TIMEOUT_S)
                except WorkerLostError:
                    continue  # and its episodes with it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _fill(self) -> None:
        """Read orders while a place is free."""
        while self._under_way < len(self._threads) and (order := next(self._orders, None)) is not None:
            if order.episode_id in self._ids:
                raise ConfigurationError(f"two episodes have the id {order.episode_id!r}; ids must be unique")
            self._ids.add(order.episode_id)
            request = sendable(Wish(self._run, order), f"episode {order.episode_id!r}")
            self._todo.put(_Todo(self._given, order, request, 0))
            self._given += 1
            self._under_way += 1

    def _serve(self, seat: Seat) -> None:
        """Play one episode after the other; the worker is there before an episode is taken for it."""
        while not self._stopped:
            try:
                worker = seat.wait()
            except TiltyardError as error:
                self._over.put(_Retired(error))
                return
            todo = self._todo.get()
            if todo is None:
                return
            try:
                asked = worker.ask(todo.request, SEND_TIMEOUT_S)
            except WorkerLostError as error:
                seat.lost(worker, str(error))
                self._todo.put(todo)  # it was not begun
                continue
            self._wait(seat, worker, asked, todo)

    def _wait(self, seat: Seat, worker: Worker, asked: Asked, todo: _Todo) -> None:
        try:
            answer = self._answer(worker, asked)
        except WorkerLostError as error:
            seat.lost(worker, str(error))
            self._lost(todo, error)
            return
        seat.used = True
        found = unpacked(answer, f"episode {todo.order.episode_id!r} ({worker.name})")
        self._over.put(found if isinstance(found, TiltyardError) else _Over(todo.index, found))

    def _answer(self, worker: Worker, asked: Asked) -> bytes:
        """Wait for an episode as long as its worker lives.

        Raises:
            WorkerLostError: It does not, or does not say so any more and was killed.
        """
        patience_s = self._settings.silence_timeout_s / 2
        while True:
            answer = asked.wait(patience_s)
            if answer is not None:
                return answer
            if asked.so_far(patience_s) is None:
                worker.kill()
                silence_s = self._settings.silence_timeout_s
                raise WorkerLostError(
                    f"{worker.name} said nothing within silence_timeout_s={silence_s:g} and was killed"
                )

    def _lost(self, todo: _Todo, error: WorkerLostError) -> None:
        if todo.tries < self._settings.retries:
            self._todo.put(_Todo(todo.index, todo.order, todo.request, todo.tries + 1))
            return
        order = todo.order
        trajectory = Trajectory(order.episode_id, order.task, Ending.LOST_SESSION, error=reason(error))
        self._over.put(_Over(todo.index, Played(trajectory, Ledger(), 0), lost=True))
