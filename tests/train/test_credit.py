"""From rewards to tokens: who is credited with what, under every algorithm's rules."""

import math

import pytest

from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import ALGORITHMS, CISPO, GRPO, GSPO, LLMPPO, LLMREINFORCE
from tiltyard.train.batch import build_batch
from tiltyard.types import Task


def episode(name, rewards, *, sizes=None, ending=Ending.DONE, task=None):
    """One turn of `sizes` tokens for each reward."""
    transcript = Transcript()
    transcript.observe([1, 2])
    for turn, size in enumerate(sizes or [2] * len(rewards)):
        transcript.sample([7 + turn] * size, [-0.5] * size)
        transcript.observe([3])
    error = "it broke" if ending.failed else None
    return Trajectory(name, task or Task(seed=0), ending, rewards=tuple(rewards), error=error, transcript=transcript)


def group(*members):
    return Group("g", Task(seed=0), members)


def trained(batch):
    """Advantages of the trained tokens, by episode."""
    return {
        row.episode_id: [a for a, on in zip(row.advantages, row.mask, strict=True) if on]
        for rows in batch.groups
        for row in rows
    }


@pytest.mark.parametrize("algorithm", [GRPO, GSPO, CISPO])
def test_auto_is_a_turn_where_turns_are_rewarded_and_the_episode_elsewhere(algorithm):
    """For algorithms whose baseline is the group."""
    by_turn = group(episode("a", [1.0, 0.0]), episode("b", [0.0, 1.0]))
    at_the_end = group(episode("a", [0.0, 1.0]), episode("b", [0.0, 0.0]))
    assert build_batch([by_turn], algorithm()).granularity == "turn"
    assert build_batch([at_the_end], algorithm()).granularity == "trajectory"


@pytest.mark.parametrize("algorithm", [LLMPPO, LLMREINFORCE])
def test_auto_is_a_turn_where_turns_are_rewarded_and_a_token_elsewhere(algorithm):
    """For algorithms that credit actions."""
    by_turn = group(episode("a", [1.0, 0.0]), episode("b", [0.0, 1.0]))
    at_the_end = group(episode("a", [0.0, 1.0]), episode("b", [0.0, 0.0]))
    assert build_batch([by_turn], algorithm()).granularity == "turn"
    assert build_batch([at_the_end], algorithm()).granularity == "token"


def test_a_named_granularity_is_the_one_that_is_used():
    """Whatever the rewards are."""
    rewarded = [group(episode("a", [1.0, 0.0]), episode("b", [0.0, 1.0]))]
    assert build_batch(rewarded, GRPO(advantage_granularity="trajectory")).granularity == "trajectory"
    assert build_batch(rewarded, LLMREINFORCE(advantage_granularity="token")).granularity == "token"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_turn_that_nobody_scored_stays_out_of_the_loss(name):
    """None is never 0: its tokens do not train, and count in no mean; the turn is counted."""
    algorithm = ALGORITHMS[name](group_size=2, advantage_granularity="turn")
    batch = build_batch([group(episode("a", [1.0, None, 2.0]), episode("b", [0.0, 1.0, 0.5]))], algorithm)
    row = batch.groups[0][0]
    assert {turn for turn, on in zip(row.turns, row.mask, strict=True) if on} == {0, 2}
    assert row.counted == 4
    assert batch.counts.unscored_turns == 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_failed_members_are_in_no_baseline_and_no_row(name):
    """The others are credited as if it had never been."""
    algorithm = ALGORITHMS[name](group_size=2)
    sound = [episode("a", [1.0]), episode("b", [0.0])]
    failed = episode("c", [1.0], ending=Ending.ENV_ERROR)
    with_it, without = build_batch([group(failed, *sound)], algorithm), build_batch([group(*sound)], algorithm)
    assert with_it.groups == without.groups
    assert with_it.counts.failed == 1


def test_every_scored_token_trains_with_a_value_head():
    """It has a value to learn, whatever its advantage will be; advantages come later."""
    batch = build_batch([group(episode("a", [1.0]), episode("b", [1.0]))], LLMPPO())
    assert trained(batch) == {"a": [0.0, 0.0], "b": [0.0, 0.0]}
    assert (batch.counts.zero_variance_groups, batch.counts.small_groups) == (0, 0)


def test_a_group_of_one_is_enough_without_a_comparison():
    """PPO, and REINFORCE with the batch's baseline or none; leave-one-out needs two."""
    one = [group(episode("a", [1.0]))]
    for algorithm in (LLMPPO(), LLMREINFORCE(baseline="none", group_size=1)):
        batch = build_batch(one, algorithm)
        assert (batch.counts.small_groups, batch.counts.trained_tokens) == (0, 2)
    left_out = build_batch(one, LLMREINFORCE())
    assert (left_out.counts.small_groups, left_out.counts.trained_tokens) == (1, 0)


