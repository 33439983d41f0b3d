"""How every environment's conversation opens."""

import json
from typing import Any

from tiltyard._boundary import guarded, shown
from tiltyard.errors import EnvError
from tiltyard.tools.text import clean
from tiltyard.types import Message


def system_messages(env: Any) -> list[Message]:
    """The environment's optional `system_prompt` as the leading message, then its optional `examples`.

    Raises:
        EnvError: The prompt is not text, or the examples are not messages.
    """
    name = type(env).__name__
    prompt = guarded(f"{name}.system_prompt", EnvError, getattr, env, "system_prompt", None)
    if prompt is not None and not isinstance(prompt, str):
        raise EnvError(f"{name}.system_prompt is {shown(prompt)}; it must be text")
    examples = guarded(f"{name}.examples", EnvError, lambda: list(getattr(env, "examples", None) or ()))
    system: list[Message] = [{"role": "system", "content": clean(prompt)}] if prompt else []
    return [*system, *checked_messages(examples, f"{name}.examples")]


def checked_messages(messages: Any, where: str) -> list[Message]:
    """Messages of an environment, each a dict of its own.

    Raises:
        EnvError: One is none that a chat template or a request can take; says which.
    """
    listed: list[Any] = guarded(f"{where}: the messages", EnvError, list, messages)
    for number, message in enumerate(listed):
        guarded(f"{where}: the JSON of message {number}", EnvError, json.dumps, message)
        if not _is_message(message):
            raise EnvError(
                f"{where}: message {number} is {shown(message)}; a message is a dict with a role, a content that is "
                "text, a list of parts or None, and tool_calls that are a list of dicts"
            )
    return [dict(message) for message in listed]


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        sound = all(isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in content)
    else:
        sound = content is None or isinstance(content, str)
    return sound and (calls is None or (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)))
