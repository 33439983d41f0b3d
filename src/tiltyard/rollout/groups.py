"""Groups: episodes of one task, whose rewards are compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiltyard.errors import GroupMismatchError
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.types import Task


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task in one step.

    Attributes:
        key: Unique within the run.
        task: The task of every member.
        members: The episodes in the order of their slots, failed ones included.
    """

    key: str
    task: Task
    members: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        same_task(self.task, self.members)

    @property
    def scored(self) -> tuple[Trajectory, ...]:
        """The members that have a reward: the others are in no baseline and no loss."""
        return tuple(member for member in self.members if member.reward is not None)

    @property
    def teaches(self) -> bool:
        """True when there are at least two scored members to compare."""
        return len(self.scored) >= 2


def group_key(task: Task, step: int) -> str:
    """What tells one group from all others of a run: the step, and the task's row, seed, epoch and split."""
    row = "-" if task.row_index is None else task.row_index
    seed = "-" if task.seed is None else task.seed
    return f"{'eval' if task.evaluation else 'train'}{step}:row{row}:seed{seed}:epoch{task.epoch}"


def same_task(task: Task, members: Sequence[Trajectory]) -> None:
    """Check that every member played the group's task and saw the same first observation.

    Members whose reset failed saw none, and are not compared.

    Raises:
        GroupMismatchError: One differs; names both episodes and what they were given.
    """
    first: Trajectory | None = None
    for member in members:
        if member.task != task:
            raise GroupMismatchError(
                f"episode {member.episode_id!r} played {member.task}, but its group is about {task}; "
                "give every member of a group the same task"
            )
        if member.first_observation is None:
            continue
        first = first or member
        if member.first_observation != first.first_observation:
            raise GroupMismatchError(
                f"episodes {first.episode_id!r} and {member.episode_id!r} of one group saw different first "
                f"observations for row {task.row_index}, seed {task.seed}: {_beginning(first)!r} and "
                f"{_beginning(member)!r}; reset(seed) must give the same task for the same seed"
            )


def _beginning(member: Trajectory, length: int = 80) -> str:
    """How the last message before the first answer begins."""
    shown = ""
    for message in member.messages:
        if message["role"] == "assistant":
            break
        shown = str(message.get("content") or "")
    return shown if len(shown) <= length else f"{shown[:length]}…"
