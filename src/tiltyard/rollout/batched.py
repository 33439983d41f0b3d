"""The driver for a local model: many episodes, one batched sample for all that are ready."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiltyard._boundary import reason
from tiltyard.envs.turns import Turns, as_turns
from tiltyard.errors import ConfigurationError, PolicyError, RolloutError, TranscriptError
from tiltyard.policies.base import TokenPolicy, TokenRequest
from tiltyard.rollout.jobs import BREAKS_THE_ENV, Job, checked_jobs, request_seed, unique_jobs
from tiltyard.rollout.limits import Limits, check_count
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.recorded import RecordedEpisode
from tiltyard.rollout.seating import Claim, Patience, Seat
from tiltyard.rollout.slots import EnvSlots, Slot
from tiltyard.rollout.token_episode import TokenEpisode
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.rollout.workers import EnvWorkers
from tiltyard.tokens.renderer import Renderer


class BatchedRollout:
    """Runs episodes over a token policy, with one batched sample a turn for all episodes that are ready.

    It samples at once when no environment call is running, and otherwise when the episode that has been ready
    longest has waited `linger_s`; so a slow environment delays its own episode and no other. A finished episode's
    place is taken by the next job.

    Attributes:
        abandoned: How many environment calls passed their deadline, over all runs.
        interrupted: `interrupt` was called.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        renderer: Renderer,
        limits: Limits,
        *,
        seed: int = 0,
        linger_s: float = 0.05,
        prompt_s: float = 0.0,
        max_live: int | None = None,
    ) -> None:
        """Set the rollout up.

        Args:
            policy: Continues the token sequences.
            renderer: Writes what the environments say as tokens, and reads what the policy sampled.
            limits: Bound each episode.
            seed: What the seeds of the samples derive from, with the episode's id and the turn.
            linger_s: How long a ready episode waits for the others while environments are at work.
            prompt_s: How long it waits while environment calls are hardly ever longer than `linger_s` (`Patience`);
                never less than that.
            max_live: How many episodes run at one time; None runs all at once.

        Raises:
            ConfigurationError: `max_live` is below 1 or `linger_s` is negative.
        """
        if max_live is not None:
            check_count("max_live", max_live, " or None")
        if not linger_s >= 0:
            raise ConfigurationError(f"linger_s must be >= 0 seconds, got {linger_s!r}")
        self.policy = policy
        self.renderer = renderer
        self.limits = limits
        self.seed = seed
        self.patience = Patience(linger_s, prompt_s)
        self.max_live = max_live
        self.abandoned = 0
        self.interrupted = False
        self._run: _Run | None = None

    def run(
        self,
        jobs: Iterable[Job],
        on_finished: Callable[[Trajectory], None] | None = None,
        *,
        recorded: Mapping[str, Trajectory] | None = None,
    ) -> list[Trajectory]:
        """Run all jobs; the trajectories are in their order.

        At a KeyboardInterrupt, and at any other error that escapes, no further environment call starts and none is
        waited for; the error goes on to the caller, who closes the environments.

        Args:
            jobs: The episodes.
            on_finished: Called with each trajectory as soon as it is finished, in the caller's thread.
            recorded: Trajectories of jobs that were finished before, by episode id: their environments are not
                called, and they are not handed to `on_finished` again. They are sampled once more, so that the other
                jobs get the samples that they would have had beside them; where there are no others, they are not.

        Raises:
            ConfigurationError: Two jobs share one environment or one episode id.
        """
        listed = checked_jobs(jobs)
        known = recorded or {}
        if all(job.episode_id in known for job in listed):
            return [known[job.episode_id] for job in listed]
        found: dict[int, Trajectory] = {}
        for index, trajectory in self._drive(iter(listed), on_finished or (lambda trajectory: None), known):
            found[index] = trajectory
        return [found[index] for index in range(len(listed))]

    def stream(self, jobs: Iterable[Job]) -> Generator[Trajectory]:
        """Run jobs that are taken one by one, each when there is room for it (`max_live`), and keep nothing.

        The trajectories come as they finish. Closing the generator stops the run as an interrupt stops `run`.

        Raises:
            ConfigurationError: A job has the id of an earlier one.
        """
        for _, trajectory in self._drive(unique_jobs(jobs), lambda trajectory: None, {}):
            yield trajectory

    def interrupt(self) -> None:
        """From another thread: end the run that goes on, and each later one, as Ctrl-C in its own thread would."""
        self.interrupted = True
        if self._run is not None:
            self._run.workers.wake()

    def _drive(
        self, jobs: Iterator[Job], on_finished: Callable[[Trajectory], None], recorded: Mapping[str, Trajectory]
    ) -> Generator[tuple[int, Trajectory]]:
        run = self._run = _Run(self, jobs, on_finished, recorded)
        try:
            yield from run.drive()
        finally:
            run.stop()
            self.abandoned += run.workers.abandoned


