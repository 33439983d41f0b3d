"""How long a run goes on, when it evaluates and saves, and what it keeps."""

from dataclasses import dataclass

from tiltyard.policies.base import Sampling
from tiltyard.train.batch import Truncated
from tiltyard.types import Task


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long a run goes on, when it evaluates, and what it keeps.

    Attributes:
        steps: Steps of the whole run, those of earlier attempts included.
        save_every: Checkpoint each so many steps, and at the end; 0 only at the end.
        keep_checkpoints: How many of the last checkpoints stay; the best one stays beside them.
        eval_every: Evaluate each so many steps; 0 not in between.
        eval_before: Evaluate before the first step.
        eval_after: Evaluate after the last step.
        evaluates: There is something to evaluate on; False evaluates never.
    """

    steps: int
    save_every: int = 10
    keep_checkpoints: int = 2
    eval_every: int = 0
    eval_before: bool = True
    eval_after: bool = True
    evaluates: bool = True

    def due(self, step: int) -> bool:
        """True when an evaluation follows this step, the one after the last step not included."""
        return self.evaluates and self.eval_every > 0 and step % self.eval_every == 0 and 0 < step < self.steps


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run over rollouts does beside its steps.

    Attributes:
        schedule: How long it goes on, and when it evaluates.
        tasks: The held-out tasks of an evaluation, each played once; empty evaluates never.
        eval_sampling: The distribution to sample from then.
        max_reward: What counts as success where the environment does not say.
        truncated: What truncated episodes teach.
    """

    schedule: Schedule
    tasks: tuple[Task, ...]
    eval_sampling: Sampling
    max_reward: float | None = None
    truncated: Truncated = "keep"
