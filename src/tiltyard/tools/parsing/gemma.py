"""Gemma: `<|tool_call>call:name{key:value}<tool_call|>`, and FunctionGemma's form of the same with its own tags.

Keys are bare, strings stand between two escape tokens, and what is between them is text, whatever it is.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.messages import refuse_constant
from tiltyard.tools.parsing.reading import Reading, tagged
from tiltyard.types import ToolCall

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
THINK = ("<|channel>thought\n", "<channel|>")
OLD_OPEN, OLD_CLOSE, OLD_QUOTE = "<start_function_call>", "<end_function_call>", "<escape>"
FORM = f"write {OPEN}call:name{{key:{QUOTE}text{QUOTE},other:7}}{CLOSE}"

_HEAD = re.compile(r"\s*call:([\w.\-/:]+)\s*")
_KEY = re.compile(r"[^:,{}\[\]<]+")
_LITERAL = re.compile(r"[^,}\]\s<]+")


def _block(reading: Reading, tag: int, start: int) -> int:
    old = reading.text.startswith(OLD_OPEN, tag)
    close = OLD_CLOSE if old else CLOSE
    begin = reading.space(start)
    if not reading.text.startswith(("call", "{", "["), begin) and begin < len(reading.text):
        reading.visible.append(reading.text[tag:start])
        return start
    try:
        call, end = _call(reading, start, close, OLD_QUOTE if old else QUOTE)
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        return reading.broken_block(
            start, f"the call could not be read ({problem}); {FORM}", opens=(OPEN, OLD_OPEN), closes=(close,)
        )
    reading.calls.append(call)
    return end


def _call(reading: Reading, start: int, close: str, quote: str) -> tuple[ToolCall, int]:
    head = _HEAD.match(reading.text, start)
    if head is None:
        raise ValueError(f"call:name was expected, got {reading.text[start : start + 40]!r}")
    arguments: dict[str, Any] = {}
    position = head.end()
    values = _Values(reading, quote)
    if reading.text.startswith("{", position):
        arguments, position = values.mapping(position)
    position = reading.space(position)
    if not reading.text.startswith(close, position):
        got = reading.text[position : position + 40]
        raise ValueError(f"{close} was expected after the arguments, got {got!r}")
    return ToolCall(head[1], arguments), position + len(close)


class _Values:
    """Reads values in the family's own notation, each from a position to where it ends."""

    def __init__(self, reading: Reading, quote: str) -> None:
        self._reading = reading
        self._text = reading.text
        self._quote = quote

    def value(self, start: int) -> tuple[Any, int]:
        start = self._reading.space(start)
        if self._text.startswith(self._quote, start):
            return self._string(start)
        if self._text.startswith("{", start):
            return self.mapping(start)
        if self._text.startswith("[", start):
            return self._list(start)
        literal = _LITERAL.match(self._text, start)
        if literal is None:
            raise ValueError(f"a value was expected, got {self._text[start : start + 40]!r}")
        try:
            value = json.loads(literal[0], parse_constant=refuse_constant)
        except ValueError as error:
            raise ValueError(f"text stands between {self._quote} and {self._quote}, got {literal[0][:40]!r}") from error
        return value, literal.end()

    def mapping(self, start: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        position = self._reading.space(start + 1)
        while not self._text.startswith("}", position):
            key, position = self._key(position)
            if key in found:
                raise ValueError(f"the key {key!r} is given twice")
            position = self._reading.space(position)
            if not self._text.startswith(":", position):
                raise ValueError(f"':' was expected after the key {key!r}")
            found[key], position = self.value(position + 1)
            position = self._next(position, "}")
        return found, position + 1

    def _list(self, start: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        position = self._reading.space(start + 1)
        while not self._text.startswith("]", position):
            value, position = self.value(position)
            found.append(value)
            position = self._next(position, "]")
        return found, position + 1

    def _next(self, start: int, closes: str) -> int:
        """Where the next element begins, or the closing bracket stands."""
        position = self._reading.space(start)
        if self._text.startswith(closes, position):
            return position
        if not self._text.startswith(",", position):
            raise ValueError(f"',' or {closes!r} was expected, got {self._text[position : position + 40]!r}")
        following = self._reading.space(position + 1)
        if self._text.startswith(closes, following):
            raise ValueError(f"a value was expected after ',', got {closes!r}")
        return following

    def _key(self, start: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, start):
            return self._string(start)
        key = _KEY.match(self._text, start)
        if key is None or not key[0].strip():
            raise ValueError(f"a key was expected, got {self._text[start : start + 40]!r}")
        return key[0].strip(), key.end()

    def _string(self, start: int) -> tuple[str, int]:
        begin = start + len(self._quote)
        end = self._text.find(self._quote, begin)
        if end < 0:
            raise ValueError(f"text is not closed; end it with {self._quote}")
        return self._text[begin:end], end + len(self._quote)


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    return f"{OPEN}call:{name}{_written(arguments, bare_keys=True)}{CLOSE}"


def _written(value: Any, *, bare_keys: bool = False) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        pairs = (
            f"{key if bare_keys or _KEY.fullmatch(key) else _written(key)}:{_written(one)}"
            for key, one in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


scan = tagged((OPEN, OLD_OPEN), _block, think=THINK)
