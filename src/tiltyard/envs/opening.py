"""How every environment's conversation opens."""

from typing import Any

from tiltyard.types import Message


def system_messages(env: Any) -> list[Message]:
    """The environment's optional `system_prompt` as the leading message."""
    prompt = getattr(env, "system_prompt", None)
    return [{"role": "system", "content": prompt}] if prompt else []
