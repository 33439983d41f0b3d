"""How every environment's conversation opens."""

from typing import Any

from tiltyard.types import Message


def system_messages(env: Any) -> list[Message]:
    """The environment's optional `system_prompt` as the leading message, then its optional `examples`."""
    prompt = getattr(env, "system_prompt", None)
    system: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
    return [*system, *(dict(message) for message in getattr(env, "examples", None) or ())]