@dataclass(slots=True)
class _Run:
    """The state of one `BatchedRollout.run`."""

    rollout: BatchedRollout
    jobs: Iterator[Job]
    on_finished: Callable[[Trajectory], None]
    recorded: Mapping[str, Trajectory]
    workers: EnvWorkers = field(init=False)
    waiting: Job | None = None
    finished: deque[tuple[int, Trajectory]] = field(default_factory=deque)
    begun: int = 0
    making: dict[str, Claim] = field(default_factory=dict)
    live: dict[str, Seat] = field(default_factory=dict)
    ready: dict[str, Seat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = EnvWorkers(self.rollout.limits.step_timeout_s)

    def drive(self) -> Generator[tuple[int, Trajectory]]:
        patience = self.rollout.patience
        self._fill()
        while self.making or self.live or self.finished:
            while self.finished:
                yield self.finished.popleft()
            ended = self.workers.collect(patience.left_s(list(self.ready.values()), self.workers))
            patience.saw(ended)
            for work in ended:
                self._deliver(str(work.tag), work.result, work.error)
            self._fill()
            if self.ready and patience.over(list(self.ready.values()), self.workers):
                self._sample()

    def stop(self) -> None:
        """Start no further call, and let go of what the live episodes hold; waits for nothing."""
        self.workers.stop()
        self.rollout.policy.release(list(self.live))
        for claim in self.making.values():
            claim.slots.put_back(claim.number)
        self.making.clear()
        for seat in self.live.values():
            seat.episode.abandon()
            if isinstance(seat.job.env, EnvSlots) and seat.slot is not None:
                # Its environment may be in the middle of a call.
                seat.job.env.give_back(seat.slot, broken=seat.episode.env_call is not None)
        self.live.clear()

    def _fill(self) -> None:
        if self.rollout.interrupted:
            raise KeyboardInterrupt
        bound = self.rollout.max_live
        while bound is None or len(self.live) + len(self.making) < bound:
            job = self.waiting or next(self.jobs, None)
            self.waiting = None
            if job is None:
                return
            if isinstance(job.env, EnvSlots) and not job.env.free and job.episode_id not in self.recorded:
                if not self.live and not self.making:
                    raise ConfigurationError(
                        f"episode {job.episode_id!r} waits for an environment slot that nobody frees"
                    )
                self.waiting = job
                return
            self.begun += 1
            self._begin(self.begun - 1, job)

    def _begin(self, index: int, job: Job) -> None:
        if (recorded := self.recorded.get(job.episode_id)) is not None:
            rollout = self.rollout
            again = RecordedEpisode(recorded, rollout.limits, context_length=rollout.policy.context_length)
            self._seat(Seat(index, job, again, None))
            return
        if not isinstance(job.env, EnvSlots):
            self._play(index, job, as_turns(job.env))
            return
        slots, number = job.env, job.env.claim()
        if slots.filled(number):
            slot = slots.fill(number)
            self._play(index, job, slot.turns, slot)
        else:
            self.making[job.episode_id] = Claim(index, job, slots, number)
            self.workers.submit(job.episode_id, lambda: slots.fill(number))

    def _play(self, index: int, job: Job, turns: Turns, slot: Slot | None = None) -> None:
        rollout = self.rollout
        episode = TokenEpisode(
            turns,
            job.task,
            rollout.limits,
            job.episode_id,
            renderer=rollout.renderer,
            context_length=rollout.policy.context_length,
        )
        self._seat(Seat(index, job, episode, slot))

    def _seat(self, seat: Seat) -> None:
        self.live[seat.job.episode_id] = seat
        seat.episode.start()
        self._settle(seat)

    def _deliver(self, episode_id: str, result: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, RolloutError):
            raise error
        if (claim := self.making.pop(episode_id, None)) is not None:
            self._made(claim, result, error)
            return
        seat = self.live[episode_id]
        if error is None:
            seat.episode.env_answered(result)
        else:
            seat.episode.fail(error)
        self._settle(seat)

    def _made(self, claim: Claim, slot: Slot, error: RolloutError | None) -> None:
        if error is None:
            self._play(claim.index, claim.job, slot.turns, slot)
            return
        claim.slots.put_back(claim.number)
        job = claim.job
        self._record(claim.index, Trajectory(job.episode_id, job.task, Ending(error.ending), error=reason(error)))

    def _sample(self) -> None:
        seats = sorted(self.ready.values(), key=lambda seat: seat.index)
        self.ready.clear()
        requests = [self._request(seat) for seat in seats]
        try:
            samples = self.rollout.policy.sample(requests)
        except PolicyError as error:
            for seat in seats:
                seat.episode.fail(error)
                self._settle(seat)
            return
        for seat, sampled in zip(seats, samples, strict=True):
            try:
                seat.episode.sampled(sampled.ids, sampled.logprobs, sampled.finish_reason, sampled.version)
            except TranscriptError as error:
                seat.episode.fail(PolicyError(f"what the policy sampled cannot be kept: {error}"))
            self._settle(seat)

    def _request(self, seat: Seat) -> TokenRequest:
        episode, job = seat.episode, seat.job
        seed = self.rollout.seed if job.sampling_seed is None else job.sampling_seed
        turn_seed = request_seed(seed, job.episode_id, episode.transcript.turns)
        replay = isinstance(episode, RecordedEpisode)
        return TokenRequest(job.episode_id, episode.transcript.ids, episode.max_tokens, turn_seed, replay)

    def _settle(self, seat: Seat) -> None:
        """Put an episode that has moved on where it belongs now."""
        episode = seat.episode
        if episode.env_call is not None:
            self.workers.submit(seat.job.episode_id, episode.env_call.call)
        elif episode.trajectory is None:
            seat.ready_since = time.monotonic()
            self.ready[seat.job.episode_id] = seat
        else:
            del self.live[seat.job.episode_id]
            self.rollout.policy.release([seat.job.episode_id])
            if isinstance(seat.job.env, EnvSlots) and seat.slot is not None:
                seat.job.env.give_back(seat.slot, broken=episode.trajectory.ending in BREAKS_THE_ENV)
            self._record(seat.index, episode.trajectory)

    def _record(self, index: int, trajectory: Trajectory) -> None:
        self.finished.append((index, trajectory))
        if trajectory.episode_id not in self.recorded:
            self.on_finished(trajectory)
