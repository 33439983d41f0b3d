"""Rows of supervised data as token ids and the mask of what is learned; what does not fit is counted by its reason."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from tiltyard.errors import ConfigurationError, TemplateError
from tiltyard.tokens.conversation import ConversationEncoder
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.batch import TrainRow
from tiltyard.train.row_formats import Chat, Preference, Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns = Literal["all", "last"]
TooLong = Literal["drop", "cut"]


class Dropped(StrEnum):
    """Why a row is not trained on."""

    TOO_LONG = "too_long"
    NOTHING_TO_TRAIN = "nothing_to_train"
    SAME_ANSWERS = "same_answers"
    PROMPTS_DIFFER = "prompts_differ"

    @property
    def meaning(self) -> str:
        """The reason in words."""
        return _MEANINGS[self]


_MEANINGS = {
    Dropped.TOO_LONG: "longer than max_length",
    Dropped.NOTHING_TO_TRAIN: "no token of an answer to train (no assistant's message, an empty one, or all of it "
    "beyond max_length)",
    Dropped.SAME_ANSWERS: "chosen and rejected are the same",
    Dropped.PROMPTS_DIFFER: "chosen and rejected differ before the first answer",
}


@dataclass(frozen=True, slots=True)
class RowSettings:
    """How rows become tokens.

    Attributes:
        turns: Which assistant turns are learned: "all" of a conversation, or the "last". A pair learns all of both
            answers.
        max_length: The most tokens of a row; None sets no bound.
        too_long: A longer row is left out ("drop"), or loses its end ("cut"). The prompt of a pair is never cut.
        plain_text: Texts are trained on as they are, special tokens too, and the end token put behind; otherwise a
            prompt becomes a user's message and an answer an assistant's. A tokenizer without a chat template leaves
            no choice.
        chat_template_kwargs: Passed to the chat template.
        tool_parser: How the template writes tool calls, by the family's name; None recognises it.
    """

    turns: Turns = "all"
    max_length: int | None = None
    too_long: TooLong = "drop"
    plain_text: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_parser: str | None = None

    def __post_init__(self) -> None:
        if self.turns not in get_args(Turns):
            raise ConfigurationError(f"turns must be 'all' or 'last', got {self.turns!r}")
        if self.too_long not in get_args(TooLong):
            raise ConfigurationError(f"too_long must be 'drop' or 'cut', got {self.too_long!r}")
        if self.max_length is not None and self.max_length < 2:
            raise ConfigurationError(f"max_length must be >= 2 or None, got {self.max_length!r}")


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence to learn; ids and mask have one length, and a token of the answer is the last.

    Attributes:
        row_id: The row, for messages.
        ids: Token ids.
        mask: 1 where the token is learned; never at the first token, which nothing predicts.
        cut: Its end was beyond `max_length`.
    """

    row_id: str
    ids: "array[int]"
    mask: bytes
    cut: bool = False

    @property
    def trained(self) -> int:
        """How many tokens are learned."""
        return sum(self.mask)

    def row(self) -> TrainRow:
        """The same as the packing takes it."""
        count = len(self.ids)
        mask = tuple(map(bool, self.mask))
        return TrainRow(self.row_id, tuple(self.ids), mask, (None,) * count, (0.0,) * count, self.trained)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, whose ids both begin with."""

    row_id: str
    chosen: Example
    rejected: Example

    @property
    def cut(self) -> bool:
        """Whether either lost its end."""
        return self.chosen.cut or self.rejected.cut


class RowEncoder:
    """Makes examples of rows that were read."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", settings: RowSettings) -> None:
        self.settings = settings
        self.plain = settings.plain_text or not tokenizer.chat_template
        self._tokenizer = tokenizer

    @cached_property
    def conversations(self) -> ConversationEncoder:
        """Encodes messages; made when the first conversation comes."""
        kwargs, parser = self.settings.chat_template_kwargs, self.settings.tool_parser
        return ConversationEncoder(self._tokenizer, chat_template_kwargs=kwargs, parser=parser)

    @cached_property
    def encoder(self) -> Encoder:
        """Encodes plain text."""
        return Encoder(self._tokenizer)

    def example(self, read: Chat | Text, row_id: str) -> Example | Dropped:
        """Make an example, or say why there is none.

        Raises:
            TemplateError: The chat template cannot be used for this conversation; the message names the row.
        """
        found = self._made(read, row_id, self.settings.turns)
        return found if isinstance(found, Dropped) else self._bounded(found, 0)

    def pair(self, read: Preference, row_id: str) -> Pair | Dropped:
        """Make a pair, or say why there is none.

        Raises:
            TemplateError: As in `example`.
        """
        if isinstance(read.chosen, Text) and isinstance(read.rejected, Text) and read.chosen.prompt is None:
            whole = [self._end(self.encoder.encode_prompt(text.answer)) for text in (read.chosen, read.rejected)]
            made = _divided(whole, row_id)
        else:
            made = [self._made(part, f"{row_id} ({name})", "all") for name, part in _parts(read)]
        if dropped := next((each for each in made if isinstance(each, Dropped)), None):
            return dropped
        examples = [each for each in made if isinstance(each, Example)]
        if examples[0].ids == examples[1].ids:
            return Dropped.SAME_ANSWERS
        prompts = {example.mask.find(1): example.ids[: example.mask.find(1)] for example in examples}
        if len(prompts) > 1 or examples[0].ids[: next(iter(prompts))] != examples[1].ids[: next(iter(prompts))]:
            return Dropped.PROMPTS_DIFFER
        bounded = [self._bounded(example, next(iter(prompts))) for example in examples]
        if dropped := next((each for each in bounded if isinstance(each, Dropped)), None):
            return dropped
        chosen, rejected = (each for each in bounded if isinstance(each, Example))
        return Dropped.SAME_ANSWERS if chosen.ids == rejected.ids else Pair(row_id, chosen, rejected)

    def _made(self, read: Chat | Text, row_id: str, turns: Turns) -> Example | Dropped:
        if isinstance(read, Text):
            prompt = self.encoder.encode_prompt(read.prompt or "")
            answer = self.encoder.encode(read.answer) if read.answer else []
            return _example(row_id, [*prompt], self._end(answer) if answer else [])
        messages = (*read.prompt, *read.answer)
        said = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at >= len(read.prompt)]
        if not said:
            return Dropped.NOTHING_TO_TRAIN
        start = said[-1] if turns == "last" else len(read.prompt)
        try:
            transcript = self.conversations.transcript(messages, read.tools, start=start)
        except TemplateError as error:
            raise TemplateError(f"row {row_id}: {error}") from error
        return _from_transcript(transcript, row_id)

    def _end(self, ids: list[int]) -> list[int]:
        """Ids with the end token behind them, once."""
        end = self._tokenizer.eos_token_id
        return [*ids, end] if isinstance(end, int) and ids[-1:] != [end] else ids

    def _bounded(self, example: Example, kept: int) -> Example | Dropped:
        """The example within `max_length`; what stands before `kept` must fit whole."""
        most = self.settings.max_length
        if most is None or len(example.ids) <= most:
            return example
        if self.settings.too_long == "drop" or kept >= most:
            return Dropped.TOO_LONG
        end = example.mask.rfind(1, 0, most) + 1
        if not end:
            return Dropped.NOTHING_TO_TRAIN
        return Example(example.row_id, example.ids[:end], example.mask[:end], cut=True)


