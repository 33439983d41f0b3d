"""Groups of episodes for training, and single ones for evaluation, each slot with an environment of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.leases import lost_leases
from tiltyard.policies.base import TokenPolicy
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.groups import Group, group_key
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.placed_slots import env_slots
from tiltyard.rollout.placement import HERE, Placement
from tiltyard.rollout.slots import EnvSlots
from tiltyard.rollout.tasks import TaskAssigner, slice_of
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.renderer import Renderer
from tiltyard.types import Task


class RolloutCollector:
    """Collects `batch_size` groups of `group_size` episodes at a time; the members of a group share one task.

    There are `batch_size * group_size` slots. Each has an environment of its own, made once at construction and
    reused; one that failed or hung is replaced by a fresh one. Evaluation has its own environments, made at the
    first evaluation.

    Attributes:
        batches: How many batches were collected; a part of the episodes' ids.
        evaluations: How often `evaluate` was called; a part of the episodes' ids.
    """

    def __init__(  # noqa: PLR0913  # the three of the contract, and the parts of a run, each by its name
        self,
        env_factory: Callable[[], Any],
        batch_size: int,
        group_size: int,
        *,
        policy: TokenPolicy,
        renderer: Renderer,
        limits: Limits,
        assigner: TaskAssigner,
        seed: int = 0,
        on_finished: Callable[[Trajectory], None] | None = None,
        linger_s: float = 0.05,
        prompt_s: float = 0.0,
        max_live: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        placement: Placement = HERE,
    ) -> None:
        """Make the environments of the training slots.

        Args:
            env_factory: Makes a new environment, or a `RolloutHarness` around one, at each call.
            batch_size: Groups in a batch.
            group_size: Episodes of one task.
            policy: Continues the token sequences.
            renderer: Writes and reads the tokens.
            limits: Bound each episode.
            assigner: Gives the tasks of each batch.
            seed: What the seeds of the samples derive from, with the episode's id and the turn.
            on_finished: Called with each trajectory, of training and evaluation, as soon as it is finished.
            linger_s: See `BatchedRollout`.
            prompt_s: See `BatchedRollout`.
            max_live: How many episodes run at one time; None runs a whole batch at once.
            rank: Which of several collectors this is, each with its slice of the tasks (as its assigner has).
            world_size: How many there are.
            placement: Where the environments live; on workers, a whole turn is one call to one of them.

        Raises:
            ConfigurationError: A size is below 1, or `env_factory` is no factory or returned one environment twice.
            EnvTimeoutError: Making an environment took longer than the limits' `step_timeout_s`.
        """
        for name, value in (("batch_size", batch_size), ("group_size", group_size)):
            if value < 1:
                raise ConfigurationError(f"{name} must be >= 1, got {value!r}")
        self.batch_size = batch_size
        self.group_size = group_size
        self.batches = 0
        self.evaluations = 0
        self._rank = rank
        self._world_size = world_size
        self._assigner = assigner
        self._placement, self._timeout_s = placement, limits.step_timeout_s
        self._factory = env_factory
        self._on_finished = on_finished
        bounds = placement.limits(limits)
        self._rollout = BatchedRollout(
            policy, renderer, bounds, seed=seed, linger_s=linger_s, prompt_s=prompt_s, max_live=max_live
        )
        self._slots = self._make_slots(batch_size * group_size, eager=True)
        self._eval_slots: EnvSlots | None = None

    @property
    def abandoned(self) -> int:
        """How many environment calls passed their deadline."""
        return self._rollout.abandoned

    @property
    def replaced(self) -> int:
        """How many environments failed or hung and gave their slot to a fresh one."""
        return sum(slots.replaced for slots in self._all_slots())

    @property
    def leaked(self) -> int:
        """After `close`: how many environments were not closed, as that hung or raised, and leases not given back."""
        return sum(slots.leaked for slots in self._all_slots()) + lost_leases()

    def collect(self, recorded: Mapping[str, Trajectory] | None = None, *, groups: int | None = None) -> list[Group]:
        """Run the next batch; the groups are in the order of the tasks, their members in the order of the slots.

        Args:
            recorded: Episodes of this batch that an earlier process finished, by their ids (`BatchedRollout.run`).
                One of another task is played again.
            groups: How many groups all collectors run together, no more than in a whole batch; None runs that.

        Raises:
            ConfigurationError: The assigner deals another number of tasks than asked for, or `groups` is too many.
            GroupMismatchError: Members of a group saw different first observations, so that their rewards cannot be
                compared: the environment is not reproducible from its task.
        """
        tasks, mine = self._dealt(groups)
        batch, self.batches = self.batches, self.batches + 1
        jobs = [  # ids, and so samples, are those that one collector would give
            Job(self._slots, task, f"{_beginning(batch)}{group:03d}-{member:02d}")
            for group, task in zip(mine, tasks, strict=True)
            for member in range(self.group_size)
        ]
        trajectories = self._rollout.run(jobs, self._on_finished, recorded=_of_jobs(jobs, recorded))
        size = self.group_size
        return [
            Group(group_key(task, batch), task, tuple(trajectories[group * size : (group + 1) * size]))
            for group, task in enumerate(tasks)
        ]

    def of_next(self, recorded: Mapping[str, Trajectory]) -> int:
        """How many of the recorded episodes have the id of one of the next batch."""
        return sum(name.startswith(_beginning(self.batches)) for name in recorded)

    def evaluate(self, tasks: Sequence[Task], recorded: Mapping[str, Trajectory] | None = None) -> list[Trajectory]:
        """Run one episode for each task, of several collectors this one's share: a slice of them.

        The trajectories are in the order of the tasks. `recorded` as in `collect`.
        """
        number, self.evaluations = self.evaluations, self.evaluations + 1
        if self._eval_slots is None:
            self._eval_slots = self._make_slots(self._slots.size, eager=False)
        mine = slice_of(len(tasks), self._rank, self._world_size)
        jobs = [Job(self._eval_slots, tasks[index], f"eval{number:03d}-{index:05d}") for index in mine]
        return self._rollout.run(jobs, self._on_finished, recorded=_of_jobs(jobs, recorded))

    def interrupt(self) -> None:
        """From another thread: end what is being run, and each later run, as Ctrl-C in its own thread would."""
        self._rollout.interrupt()

    def close(self, timeout_s: float = 5.0) -> None:
        """Close every environment once, also when one of them fails; later calls do nothing.

        Args:
            timeout_s: How long to wait for all of them together.

        Raises:
            ExceptionGroup: Some raised; the others are closed all the same.
        """
        errors: list[Exception] = []
        deadline = time.monotonic() + timeout_s
        for slots in self._all_slots():
            slots.begin_close()
        for slots in self._all_slots():
            try:
                slots.close(max(deadline - time.monotonic(), 0.0))
            except ExceptionGroup as group:
                errors += group.exceptions
        if errors:
            raise ExceptionGroup("closing the environments failed", errors)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same tasks and episode ids."""
        return {"batches": self.batches, "evaluations": self.evaluations, "assigner": self._assigner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._assigner.load_state_dict(state["assigner"])
        self.batches, self.evaluations = state["batches"], state["evaluations"]

    def __enter__(self) -> "RolloutCollector":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _dealt(self, groups: int | None) -> tuple[list[Task], range]:
        """The tasks of this collector's next groups, and which of all collectors' groups these are."""
        whole = self.batch_size * self._world_size
        if groups is not None and not 1 <= groups <= whole:
            raise ConfigurationError(f"groups must be in 1..{whole}, as many as in a whole batch, got {groups!r}")
        mine = slice_of(whole if groups is None else groups, self._rank, self._world_size)
        if groups is not None:
            return self._assigner.next(groups), mine
        tasks = self._assigner.next()
        if len(tasks) != self.batch_size:
            raise ConfigurationError(
                f"the assigner gave {len(tasks)} tasks for a batch_size of {self.batch_size}; make it with "
                f"batch_size={self.batch_size}"
            )
        return tasks, mine

    def _make_slots(self, size: int, *, eager: bool) -> EnvSlots:
        return env_slots(self._factory, size, self._placement, timeout_s=self._timeout_s, eager=eager)

    def _all_slots(self) -> list[EnvSlots]:
        return [slots for slots in (self._slots, self._eval_slots) if slots is not None]


def _beginning(batch: int) -> str:
    """What the ids of the episodes of a batch begin with."""
    return f"{batch:05d}-"


def _of_jobs(jobs: Sequence[Job], recorded: Mapping[str, Trajectory] | None) -> dict[str, Trajectory]:
    """What is recorded of these jobs, each with the job's own task: a record on disk has lists for its tuples."""
    found = {}
    for job in jobs:
        known = (recorded or {}).get(job.episode_id)
        if known is not None and _key(known.task) == _key(job.task):
            found[job.episode_id] = replace(known, task=job.task)
    return found


def _key(task: Task) -> tuple[int | None, int | None, bool, int]:
    return task.seed, task.row_index, task.evaluation, task.epoch
