"""Several episodes of each task: pass@k, avg@k and their intervals."""

import math
import random
from itertools import combinations

import pytest

from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train import interval
from tiltyard.train.samples import ks_up_to, pass_at_k, score_samples
from tiltyard.types import Task


def episode(success=None, reward=0.0, ending=Ending.DONE):
    error = "PolicyError: gone" if ending.failed else None
    return Trajectory("e", Task(), ending, rewards=(reward,), success=success, error=error)


WON, LOST, FAILED = episode(True, 1.0), episode(False), episode(ending=Ending.API_ERROR)


@pytest.mark.parametrize(("n", "successes", "k"), [(5, 2, 1), (5, 2, 3), (5, 2, 4), (6, 0, 6), (6, 6, 2), (7, 1, 7)])
def test_pass_at_k_is_the_share_of_draws_of_k_that_hold_a_success(n, successes, k):
    """Against the slow way: every draw of k from the n episodes, looked at."""
    outcomes = [i < successes for i in range(n)]
    draws = list(combinations(outcomes, k))
    assert pass_at_k(n, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_pass_at_k_of_many_episodes_neither_overflows_nor_rounds_away():
    """1 - C(990, 100) / C(1000, 100), which the binomials themselves give exactly."""
    exact = 1 - math.comb(990, 100) / math.comb(1000, 100)
    assert pass_at_k(1000, 10, 100) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("n", "successes", "k"), [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_pass_at_k_refuses_what_it_cannot_say(n, successes, k):
    """Fewer episodes than k say nothing about k of them."""
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(n, successes, k)


@pytest.mark.parametrize(("samples", "ks"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (10, [1, 2, 4, 8, 10])])
def test_k_doubles_up_to_the_number_of_samples(samples, ks):
    """A line for each k would drown the table."""
    assert list(ks_up_to(samples)) == ks


def test_every_task_counts_the_same():
    """Two tasks of four: all won, one won: avg@4 = (1 + 1/4) / 2, pass@2 = (1 + 1/2) / 2, pass@4 = 1."""
    found = score_samples([[WON] * 4, [WON, LOST, LOST, LOST]], 4)
    assert found.success is not None
    assert (found.success.mean, found.success.n, found.reward.mean) == (0.625, 2, 0.625)
    assert {k: round(value.mean or 0.0, 9) for k, value in found.pass_at.items()} == {1: 0.625, 2: 0.75, 4: 1.0}


def test_failed_episodes_are_in_no_figure():
    """A task is judged by the rest of its episodes; with fewer than k of them it is left out of pass@k, and counted."""
    found = score_samples([[WON, FAILED], [LOST, LOST], [FAILED, FAILED]], 2)
    assert found.success is not None
    assert (found.tasks, found.success.mean, found.success.n) == (3, 0.5, 2)
    assert (found.pass_at[1].mean, found.pass_at[2].mean, found.left_out) == (0.5, 0.0, {1: 1, 2: 2})


def test_success_can_be_the_highest_reward():
    """Where the environment is silent, `max_reward` decides."""
    found = score_samples([[episode(reward=1.0), episode(reward=0.5)]], 2, max_reward=1.0)
    assert found.success is not None
    assert (found.success.mean, found.pass_at[2].mean) == (0.5, 1.0)


def test_without_success_there_is_no_pass_at_k():
    """Rewards have a mean, and nothing passes."""
    found = score_samples([[episode(reward=1.0), episode(reward=3.0)], [episode(reward=4.0)]], 2)
    assert (found.success, found.pass_at, found.reward.mean, found.reward.n) == (None, {}, 3.0, 2)


def test_a_table_of_nothing_but_failures_has_no_figures():
    """None, not 0."""
    found = score_samples([[FAILED]], 1, max_reward=1.0)
    assert found.success is not None
    assert (found.success.mean, found.reward.mean, found.left_out) == (None, None, {1: 1})


@pytest.mark.parametrize("won", [0, 7, 20])
def test_with_one_episode_a_task_the_interval_is_wilsons(won):
    """Clustering changes nothing where every cluster has one member."""
    assert interval.share_of_tasks([1.0] * won + [0.0] * (20 - won), 20) == interval.share(won, 20)


def test_tasks_that_agree_with_themselves_are_worth_one_episode_each():
    """Ten tasks, eight episodes each, all equal within a task: 80 episodes know no more than 10."""
    assert interval.share_of_tasks([1.0] * 4 + [0.0] * 6, 80) == interval.share(4, 10)


def test_the_more_tasks_agree_the_narrower_the_interval():
    """Tasks that are all alike are worth their episodes, and never more."""
    alike, apart = interval.share_of_tasks([0.4, 0.5, 0.6] * 4, 96), interval.share_of_tasks([0.1, 0.5, 0.9] * 4, 96)
    whole = interval.share(48, 96)
    assert width(whole) <= width(alike) < width(apart)


def width(found):
    return found.high - found.low


def test_the_interval_covers_the_truth_in_about_95_of_100_evaluations():
    """30 tasks of four episodes, whose chances of success are drawn evenly from 0 to 1."""
    rng = random.Random(5)
    covered = 0
    for _ in range(500):
        rates = []
        for _ in range(30):
            chance = rng.random()
            rates.append(sum(rng.random() < chance for _ in range(4)) / 4)
        found = interval.share_of_tasks(rates, 120)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.93 <= covered / 500 <= 0.98
