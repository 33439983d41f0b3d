"""From finished groups to training rows: what trains, with which advantage, and what is left out."""

import dataclasses
import random

import pytest

from tiltyard.errors import ConfigurationError, GroupMismatchError, TranscriptError
from tiltyard.rollout.groups import Group, group_key
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import TrainRow, build_batch
from tiltyard.types import Task

TASK = Task(seed=1)
PLAIN = GRPO(scale_rewards="none")


def _transcript(*turns, logprobs=True):
    transcript = Transcript()
    transcript.observe([1, 2])
    for turn in turns:
        transcript.sample(turn, [-0.5] * len(turn) if logprobs else None)
        transcript.observe([3])
    return transcript


def _episode(name, rewards, *, ending=Ending.DONE, transcript=None, task=TASK):
    return Trajectory(
        episode_id=name,
        task=task,
        ending=ending,
        rewards=tuple(rewards),
        error="it broke" if ending.failed else None,
        transcript=transcript or _transcript(*([7, 8] for _ in rewards)),
    )


def _group(*members, task=TASK):
    return Group(group_key(task, 0), task, members)


def _advantages(batch):
    return {
        row.episode_id: [a for a, on in zip(row.advantages, row.mask, strict=True) if on]
        for group in batch.groups
        for row in group
    }


def test_a_row_holds_the_ids_as_they_were_sampled_up_to_the_last_trained_token():
    """TK-01: nothing is encoded again; what follows the last sampled token is no use to the loss."""
    batch = build_batch([_group(_episode("a", [1.0, 0.0]), _episode("b", [0.0]))], PLAIN)
    assert batch.groups[0][0] == TrainRow(
        episode_id="a",
        ids=(1, 2, 7, 8),
        mask=(False, False, True, True),
        logprobs=(None, None, -0.5, -0.5),
        advantages=(0.0, 0.0, 0.5, 0.5),
        counted=4,
        turns=(-1, -1, 0, 0),
    )


def test_each_turn_of_a_row_has_its_own_advantage():
    """Turn granularity: token credit follows the transcript's turn numbers."""
    batch = build_batch([_group(_episode("a", [1.0, 0.0]), _episode("b", [0.0, 2.0]))], PLAIN)
    assert batch.granularity == "turn"
    assert _advantages(batch) == {"a": [0.5, 0.5, -1.0, -1.0], "b": [-0.5, -0.5, 1.0, 1.0]}


def test_failed_episodes_are_in_neither_baseline_nor_rows():
    """A hang, a crash and a None reward leave the loss as it is without them."""
    sound = [_episode("a", [1.0]), _episode("b", [0.0])]
    failed = [
        _episode("hangs", [1.0], ending=Ending.ENV_ERROR),
        _episode("raises", [], ending=Ending.TOOL_CRASH, transcript=_transcript()),
        _episode("returns None", [None], ending=Ending.UNSCORED),
    ]
    with_them, without = build_batch([_group(*failed, *sound)], PLAIN), build_batch([_group(*sound)], PLAIN)
    assert with_them.groups == without.groups
    assert (with_them.counts.failed, without.counts.failed) == (3, 0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("keep", {"cut": [0.5] * 2, "b": [-0.5] * 2}),
        ("zero", {"cut": [], "b": []}),
        ("mask", {"b": [-0.5] * 2}),
    ],
)
def test_a_truncated_episode_trains_as_the_policy_says(policy, expected):
    """TR-01: keep its reward, take it as 0, or leave it out of the loss (and in the baseline); it is recorded."""
    group = _group(_episode("cut", [1.0], ending=Ending.LENGTH), _episode("b", [0.0]))
    batch = build_batch([group], PLAIN, truncated=policy)
    assert _advantages(batch) == expected
    assert (batch.counts.truncated, batch.counts.truncated_policy) == (1, policy)


@pytest.mark.parametrize(
    ("policy", "expected", "unscored"),
    [("keep", {"b": [], "c": []}, 1), ("zero", {"cut": [-1.0] * 2, "b": [0.5] * 2, "c": [0.5] * 2}, 0)],
)
def test_an_episode_that_was_cut_before_it_was_scored_is_left_out_or_counts_as_zero(policy, expected, unscored):
    """TR-01: an answer cut by length is not run, so the environment never scored it."""
    group = _group(_episode("cut", [None], ending=Ending.LENGTH), _episode("b", [1.5]), _episode("c", [1.5]))
    batch = build_batch([group], PLAIN, truncated=policy)
    assert _advantages(batch) == expected
    assert (batch.counts.unscored, batch.counts.failed) == (unscored, 0)


def test_an_unknown_truncation_policy_is_refused():
    """The message names the three."""
    with pytest.raises(ConfigurationError, match="'keep', 'zero' or 'mask', got 'drop'"):
        build_batch([], PLAIN, truncated="drop")


def test_a_zero_variance_group_is_counted_in_the_mean_and_not_computed():
    """RW-02: its gradient is exactly 0; skipping it changes no number."""
    batch = build_batch([_group(_episode("a", [1.0]), _episode("b", [1.0]))], PLAIN)
    assert batch.empty
    assert (batch.counts.zero_variance_groups, batch.counts.counted_tokens, batch.counts.trained_tokens) == (1, 4, 0)


def test_a_kl_term_keeps_tokens_without_advantage():
    """The KL's gradient does not depend on the advantage."""
    group = _group(_episode("a", [1.0]), _episode("b", [1.0]))
    assert build_batch([group], GRPO(kl_coef=0.1)).counts.trained_tokens == 4


