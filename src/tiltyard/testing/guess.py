"""Guess a number, as a text environment and as a tool-call environment."""

import random
import re
from typing import Any

from tiltyard.envs.base import Env
from tiltyard.errors import EpisodeOverError, ToolError
from tiltyard.tools.base import tool
from tiltyard.types import StepResult, ToolSchema


class _Game:
    """A number from 1 to `highest`, drawn from the seed; a guess earns 1.0 when it is right and ends the game then."""

    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.number = 0
        self.over = True

    def begin(self, seed: int | None) -> str:
        self.number = random.Random(seed).randint(1, self.highest)  # noqa: S311  # a game, not a secret
        self.over = False
        return f"Guess a number between 1 and {self.highest}."

    def guess(self, guess: int) -> str:
        if self.over:
            raise EpisodeOverError("the game is over; reset begins another")
        self.over = guess == self.number
        if self.over:
            return "Correct!"
        return "Too high." if guess > self.number else "Too low."


class GuessEnv:
    """The text form: the first number in the action is the guess; an action without one earns nothing."""

    def __init__(self, highest: int = 10) -> None:
        self._game = _Game(highest)
        self.closed = 0

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a number."""
        return self._game.begin(seed), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Guess."""
        found = re.search(r"\d{1,9}", action)
        text = self._game.guess(int(found[0]) if found else 0)
        if not found:
            text = "Answer with a number."
        won = self._game.over
        return text, float(won), won, False, {"success": won}

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


class GuessToolEnv(Env):
    """The tool form: `guess(number)`, and `give_up()`, which ends the game with nothing."""

    def __init__(self, highest: int = 10) -> None:
        self._game = _Game(highest)
        self.closed = 0

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Draw a number from the task's seed."""
        return StepResult(self._game.begin((trajectory or {}).get("seed")))

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Guess, or give up."""
        if tool_name == "give_up":
            if self._game.over:
                raise EpisodeOverError("the game is over; reset begins another")
            self._game.over = True
            return StepResult(f"It was {self._game.number}.", 0.0, True, {"success": False})
        if not 1 <= arguments["number"] <= self._game.highest:
            raise ToolError(f"the number must be between 1 and {self._game.highest}, got {arguments['number']}")
        text = self._game.guess(arguments["number"])
        won = self._game.over
        return StepResult(text, float(won), won, {"success": won})

    def tools(self) -> list[ToolSchema]:
        """The schemas of both tools."""
        return [_GUESS, _GIVE_UP]

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def _guess(number: int) -> str:
    """Guess the number.

    Args:
        number: Your guess.
    """
    return str(number)


def _give_up() -> str:
    """End the game without the number."""
    return ""


def _named(name: str, schema: ToolSchema) -> ToolSchema:
    return {**schema, "function": {**schema["function"], "name": name}}


_GUESS = _named("guess", tool(_guess).tool_info())
_GIVE_UP = _named("give_up", tool(_give_up).tool_info())
