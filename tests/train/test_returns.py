"""Returns, baselines and advantages of single actions: by hand, and against slow sums."""

import random

import pytest

from tiltyard.train.returns import (
    Action,
    ActionCredit,
    Played,
    actions,
    explained_variance,
    gae,
    gae_credit,
    normalised,
    return_credit,
    returns,
)

TWO_TURNS = Played((1.0, 2.0), (2, 3))


def advantages(credit_N_G):
    return [[found and list(found.advantages) for found in group] for group in credit_N_G]


def reinforce(*groups, granularity="turn", discount=1.0, baseline="leave_one_out"):
    return advantages(return_credit(groups, granularity=granularity, discount=discount, baseline=baseline))


def test_a_turns_reward_comes_with_its_last_token():
    """Token granularity: the other tokens earn nothing themselves."""
    assert [action.reward for action in actions(TWO_TURNS, "token")] == [0.0, 1.0, 0.0, 0.0, 2.0]


def test_a_turn_is_one_action_under_turn_granularity():
    """With all of its tokens."""
    assert actions(TWO_TURNS, "turn") == [Action(0, 0, 2, 1.0), Action(1, 2, 3, 2.0)]


def test_a_penalty_is_taken_off_its_own_token():
    """Or, under turn granularity, off the turn's reward."""
    played = Played((1.0, 2.0), (2, 1), (0.5, 0.25, 1.0))
    assert [action.reward for action in actions(played, "token")] == [-0.5, 0.75, 1.0]
    assert [action.reward for action in actions(played, "turn")] == [0.25, 1.0]


def test_a_turn_that_nobody_scored_is_no_action():
    """Its tokens have no place in the chain: the turns around it follow one another."""
    played = Played((1.0, None, 2.0), (1, 0, 1))
    assert [(action.turn, action.reward) for action in actions(played, "token")] == [(0, 1.0), (2, 2.0)]


def test_the_reward_of_a_turn_without_tokens_goes_to_the_action_before_it():
    """An empty answer that is scored still ends what led to it; at the beginning nothing has earned it."""
    assert [action.reward for action in actions(Played((1.0, -3.0), (2, 0)), "token")] == [0.0, -2.0]
    assert [action.reward for action in actions(Played((-3.0, 1.0), (0, 1)), "turn")] == [1.0]


