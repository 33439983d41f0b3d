"""Conversations that a renderer must get right before a run: its bridges against full renders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiltyard.errors import TemplateError
from tiltyard.types import Message, ToolSchema

PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "qztoolqz",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"qzargqz": {"type": "string", "description": "Probe."}}},
    },
}
"""A schema for rendering; its name occurs in no template."""

FullRender = Callable[[Sequence[Message], Sequence[ToolSchema], bool], list[int]]
"""Messages, tools and whether the generation prompt follows, to the ids of the whole conversation."""


class Bridging(Protocol):
    """The part of a renderer that is checked."""

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """See `Renderer`."""
        ...

    def bridge(
        self, sampled_tail: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[int]:
        """See `Renderer`."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """A conversation with an answer in it: what opened it, the answer, and what the environment said then."""

    name: str
    before: tuple[Message, ...]
    answer: Message
    new: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()


def _call(call_id: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": "qztoolqz", "arguments": '{"qzargqz": "x"}'}}


def _result(call_id: str) -> Message:
    return {"role": "tool", "content": "It is 7.", "tool_call_id": call_id, "name": "qztoolqz"}


_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_ASK: Message = {"role": "user", "content": "Which one?"}
_NEXT: Message = {"role": "user", "content": "Warmer. Again!"}
_ANSWER: Message = {"role": "assistant", "content": "The third."}
_ONE_CALL: Message = {"role": "assistant", "content": "", "tool_calls": [_call("qzcall001")]}
_TWO_CALLS: Message = {"role": "assistant", "content": "", "tool_calls": [_call("qzcall001"), _call("qzcall002")]}
_THOUGHT: Message = {"role": "assistant", "content": "<think>\nqzthoughtqz\n</think>\n\nThe third."}

TEXT_SHAPES = (
    Shape("user reply", (_ASK,), _ANSWER, (_NEXT,)),
    Shape("system message, user reply", (_SYSTEM, _ASK), _ANSWER, (_NEXT,)),
    Shape("third turn", (_SYSTEM, _ASK, _ANSWER, _NEXT), _ANSWER, (_NEXT,)),
    Shape("two user messages", (_ASK,), _ANSWER, (_NEXT, _ASK)),
    Shape("nothing new", (_ASK,), _ANSWER, ()),
)
TOOL_SHAPES = (
    Shape("tool result", (_SYSTEM, _ASK), _ONE_CALL, (_result("qzcall001"),), (PROBE_TOOL,)),
    Shape("two tool results", (_ASK,), _TWO_CALLS, (_result("qzcall001"), _result("qzcall002")), (PROBE_TOOL,)),
    Shape("user message after a tool result", (_ASK,), _ONE_CALL, (_result("qzcall001"), _NEXT), (PROBE_TOOL,)),
    Shape(
        "answer to a tool result", (_SYSTEM, _ASK, _ONE_CALL, _result("qzcall001")), _ANSWER, (_NEXT,), (PROBE_TOOL,)
    ),
    Shape("user reply with tools", (_SYSTEM, _ASK), _ANSWER, (_NEXT,), (PROBE_TOOL,)),
)
THINKING_SHAPES = (
    Shape("thinking before a user reply", (_ASK,), _THOUGHT, (_NEXT,)),
    Shape("thinking before a tool result", (_ASK,), {**_ONE_CALL, "content": _THOUGHT["content"]}, TOOL_SHAPES[0].new),
)


def check_bridges(
    renderer: Bridging,
    full: FullRender,
    shapes: Sequence[Shape],
    show: Callable[[list[int]], str],
    starts: frozenset[int] = frozenset(),
) -> None:
    """Compare what the renderer opens and bridges with full renders of the same conversations.

    Args:
        renderer: What is checked.
        full: The full render.
        shapes: The conversations.
        show: Ids as text, for the message.
        starts: The special tokens that a bridge may begin with; none when it begins with text.

    Raises:
        TemplateError: The renderer's ids are not those of the full render; the message shows both.
    """
    for shape in shapes:
        whole = full([*shape.before, shape.answer, *shape.new], shape.tools, True)
        bridge = renderer.bridge((), shape.new, shape.tools)
        tail = whole[len(whole) - len(bridge) :]
        if tail != bridge or (starts and bridge[0] not in starts):
            raise TemplateError(
                f"what follows a sampled turn cannot be told from this chat template ({shape.name}): expected "
                f"{show(tail)!r}, got {show(bridge)!r}; set tokenizer.chat_template to a template that renders a "
                "message the same way wherever it stands"
            )
        opening, expected = renderer.opening(shape.before, shape.tools), full(shape.before, shape.tools, True)
        if opening != expected:
            raise TemplateError(
                f"the opening of a conversation ({shape.name}) differs from the chat template: expected "
                f"{show(expected)!r}, got {show(opening)!r}"
            )


def rewritten_history(full: FullRender, end_id: int | None) -> str:
    """What later renders change in earlier turns, in words; "" when earlier turns stay as they were."""
    prompt = full((_ASK,), (), True)
    if full((_ASK, _ANSWER, _NEXT), (), True)[: len(prompt)] != prompt:
        return "what the generation prompt opens is missing from earlier turns"
    for shape in THINKING_SHAPES:
        first = full((*shape.before, shape.answer), (), False)
        if end_id is not None and end_id in first:
            first = first[: len(first) - 1 - first[::-1].index(end_id)]  # history may end a turn otherwise
        if full((*shape.before, shape.answer, *shape.new), (), True)[: len(first)] != first:
            return f"{shape.name.replace('before', 'is removed from earlier turns by', 1)}"
    return ""
