"""Whole episodes on workers: each is played near its environment, and comes back as a trajectory."""

import pickle
from collections.abc import Callable, Generator, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from tiltyard.envs.observation import MAX_OBSERVATION_CHARS
from tiltyard.envs.pool.layout import LONGEST_S, bound, shares
from tiltyard.envs.pool.seat import Seat, Source
from tiltyard.envs.pool.sources import backend_of
from tiltyard.errors import ConfigurationError
from tiltyard.leases import LeaseReport, Leases
from tiltyard.policies.base import AsyncPolicy
from tiltyard.rollout.episode_host import EpisodeHostMaker, Played
from tiltyard.rollout.jobs import EpisodeOrder
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.placement import IN_PROCESSES, Placement
from tiltyard.rollout.places import Places, PlaceSettings
from tiltyard.rollout.scoring import Scoring
from tiltyard.rollout.sources import EnvSource
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.tools.at_once import run_at_once


class RolloutWorkers:
    """Plays whole episodes on workers, which ask a served model themselves and return trajectories.

    So many episodes are under way at one time; the place of one that is over is taken by the next. While the caller
    does not take what is finished, nothing further is begun. A worker that dies, or says nothing any more, costs its
    own live episodes: they come back as failed (`lost_session`, no reward), and another worker takes its place.

    Attributes:
        ledger: What the tokens went through, over all runs, where the policy gives them.
        sampled: Tokens that were sampled, by the server's count.
        lost: How many episodes were lost with their worker.
        leaked: After `close`: how many environments or workers did not end in time.
    """

    def __init__(  # noqa: PLR0913  # the three parts of an episode, and the options of its workers, each by its name
        self,
        env_factory: Callable[[], Any] | EnvSource,
        policy: AsyncPolicy,
        limits: Limits,
        *,
        placement: Placement = IN_PROCESSES,
        concurrency: int = 64,
        seed: int | None = None,
        retries: int = 0,
        scoring: Scoring | None = None,
        start_timeout_s: float | None = 120.0,
        silence_timeout_s: float | None = 30.0,
    ) -> None:
        """Start the workers, and make an environment in each.

        Args:
            env_factory: Makes an environment in a worker; each is reused until it breaks. Or a source of tools.
            policy: Answers the prompts. It is sent to the workers, an API key with it.
            limits: Bound each episode; an environment call that passes its deadline fails its own episode.
            placement: Where the workers are, and how many.
            concurrency: How many episodes are under way at one time, on all workers together.
            seed: What the seeds of the prompts derive from, with the episode's id and the turn; None sends none.
            retries: How often an episode that was lost with its worker is begun again, on whichever worker is free.
            scoring: Applied on the worker, beside the environment; None leaves the rewards as the environment's.
            start_timeout_s: How long a worker may take to be ready; None sets no bound.
            silence_timeout_s: A worker that does not answer for so long, although asked, is killed; None kills none.

        Raises:
            ConfigurationError: Something cannot be as it is given, or cannot be sent to a worker.
            EnvError: An environment could not be made, or a worker not be started.
            MissingExtraError: Ray is not installed.
        """
        _check(concurrency, retries)
        start_timeout_s = bound("start_timeout_s", start_timeout_s)
        silence_timeout_s = bound("silence_timeout_s", silence_timeout_s) or LONGEST_S
        is_source = isinstance(env_factory, EnvSource)
        source = env_factory if is_source else EnvSource(None, env_factory, max_observation_chars=MAX_OBSERVATION_CHARS)
        if source.managers is not None and not source.single:
            raise ConfigurationError(
                "a list of ToolManagers, one for each trajectory, is of this process; for workers give a function that "
                "makes one, or env_factory"
            )
        self.concurrency = concurrency
        self.ledger = Ledger()
        self.sampled = self.lost = self.leaked = 0
        self._settings = PlaceSettings(retries, silence_timeout_s)
        self._leases = Leases()
        self._closed = False
        self._runs = 0
        self._backend = backend_of(placement.pool_backend, placement.ray)
        try:
            count = min(self._backend.at_hand if placement.workers is None else placement.workers, concurrency)
            self._backend.check(count)
            self._share = shares(concurrency, count)
            maker = EpisodeHostMaker(source, policy, limits, len(self._share[0]), seed, scoring)
            host = self._backend.pickled(maker, "the environment and the policy")
            origin = Source(self._backend, self._leases, start_timeout_s)
            self._seats = [
                Seat(number, host, len(places) + 1, origin, lambda said: None)
                for number, places in enumerate(self._share)
            ]
        except BaseException:
            self._backend.close()
            raise
        self._start()

    def run(
        self, orders: Iterable[EpisodeOrder], on_finished: Callable[[Trajectory], None] | None = None
    ) -> list[Trajectory]:
        """Play all episodes; the trajectories are in their order.

        Args:
            orders: The episodes, read one at a time, as places get free.
            on_finished: Called with each trajectory as soon as it is finished, in the caller's thread.

        Raises:
            ConfigurationError: An episode cannot be played, or two have one id.
            EnvError: No worker is left and none can be started.
        """
        found: dict[int, Trajectory] = {}
        with self.begin(orders) as places:
            for index, played in places.results():
                found[index] = played.trajectory
                if on_finished is not None:
                    on_finished(played.trajectory)
        return [found[index] for index in sorted(found)]

    def stream(self, orders: Iterable[EpisodeOrder]) -> Generator[Trajectory]:
        """Play episodes that are taken one by one, as places get free; the trajectories come as they finish.

        Closing the generator ends the run: the episodes that are under way are given up.

        Raises:
            ConfigurationError: An episode cannot be played, or two have one id.
            EnvError: No worker is left and none can be started.
        """
        with self.begin(orders) as places:
            for _, played in places.results():
                yield played.trajectory

    def begin(self, orders: Iterable[EpisodeOrder]) -> Places:
        """A run of these episodes; leaving it as a context manager gives up what is under way.

        Raises:
            ConfigurationError: The workers are closed.
        """
        if self._closed:
            raise ConfigurationError("the workers were closed; make others")
        self._runs += 1
        seats = [seat for seat, places in zip(self._seats, self._share, strict=True) for _ in places]
        return Places(self._runs, seats, orders, self._settings, self._count)

    @property
    def replaced(self) -> int:
        """How many workers died and were replaced."""
        return sum(seat.generation for seat in self._seats)

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The processes of the workers; None for one that is being replaced."""
        workers = [seat.worker for seat in self._seats]
        return tuple(None if worker is None else worker.pid for worker in workers)

    def report(self) -> LeaseReport:
        """How many workers there were, and how many of them are still alive."""
        return self._leases.report()

    def close(self, timeout_s: float = 10.0) -> None:
        """Close the environments and end the workers; later calls do nothing.

        Args:
            timeout_s: How long a worker may take; one that takes longer is killed.
        """
        if self._closed:
            return
        self._closed = True
        there = [seat.worker is not None for seat in self._seats]
        last = run_at_once([partial(seat.close, timeout_s) for seat in self._seats])
        self._leases.close()
        self._backend.close()
        hung = [1 if said is None else pickle.loads(said) for said in last]  # noqa: S301  # our own
        self.leaked = sum(count for count, was_there in zip(hung, there, strict=True) if was_there)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        try:
            for seat in self._seats:
                seat.begin()
            for seat in self._seats:
                seat.settle()
        except BaseException:
            self.close()
            raise

    def _count(self, played: Played, *, lost: bool) -> None:
        self.ledger += played.ledger
        self.sampled += played.sampled
        self.lost += lost


def _check(concurrency: int, retries: int) -> None:
    for name, value, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if type(value) is not int or value < least:
            raise ConfigurationError(f"{name} must be a whole number >= {least}, got {value!r}")
