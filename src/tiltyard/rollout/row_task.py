"""The task that a trajectory describes, as its caller gives it."""

import numbers
from collections.abc import Collection, Mapping
from typing import Any

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError
from tiltyard.rollout.sources import Row
from tiltyard.types import Message, Task

NUMBERS = ("seed", "row_index", "epoch")
TASK_FIELDS = (*NUMBERS, "evaluation")
"""The keys of a trajectory that are fields of its `Task`."""

OWN_FIELDS = frozenset({"messages", "tools", "episode_id", *TASK_FIELDS})
"""The keys of a trajectory that are not part of `Task.data`."""


def task_of(row: Row, number: int, seed: int) -> Task:
    """The task that a trajectory describes.

    Args:
        row: `messages` open the conversation; `seed`, `row_index`, `evaluation` and `epoch` are those of the task;
            all but `tools` and `episode_id` is the task's `data`.
        number: Its place, for errors.
        seed: The task's seed where the row has none.

    Raises:
        ConfigurationError: It is no mapping, or one of its fields is not what it should be.
    """
    if not isinstance(row, Mapping):
        raise ConfigurationError(f"trajectory {number} is a {type(row).__name__}; it must be a dict with 'messages'")
    given = {name: _field(name, row[name], number) for name in TASK_FIELDS if row.get(name) is not None}
    data = {str(name): value for name, value in row.items() if name not in OWN_FIELDS}
    return Task(**{"seed": seed, **given}, messages=_messages(row.get("messages"), number), data=data)


def _field(name: str, value: Any, number: int) -> int | bool:
    if name in NUMBERS:
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise ConfigurationError(f"trajectory {number}: {name} must be a whole number, got {shown(value)}")
        return int(value)
    if str(value) not in ("True", "False") or isinstance(value, str):  # numpy has a bool of its own
        raise ConfigurationError(f"trajectory {number}: {name} must be True or False, got {shown(value)}")
    return bool(value)


def _messages(given: Any, number: int) -> tuple[Message, ...]:
    """The messages of a row, from a list or from what a table has in its place."""
    if given is None:
        return ()
    if not _is_list(given):
        raise ConfigurationError(
            f"trajectory {number}: messages must be a list of dicts with 'role' and 'content', got {shown(given)}"
        )
    return tuple(_message(message, number, place) for place, message in enumerate(given))


def _message(given: Any, number: int, place: int) -> Message:
    message = dict(given) if isinstance(given, Mapping) else {}
    for key in ("content", "tool_calls"):
        if _is_list(message.get(key)):
            message[key] = list(message[key])
    content, calls = message.get("content"), message.get("tool_calls")
    if not (
        isinstance(message.get("role"), str)
        and (content is None or isinstance(content, str | list))
        and (calls is None or (isinstance(calls, list) and all(map(_is_call, calls))))
    ):
        raise ConfigurationError(
            f"trajectory {number}: message {place} is {shown(given)}; a message is a dict with a 'role' that is text, "
            "a 'content' that is text or a list of parts, and 'tool_calls', where it has them, in OpenAI's form"
        )
    return message


def _is_list(value: Any) -> bool:
    """Whether a value can be gone through as often as one likes, as a list and an array can."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)