def test_returns_are_discounted_sums_of_what_follows():
    """1 + 0.5 * (2 + 0.5 * 4) = 3."""
    assert returns([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert returns([1.0], 0.5, final=8.0) == [5.0]


def test_gae_by_hand():
    """Two steps, rewards 0 and 1, values 0.5 and 0.25, discount 0.9, lambda 0.8: errors -0.275 and 0.75."""
    assert gae([0.0, 1.0], [0.5, 0.25], discount=0.9, lam=0.8) == pytest.approx([-0.275 + 0.72 * 0.75, 0.75])


def test_an_episode_that_was_cut_goes_on_from_its_last_value():
    """The final value stands for what would have come; an episode that is over has 0."""
    assert gae([1.0], [0.5], discount=0.9, lam=0.8, final=2.0) == pytest.approx([1.0 + 1.8 - 0.5])


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_gae_is_the_weighted_sum_of_k_step_advantages(lam):
    """Equation 16 of the paper as a double sum; at lambda 1 the return less the value, at 0 one step's error."""
    draw = random.Random(0)
    rewards, values = [draw.gauss(0, 1) for _ in range(7)], [draw.gauss(0, 1) for _ in range(8)]
    found = gae(rewards, values[:7], discount=0.9, lam=lam, final=values[7])
    for t in range(7):
        errors = [rewards[k] + 0.9 * values[k + 1] - values[k] for k in range(t, 7)]
        assert found[t] == pytest.approx(sum((0.9 * lam) ** k * error for k, error in enumerate(errors)))


def test_targets_stand_where_an_action_begins():
    """Under turn granularity the first token of a turn; the target is advantage plus value."""
    credit = gae_credit(TWO_TURNS, [0.5, 9, 0.25, 9, 9], granularity="turn", discount=1.0, lam=1.0)
    assert credit == ActionCredit((2.5, 2.5, 1.75, 1.75, 1.75), (3.0, None, 2.0, None, None))


def test_targets_stand_at_every_token_under_token_granularity():
    """At lambda 1 they are the returns, whatever the values are."""
    credit = gae_credit(TWO_TURNS, [0.5, 9, 0.25, 9, 9], granularity="token", discount=1.0, lam=1.0)
    assert credit.targets == pytest.approx((3.0, 3.0, 2.0, 2.0, 2.0))


def test_leave_one_out_compares_with_the_mean_of_the_others():
    """RLOO by hand: rewards 1, 0, 0.5 give 1 - 0.25, 0 - 0.75, 0.5 - 0.5."""
    group = [Played((reward,), (1,)) for reward in (1.0, 0.0, 0.5)]
    assert reinforce(group) == [[[0.75], [-0.75], [0.0]]]


def test_a_later_turn_is_compared_with_the_others_that_played_it():
    """Returns from each turn on: 3 and 2 against 0 and 1; a turn played alone has advantage 0."""
    group = [TWO_TURNS, Played((-1.0, 1.0), (1, 1)), Played((6.0,), (1,))]
    assert reinforce(group) == [[[0.0, 0.0, 1.0, 1.0, 1.0], [-4.5, -1.0], [4.5]]]
    alone = [TWO_TURNS, Played((1.0,), (1,))]
    assert reinforce(alone) == [[[2.0, 2.0, 0.0, 0.0, 0.0], [-2.0]]]


def test_the_baseline_of_a_batch_is_the_mean_of_all_its_returns():
    """Over groups, so that a group of one learns too."""
    assert reinforce([Played((1.0,), (1,))], [Played((0.0,), (2,))], baseline="batch") == [[[0.5]], [[-0.5, -0.5]]]


def test_without_a_baseline_the_advantage_is_the_return():
    """Rewards to go."""
    assert reinforce([TWO_TURNS], baseline="none") == [[[3.0, 3.0, 2.0, 2.0, 2.0]]]


def test_a_discount_counts_tokens_or_turns():
    """0.5 per action: from the first of three tokens the reward of the last is two actions away."""
    one = [Played((4.0,), (3,))]
    assert reinforce(one, granularity="token", discount=0.5, baseline="none") == [[[1.0, 2.0, 4.0]]]
    assert reinforce(one, granularity="turn", discount=0.5, baseline="none") == [[[4.0, 4.0, 4.0]]]


def test_within_a_turn_the_baseline_is_one():
    """The other member's return from the turn's beginning is taken off each of its tokens' returns."""
    group = [Played((4.0,), (2,)), Played((1.0,), (1,))]
    assert reinforce(group, granularity="token", discount=0.5) == [[[1.0, 3.0], [-1.0]]]


def test_equal_rewards_give_exactly_0():
    """RW-02: also where adding up has rounded."""
    group = [Played((0.1, 0.2), (1, 1)), Played((0.3, 0.0), (1, 1)), Played((0.2, 0.1), (1, 1))]
    first = [member[0] for member in reinforce(group)[0]]
    assert first == [0.0, 0.0, 0.0]


def test_a_member_without_a_score_is_in_no_baseline():
    """None stays None, and the others are compared without it."""
    assert reinforce([Played((1.0,), (1,)), None, Played((0.0,), (1,))]) == [[[1.0], None, [-1.0]]]


def test_leave_one_out_is_unbiased_where_a_slow_version_is():
    """Random groups of many turns: each return less the plain mean of the others at the turn's beginning."""
    draw = random.Random(1)
    group = []
    for _ in range(5):
        turns = draw.randint(1, 4)
        rewards = tuple(draw.gauss(0, 1) for _ in range(turns))
        group.append(Played(rewards, tuple(draw.randint(1, 3) for _ in range(turns))))
    found = reinforce(group)[0]
    for index, member in enumerate(group):
        place = 0
        for turn, count in enumerate(member.tokens):
            others = [sum(o.rewards[turn:]) for i, o in enumerate(group) if i != index and len(o.rewards) > turn]
            own = sum(member.rewards[turn:])
            expected = own - sum(others) / len(others) if others else 0.0
            assert found[index][place : place + count] == pytest.approx([expected] * count)
            place += count


def test_normalised_advantages_have_mean_0_and_deviation_1_over_tokens():
    """A long episode counts with all its tokens."""
    found = normalised([ActionCredit((1.0, 1.0)), ActionCredit((4.0,))])
    values = [value for credit in found for value in credit.advantages]
    assert sum(values) == pytest.approx(0.0)
    assert sum(value * value for value in values) / 2 == pytest.approx(1.0)


def test_equal_advantages_are_normalised_to_0():
    """RW-02: no rounding error becomes an advantage."""
    assert normalised([ActionCredit((0.1 + 0.2,)), ActionCredit((0.3,))]) == [ActionCredit((0.0,))] * 2


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0, 2.0, 3.0], 1.0), ([5.0, 5.0, 5.0], 0.0), ([3.0, 2.0, 1.0], -3.0)]
)
def test_explained_variance_says_how_well_values_foretell(values, expected):
    """1 right, 0 a constant, below 0 worse than a constant."""
    assert explained_variance(values, [1.0, 2.0, 3.0]) == pytest.approx(expected)


def test_equal_targets_have_no_variance_to_explain():
    """None, not a division by zero."""
    assert explained_variance([1.0, 2.0], [3.0, 3.0]) is None
