"""The demo's game: five boxes with letters, one hides a coin, one is opened per turn, none of them twice."""

import hashlib
import itertools
import random
from functools import cache
from typing import Any

from tiltyard.errors import ConfigurationError, EpisodeOverError
from tiltyard.types import Message

LETTERS = "ABCDEFGHJKLM"
"""The letters that boxes are named by; five of them make a set, and a set belongs to one split only."""

BOXES = 5
COIN, NEW, REPEAT, INVALID = 1.0, 0.8, -0.5, -1.0
"""Rewards of one turn. A new box earns almost what the coin earns, so that luck stays out of the signal."""


@cache
def splits() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the training sets and the held-out sets: a quarter of all sets, the same ones on every machine."""
    sets = ["".join(letters) for letters in itertools.combinations(LETTERS, BOXES)]
    sets.sort(key=lambda letters: hashlib.sha256(letters.encode()).digest())
    quarter = len(sets) // 4
    return tuple(sets[quarter:]), tuple(sets[:quarter])


class Boxes:
    """A text environment: find the coin in at most five turns by naming a box that is still closed.

    The action is one letter and nothing else. A turn earns 1 for the coin and 0.8 for an empty box; a box
    that was opened before earns -0.5 and anything else -1, and both end the episode. One row is one set of
    boxes with one place of the coin; the seed decides the order in which the boxes are listed. Held-out
    rows use sets of boxes that training never sees. `info` has `success`, `valid` and `repeat` (of this
    turn) and `opened` (how many boxes the episode opened).
    """

    max_turns = BOXES
    system_prompt: str | None = (
        "One of five boxes holds a coin. Open one box per turn, never the same twice. Answer with one letter."
    )
    examples: tuple[Message, ...] = (
        {"role": "user", "content": "Which box: P, Q, R, S, T?"},
        {"role": "assistant", "content": "S"},
        {"role": "user", "content": "Empty. Which box?"},
        {"role": "assistant", "content": "P"},
        {"role": "user", "content": "Empty. Which box?"},
        {"role": "assistant", "content": "T"},
    )

    def __init__(self) -> None:
        self._evaluation = False
        self._boxes: tuple[str, ...] = ()
        self._coin = ""
        self._opened: list[str] = []
        self._over = True

    @property
    def dataset_size(self) -> int:
        """Rows of the split that the last reset served; those of training before any reset."""
        return BOXES * len(splits()[self._evaluation])

    @property
    def evaluation_size(self) -> int:
        """Rows of the held-out split."""
        return BOXES * len(splits()[True])

    @property
    def boxes(self) -> tuple[str, ...]:
        """The letters of this episode, in the order in which they are listed."""
        return self._boxes

    def reset(
        self, seed: int | None = None, *, row_index: int | None = None, evaluation: bool | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; without a `row_index` the seed chooses one.

        Raises:
            ConfigurationError: The split has no such row.
        """
        self._evaluation = bool(evaluation)
        sets, rows = splits()[self._evaluation], self.dataset_size
        rng = random.Random(seed)  # noqa: S311 - a game
        row = rng.randrange(rows) if row_index is None else row_index
        if not 0 <= row < rows:
            raise ConfigurationError(f"row_index must be in 0..{rows - 1}, got {row_index!r}")
        # The sets come first in the numbering, so that the first rows already go through all of them.
        place, number = divmod(row, len(sets))
        self._coin = sets[number][place]
        self._boxes = tuple(rng.sample(sets[number], BOXES))
        self._opened = []
        self._over = False
        return f"A coin! Next game. Which box: {', '.join(self._boxes)}?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Open a box.

        Raises:
            EpisodeOverError: The episode is over, or was never begun.
        """
        if self._over:
            raise EpisodeOverError("step() without an episode: call reset() first")
        letter = action.strip()
        if letter not in self._boxes:
            return self._turn(f"There is no box {letter!r}.", INVALID, valid=False)
        if letter in self._opened:
            return self._turn(f"Box {letter} was open already.", REPEAT, repeat=True)
        self._opened.append(letter)
        if letter == self._coin:
            return self._turn("A coin!", COIN, success=True)
        return self._turn("Empty. Which box?", NEW, over=False)

    def _turn(
        self,
        text: str,
        reward: float,
        *,
        over: bool = True,
        success: bool = False,
        valid: bool = True,
        repeat: bool = False,
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._over = over
        info = {"success": success, "valid": valid, "repeat": repeat, "opened": len(self._opened)}
        return text, reward, over, False, info
