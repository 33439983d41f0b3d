"""Games of TextArena for one player play as text environments."""

import re
import subprocess
import sys

import pytest

from tiltyard.envs.check import check_env
from tiltyard.envs.library.textarena import make
from tiltyard.errors import ConfigurationError, EpisodeOverError

GAMES = {
    "GuessTheNumber-v0": "[5]",
    "2048-v0-easy": "[up]",
    "Blackjack-v0": "[stand]",
    "Bandit-v0": "[red]",
    "FrozenLake-v0": "[down]",
    "LightsOut-v0": "[0 0]",
    "Mastermind-v0": "[1 2 3 4]",
    "Minesweeper-v0-small": "[0 0]",
    "PegJump-v0": "[4 1]",
    "Sokoban-v0": "[up]",
    "Sudoku-v0-very-easy": "[1 1 1]",
    "TowerOfHanoi-v0": "[A C]",
}


def played(env_id, move, seed=3, moves=6):
    env = make(env_id)
    told = [env.reset(seed)[0]]
    for _ in range(moves):
        text, reward, done, _truncated, info = env.step(move)
        told.append((text, reward, done, info))
        if done:
            break
    return told


@pytest.mark.parametrize("env_id", GAMES)
def test_a_game_plays_and_plays_the_same_from_the_same_seed(env_id):
    """One game of each kind that needs neither network nor key."""
    first = played(env_id, GAMES[env_id])
    assert first == played(env_id, GAMES[env_id])
    assert len(first[0]) > 20


def test_a_won_game_is_done_with_its_reward_and_reason():
    """What `close()` of the game says arrives with the last turn."""
    env = make("GuessTheNumber-v0")
    env.reset(3)
    low, high, done = 1, 20, False
    while not done:
        number = (low + high) // 2
        text, reward, done, truncated, info = env.step(f"[{number}]")
        low, high = (low, number - 1) if "lower" in text else (number + 1, high)
    assert (reward, truncated, info["invalid_move"]) == (1.0, False, False)
    assert text == info["reason"]
    assert "Congratulations" in text


def test_a_turn_says_only_what_is_new():
    """The model has its own moves and the earlier turns already."""
    env = make("GuessTheNumber-v0")
    env.reset(3)
    text, reward, *_ = env.step("[1]")
    assert re.fullmatch(r"The target number is (higher|lower)\.", text)
    assert reward == 0.0


def test_a_game_that_is_over_plays_no_further():
    """Reset begins another one."""
    env = make("GuessTheNumber-v0")
    env.reset(3)
    env.step("no move")
    *_, done, _truncated, info = env.step("no move again")
    assert done
    assert info["invalid_move"]
    with pytest.raises(EpisodeOverError):
        env.step("[5]")
    env.reset(4)
    env.step("[5]")


def test_a_game_for_several_players_is_refused():
    """There is nobody to play the others."""
    with pytest.raises(ConfigurationError, match="several players"):
        make("TicTacToe-v0")


def test_an_unknown_game_names_the_nearest():
    """A misspelt name is answered with what it may have been."""
    with pytest.raises(ConfigurationError, match="'GuessTheNumber-v0'"):
        make("GuesTheNumber-v0")


def test_an_option_that_the_game_lacks_is_refused():
    """Nothing is passed to nowhere."""
    with pytest.raises(ConfigurationError, match="sise"):
        make("GuessTheNumber-v0", sise=3)


def test_the_turns_are_the_games_own_where_it_has_a_limit():
    """Or what the manifest's `env_config` says."""
    assert make("GuessTheNumber-v0").max_turns == 10
    assert make("GuessTheNumber-v0", max_turns=4).max_turns == 4


def test_a_game_passes_the_check_of_environments():
    """What users are told to run accepts it."""
    report = check_env(lambda: make("GuessTheNumber-v0"))
    assert report.ok, str(report)


def test_without_the_package_the_error_names_the_extra():
    """In a process that cannot import it."""
    code = (
        "import sys; sys.modules['textarena'] = None\n"
        "from tiltyard.envs.library.textarena import make\n"
        "try:\n    make('GuessTheNumber-v0')\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.startswith("MissingExtraError")
    assert "tiltyard[libraries]" in output
