"""The demo's game: its rules, its splits, and the marks that a model is measured against."""

import pytest

from tiltyard.demo.boxes import BOXES, COIN, INVALID, NEW, REPEAT, Boxes, splits
from tiltyard.demo.players import ForgetfulPlayer, PerfectPlayer, win_rate
from tiltyard.errors import ConfigurationError, EpisodeOverError


def begun(**task):
    env = Boxes()
    env.reset(**task)
    return env


def coin_of(env):
    return next(letter for letter in env.boxes if wins(env, letter))


def wins(env, letter):
    row = Boxes()
    row.reset(seed=7, row_index=3)
    return row.step(letter)[4]["success"]


def test_one_seed_and_row_give_one_task():
    """All members of a group see the same boxes in the same order, with the coin in the same place."""
    one, two = begun(seed=7, row_index=3), begun(seed=7, row_index=3)
    assert (one.boxes, coin_of(one)) == (two.boxes, coin_of(two))


def test_the_seed_changes_only_the_order_of_the_boxes():
    """A row is a set of boxes and the coin's place."""
    orders = {begun(seed=seed, row_index=3).boxes for seed in range(5)}
    assert len(orders) > 1
    assert len({frozenset(order) for order in orders}) == 1


def test_held_out_sets_are_a_quarter_and_never_trained_on():
    """What is measured is play, not memory."""
    train, held_out = splits()
    assert not set(train) & set(held_out)
    assert (len(train), len(held_out)) == (594, 198)


def test_the_sizes_follow_the_split():
    """`dataset_size` is that of the split which the last reset served."""
    env = Boxes()
    assert (env.dataset_size, env.evaluation_size) == (594 * BOXES, 198 * BOXES)
    env.reset(seed=0, row_index=0, evaluation=True)
    assert env.dataset_size == env.evaluation_size


def test_the_first_held_out_rows_go_through_all_sets():
    """An evaluation of 198 tasks meets every held-out set once."""
    sets = {frozenset(begun(seed=0, row_index=row, evaluation=True).boxes) for row in range(198)}
    assert sets == {frozenset(letters) for letters in splits()[1]}


@pytest.mark.parametrize("row", [-1, 594 * BOXES])
def test_a_row_that_is_not_there_is_refused(row):
    """A wrong row is a mistake of the caller, not of the model."""
    with pytest.raises(ConfigurationError, match="row_index must be in"):
        Boxes().reset(row_index=row)


def test_each_turn_is_rewarded_for_what_it_did():
    """The coin earns 1, an empty box 0.8, a repeat -0.5, anything else -1; the last three words end the episode."""
    env = begun(seed=7, row_index=3)
    coin = coin_of(env)
    empty = next(letter for letter in env.boxes if letter != coin)
    assert env.step(empty)[1:3] == (NEW, False)
    assert env.step(coin)[1:3] == (COIN, True)
    env.reset(seed=7, row_index=3)
    env.step(empty)
    assert env.step(empty)[1:3] == (REPEAT, True)
    env.reset(seed=7, row_index=3)
    assert env.step(f"Box {coin}")[1:3] == (INVALID, True)


def test_info_says_what_the_turn_was():
    """Reports count wins, invalid answers, repeats and opened boxes from `info`."""
    env = begun(seed=7, row_index=3)
    empty = next(letter for letter in env.boxes if letter != coin_of(env))
    assert env.step(f" {empty}\n")[4] == {"success": False, "valid": True, "repeat": False, "opened": 1}
    assert env.step(empty)[4] == {"success": False, "valid": True, "repeat": True, "opened": 1}


def test_a_step_after_the_end_is_refused():
    """An episode that is over stays over."""
    env = begun(seed=7, row_index=3)
    env.step("no")
    with pytest.raises(EpisodeOverError):
        env.step("A")


def test_a_perfect_player_always_wins():
    """Five boxes, five turns, never the same box: the coin is found."""
    assert win_rate(PerfectPlayer(), 200) == 1.0


def test_a_player_who_repeats_boxes_wins_half_of_the_games():
    """Gain above one half is play; below it is mostly the form of the answer."""
    assert 0.45 < win_rate(ForgetfulPlayer(), 2000) < 0.57
