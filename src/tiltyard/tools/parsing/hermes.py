"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.reading import Reading, calls_of, dumped_arguments, tagged

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
NOT_CLOSED = f"the {CALL_OPEN} block is not closed; end it with {CALL_CLOSE}"
FORM = f'write {CALL_OPEN}{{"name": …, "arguments": {{…}}}}{CALL_CLOSE}'
INSTRUCTION = (
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    "XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)

_FENCED = re.compile(r"```\w*\s*[{\[]")


def _block(reading: Reading, tag: int, start: int) -> int:
    """One block may hold a list of calls. A tag that no JSON follows is text."""
    text = reading.text
    begin = reading.space(start)
    if text[begin : begin + 1] not in ("{", "["):
        fenced = _FENCED.match(text, begin) and reading.find(CALL_CLOSE, begin) >= 0
        if fenced or text.startswith("<function", begin):
            problem = "no code fence may stand around a call" if fenced else "this form of call is not known here"
            return _broken(reading, start, f"{problem}; {FORM}")
        reading.visible.append(text[tag:start])
        return start
    try:
        value, end = reading.json(begin)
    except ValueError as error:
        return _broken(reading, start, f"the call is not valid JSON ({error}); {FORM}")
    close = reading.space(end)
    if close == len(text):
        return _broken(reading, start, NOT_CLOSED)
    if not text.startswith(CALL_CLOSE, close):
        more = text[close : close + 40]
        return _broken(reading, start, f"only one JSON value may stand in a block, got more: {more!r}; {FORM}")
    reading.calls += calls_of(value, FORM)
    return close + len(CALL_CLOSE)


def _broken(reading: Reading, start: int, error: str) -> int:
    return reading.broken_block(start, error, opens=(CALL_OPEN,), closes=(CALL_CLOSE,))


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    call = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {dumped_arguments(arguments)}}}'
    return f"{CALL_OPEN}\n{call}\n{CALL_CLOSE}"


scan = tagged((CALL_OPEN,), _block)
