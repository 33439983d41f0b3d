"""Data rows as an environment: each row is asked once, and a rubric scores the answer."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.errors import ConfigurationError, EpisodeOverError
from tiltyard.rewards.answer import Answer
from tiltyard.rewards.rubric import Scores, as_rubric
from tiltyard.rows.loading import load_rows
from tiltyard.rows.prompt import Prompts
from tiltyard.rows.table import Rows
from tiltyard.tools.messages import begun_answer, text_with_calls
from tiltyard.types import Message, Reply, Task, ToolSchema, Turn

REWARD_PARTS = "reward_parts"
"""The key in `info` that has the score of each part of the rubric."""

RETRY = "That is not right. Try again."


class QADatasetEnv:
    """Asks the questions of data rows.

    A `TurnEnv`, so that a prompt of many messages reaches the model's chat template as it is; and a text environment
    (`reset`, `step`) for those who drive it by hand or serve it. It is reproducible from (seed, row_index), and an
    instance plays one episode at a time: the rows and the rubric can be shared, so that each episode has its own.

    Attributes:
        rows: What is trained on.
        held_out: What evaluation is on; None where there is nothing.
        max_turns: Answers of one episode.
        row: The row that was asked last.
    """

    def __init__(
        self,
        rows: Rows | Sequence[Mapping[str, Any]],
        rubric: Scores,
        *,
        prompt_template: Mapping[str, str] | None = None,
        held_out: Rows | Sequence[Mapping[str, Any]] | None = None,
        max_turns: int = 1,
        max_reward: float | None = None,
        retry: str = RETRY,
    ) -> None:
        """Check that the rows have what the prompt and the rubric ask for.

        Args:
            rows: What is trained on; `load_rows` makes them of files, and `split_rows` divides them.
            rubric: A rubric, or a function as `tiltyard.rewards.answer` says.
            prompt_template: The messages of the prompt, `system_0`, `user_1`, …, with columns in braces; None takes
                the column `messages`, `prompt` or `question`.
            held_out: What `evaluation` serves.
            max_turns: Answers of one episode. With more than one, an answer that earns less than `max_reward` is told
                `retry`, and only the last answer counts.
            max_reward: What an answer earns that is wholly right; says what a success is.
            retry: See `max_turns`.

        Raises:
            ConfigurationError: A column is missing, a prompt cannot be made, or two arguments do not go together.
        """
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigurationError(f"max_turns must be a whole number >= 1, got {max_turns!r}")
        if max_reward is not None and not (isinstance(max_reward, int | float) and math.isfinite(max_reward)):
            raise ConfigurationError(f"max_reward must be a finite number or None, got {max_reward!r}")
        if max_turns > 1 and max_reward is None:
            raise ConfigurationError(
                f"max_turns={max_turns} needs max_reward: an answer is asked for again until it earns that much"
            )
        self.rows = rows if isinstance(rows, Rows) else load_rows(rows)
        if held_out is not None and not len(held_out):
            held_out = None
        self.held_out = held_out if isinstance(held_out, Rows) or held_out is None else load_rows(held_out)
        self.max_turns = max_turns
        self.max_reward = max_reward
        self.row: Mapping[str, Any] = {}
        self._rubric = as_rubric(rubric)
        self._retry = retry
        self._prompts = Prompts.of(self.rows, prompt_template)
        self._conversation: list[Message] = []
        self._begun = ""
        self._turn = 0
        self._over = True
        self._rubric.check(self.rows.columns)
        if self.held_out is not None:
            Prompts.of(self.held_out, prompt_template)
            self._rubric.check(self.held_out.columns)

    @property
    def dataset_size(self) -> int:
        """How many rows there are to train on; those of evaluation are `evaluation_size`."""
        return len(self.rows)

    @property
    def evaluation_size(self) -> int | None:
        """How many rows evaluation has; None where there are none."""
        return None if self.held_out is None else len(self.held_out)

    def start(self, task: Task) -> Turn:
        """Ask the row of a task; see `reset`.

        Raises:
            ConfigurationError: There is no such row, or it makes no prompt.
        """
        part = self.held_out if task.evaluation else self.rows
        if part is None:
            raise ConfigurationError("evaluation was asked for, and there are no held-out rows; give held_out")
        index = self._index(task, len(part))
        self.row = part[index]
        messages = self._prompts.messages(self.row, f"row {index} of {part.name}")
        self._begun = begun_answer(messages)
        self._conversation = messages[:-1] if self._begun else list(messages)
        self._turn = 0
        self._over = False
        return Turn(tuple(messages), None, info={"row_index": index, "evaluation": task.evaluation})

    def reply(self, reply: Reply) -> Turn:
        """Score one answer.

        Raises:
            EpisodeOverError: The episode is over, or was never started.
            RolloutError: The rubric failed.
        """
        if self._over:
            raise EpisodeOverError("QADatasetEnv was answered after its episode ended; start another first")
        return self._scored(written(reply))

    def reset(
        self, seed: int | None = None, *, row_index: int | None = None, evaluation: bool | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask one row.

        Args:
            seed: Chooses the row where none is named; the same seed chooses the same.
            row_index: Which row of its part.
            evaluation: Whether it is a held-out one.

        Returns:
            The prompt as one text, and an `info` with `row_index`, `evaluation` and, as `messages`, the prompt itself.

        Raises:
            ConfigurationError: There is no such row, or it makes no prompt.
        """
        turn = self.start(Task(seed=seed, row_index=row_index, evaluation=bool(evaluation)))
        text = "\n\n".join(str(message["content"]) for message in turn.messages)
        return text, {**turn.info, "messages": list(turn.messages)}

    def step(self, action: str) -> tuple[str, float | None, bool, bool, dict[str, Any]]:
        """Score one answer, which is what follows the prompt.

        Raises:
            EpisodeOverError: The episode is over, or was never started.
            RolloutError: The rubric failed.
        """
        begun = self._begun if self._turn == 0 else ""
        turn = self.reply(Reply(begun + action, written=begun + action))
        return "".join(message["content"] for message in turn.messages), turn.reward, turn.done, False, dict(turn.info)

    def tools(self) -> list[ToolSchema]:
        """There are none."""
        return []

    def close(self) -> None:
        """There is nothing to give back."""

    def _index(self, task: Task, size: int) -> int:
        index = task.row_index
        if index is None:
            # A text seeds the generator the same on every machine; the choice is no secret.
            return random.Random(None if task.seed is None else f"row:{task.seed}").randrange(size)  # noqa: S311
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
            kind = "held-out" if task.evaluation else "training"
            raise ConfigurationError(f"there is no {kind} row {index!r}: there are {size}, counted from 0")
        return index

    def _scored(self, completion: str) -> Turn:
        answer = Answer(completion, self.row, tuple(self._conversation))
        verdict = self._rubric.score(answer)
        self._turn += 1
        right = None if self.max_reward is None or verdict.reward is None else verdict.reward >= self.max_reward
        self._over = self._turn == self.max_turns or right is not False
        info: dict[str, Any] = {REWARD_PARTS: dict(verdict.parts)}
        if right is not None:
            info["success"] = right
        if self._over:
            return Turn((), verdict.reward, done=True, info=info)
        retry: Message = {"role": "user", "content": self._retry}
        self._conversation = [*answer.messages, retry]
        return Turn((retry,), 0.0, info=info)


def written(reply: Reply) -> str:
    """All that a reply wrote, thinking included, also where a server gave the thinking apart."""
    if reply.written is not None:
        return reply.written
    text = text_with_calls(reply)
    return f"<think>\n{reply.reasoning}\n</think>\n\n{text}" if reply.reasoning else text
