"""GLM 4.5 and later: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

Values are bare text, taken as they stand between their tags. A value ends at the first `</arg_value>` that
the next tag follows; one that holds `<arg_key>` or `<arg_value>` is refused, as nobody can tell where it ends.
"""

import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.reading import Reading, tagged
from tiltyard.tools.parsing.values import parameters_of, typed, written
from tiltyard.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f"write {OPEN}name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n{CLOSE}"

_NAME = re.compile(r"\s*([\w.\-/:]+)\s*(?=<arg_key>|</tool_call>|$)")
_KEY = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_VALUE = re.compile(r"(.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>))", re.DOTALL)
_INSIDE = re.compile(r"<arg_key>|<arg_value>")
_MEANT = re.compile(r"\s*(?:[{\[<]|[\w.\-/:]+\s*(?:[<{\[(]|$))|[^<]*<(?:arg_|/tool_call>)")


class _BrokenError(ValueError):
    """What is wrong with a block, as text for the model."""


def _block(reading: Reading, tag: int, start: int) -> int:
    if not _MEANT.match(reading.text, start):
        reading.visible.append(reading.text[tag:start])
        return start
    try:
        call, end = _call(reading, start)
    except _BrokenError as error:
        return reading.broken_block(start, f"{error}; {FORM}", opens=(OPEN,), closes=(CLOSE,))
    reading.calls.append(call)
    return end


def _call(reading: Reading, start: int) -> tuple[ToolCall, int]:
    """The call of a block, and where its closing tag ends."""
    text = reading.text
    head = _NAME.match(text, start)
    if head is None:
        raise _BrokenError(f"a call begins with its tool's name, got {text[start : start + 40]!r}")
    name, position = head[1], head.end()
    parameters = parameters_of(reading.tools, name)
    arguments: dict[str, Any] = {}
    while not text.startswith(CLOSE, position):
        if position == len(text):
            raise _BrokenError(f"the {OPEN} block is not closed; end it with {CLOSE}")
        pair = _KEY.match(text, position)
        if pair is None:
            got = text[position : position + 40]
            raise _BrokenError(f"<arg_key>key</arg_key><arg_value> was expected in the call of {name!r}, got {got!r}")
        closed = reading.find("</arg_value>", pair.end()) >= 0
        key, body = pair[1].strip(), _VALUE.match(text, pair.end()) if closed else None
        if body is None or _INSIDE.search(body[1]):
            raise _BrokenError(f"the argument {key!r} of {name!r} is not closed; end it with </arg_value>")
        if not key or key in arguments:
            raise _BrokenError(f"the argument {key!r} of {name!r} " + ("is given twice" if key else "has no name"))
        arguments[key] = typed(body[1], key, parameters)
        position = reading.space(body.end())
    return ToolCall(name, arguments), position + len(CLOSE)


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{written(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"{OPEN}{name}\n{pairs}{CLOSE}"


scan = tagged((OPEN,), _block)
