"""Tasks of Reasoning Gym (arXiv:2505.24760), generated and verified by the library, as one-turn text environments."""

import difflib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, EpisodeOverError

AnswerForm = Literal["tags", "whole"]

ANSWER = "Write the final answer between <answer> and </answer>, and nothing else between them."


class ReasoningTask:
    """A text environment over one dataset of Reasoning Gym: a question, one answer, the library's own score.

    A row is one generated question. Held-out rows are further questions of the same generator, those that training
    asks too left out. The answer is what stands between the last `<answer>` and `</answer>`; without them the
    library's verifier gets nothing, which it scores as it does any wrong answer. `info` has the `answer` that it
    saw, the `expected` one, `formatted`, and `success` for a score of 1.
    """

    max_turns = 1

    def __init__(
        self,
        dataset: str,
        *,
        size: int = 1000,
        held_out: int = 200,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        answer: AnswerForm = "tags",
    ) -> None:
        """Generate nothing yet but what the splits need.

        Args:
            dataset: A name of `reasoning_gym.factory.DATASETS`, such as "chain_sum".
            size: Training rows.
            held_out: Held-out rows asked for; a small domain may have fewer that training does not ask.
            seed: Of the generator; another one gives other questions.
            config: The dataset's own settings.
            answer: What of the model's text is scored: what stands between the "tags", or the "whole" of it. Of a
                text that holds more than the answer most verifiers give a part of the score.

        Raises:
            ConfigurationError: There is no such dataset, it does not take the settings, or no held-out row is left.
            MissingExtraError: The package is not installed.
        """
        if answer not in get_args(AnswerForm):
            raise ConfigurationError(f"answer must be 'tags' or 'whole', got {answer!r}")
        self._tagged = answer == "tags"
        self.system_prompt: str | None = ANSWER if self._tagged else None
        self._rows, self._held_out = _generated(dataset, size, held_out, seed, json.dumps(dict(config or {})))
        self._size = size
        self._evaluation = False
        self._row: Mapping[str, Any] | None = None

    @property
    def dataset_size(self) -> int:
        """Rows of the split that the last reset served; those of training before any reset."""
        return self.evaluation_size if self._evaluation else self._size

    @property
    def evaluation_size(self) -> int:
        """Rows of the held-out split."""
        return len(self._held_out)

    def reset(
        self, seed: int | None = None, *, row_index: int | None = None, evaluation: bool | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask one question; without a `row_index` the seed chooses one (None: the first).

        Raises:
            ConfigurationError: The split has no such row.
        """
        self._evaluation = bool(evaluation)
        row = (seed or 0) % self.dataset_size if row_index is None else row_index
        if not 0 <= row < self.dataset_size:
            raise ConfigurationError(f"row_index must be 0 to {self.dataset_size - 1} in this split, got {row!r}")
        asked: Mapping[str, Any] = self._rows[self._held_out[row] if self._evaluation else row]
        self._row = asked
        return asked["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score one answer.

        Raises:
            EpisodeOverError: The question has been answered.
        """
        if self._row is None:
            raise EpisodeOverError("the question has been answered; reset for the next one")
        row, self._row = self._row, None
        answer = action.strip()
        if self._tagged:
            answer = require("reasoning_gym.utils", "libraries").extract_answer(action)
        score = float(self._rows.score_answer(answer=answer, entry=row))
        info = {"answer": answer, "expected": row["answer"], "formatted": answer is not None, "success": score >= 1.0}
        return "", score, True, False, info


def make(dataset: str, **options: Any) -> ReasoningTask:
    """Make the environment: the entrypoint of a manifest, `tiltyard.envs.library.reasoning_gym:make`.

    Raises:
        ConfigurationError: There is no such dataset, it does not take the settings, or no held-out row is left.
        MissingExtraError: The package is not installed.
    """
    return ReasoningTask(dataset, **options)


@lru_cache(maxsize=16)
def _generated(dataset: str, size: int, held_out: int, seed: int, config: str) -> tuple[Any, Sequence[int]]:
    """The generator and the indices of the held-out rows; one for all environments of a run."""
    known = list(require("reasoning_gym.factory", "libraries").DATASETS)
    if dataset not in known:
        near = difflib.get_close_matches(dataset, known, n=3) or sorted(known)[:3]
        raise ConfigurationError(
            f"Reasoning Gym has no dataset {dataset!r}; did you mean {' or '.join(map(repr, near))}?"
        )
    if size < 1 or held_out < 1:
        raise ConfigurationError(f"size and held_out must be >= 1, got {size!r} and {held_out!r}")
    settings = {**json.loads(config), "size": size + held_out, "seed": seed}
    try:
        rows = require("reasoning_gym", "libraries").create_dataset(dataset, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"the dataset {dataset!r} does not take these settings: {error}") from error
    asked = {rows[index]["question"] for index in range(size)}
    unseen = {rows[index]["question"]: index for index in range(size, size + held_out)}
    left = tuple(index for question, index in unseen.items() if question not in asked)
    if not left:
        raise ConfigurationError(
            f"all {held_out} held-out questions of {dataset!r} are training questions too: with these settings it has "
            f"only {len(asked)} different ones; make them more varied, or train on fewer than size={size}"
        )
    return rows, left
