"""Qwen3-Coder and Qwen3.5: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Values are bare text between one newline and another; nothing else is taken from them. A value ends at the
first `</parameter>` that the next tag follows, so that it may hold other tags, but not those that open or
close a parameter or a function: there nobody can tell where it ends, and the call is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.reading import Reading, tagged
from tiltyard.tools.parsing.values import parameters_of, typed, written
from tiltyard.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_CLOSE, PARAMETER_CLOSE = "</function>", "</parameter>"
FORM = f"write {OPEN}\n<function=name>\n<parameter=key>\nvalue\n{PARAMETER_CLOSE}\n{FUNCTION_CLOSE}\n{CLOSE}"

_FUNCTION = re.compile(r"<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_VALUE = re.compile(r"(.*?)</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL)
_INSIDE = re.compile(r"<parameter=|<function=|</function>")


class _BrokenError(ValueError):
    """What is wrong with a block, as text for the model."""


def _block(reading: Reading, tag: int, start: int) -> int:
    text = reading.text
    bare = text.startswith("<function=", tag)
    begin = tag if bare else reading.space(start)
    if not text.startswith(("<function", "{", "["), begin) or (bare and not _FUNCTION.match(text, begin)):
        reading.visible.append(text[tag:start])
        return start
    try:
        calls, end = _functions(reading, begin)
        if bare:
            raise _BrokenError(f"the call lacks its {OPEN}")
    except _BrokenError as error:
        return reading.broken_block(begin, f"{error}; {FORM}", opens=(OPEN,), closes=(CLOSE,))
    reading.calls += calls
    return end


def _functions(reading: Reading, begin: int) -> tuple[list[ToolCall], int]:
    """The calls of a block, and where its closing tag ends."""
    calls, position = [], begin
    while not reading.text.startswith(CLOSE, position):
        if position == len(reading.text):
            raise _BrokenError(f"the {OPEN} block is not closed; end it with {CLOSE}")
        head = _FUNCTION.match(reading.text, position)
        if head is None:
            got = reading.text[position : position + 40]
            raise _BrokenError(f"<function=name> or {CLOSE} was expected, got {got!r}")
        name = head[1].strip()
        if not name:
            raise _BrokenError("the function has no name")
        arguments, end = _arguments(reading, name, head.end())
        calls.append(ToolCall(name, arguments))
        position = reading.space(end)
    return calls, position + len(CLOSE)


def _arguments(reading: Reading, name: str, start: int) -> tuple[dict[str, Any], int]:
    """The arguments of a function, and where its closing tag ends."""
    text, parameters = reading.text, parameters_of(reading.tools, name)
    arguments: dict[str, Any] = {}
    position = reading.space(start)
    while not text.startswith(FUNCTION_CLOSE, position):
        head = _PARAMETER.match(text, position)
        if head is None:
            raise _BrokenError(
                f"the call of {name!r} is not closed; end it with {FUNCTION_CLOSE}"
                if position == len(text)
                else f"<parameter=key> or {FUNCTION_CLOSE} was expected in the call of {name!r}, "
                f"got {text[position : position + 40]!r}"
            )
        closed = reading.find(PARAMETER_CLOSE, head.end()) >= 0
        key, body = head[1].strip(), _VALUE.match(text, head.end()) if closed else None
        if body is None or _INSIDE.search(body[1]):
            raise _BrokenError(f"the parameter {key!r} of {name!r} is not closed; end it with {PARAMETER_CLOSE}")
        if not key or key in arguments:
            raise _BrokenError(f"the parameter {key!r} of {name!r} " + ("is given twice" if key else "has no name"))
        arguments[key] = typed(_inner(body[1]), key, parameters)
        position = reading.space(body.end())
    return arguments, position + len(FUNCTION_CLOSE)


def _inner(value: str) -> str:
    """The value without the one newline at each end that the form puts there."""
    value = value.removeprefix("\n")
    return value.removesuffix("\n")


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    pairs = "".join(f"<parameter={key}>\n{written(value)}\n{PARAMETER_CLOSE}\n" for key, value in arguments.items())
    return f"{OPEN}\n<function={name}>\n{pairs}{FUNCTION_CLOSE}\n{CLOSE}"


scan = tagged((OPEN, "<function="), _block)
