"""Messages to token ids and back: what opens an episode, what follows a sampled turn, what the turn says."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.errors import TemplateError
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.families import family_renderer
from tiltyard.tokens.probes import PROBE_TOOL, TEXT_SHAPES, TOOL_SHAPES, check_bridges, rewritten_history
from tiltyard.tokens.template import ChatTemplate
from tiltyard.tools.parsing import THINK_CLOSE, THINK_OPEN, TextParser, parse_hermes
from tiltyard.types import FinishReason, Message, Reply, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

READ_BY_THE_PARSER = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<function", "</function", "<parameter")
"""Special tokens that begin like this are kept when a reply is decoded; others are no part of its text."""


class Renderer(Protocol):
    """Turns messages into token ids, and sampled ids into a reply. Ids that are there are never encoded again."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end a sampled turn."""
        ...

    @property
    def rewrites_history(self) -> str:
        """What a full render would change in earlier turns, in words; "" for nothing.

        The ids stay append-only either way: what was sampled stays in the context as it was sampled.
        """
        ...

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """The whole conversation up to the generation prompt.

        Raises:
            TemplateError: The chat template refuses the conversation.
        """
        ...

    def bridge(
        self,
        sampled_tail: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """The ids that follow a sampled turn: the end of the turn, the new messages, the next generation prompt.

        `sampled_tail` is the end of what was sampled (at least its last id; empty for an empty turn). The end
        token is part of the bridge only where the tail lacks it.

        Raises:
            TemplateError: The chat template refuses the new messages.
        """
        ...

    def parse(self, ids: Sequence[int], finish_reason: FinishReason, *, tools: Sequence[ToolSchema] = ()) -> Reply:
        """The reply that sampled ids are. `tools` types the arguments of families that write them untyped."""
        ...


class TemplateRenderer:
    """A renderer derived from the tokenizer's chat template.

    The end of a turn is found by rendering a marked answer. Bridges are compared with full renders of several
    conversation shapes at construction. What the template cannot say is folded (see `Rules`).

    Raises:
        TemplateError: There is no chat template, or a bridge differs from the full render.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        tools: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        parser: TextParser = parse_hermes,
    ) -> None:
        self.encoder = Encoder(tokenizer)
        self.template = ChatTemplate(tokenizer, self.encoder, chat_template_kwargs)
        special = self.encoder.special_ids
        after = self.template.after_answer((), generation_prompt=False)
        end = self.encoder.first_special(after)
        self._before_end = after[: end.start()] if end else ""
        self._end_id = special[end[0]] if end else None
        reply, calls = self._first_of_bridge(TEXT_SHAPES[0].new), self._first_of_bridge(TOOL_SHAPES[0].new)
        # A turn of calls may have an end of its own. In history a turn may end otherwise than the last one does. Where
        # nothing ends a turn, the header of the next message does.
        ends = [
            tokenizer.eos_token_id,
            reply if self._end_id is None else self._end_id,
            calls if calls != reply else None,
        ]
        self.stop_ids = frozenset(index for index in ends if isinstance(index, int))
        self._starts = frozenset(index for index in (self._end_id, reply, calls) if index is not None)
        self.bridge_starts = self._starts if end else frozenset()
        self._unread = frozenset(index for text, index in special.items() if not text.startswith(READ_BY_THE_PARSER))
        self._parse = parser
        self._thinking_open = self._opens_thinking()
        self._bridges_show_tools = self._shows_tools_in_bridges()
        self._no_tools: TemplateError | None = None
        check_bridges(self, self.full, TEXT_SHAPES, self.encoder.decode, self.bridge_starts)
        try:
            check_bridges(self, self.full, TOOL_SHAPES, self.encoder.decode, self.bridge_starts)
        except TemplateError as error:
            if tools:
                raise
            self._no_tools = error  # raised when tools turn up after all
        self.rewrites_history = rewritten_history(self.full, self._end_id)

    def full(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), generation_prompt: bool = True
    ) -> list[int]:
        """The ids of a whole conversation, as the template renders it now."""
        return self.encoder.encode(self.template.render(messages, tools, generation_prompt=generation_prompt))

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """See `Renderer`."""
        if tools and self._no_tools is not None:
            raise self._no_tools
        return self.full(messages, tools)

    def bridge(
        self,
        sampled_tail: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """See `Renderer`."""
        shown = tools if self._bridges_show_tools else ()
        text = self.template.after_answer(new, shown, generation_prompt=generation_prompt)
        ids = self.encoder.encode(text.removeprefix(self._before_end))
        last = sampled_tail[-1] if len(sampled_tail) else None
        ended = last is not None and ids[:1] and ids[0] in self._starts and last in (self._end_id, ids[0])
        return ids[1:] if ended else ids

    def parse(self, ids: Sequence[int], finish_reason: FinishReason, *, tools: Sequence[ToolSchema] = ()) -> Reply:
        """See `Renderer`; `tools` is not needed, as the arguments of text parsers carry their own types."""
        said = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        text = self.encoder.decode([index for index in said if index not in self._unread])
        parsed = self._parse(text, finish_reason, thinking_open=self._thinking_open)
        return Reply(
            text=parsed.text,
            tool_calls=parsed.calls,
            reasoning=parsed.reasoning,
            finish_reason=finish_reason,
            token_ids=tuple(ids),
        )

    def _first_of_bridge(self, new: Sequence[Message]) -> int | None:
        """The special token that a bridge to these messages begins with; None where it begins with text."""
        text = self.template.after_answer(new).removeprefix(self._before_end)
        first = self.encoder.first_special(text)
        return self.encoder.special_ids[first[0]] if first and first.start() == 0 else None

    def _opens_thinking(self) -> bool:
        """Whether the generation prompt ends inside a `<think>` block, so that the sampled text begins in it."""
        _, found, rest = self.template.render([{"role": "user", "content": "x"}]).rpartition(THINK_OPEN)
        return bool(found) and THINK_CLOSE not in rest

    def _shows_tools_in_bridges(self) -> bool:
        shapes = [shape.new for shape in (*TEXT_SHAPES, *TOOL_SHAPES)]
        after = self.template.after_answer
        return any(after(new) != after(new, [PROBE_TOOL]) for new in shapes)


def make_renderer(
    tokenizer: "PreTrainedTokenizerBase",
    *,
    tools: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    parser: TextParser = parse_hermes,
) -> Renderer:
    """The renderer for a tokenizer: its family's where that is known and agrees, else one from the template.

    Warns once when the template rewrites earlier turns; the ids stay append-only even so.

    Args:
        tokenizer: With the chat template that the model was trained with.
        tools: The environment has tools: a template in which their results cannot be put is an error now.
        chat_template_kwargs: Passed to the template, such as `enable_thinking`.
        parser: Reads the calls and the thinking in a sampled text; families that the `renderers` package
            parses from ids do without.

    Raises:
        TemplateError: There is no usable chat template; the message names the cure.
    """
    derived = TemplateRenderer(tokenizer, tools=tools, chat_template_kwargs=chat_template_kwargs, parser=parser)
    if derived.rewrites_history:
        warnings.warn(
            f"the chat template of {tokenizer.name_or_path!r} rewrites history: {derived.rewrites_history}. The "
            "sampled ids are kept as they are, so the model goes on to see them and is trained on what it saw",
            stacklevel=2,
        )
    return family_renderer(tokenizer, derived, chat_template_kwargs) or derived
