"""Trajectories as dicts, in and out: what the rollouts of local and of served models share."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError
from tiltyard.rollout.jobs import BREAKS_THE_ENV, EpisodeOrder, Job
from tiltyard.rollout.row_task import task_of
from tiltyard.rollout.scoring import COMPONENTS, Scoring, is_async
from tiltyard.rollout.shown import shown_names
from tiltyard.rollout.sources import EnvLender, EnvSource, EpisodeEnv, Row
from tiltyard.rollout.tasks import derived_seed
from tiltyard.rollout.trace import TraceWriter
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.types import Task

NOT_SAMPLED = -100
"""The label of a token that the policy did not sample: losses leave it out."""


def result_of(row: Row, trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as the caller gets it: the row, with what happened over it.

    Where the tokens are known: `input_ids`, `labels` (-100 where the policy did not sample), `logprobs` (None there)
    and `mask` (True where it did), all of one length. Nothing is encoded again.
    """
    result: dict[str, Any] = {
        **row,
        "messages": list(trajectory.messages),
        "tools": list(trajectory.tools),
        "episode_id": trajectory.episode_id,
        "turns": trajectory.turns,
        "stop_reason": trajectory.ending.value,
        "truncated": trajectory.truncated,
        "reward": trajectory.reward,
        "rewards": list(trajectory.rewards),
        "success": trajectory.success,
        "error": trajectory.error,
        "info": dict(trajectory.info),
        "seconds": trajectory.seconds,
        "untrainable": trajectory.untrainable,
    }
    if COMPONENTS in trajectory.info:
        result[COMPONENTS] = trajectory.info[COMPONENTS]
    if (transcript := trajectory.transcript) is not None:
        sampled = zip(transcript.ids, transcript.mask, strict=True)
        result["input_ids"] = list(transcript.ids)
        result["labels"] = [token if mine else NOT_SAMPLED for token, mine in sampled]
        result["logprobs"] = list(transcript.logprobs)
        result["mask"] = list(transcript.mask)
    return result


