"""Two players of the demo's game that read it as a model does: marks to measure a model against."""

import random
from collections.abc import Sequence
from typing import Any

from tiltyard.demo.boxes import Boxes


class PerfectPlayer:
    """Opens a closed box each turn, and so always wins."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a game

    def choose(self, boxes: Sequence[str], opened: Sequence[str]) -> str:
        """Return the letter to answer."""
        return self._rng.choice([letter for letter in boxes if letter not in opened])


class ForgetfulPlayer:
    """Names a listed box each turn and forgets which it opened: always valid, and wins about half the time."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a game

    def choose(self, boxes: Sequence[str], opened: Sequence[str]) -> str:
        """Return the letter to answer."""
        del opened
        return self._rng.choice(list(boxes))


def win_rate(player: PerfectPlayer | ForgetfulPlayer, games: int, *, evaluation: bool = True) -> float:
    """Play so many games and return the share that found the coin."""
    env, won = Boxes(), 0
    for game in range(games):
        env.reset(seed=game, evaluation=evaluation)
        opened: list[str] = []
        info: dict[str, Any] = {}
        over = False
        while not over:
            letter = player.choose(env.boxes, opened)
            _, _, over, _, info = env.step(letter)
            opened.append(letter)
        won += info["success"]
    return won / games
