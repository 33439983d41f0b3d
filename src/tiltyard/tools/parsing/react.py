"""ReAct-style text: a line `Action: name` and, on the next, `Action Input: {…}`.

`Thought:` lines are part of the visible answer. What follows an `Observation:` that the model wrote itself
rests on a result that nobody gave, so that calls there are refused. Nothing marks the end of a call: one that
ends a cut text is taken to be cut.
"""

import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.messages import parse_arguments
from tiltyard.tools.parsing.reading import CUT_OFF, Reading, dumped_arguments, tagged
from tiltyard.types import ToolCall

FORM = "write Action: name, and on the next line Action Input: {…}, one JSON object; then stop"
INVENTED = "the call follows an Observation that you wrote yourself and was not run; stop after Action Input"

_ACTION = re.compile(r"^[ \t]*Action:[ \t]*([^\n]*)\n?", re.MULTILINE)
_INPUT = re.compile(r"\s*Action Input:[ \t]*")
_LINE = re.compile(r"^[ \t]*(?:Action|Action Input|Thought|Observation|Final Answer):", re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t]*Observation:", re.MULTILINE)
_NAME = re.compile(r"[`*]{0,3}([\w.\-/:]+)[`*]{0,3}")

_thinking = tagged((), lambda _reading, _tag, start: start)


def scan(reading: Reading, thinking_open: bool) -> None:
    """Take a text apart: its thinking first, then the actions in what is left."""
    _thinking(reading, thinking_open)
    inner = Reading("".join(reading.visible), cut=reading.cut, tools=reading.tools)
    text, position = inner.text, 0
    observation = _OBSERVATION.search(text)
    invented = observation.start() if observation and _ACTION.search(text, 0, observation.start()) else len(text)
    while action := _ACTION.search(text, position):
        inner.visible.append(text[position : action.start()])
        before = len(inner.calls)
        position = _action(inner, action)
        if action.start() > invented and len(inner.calls) > before:
            inner.calls[-1] = ToolCall(
                inner.calls[-1].name, None, error=INVENTED, raw=text[action.start() : position].strip()
            )
    inner.visible.append(text[position:])
    reading.visible, reading.calls = inner.visible, inner.calls


def _action(reading: Reading, action: re.Match[str]) -> int:
    """Take one action; gives where it ends."""
    text, said = reading.text, action[1].strip()
    given, name = _INPUT.match(text, action.end()), _NAME.fullmatch(said)
    end_line = _LINE.search(text, given.end() if given else action.end())
    end = end_line.start() if end_line else len(text)
    cut = reading.cut and end == len(text)
    if name is None:
        if given is None and not re.match(r"[\w.\-]+[\[({]", said):
            reading.visible.append(action[0])  # `Action: none of the tools fits` is prose
            return action.end()
        reading.broken(f"the name of a tool was expected after Action, got {said[:80]!r}; {FORM}", said)
        return end if given else action.end()
    if given is None:
        reading.calls.append(ToolCall(name[1], None, error=CUT_OFF) if cut else ToolCall(name[1], {}))
        return action.end()
    raw = text[given.end() : end].strip()
    _add(reading, name[1], raw, cut=cut)
    return end


def _add(reading: Reading, name: str, raw: str, *, cut: bool) -> None:
    if cut:
        return reading.broken(CUT_OFF, raw, name)
    fence = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", raw, re.DOTALL)
    arguments, problem = parse_arguments(name, fence[1] if fence else raw)
    if problem:
        return reading.broken(f"{problem}; {FORM}", raw, name)
    reading.calls.append(ToolCall(name, arguments))
    return None


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    return f"Action: {name}\nAction Input: {dumped_arguments(arguments)}"
