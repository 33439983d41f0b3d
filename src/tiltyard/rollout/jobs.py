"""The episodes that a driver is asked to run."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltyard.envs.turns import as_turns
from tiltyard.errors import ConfigurationError
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.slots import EnvSlots
from tiltyard.types import Task

BREAKS_THE_ENV = frozenset({Ending.ENV_ERROR, Ending.TOOL_CRASH, Ending.LOST_SESSION})
"""The endings after which an environment is in a state that nobody knows, so that its slot gets a fresh one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to run.

    Attributes:
        env: The environment, which its owner closes; or an `EnvSlots`, of which the episode takes one slot.
        task: What the episode is about.
        episode_id: Unique within the run.
        sampling_seed: What the sampling of this episode derives from; None takes the rollout's seed.
    """

    env: object
    task: Task
    episode_id: str
    sampling_seed: int | None = None


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """One episode for a worker to play, in an environment and with a policy that it has.

    Attributes:
        task: What the episode is about.
        episode_id: Unique within the run.
        sampling_seed: What the sampling of this episode derives from; None takes the workers' seed.
        row: The trajectory that the caller gave, where there is one.
        shown: The names of the tools that the model is shown, of those that there are; None shows all.
    """

    task: Task
    episode_id: str
    sampling_seed: int | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    shown: Sequence[str] | None = None


def request_seed(seed: int, episode_id: str, turn: int) -> int:
    """The seed of one turn's sample; equal in every process, for every batch and number of workers."""
    digest = hashlib.blake2b(f"{seed}/{episode_id}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def checked_jobs(jobs: Iterable[Job]) -> list[Job]:
    """The jobs as a list, when each has an id and an environment of its own.

    Raises:
        ConfigurationError: Two share an episode id or an environment.
    """
    listed = list(jobs)
    by_id: dict[str, Job] = {}
    by_source: dict[int, Job] = {}
    for job in listed:
        if job.episode_id in by_id:
            raise ConfigurationError(f"two jobs have the episode id {job.episode_id!r}; ids must be unique")
        by_id[job.episode_id] = job
        if isinstance(job.env, EnvSlots):
            continue
        for source in as_turns(job.env).sources:
            if (twin := by_source.setdefault(id(source), job)) is not job:
                raise ConfigurationError(
                    f"episodes {twin.episode_id!r} and {job.episode_id!r} share one {type(source).__name__}; give each "
                    "its own, or a factory: env=EnvSlots(factory, size)"
                )
    return listed


def unique_jobs(jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs one by one, as long as each has an id of its own; whoever makes them sees to the environments.

    Raises:
        ConfigurationError: One has the episode id of an earlier one.
    """
    ids: set[str] = set()
    for job in jobs:
        if job.episode_id in ids:
            raise ConfigurationError(f"two jobs have the episode id {job.episode_id!r}; ids must be unique")
        ids.add(job.episode_id)
        yield job
