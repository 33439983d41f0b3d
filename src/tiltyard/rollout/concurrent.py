"""The driver for a served model: one coroutine an episode, so many live at a time, each place refilled."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tiltyard._boundary import guarded_async, reason
from tiltyard.envs.turns import Turns, as_turns
from tiltyard.errors import ConfigurationError, EnvError, PolicyError, RolloutError
from tiltyard.policies.base import AsyncPolicy, check_async_policy
from tiltyard.rollout.blocking import run_blocking
from tiltyard.rollout.calm_collector import CalmCollector
from tiltyard.rollout.jobs import BREAKS_THE_ENV, Job, checked_jobs, unique_jobs
from tiltyard.rollout.limits import Limits, check_count
from tiltyard.rollout.loop_workers import LoopWorkers
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.served_episode import ServedEpisode
from tiltyard.rollout.slots import EnvSlots, Slot
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.types import Reply

OnFinished = Callable[[Trajectory], Awaitable[None] | None]
"""What is done with each finished trajectory."""


class ConcurrentRollout:
    """Runs episodes over a policy that answers messages: many wait for it at one time, none for another.

    The calls into the environments run on threads of their own, as many as there are at one time; one that passes
    its deadline fails its own episode and no other.

    Attributes:
        abandoned: How many environment calls passed their deadline, over all runs.
        ledger: What the tokens went through, over all runs, where the policy gives them.
    """

    def __init__(self, policy: AsyncPolicy, limits: Limits, *, concurrency: int = 64, seed: int | None = None) -> None:
        """Set the rollout up.

        Args:
            policy: Answers the prompts.
            limits: Bound each episode.
            concurrency: How many episodes are live at one time.
            seed: What the seeds of the prompts derive from, with the episode's id and the turn; None leaves them
                unseeded, except for jobs that have a `sampling_seed`.

        Raises:
            ConfigurationError: `concurrency` is below 1, or the policy answers no messages.
        """
        check_async_policy(policy)
        check_count("concurrency", concurrency)
        self.policy = policy
        self.limits = limits
        self.concurrency = concurrency
        self.seed = seed
        self.abandoned = 0
        self.ledger = Ledger()

    def run(
        self,
        jobs: Iterable[Job],
        on_finished: OnFinished | None = None,
        *,
        keep: bool = True,
    ) -> list[Trajectory]:
        """Run all jobs and wait for them; as `run_async`, also where an event loop is running already."""
        return run_blocking(lambda: self.run_async(jobs, on_finished, keep=keep))

    async def run_async(
        self,
        jobs: Iterable[Job],
        on_finished: OnFinished | None = None,
        *,
        keep: bool = True,
    ) -> list[Trajectory]:
        """Run all jobs; the trajectories are in their order.

        At a cancellation (and so at Ctrl-C), and at any other error that escapes, no further environment call starts
        and none is waited for; the error goes on to the caller, who closes the environments.

        Args:
            jobs: The episodes. A list is checked before the first one starts; any other iterable is read one job at
                a time, as places get free, and so may be longer than memory.
            on_finished: Called on the loop with each trajectory as soon as it is finished. It may be async: the
                episode's place is taken by the next one when it has returned.
            keep: False returns an empty list and holds no finished trajectory.

        Raises:
            ConfigurationError: Two jobs share an episode id, or two live ones an environment.
        """
        results: dict[int, Trajectory] = {}

        async def hand_over(index: int, trajectory: Trajectory) -> None:
            if keep:
                results[index] = trajectory
            if on_finished is not None and (following := on_finished(trajectory)) is not None:
                await following

        await self._drive(checked_jobs(jobs) if isinstance(jobs, Sequence) else unique_jobs(jobs), hand_over)
        return [results[index] for index in sorted(results)]

    async def stream_async(self, jobs: Iterable[Job]) -> AsyncGenerator[Trajectory]:
        """Run jobs that are taken one by one, as places get free, and keep nothing.

        The trajectories come as they finish. While the caller does not take them, at most `concurrency` more are
        played. Closing the generator stops the run as a cancellation stops `run_async`.

        Raises:
            ConfigurationError: A job has the id of an earlier one, or the environment of a live one.
        """
        finished: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        room = asyncio.Semaphore(1)

        async def hand_over(index: int, trajectory: Trajectory) -> None:
            del index
            await room.acquire()
            finished.put_nowait(trajectory)

        run = asyncio.create_task(self._drive(unique_jobs(jobs), hand_over))
        run.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (trajectory := await finished.get()) is not None:
                room.release()
                yield trajectory
            await run
        finally:
            run.cancel()
            await asyncio.wait([run])

    async def _drive(self, jobs: Iterable[Job], hand_over: Callable[[int, Trajectory], Awaitable[None]]) -> None:
        async with self.policy:
            run = _Run(self, enumerate(jobs), hand_over)
            try:
                with CalmCollector(self.concurrency):
                    await run.drive()
            finally:
                run.workers.stop()
                self.abandoned += run.workers.abandoned


@dataclass(slots=True)
class _Run:
    """The state of one run."""

    rollout: ConcurrentRollout
    jobs: Iterator[tuple[int, Job]]
    hand_over: Callable[[int, Trajectory], Awaitable[None]]
    workers: LoopWorkers = field(init=False)
    live_sources: dict[int, str] = field(default_factory=dict)
    playing: int = 0
    waiting: dict[int, deque[asyncio.Future[None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = LoopWorkers(self.rollout.limits.step_timeout_s)

    async def drive(self) -> None:
        """Keep every place filled until the jobs are used up; the first error that escapes ends all places."""
        places: set[asyncio.Task[None]] = set()
        try:
            for index, job in self.jobs:
                places.add(asyncio.create_task(self._place(index, job)))
                if len(places) == self.rollout.concurrency:
                    break
            done: set[asyncio.Task[None]] = set()
            if places:
                done, _ = await asyncio.wait(places, return_when=asyncio.FIRST_EXCEPTION)
            for place in done:
                place.result()
        finally:
            for place in places:
                place.cancel()
            await asyncio.gather(*places, return_exceptions=True)

    async def _place(self, index: int, job: Job) -> None:
        """Play this job, then the next one that nobody has begun."""
        await self._play(index, job)
        for following, other in self.jobs:
            await self._play(following, other)

    async def _play(self, index: int, job: Job) -> None:
        if not isinstance(job.env, EnvSlots):
            turns = as_turns(job.env)
            self._occupy(turns, job.episode_id)
            try:
                trajectory = await self._feed(self._episode(turns, job))
            finally:
                for source in turns.sources:
                    del self.live_sources[id(source)]
        else:
            try:
                slot = await self._take(job.env, job.episode_id)
            except EnvError as error:
                trajectory = Trajectory(job.episode_id, job.task, Ending.ENV_ERROR, error=reason(error))
            else:
                trajectory = await self._feed_in_slot(job.env, slot, job)
        await self.hand_over(index, trajectory)

    def _episode(self, turns: Turns, job: Job) -> ServedEpisode:
        rollout = self.rollout
        seed = rollout.seed if job.sampling_seed is None else job.sampling_seed
        return ServedEpisode(turns, job.task, rollout.limits, job.episode_id, ledger=rollout.ledger, seed=seed)

    async def _feed(self, episode: ServedEpisode) -> Trajectory:
        """Answer what the flow asks for until it is over."""
        self.playing += 1
        try:
            episode.start()
            while episode.trajectory is None:
                try:
                    if episode.env_call is not None:
                        turn = await self.workers.run(episode.env_call.call)
                        resume = partial(episode.env_answered, turn)
                    else:
                        resume = partial(episode.replied, await self._reply(episode))
                except RolloutError as error:
                    resume = partial(episode.fail, error)
                resume()
            return episode.trajectory
        finally:
            self.playing -= 1
            if episode.trajectory is None:
                episode.abandon()

    async def _reply(self, episode: ServedEpisode) -> Reply:
        assert episode.prompt is not None
        reply = await guarded_async(
            "policy.reply", PolicyError, self.rollout.policy.reply, episode.prompt, max_tokens=episode.max_tokens
        )
        if not isinstance(reply, Reply):
            raise PolicyError(f"policy.reply returned {reply!r}; expected a Reply")
        return reply

    async def _feed_in_slot(self, slots: EnvSlots, slot: Slot, job: Job) -> Trajectory:
        episode = self._episode(slot.turns, job)
        broken = False
        try:
            trajectory = await self._feed(episode)
            broken = trajectory.ending in BREAKS_THE_ENV
            return trajectory
        finally:
            # Where the run is interrupted, the environment may be in the middle of a call.
            slots.give_back(slot, broken=broken or episode.env_call is not None)
            self._freed(slots)

    async def _take(self, slots: EnvSlots, episode_id: str) -> Slot:
        while not slots.free:
            if not self.playing:
                raise ConfigurationError(f"episode {episode_id!r} waits for an environment slot that nobody frees")
            turn = asyncio.get_running_loop().create_future()
            self.waiting.setdefault(id(slots), deque()).append(turn)
            await turn
        number = slots.claim()
        self.playing += 1
        try:
            if slots.filled(number):
                return slots.fill(number)
            return await self.workers.run(lambda: slots.fill(number))
        except BaseException:
            slots.put_back(number)
            self._freed(slots)
            raise
        finally:
            self.playing -= 1

    def _freed(self, slots: EnvSlots) -> None:
        """Let the episode go on that has waited longest for one of these slots."""
        waiting = self.waiting.get(id(slots))
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _occupy(self, turns: Turns, episode_id: str) -> None:
        for source in turns.sources:
            if (other := self.live_sources.get(id(source))) is not None:
                raise ConfigurationError(
                    f"episodes {other!r} and {episode_id!r} run at one time and share one {type(source).__name__}; "
                    "give each its own, or a factory: env=EnvSlots(factory, size)"
                )
        for source in turns.sources:
            self.live_sources[id(source)] = episode_id
