"""How long a run goes on, when it evaluates and on what, and what it keeps."""

from dataclasses import dataclass

from tiltyard.policies.base import Sampling
from tiltyard.train.batch import Truncated
from tiltyard.types import Task


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """When to evaluate, on what, and how to sample then.

    Attributes:
        tasks: The held-out tasks, each played once; empty evaluates never.
        sampling: The distribution to sample from.
        every: Evaluate each so many steps; 0 not in between.
        before: Evaluate before the first step.
        after: Evaluate after the last step.
    """

    tasks: tuple[Task, ...]
    sampling: Sampling
    every: int = 0
    before: bool = True
    after: bool = True

    def due(self, step: int, steps: int) -> bool:
        """True when an evaluation follows this step, the one after the last step not included."""
        return bool(self.tasks) and self.every > 0 and step % self.every == 0 and 0 < step < steps


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How long a run goes on, and what it keeps.

    Attributes:
        steps: Steps of the whole run, those of earlier attempts included.
        evaluation: When to evaluate, and on what.
        max_reward: What counts as success where the environment does not say.
        truncated: What truncated episodes teach.
        save_every: Checkpoint each so many steps, and at the end; 0 only at the end.
        keep_checkpoints: How many of the last checkpoints stay.
    """

    steps: int
    evaluation: EvalPlan
    max_reward: float | None = None
    truncated: Truncated = "keep"
    save_every: int = 10
    keep_checkpoints: int = 2
