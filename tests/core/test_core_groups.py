"""Groups compare episodes of one task, and nothing else."""

import pytest

from tiltyard.errors import GroupMismatchError
from tiltyard.rollout.episode import episode
from tiltyard.rollout.groups import Group, group_key
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.faulty import FaultyEnv
from tiltyard.testing.guess import GuessEnv
from tiltyard.testing.scripted import ScriptedPolicy
from tiltyard.types import Task

TASK = Task(seed=4)


def played(env, task=TASK, name="a"):
    policy = ScriptedPolicy(["5", "5"])
    flow = episode(env, task, Limits(max_turns=1), episode_id=name)
    try:
        flow.send(policy.answer(next(flow)))
    except StopIteration as end:
        return end.value
    raise AssertionError


def test_members_of_one_task_make_a_group():
    """A failed member stays in the group, and out of what is compared."""
    group = Group("g", TASK, (played(GuessEnv()), played(FaultyEnv("raise", at=0)), played(GuessEnv())))
    assert [member.failed for member in group.members] == [False, True, False]
    assert (len(group.scored), group.teaches) == (2, True)


def test_a_group_with_fewer_than_two_scored_members_teaches_nothing():
    """There is nothing to compare one reward with."""
    assert not Group("g", TASK, (played(GuessEnv()), played(FaultyEnv("raise", at=0)))).teaches


def test_another_task_in_a_group_is_refused():
    """Both tasks are named."""
    with pytest.raises(GroupMismatchError, match=r"'b'.*seed=5.*seed=4"):
        Group("g", TASK, (played(GuessEnv()), played(GuessEnv(), Task(seed=5), "b")))


def test_another_first_observation_in_a_group_is_refused():
    """An environment that ignores its seed would have its rewards compared over different tasks (T3)."""
    with pytest.raises(GroupMismatchError, match=r"'a' and 'b'.*different first observations"):
        Group("g", TASK, (played(GuessEnv(10)), played(GuessEnv(11), name="b")))


def test_group_keys_tell_steps_rows_epochs_and_splits_apart():
    """Rows of the same text stay two groups, and so do two epochs of a row (case RW-04)."""
    tasks = [Task(seed=1, row_index=5), Task(seed=1, row_index=9), Task(seed=1, row_index=5, epoch=1), Task(seed=2)]
    tasks += [Task(seed=1, row_index=5, evaluation=True)]
    keys = [group_key(task, step) for task in tasks for step in (0, 1)]
    assert len(set(keys)) == len(keys)


def test_a_failed_trajectory_must_say_why():
    """There is no failure without a reason."""
    with pytest.raises(ValueError, match="must say why"):
        Trajectory("a", TASK, Ending.ENV_ERROR)
