"""Which task each group gets, and that a resumed run goes on with it (case CK-01)."""

import json
from collections import Counter

import pytest

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks


def rows(tasks):
    return [(task.epoch, task.row_index) for task in tasks]


def saved(assigner):
    return json.loads(json.dumps(assigner.state_dict()))


def steps(assigner, count):
    return [task for _ in range(count) for task in assigner.next()]


def test_a_resumed_run_gets_the_tasks_of_an_unbroken_one():
    """Rows, seeds and epochs are those of the run without a break (CK-01 a and b)."""
    unbroken = steps(TaskAssigner(6, 2, seed=7), 3)
    broken = TaskAssigner(6, 2, seed=7)
    before = steps(broken, 2)
    resumed = TaskAssigner(6, 2, seed=7)
    resumed.load_state_dict(saved(broken))
    assert before + resumed.next() == unbroken


def test_another_dataset_is_refused_and_both_are_named():
    """Nothing is skipped in data that the checkpoint does not know (CK-01 c)."""
    old = TaskAssigner(6, 2, seed=7, name="colours")
    steps(old, 2)
    with pytest.raises(CheckpointError, match=r"'colours' \(6 rows\).*'birds' \(3 rows\)"):
        TaskAssigner(3, 2, seed=7, name="birds").load_state_dict(saved(old))


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next():
    """The second permutation follows, not the first again (CK-01 d)."""
    unbroken = steps(TaskAssigner(6, 2, seed=7), 6)
    first = TaskAssigner(6, 2, seed=7)
    steps(first, 3)
    assert saved(first)["epoch"] == 1
    resumed = TaskAssigner(6, 2, seed=7)
    resumed.load_state_dict(saved(first))
    assert steps(resumed, 3) == unbroken[6:]
    assert rows(unbroken[6:]) != [(1, row) for _, row in rows(unbroken[:6])]


@pytest.mark.parametrize(("size", "batch", "world"), [(6, 2, 1), (7, 2, 1), (7, 3, 2), (3, 5, 1), (10, 4, 3)])
def test_every_row_comes_once_an_epoch_and_on_one_rank(size, batch, world):
    """Rows that do not fill a step begin the one that the next epoch completes (A26)."""
    ranks = [TaskAssigner(size, batch, seed=1, rank=rank, world_size=world) for rank in range(world)]
    dealt = [task for _ in range(2 * size) for rank in ranks for task in rank.next()]
    whole = len(dealt) // size
    counts = Counter(rows(dealt[: whole * size]))
    assert set(counts.values()) == {1}
    assert len(counts) == whole * size
    assert len({(task.row_index, task.seed, task.epoch) for task in dealt}) == len(dealt)


def test_the_order_depends_on_the_seed_and_on_the_epoch():
    """The same seed gives the same order on every machine."""
    first, second = (rows(steps(TaskAssigner(50, 10, seed=seed), 5)) for seed in (1, 2))
    assert first != second
    assert first == rows(steps(TaskAssigner(50, 10, seed=1), 5))
    assert [row for _, row in rows(steps(TaskAssigner(6, 6, seed=7), 1))] == [4, 2, 1, 3, 0, 5]


def test_without_rows_each_group_gets_a_fresh_seed():
    """Seeds do not repeat, over ranks and over a resume."""
    ranks = [TaskAssigner(None, 3, seed=5, rank=rank, world_size=2) for rank in range(2)]
    seeds = [task.seed for rank in ranks for task in steps(rank, 20)]
    assert len(set(seeds)) == len(seeds)
    resumed = TaskAssigner(None, 3, seed=5)
    resumed.load_state_dict(saved(ranks[0]))
    assert not {task.seed for task in resumed.next()} & set(seeds)


def test_ranks_share_a_part_of_a_step_and_no_row_is_left_out():
    """Five tasks for three ranks: slices of nearly equal length, one after another, and the stream goes on behind."""
    ranks = [TaskAssigner(10, 2, rank=rank, world_size=3) for rank in range(3)]
    parts = [[task.row_index for task in rank.next(5)] for rank in ranks]
    alone = TaskAssigner(10, 5)
    assert [len(part) for part in parts] == [1, 2, 2]
    assert [row for part in parts for row in part] == [task.row_index for task in alone.next()]
    assert [rank.state_dict() for rank in ranks] == [alone.state_dict()] * 3


def test_a_resume_on_more_ranks_goes_on_at_the_same_row():
    """The state is that of the stream, not of the rank."""
    alone = TaskAssigner(100, 4, seed=3)
    expected = steps(TaskAssigner(100, 4, seed=3), 3)
    steps(alone, 2)
    pair = [TaskAssigner(100, 2, seed=3, rank=rank, world_size=2) for rank in range(2)]
    for rank in pair:
        rank.load_state_dict(saved(alone))
    assert [task for rank in pair for task in rank.next()] == expected[8:]


def test_no_evaluation_task_is_a_training_task():
    """Their seeds are odd where training seeds are even, and they are the same at each evaluation."""
    held_out = evaluation_tasks(50, seed=3)
    training = steps(TaskAssigner(None, 50, seed=3), 20)
    assert not {task.seed for task in held_out} & {task.seed for task in training}
    assert held_out == evaluation_tasks(50, seed=3)
    assert all(task.evaluation for task in held_out)
    assert rows(evaluation_tasks(3, dataset_size=3)) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TaskAssigner(0, 2),
        lambda: TaskAssigner(6, 0),
        lambda: TaskAssigner(6, 2, rank=2, world_size=2),
        lambda: evaluation_tasks(0),
        lambda: evaluation_tasks(5, dataset_size=4),
    ],
)
def test_numbers_that_cannot_work_are_refused_at_once(make):
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match=r"got|there are"):
        make()


@pytest.mark.parametrize(
    "state", [{}, {"dataset": 3, "seed": 0}, {"dataset": {"name": "dataset", "size": 6}, "seed": 0}]
)
def test_a_state_that_is_none_is_refused(state):
    """A broken checkpoint says so."""
    with pytest.raises(CheckpointError, match="not the state"):
        TaskAssigner(6, 2).load_state_dict(state)


def test_another_seed_is_refused():
    """The rest of the epoch would be another one."""
    with pytest.raises(CheckpointError, match=r"seed 7.*seed 8"):
        TaskAssigner(6, 2, seed=8).load_state_dict(TaskAssigner(6, 2, seed=7).state_dict())
