"""Messages to token ids and back: what opens an episode, what follows a sampled turn, what the turn says."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.errors import TemplateError
from tiltyard.tokens.encoding import Encoder
from tiltyard.tokens.families import family_renderer
from tiltyard.tokens.probes import PROBE_TOOL, TEXT_SHAPES, TOOL_SHAPES, check_bridges, rewritten_history
from tiltyard.tokens.template import ChatTemplate
from tiltyard.tools.messages import begun_answer
from tiltyard.tools.parsing import FAMILIES, HERMES, Family, family_named
from tiltyard.types import FinishReason, Message, Reply, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

        Where it ends with an answer of the assistant, that is the beginning of the answer to come: its tokens follow
        the generation prompt, and nothing ends the turn.

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

    Attributes:
        family: Reads the calls and the thinking in what was sampled. Hermes where the template does not speak
            of tools, as that is the form in which the prompt then asks for calls; None where the template's
            own form is not known: then showing tools is an error.

    Raises:
        TemplateError: There is no chat template, or a bridge differs from the full render.
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
        self.encoder = Encoder(tokenizer)
        given = None if parser is None else family_named(parser)
        self.template = ChatTemplate(tokenizer, self.encoder, chat_template_kwargs, family=given)
        self.family = self.template.family
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
        self._starts = frozenset(index for index in (self._end_id, reply, calls) if index is not None)
        self.bridge_starts = self._starts if end else frozenset()
        # Special tokens are no part of a reply's text, but for those that its parser reads.
        self._reader = self.family or HERMES
        self._unread = frozenset(index for text, index in special.items() if not self._reader.reads(text))
        own = [special[token] for token in self._reader.stops if token in special]
        self.stop_ids = frozenset(index for index in ends if isinstance(index, int) and index in self._unread) | {*own}
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
        if self.family is None:
            self._no_tools = _unknown_family(tokenizer.name_or_path)
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
        begun = begun_answer(messages)
        if not begun:
            return self.full(messages, tools)
        return self.full(messages[:-1], tools) + self.encoder.encode(self.encoder.hide(begun))

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
        """See `Renderer`."""
        said = ids[:-1] if ids and ids[-1] in self.stop_ids and ids[-1] in self._unread else ids
        text = self.encoder.decode([index for index in said if index not in self._unread])
        parsed = self._reader.parse(text, finish_reason, thinking_open=self._thinking_open, tools=tools)
        return Reply(
            text=parsed.text,
            tool_calls=parsed.calls,
            reasoning=parsed.reasoning,
            finish_reason=finish_reason,
            token_ids=tuple(ids),
            written=text,
        )

    def _first_of_bridge(self, new: Sequence[Message]) -> int | None:
        """The special token that a bridge to these messages begins with; None where it begins with text."""
        text = self.template.after_answer(new).removeprefix(self._before_end)
        first = self.encoder.first_special(text)
        return self.encoder.special_ids[first[0]] if first and first.start() == 0 else None

    def _opens_thinking(self) -> bool:
        """Whether the generation prompt ends inside the thinking, so that the sampled text begins in it."""
        opens, closes = self._reader.think
        _, found, rest = self.template.render([{"role": "user", "content": "x"}]).rpartition(opens)
        return bool(found) and closes not in rest

    def _shows_tools_in_bridges(self) -> bool:
        shapes = [shape.new for shape in (*TEXT_SHAPES, *TOOL_SHAPES)]
        after = self.template.after_answer
        return any(after(new) != after(new, [PROBE_TOOL]) for new in shapes)


def make_renderer(
    tokenizer: "PreTrainedTokenizerBase",
    *,
    tools: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    parser: str | Family | None = None,
) -> Renderer:
    """The renderer for a tokenizer: its family's where that is known and agrees, else one from the template.

    Warns once when the template rewrites earlier turns; the ids stay append-only even so.

    Args:
        tokenizer: With the chat template that the model was trained with.
        tools: The environment has tools: a template in which their results cannot be put is an error now.
        chat_template_kwargs: Passed to the template, such as `enable_thinking`.
        parser: Reads the calls and the thinking in a sampled text: a family's name (see
            `tiltyard.tools.parsing.FAMILIES`) or one of your own. None recognises it from the template.

    Raises:
        TemplateError: There is no usable chat template, or there are tools and its family is not known;
            the message names the cure.
        ConfigurationError: There is no parser of the name that was given.
    """
    derived = TemplateRenderer(tokenizer, tools=tools, chat_template_kwargs=chat_template_kwargs, parser=parser)
    if derived.rewrites_history:
        warnings.warn(
            f"the chat template of {tokenizer.name_or_path!r} rewrites history: {derived.rewrites_history}. The "
            "sampled ids are kept as they are, so the model goes on to see them and is trained on what it saw",
            stacklevel=2,
        )
    known = family_renderer(tokenizer, derived, chat_template_kwargs)
    if tools and known is None and derived.family is None:
        raise _unknown_family(tokenizer.name_or_path)
    return known or derived


def _unknown_family(name: str) -> TemplateError:
    return TemplateError(
        f"how the chat template of {name!r} writes tool calls is not known, so that no call would be read; name its "
        f"family with make_renderer(parser=…) or model.tool_parser in a manifest, one of: {', '.join(FAMILIES)}"
    )