def test_groups_of_equal_rewards_are_counted_and_not_computed():
    """RW-02: RLOO of equal rewards is exactly 0; the tokens count in the mean."""
    batch = build_batch([group(episode("a", [0.3]), episode("b", [0.3]))], LLMREINFORCE())
    assert batch.counts.zero_variance_groups == 1
    assert (batch.counts.trained_tokens, batch.counts.counted_tokens) == (0, 4)


@pytest.mark.parametrize(("kept", "tokens"), [("count", 8), ("drop", 4)])
def test_a_group_of_equal_rewards_is_in_the_mean_or_left_out_of_it(kept, tokens):
    """DAPO's dynamic sampling without its resampling: "drop" averages over groups that teach something."""
    flat = Group("flat", Task(seed=1), tuple(episode(name, [0.5], task=Task(seed=1)) for name in ("c", "d")))
    batch = build_batch([group(episode("a", [1.0]), episode("b", [0.0])), flat], GRPO(zero_variance=kept))
    assert (batch.counts.counted_tokens, batch.counts.trained_tokens) == (tokens, 4)
    assert batch.counts.zero_variance_groups == 1


@pytest.mark.parametrize(("sampled", "loses"), [(3, 0.0), (4, 0.0), (6, 0.25), (8, 0.5), (9, 0.5)])
def test_an_overlong_episode_loses_along_a_line(sampled, loses):
    """DAPO's equation 13: nothing up to 4 tokens, half of the penalty at 6, all of it from 8."""
    algorithm = GRPO(overlong_penalty=0.5, overlong_from=4, overlong_until=8)
    assert algorithm.overlong(sampled) == loses


def test_what_an_overlong_episode_loses_is_taken_off_its_last_scored_turn():
    """So that episode and turns still agree; a failed or unscored episode has nothing to lose."""
    algorithm = GRPO(
        scale_rewards="none", overlong_penalty=1.0, overlong_from=2, overlong_until=6, advantage_granularity="turn"
    )
    batch = build_batch(
        [group(episode("a", [1.0, 0.0], sizes=[2, 4]), episode("b", [1.0, 0.0], sizes=[1, 1]))], algorithm
    )
    assert [score.turns for score in batch.scores[0]] == [(1.0, -1.0), (1.0, 0.0)]
    assert [score.total for score in batch.scores[0]] == [0.0, 1.0]
    assert trained(batch)["a"] == [-0.5] * 4
    unscored = build_batch(
        [group(episode("c", [None], sizes=[9]), *(episode(n, [r]) for n, r in (("d", 1.0), ("e", 0.0))))], algorithm
    )
    assert unscored.scores[0][0].total is None


def test_dr_grpo_is_two_options_of_grpo():
    """No division by the deviation, and one constant length for all: arXiv:2503.20783."""
    algorithm = GRPO(scale_rewards="none", loss_normaliser="constant", constant_length=100)
    batch = build_batch([group(episode("a", [3.0]), episode("b", [1.0]))], algorithm)
    assert trained(batch) == {"a": [1.0, 1.0], "b": [-1.0, -1.0]}


def test_rloo_is_grpo_without_its_deviation_times_n_over_n_minus_1():
    """The two baselines differ by whether a member's own reward is in it."""
    rewards = {"a": 1.0, "b": 0.0, "c": 0.25}
    members = group(*(episode(name, [reward]) for name, reward in rewards.items()))
    rloo = trained(build_batch([members], LLMREINFORCE()))
    grpo = trained(build_batch([members], GRPO(scale_rewards="none")))
    for name in rewards:
        assert rloo[name] == pytest.approx([value * 3 / 2 for value in grpo[name]])


def test_advantages_of_reinforce_may_be_normalised():
    """Over the batch's tokens."""
    batch = build_batch([group(episode("a", [5.0]), episode("b", [1.0]))], LLMREINFORCE(normalise_advantages=True))
    values = [value for found in trained(batch).values() for value in found]
    assert sum(values) == pytest.approx(0.0)
    assert math.hypot(*values) / math.sqrt(3) == pytest.approx(1.0)


@pytest.mark.parametrize(("truncated", "cut"), [("keep", True), ("zero", False)])
def test_an_episode_that_was_cut_keeps_its_end_for_its_value(truncated, cut):
    """With a value head, what it saw last is part of the row; counted as 0 it is over instead."""
    members = group(episode("a", [1.0], ending=Ending.MAX_TURNS))
    row = build_batch([members], LLMPPO(), truncated=truncated).groups[0][0]
    assert (row.cut, row.ids[-1] == 3) == (cut, cut)
    assert not build_batch([members], GRPO(kl_coef=0.1), truncated=truncated).groups[0][0].cut
