"""Tool calls in a model's text, for families that mark them with text: Hermes and Qwen.

The rules: a call is run only when it stands outside the thinking, its block is closed and its JSON is
sound as written. Everything else that was meant as a call becomes a `ToolCall` with an `error` for the
model; nothing is repaired, dropped or guessed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tiltyard.errors import ConfigurationError
from tiltyard.tools.messages import parse_call, refuse_constant
from tiltyard.types import FinishReason, ToolCall

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

NOT_CLOSED = f"the {CALL_OPEN} block is not closed; end it with {CALL_CLOSE}"
CUT_OFF = "the call was cut off before its end"
IN_REASONING = f"the call stands inside the thinking and was not run; close it with {THINK_CLOSE}, then call"
FORM = f'write {CALL_OPEN}{{"name": …, "arguments": {{…}}}}{CALL_CLOSE}'


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A sampled text, taken apart.

    Attributes:
        text: The visible answer, without thinking and calls.
        reasoning: What stood inside the thinking, as it was written.
        calls: The calls in order, malformed ones included; without ids.
    """

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]


class TextParser(Protocol):
    """Takes a sampled text apart, in the way of one family of models."""

    def __call__(self, text: str, finish_reason: FinishReason = "stop", *, thinking_open: bool = False) -> ParsedText:
        """Take a text apart; never raises, whatever the text.

        Args:
            text: What was sampled, special tokens such as the end of the turn left out.
            finish_reason: Whether sampling was cut.
            thinking_open: The prompt ended inside the thinking, so that the text begins in it.
        """
        ...


def parse_hermes(text: str, finish_reason: FinishReason = "stop", *, thinking_open: bool = False) -> ParsedText:
    """Take apart a text whose calls are `<tool_call>{json}</tool_call>`; one block may hold a list of calls.

    A tag that no JSON follows is text. When the thinking has a call and nothing comes after it, the
    call is answered with an error, so that the turn is not taken for a final answer.
    """
    parts = _Parts(cut=finish_reason != "stop")
    position = parts.think(text, 0) if thinking_open else 0
    while tag := _TAG.search(text, position):
        parts.visible.append(text[position : tag.start()])
        if tag[0] == THINK_OPEN:
            position = parts.think(text, tag.end())
        elif tag[0] == THINK_CLOSE:
            parts.all_was_thinking(text[: tag.start()])
            position = tag.end()
        else:
            position = parts.call(text, tag.start(), tag.end())
    parts.visible.append(text[position:])
    return parts.parsed()


PARSERS: Mapping[str, TextParser] = {"hermes": parse_hermes, "qwen": parse_hermes}
"""The parsers by family."""


def parse_text(
    text: str, finish_reason: FinishReason = "stop", *, family: str = "hermes", thinking_open: bool = False
) -> ParsedText:
    """Take a sampled text apart in the way of its family; see `TextParser`.

    Raises:
        ConfigurationError: No parser is known for the family; lists those that are.
    """
    if family not in PARSERS:
        raise ConfigurationError(f"no parser for the family {family!r}; there are: {', '.join(PARSERS)}")
    return PARSERS[family](text, finish_reason, thinking_open=thinking_open)


_TAG = re.compile("|".join((THINK_OPEN, THINK_CLOSE, CALL_OPEN)))
_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


class _Parts:
    """What was found so far."""

    def __init__(self, *, cut: bool) -> None:
        self.cut = cut
        self.visible: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []

    def think(self, text: str, start: int) -> int:
        """Take the thinking that begins at `start`; gives where it ends: the text's end when it is not closed."""
        end = text.find(THINK_CLOSE, start)
        self.reasoning.append(text[start:] if end < 0 else text[start:end])
        return len(text) if end < 0 else end + len(THINK_CLOSE)

    def all_was_thinking(self, text: str) -> None:
        """Take back what was found: a closing tag without an opening one means that the prompt had opened it."""
        self.visible.clear()
        self.calls.clear()
        self.reasoning = [text]

    def call(self, text: str, tag: int, start: int) -> int:
        """Take the block whose tag begins at `tag` and ends at `start`; gives where to go on."""
        begin = start + len(text[start:]) - len(text[start:].lstrip())
        if text[begin : begin + 1] not in ("{", "["):
            if text.startswith("<function", begin):
                return self._broken(text, start, f"this form of call is not known here; {FORM}")
            self.visible.append(text[tag:start])
            return start
        try:
            value, end = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:
            return self._broken(text, start, f"the call is not valid JSON ({error}); {FORM}")
        rest = text[end:].lstrip()
        if not rest:
            return self._broken(text, start, NOT_CLOSED)
        if not rest.startswith(CALL_CLOSE):
            return self._broken(
                text, start, f"only one JSON value may stand in a block, got more: {rest[:40]!r}; {FORM}"
            )
        self.calls.extend(map(_call, value) if isinstance(value, list) else [_call(value)])
        return text.index(CALL_CLOSE, end) + len(CALL_CLOSE)

    def _broken(self, text: str, start: int, error: str) -> int:
        """Take a block that cannot be read: up to its closing tag, the next block, or the end."""
        close, following = text.find(CALL_CLOSE, start), text.find(CALL_OPEN, start)
        ends = [end for end in (close, following) if end >= 0]
        end = min(ends, default=len(text))
        if not ends and self.cut:
            error = CUT_OFF
        self.calls.append(ToolCall("", None, error=error, raw=text[start:end].strip()))
        return end + len(CALL_CLOSE) if end == close else end

    def parsed(self) -> ParsedText:
        """The parts put together."""
        reasoning = "\n".join(piece.strip("\n") for piece in self.reasoning)
        text = "".join(self.visible)
        if self.calls or self.reasoning:
            text = text.strip()
        if not text and not self.calls and not self.cut:
            start = reasoning.find(CALL_OPEN)
            if start >= 0 and reasoning[start + len(CALL_OPEN) :].lstrip()[:1] in ("{", "["):
                self.calls.append(ToolCall("", None, error=IN_REASONING, raw=""))
        return ParsedText(text, reasoning, tuple(self.calls))


def _call(value: Any) -> ToolCall:
    """One call of a block."""
    if not isinstance(value, dict):
        return ToolCall("", None, error=f"a call must be a JSON object; {FORM}", raw=json.dumps(value))
    if "arguments" not in value and (others := sorted(value.keys() - {"name", "id", "type"})):
        error = f"the arguments of a call stand under 'arguments', got {others}; {FORM}"
        return ToolCall("", None, error=error, raw=json.dumps(value, ensure_ascii=False))
    return parse_call(value)
