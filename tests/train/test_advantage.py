"""Advantages: exact baselines, and nothing out of a group that has nothing to compare."""

import math
import random
import statistics

import pytest

from tiltyard.train.advantage import Score, assign, batch_advantages, group_advantages, turn_advantages

SCALES = ("group", "none", "batch")


def test_the_hand_computed_group_of_four_gives_one_nothing_minus_one_and_zero():
    """RW-01: None is left out of mean (0.5) and sample deviation (0.5); it is never a 0."""
    assert group_advantages([1.0, None, 0.0, 0.5]) == [1.0, None, -1.0, 0.0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rewards", [[0.9] * 7, [0.3] * 6, [0.0] * 4, [0.1 + 0.2] * 3, [-1e300] * 2])
def test_equal_rewards_give_exactly_zero(rewards, scale):
    """RW-02: a group without variance teaches nothing, whatever rewards are divided by."""
    assert group_advantages(rewards, scale) == [0.0] * len(rewards)


@pytest.mark.parametrize("scale", SCALES)
def test_equal_rewards_give_exactly_zero_next_to_groups_that_differ(scale):
    """RW-02: the batch's deviation is not 0, and a group of equals still gets exactly 0."""
    assert batch_advantages([[0.9] * 3, [0.0, 1.0]], scale)[0] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rewards", [[1.0], [None, 1.0, None]])
def test_a_single_scored_member_gives_zero(rewards, scale):
    """RW-02: one reward has nothing to be compared with."""
    assert group_advantages(rewards, scale) == [None if reward is None else 0.0 for reward in rewards]


@pytest.mark.parametrize("scale", SCALES)
def test_a_group_that_nobody_scored_stays_unscored(scale):
    """RW-01: all None is no advantage at all."""
    assert group_advantages([None, None], scale) == [None, None]


def test_a_tiny_difference_is_a_difference():
    """RW-02: only exactly equal rewards are equal."""
    low, high = group_advantages([0.5, 0.5000001])
    assert (low, high) == pytest.approx((-math.sqrt(0.5), math.sqrt(0.5)))


def test_without_scaling_an_advantage_is_the_distance_to_the_mean():
    """Dr. GRPO: no deviation."""
    assert group_advantages([1.0, 0.0, None, 0.5], "none") == [0.5, -0.5, None, 0.0]


def test_advantages_equal_the_slow_and_obvious_ones():
    """The statistics module is the judge."""
    draw = random.Random(0)
    batch = [[draw.choice([None, *[draw.gauss(0, 3)] * 4]) for _ in range(8)] for _ in range(20)]
    everything = statistics.stdev(r for rewards in batch for r in rewards if r is not None)
    for scale in SCALES:
        for rewards, found in zip(batch, batch_advantages(batch, scale), strict=True):
            scored = [r for r in rewards if r is not None]
            mean = statistics.fmean(scored)
            by = {"group": statistics.stdev(scored), "none": 1.0, "batch": everything}[scale]
            slow = [None if r is None else pytest.approx((r - mean) / by) for r in rewards]
            assert found == slow


def test_a_turn_is_compared_with_the_same_turn_of_the_members_that_played_it():
    """Turn granularity: one baseline per turn."""
    rewards = [(1.0, 0.0), (0.0,), (0.5, 1.0)]
    assert turn_advantages(rewards, "none") == [(0.5, -0.5), (-0.5,), (0.0, 0.5)]


def test_a_turn_that_one_member_played_alone_gives_zero():
    """RW-02, for turns: a turn of one has nothing to be compared with."""
    assert turn_advantages([(1.0, 5.0), (0.0,)], "none") == [(0.5, 0.0), (-0.5,)]


def test_an_unscored_turn_has_no_advantage_and_is_in_no_baseline():
    """None is not 0, for turns as for episodes."""
    assert turn_advantages([(None, 1.0), (1.0, 0.0), (0.0, None)], "none") == [(None, 0.5), (0.5, -0.5), (-0.5, None)]


def test_a_discount_gives_a_turn_its_share_of_what_came_later():
    """Reward to go: 0 + 0.5 * 4 against 1 + 0.5 * 0."""
    assert turn_advantages([(0.0, 4.0), (1.0, 0.0)], "none", discount=0.5) == [(0.5, 2.0), (-0.5, -2.0)]


def test_turns_are_scaled_by_the_deviation_of_their_own_turn():
    """Turn granularity with scaling: (1, -1) at turn 0, nothing at turn 1."""
    half = math.sqrt(0.5)
    assert turn_advantages([(10.0, 3.0), (0.0, 3.0)]) == [
        (pytest.approx(half), 0.0),
        (pytest.approx(-half), 0.0),
    ]


def _scores(*members):
    return [Score(None if turns is None else sum(r or 0.0 for r in turns), turns or ()) for turns in members]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([(0.0, 1.0), (0.0, 0.0)], "trajectory"),
        ([(1.0,), (0.0,)], "trajectory"),
        ([(0.5, 1.0), (0.0, 0.0)], "turn"),
        ([(None, 1.0), (0.0,)], "trajectory"),
        ([None, (0.0, 1.0)], "trajectory"),
    ],
)
def test_auto_takes_turns_only_where_a_turn_before_the_last_is_rewarded(members, expected):
    """Contract: auto picks turn when there are per-turn rewards and more than one turn."""
    assert assign([_scores(*members)], "auto").granularity == expected


def test_trajectory_granularity_gives_every_turn_the_episodes_advantage():
    """One scalar per episode."""
    assert assign([_scores((0.0, 1.0), (0.0,))], "trajectory", "none").by_group == [[(0.5, 0.5), (-0.5,)]]


@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
def test_a_failed_member_is_out_of_baseline_and_credit(granularity):
    """A failure is no reward of 0."""
    group = [Score(None, (1.0,)), Score(1.0, (1.0,)), Score(0.0, (0.0,))]
    assert assign([group], granularity, "none").by_group == [[None, (0.5,), (-0.5,)]]


def test_groups_that_teach_nothing_are_counted():
    """RW-02: zero-variance groups and groups of one are figures of the step."""
    found = assign([_scores((1.0,), (1.0,)), _scores((1.0,), None), _scores(None, None), _scores((1.0,), (0.0,))])
    assert (found.zero_variance, found.small) == (1, 2)