def _parts(read: Preference) -> tuple[tuple[str, Chat | Text], tuple[str, Chat | Text]]:
    return ("chosen", read.chosen), ("rejected", read.rejected)


def _example(row_id: str, prompt: Sequence[int], answer: Sequence[int]) -> Example | Dropped:
    ids = array("i", [*prompt, *answer])
    mask = bytearray(len(prompt)) + bytearray([1]) * len(answer)
    if mask:
        mask[0] = 0
    return Example(row_id, ids, bytes(mask)) if any(mask) else Dropped.NOTHING_TO_TRAIN


def _from_transcript(transcript: Transcript, row_id: str) -> Example | Dropped:
    mask = bytes(transcript.mask)
    end = mask.rfind(1) + 1
    return Example(row_id, array("i", transcript.ids[:end]), mask[:end]) if end else Dropped.NOTHING_TO_TRAIN


def _divided(whole: Sequence[Sequence[int]], row_id: str) -> list[Example | Dropped]:
    """Two texts without a prompt: what their ids have in common from the start is it, and no token is cut in two."""
    pairs = zip(*whole, strict=False)
    same = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), min(map(len, whole)))
    if same == 0:
        return [Dropped.PROMPTS_DIFFER]
    names = ("chosen", "rejected")
    return [_example(f"{row_id} ({name})", ids[:same], ids[same:]) for name, ids in zip(names, whole, strict=True)]