def test_a_group_left_with_one_scored_member_is_counted_and_teaches_nothing():
    """RW-02: not NaN, and not silent."""
    batch = build_batch([_group(_episode("a", [1.0]), _episode("b", [], ending=Ending.LOST_SESSION))], PLAIN)
    assert batch.empty
    assert batch.counts.small_groups == 1


def test_a_batch_in_which_everything_failed_is_empty():
    """RW-01: all None drops the group, counted."""
    batch = build_batch([_group(_episode("a", [None], ending=Ending.UNSCORED))], PLAIN)
    assert batch.empty
    assert (batch.counts.failed, batch.counts.episodes) == (1, 1)


def test_an_unscored_turn_stays_out_of_the_loss_and_of_its_mean():
    """None is not 0, for a turn."""
    group = _group(_episode("a", [None, 1.0]), _episode("b", [1.0, 0.0]), _episode("c", [0.0, 0.0]))
    batch = build_batch([group], GRPO(scale_rewards="none", advantage_granularity="turn"))
    row = batch.groups[0][0]
    assert row.mask == (False, False, False, False, False, True, True)
    assert (row.counted, batch.counts.unscored_turns) == (2, 1)


def test_sampled_tokens_without_log_probabilities_are_refused_for_a_ratio_over_the_samplers():
    """LO-05: a missing log-probability is never 0.0."""
    lost = _episode("lost", [1.0], transcript=_transcript([7, 8], logprobs=False))
    with pytest.raises(ConfigurationError, match="episode lost has sampled tokens without a log-probability"):
        build_batch([_group(lost, _episode("b", [0.0]))], PLAIN)


def test_sampled_tokens_without_log_probabilities_train_when_the_trainer_computes_them():
    """LO-05: the other half of the rule."""
    lost = _episode("lost", [1.0], transcript=_transcript([7, 8], logprobs=False))
    batch = build_batch([_group(lost, _episode("b", [0.0]))], GRPO(old_logprobs="trainer"))
    assert batch.groups[0][0].logprobs == (None,) * 4


def test_an_episode_without_tokens_is_left_out_of_the_loss_and_counted():
    """One answer of a served model that came without ids costs its own episode; its reward stays in the baseline."""
    served = dataclasses.replace(_episode("served", [1.0]), transcript=None, untrainable="a turn came without ids")
    batch = build_batch([_group(served, _episode("b", [0.0]))], PLAIN)
    assert [row.episode_id for row in batch.groups[0]] == ["b"]
    assert batch.groups[0][0].advantages[-1] == -0.5
    assert batch.counts.untrainable == 1


def test_a_batch_without_any_tokens_is_refused_by_name():
    """A served model's messages cannot be trained on: nothing would ever be learned."""
    served = [dataclasses.replace(_episode(name, [1.0]), transcript=None, untrainable="no ids") for name in "ab"]
    with pytest.raises(ConfigurationError, match=r"episode a has no token ids \(no ids\), and no scored episode"):
        build_batch([_group(*served)], PLAIN)


def test_baselines_are_per_task_whatever_the_order_of_arrival():
    """RW-04: rows 5 and 9 with the same text are two groups; each trajectory counts once."""
    tasks = [Task(row_index=5), Task(row_index=9)]
    members = {
        task.row_index: [_episode(f"{task.row_index}-{i}", [float(i < good)], task=task) for i in range(4)]
        for task, good in zip(tasks, (1, 2), strict=True)
    }
    for order in members.values():
        random.Random(0).shuffle(order)
    batch = build_batch([_group(*members[t.row_index], task=t) for t in tasks], PLAIN)
    assert {name: values[0] for name, values in _advantages(batch).items()} == {
        "5-0": 0.75, "5-1": -0.25, "5-2": -0.25, "5-3": -0.25, "9-0": 0.5, "9-1": 0.5, "9-2": -0.5, "9-3": -0.5,
    }  # fmt: skip


def test_members_of_different_tasks_are_no_group():
    """RW-04: a baseline over two rows compares nothing."""
    with pytest.raises(GroupMismatchError):
        _group(_episode("a", [1.0]), _episode("b", [1.0], task=Task(seed=2)))


def test_many_turns_of_one_episode_count_once_in_the_baseline():
    """RW-04: the mean is over episodes, not over their turns."""
    batch = build_batch([_group(_episode("long", [0.0, 0.0, 1.0]), _episode("short", [0.0]))], PLAIN)
    assert {name: values[0] for name, values in _advantages(batch).items()} == {"long": 0.5, "short": -0.5}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mask": (True,)}, "2 ids, 1 mask"),
        ({"mask": (True, True), "counted": 2}, "its first token is sampled"),
        ({"logprobs": (None, float("nan"))}, "row x: a trained token has the log-probability nan"),
        ({"advantages": (0.0, float("inf"))}, "row x: a trained token has the advantage inf"),
        ({"counted": 0}, "1 tokens train but only 0 count"),
    ],
)
def test_a_row_that_cannot_be_trained_cannot_be_built(change, says):
    """LO-02 d: an unmasked NaN is reported with the row's id."""
    sound = TrainRow("x", (1, 2), (False, True), (None, -1.0), (0.0, 1.0), 1)
    with pytest.raises(TranscriptError, match=says):
        dataclasses.replace(sound, **change)