class Traces:
    """Where finished trajectories are written to: one new file of JSON lines for each rollout, and a callback.

    Attributes:
        path: The file; None until the first trajectory is written, and without a folder.
        failed: How many trajectories could not be written; each was warned of.
    """

    def __init__(self, folder: str | Path | None, callback: Callable[[dict[str, Any]], object] | None) -> None:
        """Write nothing yet.

        Raises:
            ConfigurationError: The callback cannot be called, or would have to be awaited.
        """
        if callback is not None and (not callable(callback) or is_async(callback)):
            raise ConfigurationError(f"trace_callback must be a function that is not async, got {callback!r}")
        self.path: Path | None = None
        self.failed = 0
        self._folder = Path(folder) if folder is not None else None
        self._callback = callback
        self._writer: TraceWriter | None = None

    def write(self, trajectory: Trajectory, result: dict[str, Any]) -> None:
        """Write a trajectory and tell the callback; a full disk costs the trace and not the rollout."""
        if self._folder is not None:
            try:
                self._writer = self._writer or TraceWriter(self._new_file(self._folder))
                self._writer.write(trajectory)
            except OSError as error:
                self.failed += 1
                warnings.warn(f"the trace of episode {trajectory.episode_id} was not written: {error}", stacklevel=2)
        if self._callback is not None:
            self._callback(result)

    def close(self) -> None:
        """Close the file; a later trajectory opens it again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _new_file(self, folder: Path) -> Path:
        """A file of our own, also when several processes write into one folder."""
        if self.path is not None:
            return self.path
        folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            path = folder / f"rollout-{number:03d}.jsonl"
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                number += 1
                continue
            self.path = path
            return path


@dataclass(frozen=True, slots=True)
class Front:
    """What stands around the driver of a rollout: where environments come from, scores and traces go.

    Attributes:
        source: What the trajectories play in.
        scoring: What they are worth.
        traces: Where they are written to.
        seed: What the seeds of tasks without one derive from.
    """

    source: EnvSource
    scoring: Scoring
    traces: Traces
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    """A trajectory that is being played; a worker has the environment where there is none here."""

    number: int
    row: Row
    env: EpisodeEnv | None


class Playing:
    """One call of a rollout: its trajectories become jobs, and what the driver finished becomes results.

    What is kept is that of the episodes that are being played, and nothing of those that are over, but their ids.
    """

    def __init__(self, front: Front, rows: Iterable[Row], call: int) -> None:
        """Begin.

        Args:
            front: The rollout's.
            rows: The trajectories; a sequence is checked as a whole, anything else is read as the driver asks.
            call: How many calls came before; a part of the ids of episodes that have none of their own.

        Raises:
            ConfigurationError: A sequence of rows cannot be played together.
        """
        if isinstance(rows, Mapping):
            raise ConfigurationError("a rollout takes a list of trajectories, got one dict; write [trajectory]")
        if not isinstance(rows, Iterable):
            raise ConfigurationError(f"a rollout takes a list of trajectories, got {shown(rows)}")
        if isinstance(rows, Sequence):
            front.source.check(rows)
        self._front = front
        self._rows = rows
        self._call = call
        self._lender = EnvLender(front.source)
        self._open: dict[str, _Open] = {}
        self._members: dict[str, int] = {}

    def jobs(self) -> Iterator[Job]:
        """The episodes, each made when it is asked for.

        Raises:
            ConfigurationError: A trajectory cannot be played.
        """
        for number, row in enumerate(self._rows):
            task, episode_id = self._episode(row, number)
            env = self._lender.lend(number, row, shown_names(row, number))
            self._open[episode_id] = _Open(number, row, env)
            yield Job(env, task, episode_id)

    def orders(self) -> Iterator[EpisodeOrder]:
        """The episodes for workers, which have environments of their own.

        Raises:
            ConfigurationError: A trajectory cannot be played.
        """
        for number, row in enumerate(self._rows):
            task, episode_id = self._episode(row, number)
            self._open[episode_id] = _Open(number, row, None)
            yield EpisodeOrder(task, episode_id, row=row, shown=shown_names(row, number))

    async def scored(self, trajectory: Trajectory) -> Trajectory:
        """Score a finished episode; its environment is still its own.

        Raises:
            ConfigurationError: It cannot be scored as asked.
        """
        opened = self._open[trajectory.episode_id]
        turns = None if opened.env is None else opened.env.turns
        return await self._front.scoring.apply(
            trajectory, lambda now: result_of(opened.row, now), turns.sources if turns is not None else ()
        )

    def finish(self, trajectory: Trajectory) -> "Finished":
        """Give the environment of a scored episode back, write the trace, and make the result."""
        opened = self._open.pop(trajectory.episode_id)
        if opened.env is not None:
            self._lender.take_back(opened.env, broken=trajectory.ending in BREAKS_THE_ENV)
        result = result_of(opened.row, trajectory)
        self._front.traces.write(trajectory, result)
        return Finished(opened.number, result)

    def close(self) -> None:
        """Close the environments that were made, all at once, and the trace; waits some seconds at most."""
        began = time.monotonic()
        hung = self._lender.close(timeout_s=5.0)
        self._front.traces.close()
        if hung:
            waited = time.monotonic() - began
            warnings.warn(f"{hung} environments did not close within {waited:.0f} s and are left", stacklevel=2)

    def _key(self, row: Row, number: int) -> str:
        """What members of one group share: their id; where there is none, the place of the trajectory."""
        own = row.get("id") if isinstance(row, Mapping) else None
        return f"{self._call:04d}-{number:05d}" if own is None else str(own)

    def _episode(self, row: Row, number: int) -> tuple[Task, str]:
        key = self._key(row, number)
        task = task_of(row, number, derived_seed(self._front.seed, f"trajectory {key}", 0))
        episode_id = self._episode_id(row, key)
        if episode_id in self._open:
            raise ConfigurationError(f"two trajectories have the episode id {episode_id!r}; ids must be unique")
        return task, episode_id

    def _episode_id(self, row: Row, key: str) -> str:
        if row.get("episode_id") is not None:
            return str(row["episode_id"])
        if row.get("id") is None:
            return key
        member = self._members[key] = self._members.get(key, -1) + 1
        return f"{key}-{self._call:04d}-{member:03d}"


@dataclass(frozen=True, slots=True)
class Finished:
    """A trajectory's place among those that were given, and what came of it."""

    number: int
    result: dict[str, Any]
