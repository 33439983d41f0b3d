"""Whole conversations as the tokens of an episode in which the model said exactly this."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiltyard.errors import TemplateError
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.renderer import TemplateRenderer
from tiltyard.tokens.template import text_of
from tiltyard.tokens.transcript import Transcript
from tiltyard.tools.parsing import Family
from tiltyard.types import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


CHARS_BEFORE = 10
"""How much of what two texts have in common an error shows before they differ."""


_NEXT: tuple[Message, ...] = ({"role": "user", "content": "x"},)


class ConversationEncoder:
    """Turns a conversation into the transcript that a rollout would have kept of it.

    What an assistant turn consists of is what the template adds to its own generation prompt when that turn ends the
    conversation, up to the token that ends the turn; what follows a turn is the renderer's bridge. So the mask is made
    with the tokens, and nothing is searched for in them. Each piece is encoded apart, as it is when the model samples:
    no token merges across the edge of a turn. The whole is compared with a full render, unless the template rewrites
    earlier turns: then the tokens stay append-only, as in a rollout.

    Attributes:
        encoder: Text to ids and back.
        rewrites_history: What a full render would change in earlier turns, in words; "" for nothing.

    Raises:
        TemplateError: There is no chat template, or what follows a turn cannot be told from it.
        ConfigurationError: There is no parser of the name that was given.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        tools: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        parser: str | Family | None = None,
    ) -> None:
        self._renderer = TemplateRenderer(
            tokenizer, tools=tools, chat_template_kwargs=chat_template_kwargs, parser=parser
        )
        self._name = tokenizer.name_or_path
        self.encoder: Encoder = self._renderer.encoder
        self.rewrites_history = self._renderer.rewrites_history
        self._after = self._renderer.template.after_answer((), generation_prompt=False)
        end = self.encoder.first_special(self._after)
        self._behind = self._after[end.end() :] if end else ""

    def transcript(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, start: int = 0
    ) -> Transcript:
        """The tokens of a conversation; its mask is True in the assistant turns.

        Args:
            messages: The conversation.
            tools: The schemas that the model is shown.
            start: Assistant messages before this one are part of the prompt, as the template renders them. Where the
                message right before it is the assistant's, and it is too, the prompt has begun the answer.

        Raises:
            TemplateError: The template refuses the conversation, or its turns cannot be told apart; or there is no
                assistant message from `start` on.
        """
        messages, begun = _joined(messages, start)
        start -= bool(begun)
        turns = [at for at, message in enumerate(messages) if at >= start and message["role"] == "assistant"]
        if not turns:
            raise TemplateError(f"there is no assistant message from message {start} on, so nothing could be trained")
        transcript, pieces = Transcript(), list[int]()
        opening: list[Message] = [*messages[: turns[0]]]
        if begun:
            opening.append({"role": "assistant", "content": begun})
        transcript.observe(self._renderer.opening(opening, tools))
        pieces += transcript.ids
        for at, following in zip(turns, [*turns[1:], len(messages)], strict=True):
            new = messages[at + 1 : following]
            said = self.encoder.encode(self._said(messages[: at + 1], tools, begun if at == turns[0] else ""))
            if not self._renderer.bridge_starts:
                said.append(self._header_that_ends(new))
            transcript.sample(said, None)
            last = following == len(messages)
            if last and not new:
                pieces += said if self._renderer.bridge_starts else said[:-1]
                break
            transcript.observe(self._renderer.bridge(said, new, tools, generation_prompt=not last))
            pieces += said[:-1] + self._renderer.bridge((), new, tools, generation_prompt=not last)
        if not self.rewrites_history:
            self._compare(pieces, messages, tools)
        return transcript

    def _said(self, messages: Sequence[Message], tools: Sequence[ToolSchema], begun: str) -> str:
        """What the last message says as the model would, after what is begun of it, the end of the turn included."""
        template = self._renderer.template
        prompt = template.render(messages[:-1], tools) + self.encoder.hide(begun)
        whole = template.render(messages, tools, generation_prompt=False)
        if whole.startswith(prompt):
            text = whole[len(prompt) :]
            if text.endswith(self._after):
                return text[: len(text) - len(self._behind)]
            ends = [match.end() for match in self.encoder.specials_in(text)]
            if ends and not text[ends[-1] :].strip():
                return text[: ends[-1]]
            raise self._endless(text)
        same = _first_difference(prompt, whole)
        opened, said = prompt[same:], self.encoder.hide(text_of(messages[-1].get("content")))
        if opened and said.startswith(opened) and not messages[-1].get("tool_calls"):
            # The template keeps no thinking, but its prompt begins one: the model went on from there.
            return said[len(opened) :] + self._after.removesuffix(self._behind)
        raise TemplateError(
            f"the chat template of {self._name!r} does not write an assistant turn after its generation prompt: "
            f"the prompt ends in {self._shown(opened)}, the conversation goes on with {self._shown(whole[same:])}, so "
            "what the model is to say cannot be told apart; begin the answers with what the prompt ends in, or set "
            "chat_template_kwargs (such as enable_thinking: false) or tokenizer.chat_template so that the two agree"
        )

    def _header_that_ends(self, new: Sequence[Message]) -> int:
        """What stops the sampling where nothing ends a turn: the first token of the next message."""
        first = self._renderer.bridge((), new or _NEXT)[0]
        if first not in self._renderer.stop_ids:
            raise self._endless(self.encoder.decode([first]))
        return first

    def _endless(self, text: str) -> TemplateError:
        return TemplateError(
            f"the chat template of {self._name!r} ends an assistant turn with {self._shown(text[-40:])}, which no "
            "special token ends, so that the model would not learn to stop; set tokenizer.chat_template to a template "
            "that ends each turn with one"
        )

    def _compare(self, ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """Hold the pieces against the full render, as text: at the edge of a turn the ids may well be others."""
        whole = self.encoder.decode(self._renderer.full(messages, tools, generation_prompt=False))
        made = self.encoder.decode(ids)
        if not whole.startswith(made) or whole[len(made) :].strip() not in ("", self._behind.strip()):
            at = max(0, _first_difference(made, whole) - CHARS_BEFORE)
            raise TemplateError(
                f"the chat template of {self._name!r} renders this conversation as a whole otherwise than turn by "
                f"turn: expected {self._shown(whole[at:])}, got {self._shown(made[at:])}; set "
                "tokenizer.chat_template to a template that renders a message the same way wherever it stands"
            )

    def _shown(self, text: str) -> str:
        return repr(self.encoder.show(text[:60]))


def _joined(messages: Sequence[Message], start: int) -> tuple[Sequence[Message], str]:
    """The conversation with an answer that its prompt has begun as one message, and what was begun of it."""
    if not 0 < start < len(messages) or {message["role"] for message in messages[start - 1 : start + 1]} != {
        "assistant"
    }:
        return messages, ""
    begun, answer = (text_of(message.get("content")) for message in messages[start - 1 : start + 1])
    whole: Message = {**messages[start], "content": begun + answer}
    return [*messages[: start - 1], whole, *messages[start + 1 :]], begun


def _first_difference(one: str, other: str) -> int:
    """Where two texts begin to differ; the length of the shorter one when they do not before."""
    pairs = zip(one, other, strict=False)
    return next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(one), len(other)))
