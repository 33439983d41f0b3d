"""A sampled text taken apart: what was found, and the walk over its tags that most families share."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard.tools.messages import parse_call, refuse_constant
from tiltyard.types import ToolCall, ToolSchema

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

CUT_OFF = "the call was cut off before its end"

_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A sampled text, taken apart.

    Attributes:
        text: The visible answer, without thinking and calls.
        reasoning: What stood inside the thinking, as it was written.
        calls: The calls in order, malformed ones included; with ids only where the model wrote them.
    """

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]


class Reading:
    """What was found in a text so far.

    Attributes:
        text: What was sampled.
        cut: Sampling was cut, so that whatever the text ends in may be unfinished.
        tools: The tools that the model was shown; they type arguments that are written untyped.
        visible: The pieces of the visible answer.
        reasoning: The pieces of the thinking.
        calls: The calls.
    """

    def __init__(self, text: str, *, cut: bool, tools: Sequence[ToolSchema] = ()) -> None:
        self.text = text
        self.cut = cut
        self.tools = tools
        self.visible: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self._absent: dict[str, int] = {}

    def space(self, start: int) -> int:
        """Where the white space that begins at `start` ends."""
        match = _SPACE.match(self.text, start)
        return match.end() if match else start

    def json(self, start: int) -> tuple[Any, int]:
        """The JSON value that begins at `start`, and where it ends.

        Raises:
            ValueError: There is none; the message says what is wrong.
        """
        try:
            return _DECODER.raw_decode(self.text, start)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error

    def broken(self, error: str, raw: str, name: str = "") -> None:
        """Add a call that cannot run."""
        self.calls.append(ToolCall(name, None, error=error, raw=raw))

    def broken_block(self, start: int, error: str, *, opens: Sequence[str], closes: Sequence[str]) -> int:
        """Add the block that begins at `start` as a call that cannot run; gives where to go on.

        The block goes up to its closing tag, the next opening tag, or the end of the text.
        """
        close, following = self.first(closes, start), self.first(opens, start)
        end = min(close[0], following[0])
        if end == len(self.text) and self.cut:
            error = CUT_OFF
        self.broken(error, self.text[start:end].strip())
        return close[1] if close[0] <= following[0] else end

    def find(self, tag: str, start: int) -> int:
        """Where the tag stands from `start` on; -1 where it does not.

        What is not found is not looked for again: a text of unfinished blocks would be read once for each.
        """
        if start >= self._absent.get(tag, len(self.text) + 1):
            return -1
        at = self.text.find(tag, start)
        if at < 0:
            self._absent[tag] = start
        return at

    def first(self, tags: Sequence[str], start: int) -> tuple[int, int]:
        """Where the first of the tags stands and ends; the text's end where there is none."""
        found = [(at, at + len(tag)) for tag in tags if (at := self.find(tag, start)) >= 0]
        return min(found, default=(len(self.text), len(self.text)))


Scan = Callable[[Reading, bool], None]
"""Takes a text apart; the flag says that the text begins inside the thinking. Never raises, whatever the text."""

Block = Callable[[Reading, int, int], int]
"""Takes the block whose opening tag stands from the first to the second position; gives where to go on."""


def tagged(opens: Sequence[str], block: Block, think: tuple[str, str] = (THINK_OPEN, THINK_CLOSE)) -> Scan:
    """A walk over a text in which tags open the calls and the thinking; the tags are looked for in this order.

    A lone closing tag of the thinking means that the prompt had opened it: all before it was thinking.
    """
    think_open, think_close = think
    tag = re.compile("|".join(map(re.escape, (think_open, think_close, *opens))))

    def think_from(reading: Reading, start: int) -> int:
        end = reading.text.find(think_close, start)
        reading.reasoning.append(reading.text[start:] if end < 0 else reading.text[start:end])
        return len(reading.text) if end < 0 else end + len(think_close)

    def scan(reading: Reading, thinking_open: bool) -> None:
        text = reading.text
        position = think_from(reading, 0) if thinking_open else 0
        while found := tag.search(text, position):
            reading.visible.append(text[position : found.start()])
            if found[0] == think_open:
                position = think_from(reading, found.end())
            elif found[0] == think_close:
                reading.visible.clear()
                reading.calls.clear()
                reading.reasoning = [text[: found.start()]]
                position = found.end()
            else:
                position = block(reading, found.start(), found.end())
        reading.visible.append(text[position:])

    return scan


def call_of(value: Any, form: str, keys: Sequence[str] = ("arguments",)) -> ToolCall:
    """One call from a JSON value, whose arguments stand under one of the keys; `form` says how to write one."""
    if not isinstance(value, dict):
        return ToolCall("", None, error=f"a call must be a JSON object; {form}", raw=_dumped(value))
    given = [key for key in keys if key in value]
    others = sorted(value.keys() - {"name", "id", "type", *keys})
    if len(given) > 1 or (not given and others):
        got = " and ".join(map(repr, given)) or str(others)
        return ToolCall(
            "", None, error=f"the arguments of a call stand under {keys[0]!r}, got {got}; {form}", raw=_dumped(value)
        )
    call = {"name": value.get("name"), "id": value.get("id"), "arguments": value[given[0]] if given else None}
    return parse_call(call)


def calls_of(value: Any, form: str, keys: Sequence[str] = ("arguments",)) -> list[ToolCall]:
    """The calls of a JSON value: a list has one for each element."""
    return [call_of(one, form, keys) for one in value] if isinstance(value, list) else [call_of(value, form, keys)]


def dumped_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as JSON, with the order of the keys and non-ASCII text kept."""
    return _dumped(dict(arguments))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
