"""How old the weights were that a batch was sampled with, in training steps."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiltyard.rollout.trajectory import Trajectory

MAX_STALENESS = 1
"""The most steps that the weights may have learned from between the sampling of a token and the step that trains on it.

A further batch ahead would make no step shorter: sampling and training each go on without a pause with one.
"""


@dataclass(frozen=True, slots=True)
class Staleness:
    """Of the sampled tokens of a batch, each of which says with which weights it was sampled.

    Attributes:
        mean: Over all tokens; None where none says it.
        max: The oldest one's.
    """

    mean: float | None
    max: int | None


def staleness(trajectories: Iterable[Trajectory], trained: int) -> Staleness:
    """The age of the episodes' tokens, where the weights have learned from `trained` steps."""
    ages = [age for trajectory in trajectories for age in _ages(trajectory, trained)]
    return Staleness(math.fsum(ages) / len(ages), max(ages)) if ages else Staleness(None, None)


def fresh_enough(recorded: Mapping[str, Trajectory], trained: int) -> dict[str, Trajectory]:
    """Those of the recorded episodes, by id, that are not too old for weights that have learned from so many steps."""
    return {
        name: trajectory
        for name, trajectory in recorded.items()
        if max(_ages(trajectory, trained), default=0) <= MAX_STALENESS
    }


def _ages(trajectory: Trajectory, trained: int) -> list[int]:
    transcript = trajectory.transcript
    return [] if transcript is None else [trained - version for version in transcript.version if version is not None]
