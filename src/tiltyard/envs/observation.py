"""An observation as text for the model: one rule for every environment."""

from typing import Any

from tiltyard.errors import EnvError
from tiltyard.tools.text import as_text, clean, fields

MAX_OBSERVATION_CHARS = 32_000
"""The default budget of one observation, in characters."""

TRUNCATED_MARK = "observation_truncated"
"""The key in `info` that says that an observation was cut."""

HIDDEN = frozenset({"reward", "done", "metadata"})
USUAL = ("result", "output", "content", "text", "message")
TERMINAL = frozenset({"stdout", "stderr", "exit_code"})


def process_observation(payload: Any, observation_field: str | None = None) -> str:
    """The text that the model sees of an observation.

    Strings are taken as they are, None and "" are "". Of a mapping, dataclass or pydantic model the
    fields `reward`, `done` and `metadata` are never shown, and fields that hold nothing (None, "", [],
    {}) do not count. What is left is shown so: `stdout`, `stderr` and `exit_code` alone as a terminal
    would; one field of a usual name (`result`, `output`, `content`, `text`, `message`) by its value;
    anything else as JSON of all fields. Pure: it runs on several threads at once.

    Args:
        payload: What the environment gave.
        observation_field: Show this field only; None applies the rule above.

    Raises:
        EnvError: The payload has no field of that name.
    """
    if isinstance(payload, str):
        return clean(payload)
    found = fields(payload)
    if observation_field is not None:
        if found is None or observation_field not in found:
            given = f"the fields {sorted(map(str, found))}" if found is not None else f"a {type(payload).__name__}"
            raise EnvError(f"the observation has no field {observation_field!r}; it has {given}")
        return process_observation(found[observation_field])
    return as_text(payload) if found is None else _shown(found)


def _shown(found: dict[str, Any]) -> str:
    shown = {name: value for name, value in found.items() if name not in HIDDEN and not _empty(value)}
    if not shown:
        return ""
    if shown.keys() <= TERMINAL and ("stdout" in found or "stderr" in found):
        return _terminal(shown)
    if len(shown) == 1:
        name, value = next(iter(shown.items()))
        if name in USUAL:
            return process_observation(value)
    return as_text(shown)


def clip_observation(text: str, max_chars: int | None = MAX_OBSERVATION_CHARS) -> tuple[str, bool]:
    """Cut a text to a budget of characters, and say whether it was cut.

    The head and the tail are kept, with a line between them that tells how much is missing and of how
    much. None means no bound.
    """
    if max_chars is None or len(text) <= max_chars:
        return text, False
    mark = f"\n[… {len(text) - max_chars} of {len(text)} characters cut …]\n"
    room = max(max_chars - len(mark), 2)
    head = room // 2
    return text[:head] + mark + text[len(text) - (room - head) :], True


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def _terminal(shown: dict[str, Any]) -> str:
    text = as_text(shown.get("stdout"))
    if "stderr" in shown:
        text = _on_new_line(text) + f"[stderr]\n{as_text(shown['stderr'])}"
    if shown.get("exit_code", 0) != 0:
        text = _on_new_line(text) + f"[exit code: {shown['exit_code']}]"
    return text


def _on_new_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
