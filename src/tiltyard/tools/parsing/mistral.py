"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, and later `[TOOL_CALLS]name[ARGS]{…}` for each call."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tiltyard.tools.messages import parse_arguments
from tiltyard.tools.parsing.reading import CUT_OFF, Reading, calls_of, dumped_arguments, tagged
from tiltyard.types import ToolCall

TAG, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
THINK = ("[THINK]", "[/THINK]")
FORM = f'write {TAG} [{{"name": …, "arguments": {{…}}}}]'

_HEAD = re.compile(r"([\w.\-/:]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\]\s*)?")


def _block(reading: Reading, tag: int, start: int) -> int:
    text = reading.text
    begin = reading.space(start)
    if begin == len(text):
        return _broken(reading, start, f"no call follows {TAG}; {FORM}")
    if text[begin] in "[{":
        try:
            value, end = reading.json(begin)
        except ValueError as error:
            return _broken(reading, start, f"the calls are not valid JSON ({error}); {FORM}")
        calls = calls_of(value, FORM)
        reading.calls += calls or [ToolCall("", None, error=f"the list of calls is empty; {FORM}", raw="[]")]
        return end
    head = _HEAD.match(text, begin)
    if head is None:
        if text[begin].isspace() or text[begin] in "`'\"":
            reading.visible.append(text[tag:start])
            return start
        return _broken(reading, start, f"a tool's name or a list of calls was expected after {TAG}; {FORM}")
    return _named(reading, start, head)


def _named(reading: Reading, start: int, head: re.Match[str]) -> int:
    """One call whose name stands before its arguments; without arguments it ends the text or another call follows."""
    text, name, position = reading.text, head[1], head.end()
    if position == len(text) or text.startswith(TAG, position):
        unfinished = head[0].rstrip().endswith(ARGS) or (reading.cut and position == len(text))
        if unfinished:
            return _broken(reading, start, f"the arguments of {name!r} are missing after {ARGS}; {FORM}")
        reading.calls.append(ToolCall(name, {}, head[2] or ""))
        return position
    if text[position] not in '{["':
        return _broken(reading, start, f"the arguments of {name!r} must be one JSON object; {FORM}")
    try:
        value, end = reading.json(position)
    except ValueError as error:
        return _broken(reading, start, f"the arguments of {name!r} are not valid JSON ({error}); {FORM}")
    arguments, problem = parse_arguments(name, value)
    raw = text[position:end]
    call = ToolCall(name, arguments, head[2] or "", problem, raw if problem else None)
    if reading.cut and reading.space(end) == len(text):  # nothing marks the end of such a call
        call = replace(call, arguments=None, error=CUT_OFF, raw=raw)
    reading.calls.append(call)
    return end


def _broken(reading: Reading, start: int, error: str) -> int:
    return reading.broken_block(start, error, opens=(TAG,), closes=())


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    call = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {dumped_arguments(arguments)}}}'
    return f"{TAG} [{call}]"


scan = tagged((TAG,), _block, think=THINK)
