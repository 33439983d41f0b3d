"""Llama 3: `{"name": …, "parameters": {…}}` as the whole message, or after `<|python_tag|>`; several with `;` between.

Nothing marks the end of a call, so the last one of a text that was cut is taken to be cut as well. JSON that
is no call (other keys, and no tool of that name) is an answer.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.messages import tool_names
from tiltyard.tools.parsing.reading import CUT_OFF, Reading, calls_of, dumped_arguments, tagged
from tiltyard.types import ToolCall

TAG = "<|python_tag|>"
KEYS = ("parameters", "arguments")
FORM = 'write {"name": …, "parameters": {…}} and nothing else'

_START = re.compile(r"""\[?\s*\{+\s*["'](?:name|type|function|parameters|arguments)["']\s*:""")
_ON_A_LINE = re.compile(r"^[ \t]*(?=\[?\s*\{+\s*[\"'](?:name|type|function|parameters)[\"']\s*:)", re.MULTILINE)
_BETWEEN = re.compile(r"[\s;]*")


def _after_tag(reading: Reading, tag: int, start: int) -> int:
    del tag
    following = reading.text.find(TAG, start)
    end = len(reading.text) if following < 0 else following
    _calls(reading, start, end)
    return end


def _calls(reading: Reading, start: int, end: int) -> None:
    """Take everything from `start` to `end` as calls."""
    text = reading.text
    position = reading.space(start)
    if position >= end and end == len(text):
        reading.broken(CUT_OFF if reading.cut else f"no call follows {TAG}; {FORM}", "")
    while position < end:
        if text[position] not in "{[":
            raw = text[position:end].strip()
            if reading.calls and text[:position].rstrip().endswith(("}", "]")):
                reading.calls.pop()
            return reading.broken(f"only calls may stand here, got {raw[:40]!r}; {FORM}", raw)
        try:
            value, after = reading.json(position)
        except ValueError as error:
            raw = text[position:end].strip()
            return reading.broken(CUT_OFF if reading.cut else f"the call is not valid JSON ({error}); {FORM}", raw)
        calls = calls_of(value, FORM, KEYS)
        between = _BETWEEN.match(text, after)
        position = between.end() if between else after
        if position == len(text) and reading.cut:
            calls = [ToolCall(call.name, None, call.id, CUT_OFF, json.dumps(value)) for call in calls]
        reading.calls += calls
    return None


_tagged = tagged((TAG,), _after_tag)


def scan(reading: Reading, thinking_open: bool) -> None:
    """Take a text apart; without `<|python_tag|>` calls are looked for in what is visible of it."""
    _tagged(reading, thinking_open)
    visible = "".join(reading.visible)
    if reading.calls or not visible.strip():
        return
    inner = Reading(visible.strip(), cut=reading.cut, tools=reading.tools)
    if _START.match(inner.text) and _is_call(inner):
        _calls(inner, 0, len(inner.text))
        reading.visible = []
    elif (found := _call_at_end(inner)) is not None:
        inner.broken(f"a call must be the whole message or follow {TAG}; {FORM}", inner.text[found:])
        reading.visible = [inner.text[:found]]
    reading.calls = inner.calls


def _is_call(reading: Reading) -> bool:
    """Whether the JSON that the text begins with was meant as a call: an answer may be JSON as well."""
    try:
        value, _ = reading.json(0)
    except ValueError:
        return True
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, dict):
        return False
    known = {"name", "id", "type", "function", *KEYS}
    return first.keys() <= known or first.get("name") in tool_names(reading.tools)


def _call_at_end(reading: Reading) -> int | None:
    """Where a call begins that a line opens and nothing follows; None where there is none."""
    for line in _ON_A_LINE.finditer(reading.text):
        try:
            value, end = reading.json(line.end())
        except ValueError:
            continue
        keys = value.keys() if isinstance(value, dict) else set()
        if "name" in keys and keys & {*KEYS} and reading.space(end) == len(reading.text):
            return line.end()
    return None


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": {dumped_arguments(arguments)}}}'
