"""The games of GEM are entrypoints as they are: `gem:make` with an `env_id`."""

import pytest

from tiltyard.envs.turns import as_turns
from tiltyard.rollout.entrypoint import build_env
from tiltyard.rollout.episode import episode
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.scripted import ScriptedPolicy
from tiltyard.types import Task

MOVES = {
    "game:GuessTheNumber-v0-easy": r"\boxed{5}",
    "game:Mastermind-v0-easy": r"\boxed{1 2}",
    "game:Minesweeper-v0-easy": r"\boxed{reveal 0 0}",
    "game:FifteenPuzzle-v0-easy": r"\boxed{up}",
    "game:Sudoku-v0-easy": r"\boxed{1 1 1}",
    "game:TowerofHanoi-v0-easy": r"\boxed{A C}",
    "game:Game2048-v0-easy": r"\boxed{left}",
    "game:Sokoban-v0-easy": r"\boxed{up}",
}
ENDED = {Ending.DONE, Ending.MAX_TURNS, Ending.ENV_TRUNCATED}


def played(env, move, seed=3, max_turns=6):
    policy = ScriptedPolicy(move if callable(move) else [move] * max_turns)
    flow = episode(as_turns(env), Task(seed=seed), Limits(max_turns=max_turns))
    try:
        prompt = next(flow)
        while True:
            prompt = flow.send(policy.answer(prompt))
    except StopIteration as end:
        return end.value


def said(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] == "user"]


@pytest.mark.parametrize("env_id", MOVES)
def test_a_game_plays_and_plays_the_same_from_the_same_seed(env_id):
    """One game of each kind that needs no network."""
    first, second = (played(build_env("gem:make", {"env_id": env_id}), MOVES[env_id]) for _ in range(2))
    assert first.ending in ENDED
    assert said(first) == said(second)
    assert first.reward == second.reward


def test_the_system_prompt_of_the_manifest_opens_the_conversation():
    """It is set on the environment that comes out, and not passed to `gem.make`."""
    config = {"env_id": "game:GuessTheNumber-v0-easy", "system_prompt": "Reply with one number."}
    trajectory = played(build_env("gem:make", config), r"\boxed{5}")
    assert trajectory.messages[0] == {"role": "system", "content": "Reply with one number."}


def test_a_winning_player_is_rewarded():
    """Bisection wins within the turns."""
    low, high = 1, 10

    def move(prompt, turn):
        nonlocal low, high
        if turn:
            number = (low + high) // 2
            text = prompt.messages[-1]["content"]
            low, high = (low, number - 1) if "lower" in text else (number + 1, high)
        return rf"\boxed{{{(low + high) // 2}}}"

    trajectory = played(build_env("gem:make", {"env_id": "game:GuessTheNumber-v0-easy"}), move, seed=11, max_turns=4)
    assert trajectory.ending is Ending.DONE
    assert trajectory.reward == 1.0


def test_a_seed_of_a_row_based_environment_is_a_question():
    """The reasoning environments of GEM are one question each."""
    env = build_env("gem:make", {"env_id": "rg:leg_counting"})
    trajectory = played(env, r"\boxed{0}", max_turns=1)
    assert "how many legs" in said(trajectory)[0]
    assert trajectory.ending is Ending.DONE
