"""Episodes that are played and not learned from: on disk as they finish, resumed, and what came of them."""

import warnings
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from tiltyard.leases import lost_leases
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.trace import from_record, read_traces
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.train.evaluate import score
from tiltyard.train.interrupt import Interrupts
from tiltyard.train.players import Player
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.samples import score_samples
from tiltyard.types import Task


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Which episodes are to be played.

    Attributes:
        phase: What they are played for: "eval" for held-out tasks, "rollout" for those of training.
        tasks: The tasks.
        samples: Episodes of each task.
        step: Steps that the model was trained for.
        temperature: What is sampled with.
        max_reward: What counts as success where the environment does not say.
    """

    phase: str
    tasks: tuple[Task, ...]
    samples: int
    step: int
    temperature: float
    max_reward: float | None = None

    @property
    def size(self) -> int:
        """How many episodes there are."""
        return len(self.tasks) * self.samples

    def names(self) -> list[list[str]]:
        """The ids of each task's episodes; they stay the same when there are more tasks or samples."""
        samples = range(self.samples)
        return [[f"{self.phase}-{task:05d}-{sample:04d}" for sample in samples] for task in range(len(self.tasks))]

    def jobs(self, env: object, finished: Container[str]) -> list[Job]:
        """The episodes that are not finished; those of one task follow one another."""
        return [
            Job(env, task, name)
            for task, names in zip(self.tasks, self.names(), strict=True)
            for name in names
            if name not in finished
        ]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the episodes are.

    Attributes:
        planned: All episodes, those of earlier attempts included.
        finished: Those that are over and did not fail.
        failed: How many ended with each ending that has no score.
        played: Those that this attempt has played.
        to_play: Those that this attempt was to play.
        tokens: Tokens that this attempt has sampled.
    """

    planned: int
    finished: int
    failed: Mapping[str, int]
    played: int
    to_play: int
    tokens: int


class EpisodePlaces(Protocol):
    """What the episodes are played in: environment slots, or workers."""

    @property
    def replaced(self) -> int:
        """How many environments or workers broke and gave their place to a fresh one."""
        ...

    @property
    def leaked(self) -> int:
        """After `close`: how many environments were not closed."""
        ...

    def close(self) -> None:
        """Close them.

        Raises:
            ExceptionGroup: Some could not be closed; the others are closed all the same.
        """
        ...


class EpisodeObserver(Protocol):
    """Is told how it goes, from the thread that plays."""

    def started(self, folder: Path, progress: Progress) -> None:
        """It begins; `progress` has what an earlier attempt left, its failed episodes among those to play."""
        ...

    def episode_finished(self, progress: Progress) -> None:
        """One more episode is finished."""
        ...

    def ended(self) -> None:
        """It is over, whole or not; no call follows."""
        ...


class SilentEpisodes:
    """Says nothing."""

    def started(self, folder: Path, progress: Progress) -> None:
        """Say nothing."""

    def episode_finished(self, progress: Progress) -> None:
        """Say nothing."""

    def ended(self) -> None:
        """Say nothing."""


def play_episodes(
    player: Player,
    slots: EpisodePlaces,
    plan: EpisodePlan,
    folder: RunFolder,
    observer: EpisodeObserver,
) -> dict[str, Any]:
    """Play what is missing, close the environments, and write what came of all episodes.

    Episodes that an earlier attempt finished are not played again; those that failed are. The first Ctrl-C ends it
    after what was finished is on disk, and the summary then says `interrupted`; the second ends the process at once.

    Returns:
        What the folder's `summary.json` has.
    """
    run = _Run(player, plan, folder, observer)
    interrupted = False
    with run.interrupts:
        try:
            run.play(slots)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            observer.ended()
            _close(slots)
        return run.close(slots, interrupted=interrupted)


class _Run:
    """The state of the episodes while they are played."""

    def __init__(self, player: Player, plan: EpisodePlan, folder: RunFolder, observer: EpisodeObserver) -> None:
        self.player, self.plan, self.folder, self.observer = player, plan, folder, observer
        self.interrupts = Interrupts()
        self.episodes: dict[str, Trajectory] = {}
        self.failed: dict[str, int] = {}
        self.played = self.to_play = 0
        self._state = folder.read_state()
        self._began = perf_counter()

    def play(self, slots: EpisodePlaces) -> None:
        self._read()
        finished = {name for name, episode in self.episodes.items() if not episode.failed}
        jobs = self.plan.jobs(slots, finished)
        self.to_play = len(jobs)
        self.observer.started(self.folder.path, self._progress())
        self.player.play(jobs, self._finished)

    def close(self, slots: EpisodePlaces, *, interrupted: bool) -> dict[str, Any]:
        """Write the summary, once the environments are closed."""
        plan, player = self.plan, self.player
        tokens = self._state.get("sampled_tokens", 0) + player.tokens
        seconds = self._state.get("seconds", 0.0) + perf_counter() - self._began
        ledger = Ledger(**self._state.get("ledger", {}))
        ledger += player.ledger
        episodes = list(self.episodes.values())
        played = score(episodes, plan.max_reward)
        summary = {
            "folder": str(self.folder.path),
            "phase": plan.phase,
            **self._state.get("request", {}),
            "tasks": len(plan.tasks),
            "samples": plan.samples,
            "planned": plan.size,
            "interrupted": interrupted,
            "attempts": self.folder.attempt + 1,
            "seconds": seconds,
            "evaluations": {plan.phase: {**self._score(), "step": plan.step, "temperature": plan.temperature}},
            "episodes": played.episodes,
            "missing": plan.size - played.episodes,
            "failed": played.failed,
            "truncated": played.truncated,
            "endings": played.endings,
            "errors": self._errors(),
            "sampled_tokens": tokens,
            "tokens_per_s": tokens / seconds if tokens else None,
            "untrainable": next((one.untrainable for one in episodes if one.untrainable), None),
            "replaced_environments": slots.replaced,
            "leaked": slots.leaked + lost_leases(),
            "ledger": ledger.as_dict(),
        }
        self.folder.write_state(sampled_tokens=tokens, seconds=seconds, ledger=asdict(ledger))
        self.folder.write_summary(summary)
        return summary

    def _score(self) -> dict[str, Any]:
        """The figures of all episodes, those to compare with their interval over tasks."""
        plan = self.plan
        by_task = [[self.episodes[name] for name in names if name in self.episodes] for names in plan.names()]
        samples = score_samples(by_task, plan.samples, plan.max_reward)
        whole = score(list(self.episodes.values()), plan.max_reward)
        value = samples.reward if samples.success is None else samples.success
        found = replace(whole, value=value, reward=samples.reward, success=samples.success)
        return {**found.as_dict(), "samples": samples.as_dict()}

    def _read(self) -> None:
        """Take over what earlier attempts played; of two lines of one episode the later one counts."""
        names = {name for of_task in self.plan.names() for name in of_task}
        for record in read_traces(self.folder.path / "trajectories.jsonl"):
            if record["episode_id"] in names:
                self._keep(from_record({**record, "ids": None}))

    def _finished(self, trajectory: Trajectory) -> None:
        with self.interrupts.held():
            self.folder.write_trajectory(trajectory, phase=self.plan.phase, step=self.plan.step, group=None)
            self._keep(trajectory)
            self.played += 1
        self.observer.episode_finished(self._progress())

    def _keep(self, trajectory: Trajectory) -> None:
        before = self.episodes.get(trajectory.episode_id)
        for episode, change in ((before, -1), (trajectory, 1)):
            if episode is not None and episode.failed:
                self.failed[episode.ending.value] = self.failed.get(episode.ending.value, 0) + change
        self.episodes[trajectory.episode_id] = _slim(trajectory)

    def _progress(self) -> Progress:
        failed = {ending: count for ending, count in self.failed.items() if count}
        finished = len(self.episodes) - sum(failed.values())
        return Progress(self.plan.size, finished, failed, self.played, self.to_play, self.player.tokens)

    def _errors(self) -> dict[str, str | None]:
        """What one episode of each failed ending said."""
        return {episode.ending.value: episode.error for episode in self.episodes.values() if episode.failed}


def _slim(trajectory: Trajectory) -> Trajectory:
    """What a summary needs of a trajectory, without what was said: thousands of them fit into memory."""
    info = {name: trajectory.info[name] for name in ("valid", "reward_parts") if name in trajectory.info}
    return replace(trajectory, messages=(), tools=(), transcript=None, first_observation=None, info=info)


def _close(slots: EpisodePlaces) -> None:
    try:
        slots.close()
    except ExceptionGroup as group:
        # They are counted as leaked; what was played is worth keeping all the same.
        reasons = "; ".join(str(error) for error in group.exceptions)
        warnings.warn(f"{len(group.exceptions)} environments failed to close: {reasons}", stacklevel=2)
