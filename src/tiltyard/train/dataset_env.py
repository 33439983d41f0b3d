"""Rows to learn from without playing: what a run of SFT or of preference training is given."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from tiltyard.errors import ConfigurationError
from tiltyard.rows import Rows, load_rows, split_rows
from tiltyard.train.examples import Dropped, Example, Pair, RowEncoder, RowSettings
from tiltyard.train.row_formats import PromptOf, check_columns, read_preference, read_sft

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Objective = Literal["sft", "preference"]
Made = Callable[[Mapping[str, Any], str], Example | Pair | Dropped]
"""Makes an example of a row, which has a name for messages, or says why there is none."""

RowSource = str | os.PathLike[str] | Rows | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What became of the rows of one part.

    Attributes:
        rows: All of them.
        used: Those that are trained on, or evaluated.
        dropped: How many are not, by reason.
        cut: How many of the used ones lost their end.
        tokens: Tokens of the used ones; a pair counts both of its sequences.
        trained_tokens: Those of them that are learned.
    """

    rows: int
    used: int
    dropped: Mapping[str, int]
    cut: int
    tokens: int
    trained_tokens: int

    def __str__(self) -> str:
        parts = [f"{self.used} of {self.rows} rows", f"{self.trained_tokens} of {self.tokens} tokens learned"]
        parts += [f"{count} left out: {Dropped(reason).meaning}" for reason, count in self.dropped.items()]
        return ", ".join(parts + ([f"{self.cut} cut at max_length"] if self.cut else []))


class DatasetEnv:
    """Rows as what is learned from them, with some held out.

    For "sft" a row is a conversation (`messages`), or a `prompt` and its answer (`response_column`, or `completion`),
    each as text or as messages; for "preference" it has `chosen` and `rejected`, with the `prompt` beside them or at
    the beginning of both. `tools` holds the schemas of a conversation with tool calls.

    Attributes:
        objective: What the rows are for.
        train: The examples (pairs for "preference") that are trained on.
        held_out: Those that are only evaluated.
        counts: What became of the rows, by part: "train" and "held_out".
        name: Where the rows came from.
        fingerprint: A hash of every token and mask: of the rows, the template and the settings.
    """

    def __init__(
        self,
        rows: RowSource,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        objective: Objective,
        response_column: str = "response",
        settings: RowSettings = RowSettings(),  # noqa: B008  # frozen
        prompt_of: PromptOf | None = None,
        train_test_split: float = 0.9,
        seed: int = 0,
    ) -> None:
        """Read and encode all rows.

        Args:
            rows: What `load_rows` takes, or its result.
            tokenizer: Of the model that learns.
            objective: "sft" or "preference".
            response_column: The answer's column, for "sft".
            settings: How rows become tokens.
            prompt_of: Makes the messages of a row's prompt, in place of the column `prompt`.
            train_test_split: The share of the rows that is trained on; 1 holds out none.
            seed: What the division derives from.

        Raises:
            ConfigurationError: The rows have no known form, or nothing in them can be trained; the message says why.
            TemplateError: The chat template cannot be used for them.
        """
        if objective not in ("sft", "preference"):
            raise ConfigurationError(f"objective must be 'sft' or 'preference', got {objective!r}")
        loaded = rows if isinstance(rows, Rows) else load_rows(rows)
        check_columns(loaded.columns, objective, response_column, loaded.name, prompt=prompt_of is not None)
        self.objective: Objective = objective
        self.name = loaded.name
        self.encoder = RowEncoder(tokenizer, settings)
        made = self._made_by(response_column, prompt_of)
        split = split_rows(loaded, train_test_split, seed=seed)
        parts = {"train": split.train, "held_out": split.held_out}
        found = {part: _encoded(part, given, made) for part, given in parts.items()}
        self.train, self.held_out = (tuple(examples) for examples, _ in found.values())
        self.counts = {part: counts for part, (_, counts) in found.items()}
        if not self.train:
            raise ConfigurationError(
                f"nothing can be trained on in {self.name}: {self.counts['train']}; "
                "look at the rows, or change max_length or too_long"
            )
        self.fingerprint = _fingerprint((*self.train, *self.held_out))

    def _made_by(self, response_column: str, prompt_of: PromptOf | None) -> Made:
        encoder, plain = self.encoder, self.encoder.plain
        if self.objective == "sft":
            return lambda row, row_id: encoder.example(read_sft(row, response_column, prompt_of, plain=plain), row_id)
        return lambda row, row_id: encoder.pair(read_preference(row, prompt_of, plain=plain), row_id)

    def longest(self) -> int:
        """The most tokens of one sequence."""
        return max(len(e.ids) for each in (*self.train, *self.held_out) for e in sequences(each))

    def shown(self, example: Example) -> str:
        """An example as text, with what is learned between ⟦ and ⟧."""
        text, start, decode = "", 0, self.encoder.encoder.decode
        for end in range(1, len(example.ids) + 1):
            if end == len(example.ids) or example.mask[end] != example.mask[start]:
                piece = decode(example.ids[start:end].tolist())
                text += f"⟦{piece}⟧" if example.mask[start] else piece
                start = end
        return text

    def as_dict(self) -> dict[str, Any]:
        """What a summary says of the rows."""
        return {"name": self.name, **{part: asdict(counts) for part, counts in self.counts.items()}}


def sequences(each: Example | Pair) -> tuple[Example, ...]:
    """The sequences of an example: itself, or the two of a pair."""
    return (each.chosen, each.rejected) if isinstance(each, Pair) else (each,)


def _encoded(
    part: str,
    rows: Rows | Sequence[Mapping[str, Any]],
    made: Made,
) -> tuple[list[Any], RowCounts]:
    used: list[Example | Pair] = []
    dropped: Counter[str] = Counter()
    for index, row in enumerate(rows):
        row_id = f"{part}[{index}]"
        try:
            found = made(row, row_id)
        except ConfigurationError as error:
            if row_id in str(error):
                raise
            raise type(error)(f"row {row_id}: {error}") from error
        if isinstance(found, Dropped):
            dropped[found.value] += 1
        else:
            used.append(found)
    every = [example for each in used for example in sequences(each)]
    return used, RowCounts(
        rows=len(rows),
        used=len(used),
        dropped=dict(dropped),
        cut=sum(each.cut for each in used),
        tokens=sum(len(example.ids) for example in every),
        trained_tokens=sum(example.trained for example in every),
    )


def _fingerprint(examples: Sequence[Example | Pair]) -> str:
    digest = hashlib.sha256()
    for each in examples:
        for example in sequences(each):
            digest.update(f"{each.row_id} {len(example.ids)} ".encode() + example.ids.tobytes() + example.mask)
    return digest.hexdigest()[:16]
