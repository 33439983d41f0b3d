"""The program in a worker that plays whole episodes: environments, a policy, and an event loop for all of them."""

import itertools
import os
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from tiltyard._boundary import guarded, reason
from tiltyard.envs.pool.faults import VALUE, packed, packed_error
from tiltyard.errors import EnvError, LostSessionError, TiltyardError
from tiltyard.policies.base import AsyncPolicy
from tiltyard.rollout.beside import LoopThread
from tiltyard.rollout.calm_collector import CalmCollector
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.front import result_of
from tiltyard.rollout.jobs import BREAKS_THE_ENV, EpisodeOrder, Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.scoring import Scoring
from tiltyard.rollout.sources import EnvLender, EnvSource, EpisodeEnv
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.types import Prompt, Reply, Task, Turn

CLOSE_TIMEOUT_S = 5.0
"""How long the environments of a worker may take to close, all at the same time."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of one episode.

    Attributes:
        trajectory: What happened.
        ledger: What its tokens went through.
        sampled: Tokens that were sampled, by the server's count.
    """

    trajectory: Trajectory
    ledger: Ledger
    sampled: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What a worker is asked.

    Attributes:
        run: The run that it belongs to.
        order: The episode to play; None gives up all episodes of the run.
    """

    run: int
    order: EpisodeOrder | None


@dataclass(frozen=True, slots=True)
class EpisodeHostMaker:
    """What is sent to a worker: makes its host.

    Attributes:
        source: Where its environments come from.
        policy: Answers the prompts.
        limits: Bound each episode.
        places: How many episodes it is given at one time.
        seed: What the seeds of the prompts derive from; None leaves them unseeded.
        scoring: Scores the episodes there, as it asks their environments; None leaves that to whoever ordered them.
    """

    source: EnvSource
    policy: AsyncPolicy
    limits: Limits
    places: int
    seed: int | None = None
    scoring: Scoring | None = None

    def __call__(self) -> "EpisodeHost":
        """The host."""
        return EpisodeHost(self)


class EpisodeHost:
    """A `Host` of episodes: each request is one, and its answer what came of it."""

    def __init__(self, made_as: EpisodeHostMaker) -> None:
        self._made_as = made_as
        self._lender = EnvLender(made_as.source)
        self._loop = LoopThread(self._open)
        self._count = itertools.count()
        self._playing: dict[int, tuple[int, Future[Played]]] = {}
        self._lock = threading.Lock()

    def start(self) -> bytes:
        """Make the first environment, so that one that cannot be made is told at once: the process's number."""
        self._lender.make_ready()
        self._loop.__enter__()
        return pickle.dumps(os.getpid())

    def begin(self, number: int, request: bytes, answer: Callable[[bytes], None]) -> None:
        """Play an episode, or give up those of a run.

        Args:
            number: The request's own.
            request: A pickled `Wish`.
            answer: Called with a packed `Played`; an error in its place is one that ends the run.
        """
        try:
            wish: Wish = guarded("reading a request", EnvError, pickle.loads, request)
        except TiltyardError as error:
            answer(packed_error(error, "the worker"))
            return
        if wish.order is None:
            self._give_up(wish.run)
            answer(packed(None, "the worker"))
            return
        playing = self._loop.submit(self._play(wish.order))
        with self._lock:
            self._playing[number] = (wish.run, playing)
        playing.add_done_callback(partial(self._ended, number, answer))

    def so_far(self, number: int) -> bytes:
        """Say that the worker is there; there is no half of an episode."""
        del number
        return b""

    def close(self) -> bytes:
        """Give up all episodes and close the environments; how many did not close in time."""
        self._give_up(None)
        self._loop.__exit__()
        return pickle.dumps(self._lender.close(CLOSE_TIMEOUT_S))

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """Hold what serves all episodes: connections, and those of the reward functions."""
        async with AsyncExitStack() as stack:
            stack.enter_context(CalmCollector(self._made_as.places))
            await stack.enter_async_context(self._made_as.policy)
            if self._made_as.scoring is not None:
                await stack.enter_async_context(self._made_as.scoring.open())
            yield

    async def _play(self, order: EpisodeOrder) -> Played:
        made_as = self._made_as
        policy = _Counted(made_as.policy)
        rollout = ConcurrentRollout(policy, made_as.limits, concurrency=1, seed=made_as.seed)
        env = self._lender.lend(next(self._count), order.row, order.shown)
        broken = True
        try:
            [trajectory] = await rollout.run_async(
                [Job(_Contained(env), order.task, order.episode_id, sampling_seed=order.sampling_seed)]
            )
            broken = trajectory.ending in BREAKS_THE_ENV
            if made_as.scoring is not None:
                envs = env.turns.sources if env.turns is not None else ()
                trajectory = await made_as.scoring.apply(trajectory, partial(result_of, order.row), envs)
            return Played(trajectory, rollout.ledger, policy.sampled)
        finally:
            self._lender.take_back(env, broken=broken)

    def _ended(self, number: int, answer: Callable[[bytes], None], playing: "Future[Played]") -> None:
        with self._lock:
            self._playing.pop(number, None)
        if playing.cancelled():
            answer(packed_error(LostSessionError("the episode was given up"), "the episode"))
        elif (error := playing.exception()) is not None:
            answer(packed_error(error, "an episode"))
        else:
            answer(_packed(playing.result()))

    def _give_up(self, run: int | None) -> None:
        with self._lock:
            given_up = [playing for of, playing in self._playing.values() if run in (None, of)]
        for playing in given_up:
            playing.cancel()


class _Contained:
    """An environment of one episode that cannot end the worker: where it exits, its episode fails."""

    def __init__(self, env: EpisodeEnv) -> None:
        self._env = env
        self.tools = env.tools
        self.close = env.close

    def start(self, task: Task) -> Turn:
        return self._call("start", self._env.start, task)

    def reply(self, reply: Reply) -> Turn:
        return self._call("reply", self._env.reply, reply)

    def _call(self, what: str, call: Callable[[Any], Turn], argument: Any) -> Turn:
        try:
            return call(argument)
        except SystemExit as error:
            raise EnvError(f"{what} of the environment raised {reason(error)}") from error


class _Counted:
    """A policy of one episode, whose sampled tokens are counted."""

    def __init__(self, policy: AsyncPolicy) -> None:
        self.sampled = 0
        self._policy = policy

    async def reply(self, prompt: Prompt, *, max_tokens: int | None) -> Reply:
        reply = await self._policy.reply(prompt, max_tokens=max_tokens)
        if isinstance(reply, Reply):
            self.sampled += len(reply.token_ids) if reply.token_ids is not None else reply.sampled_tokens or 0
        return reply

    async def __aenter__(self) -> Any:
        return await self._policy.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._policy.__aexit__(kind, error, traceback)


def _packed(played: Played) -> bytes:
    """What came of an episode, as bytes; one whose `info` cannot be sent fails without it, and stops no other."""
    try:
        return guarded("sending the trajectory", EnvError, pickle.dumps, (VALUE, played), pickle.HIGHEST_PROTOCOL)
    except EnvError as error:
        failed = replace(played.trajectory, info={}, ending=Ending.ENV_ERROR, error=reason(error))
        return packed(replace(played, trajectory=failed), "the episode")
