"""Harmony (gpt-oss): a turn is messages on channels; a call is one addressed to `functions.name` on `commentary`.

The prompt ends in `<|start|>assistant`, so a sampled text begins in the middle of a message's header.
"""

import re
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.messages import parse_arguments
from tiltyard.tools.parsing.reading import CUT_OFF, Reading, dumped_arguments
from tiltyard.types import ToolCall

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
THINK = (f"{CHANNEL}analysis{MESSAGE}", END)
FORM = f"write {CHANNEL}commentary to=functions.name {CONSTRAIN}json{MESSAGE}{{…}}{CALL}"
NOT_CLOSED = f"the call is not closed; end it with {CALL}"

_IN_A_HEADER = re.compile(
    rf"\s*(?:assistant\s*)?(?:to=\S+?\s*)?{re.escape(CHANNEL)}|\s*to=[\w.]+\s*<\||{re.escape(MESSAGE)}"
)
_TURN_END = re.compile("|".join(map(re.escape, (START, END, CALL, RETURN))))
_TO = re.compile(r"to=([^\s<]+)")
_ON = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")


def scan(reading: Reading, thinking_open: bool) -> None:
    """Take a turn apart, message by message."""
    text = reading.text
    position = 0
    if thinking_open or _IN_A_HEADER.match(text):
        position = _message(reading, 0)
    while (start := text.find(START, position)) >= 0:
        reading.visible.append(text[position:start])
        position = _message(reading, start + len(START))
    reading.visible.append(text[position:].removesuffix(RETURN).removesuffix(END))


def _message(reading: Reading, start: int) -> int:
    """Take the message whose header begins at `start`; gives where it ends."""
    text = reading.text
    body = text.find(MESSAGE, start)
    following = _TURN_END.search(text, start)
    if body < 0 or (following and following.start() < body):
        end = following.start() if following else len(text)
        header = text[start:end]
        if _TO.search(header):
            reading.broken(CUT_OFF if reading.cut else f"the call has no {MESSAGE}; {FORM}", header.strip())
        return _past(text, following)
    header, body = text[start:body], body + len(MESSAGE)
    to, on = _TO.search(header), _ON.search(header)
    channel = on[1] if on else ""
    if to is not None:
        return _call(reading, to[1], channel, body)
    close = _TURN_END.search(text, body)
    piece = text[body : close.start() if close else len(text)]
    (reading.reasoning if channel == "analysis" else reading.visible).append(piece)
    return _past(text, close)


def _call(reading: Reading, to: str, channel: str, body: int) -> int:
    """Take the message addressed to a tool whose body begins at `body`."""
    text = reading.text
    name = to.removeprefix("functions.")
    after, arguments, problem = reading.space(body), {}, None
    if _TURN_END.match(text, after) is None and after < len(text):
        try:
            value, after = reading.json(after)
            arguments, problem = parse_arguments(name, value)
        except ValueError as error:
            problem = f"the arguments of {name!r} are not valid JSON ({error})"
    close = _TURN_END.search(text, after)
    end = close.start() if close else len(text)
    if problem is None and text[after:end].strip():
        problem = f"the arguments of {name!r} must be one JSON object, got more: {text[after : after + 40]!r}"
    if close is None or close[0] != CALL:
        problem = CUT_OFF if close is None and reading.cut else problem or NOT_CLOSED
    if not to.startswith("functions.") or not name:
        problem = f"a call goes to functions.name, got {to!r}"
    elif channel != "commentary":
        problem = f"a call goes on the channel commentary, got {channel!r}"
    if problem is None:
        reading.calls.append(ToolCall(name, arguments))
    else:
        error = problem if problem == CUT_OFF else f"{problem}; {FORM}"
        reading.broken(error, text[body:end].strip(), name)
    return _past(text, close)


def _past(text: str, close: re.Match[str] | None) -> int:
    """Where to look for the next message."""
    if close is None:
        return len(text)
    return close.start() if close[0] == START else close.end()


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it, behind a prompt that ends in the message's header."""
    return f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}{dumped_arguments(arguments)}{CALL}"
