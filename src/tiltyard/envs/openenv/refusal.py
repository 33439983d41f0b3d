"""What a refused action means: a mistake of the model, or a client and a server that speak of different things."""

from typing import Any

from tiltyard.envs.openenv.address import get_json, shown
from tiltyard.envs.openenv.session import Session
from tiltyard.errors import ActionRefusedError, ConfigurationError, LostSessionError, ToolError

_FORM = frozenset({"missing", "extra_forbidden"})
"""The kinds of refusal that speak of the fields, and not of what is in them."""


def refused_step(error: ActionRefusedError, session: Session, *, tagged: bool) -> ToolError | ConfigurationError:
    """What to raise for a refused tool call; `tagged` actions are the generic ones with the tool's name in them."""
    if tagged and _places(error) & {"tool_name", "arguments"}:
        return ConfigurationError(
            f"the server at {shown(session.url)} takes no generic actions: {error}. {_fields(session)}Give env_name or "
            "env_cls, or action_mapper=lambda tool_name, arguments: {…the action's fields…}"
        )
    return ToolError(f"the environment refused the call: {error}")


def refused_text(error: ActionRefusedError, session: Session, action_field: str) -> ToolError | ConfigurationError:
    """What to raise for a refused text, sent under `action_field`."""
    form = {error["type"] for error in error.errors if isinstance(error, dict) and error.get("type") in _FORM}
    if form or not _places(error) & {action_field}:
        cure = "Set action_field to the one that takes the model's text"
        if "tool_name" in _places(error):
            cure = "They are calls of tools: give mcp_tool, the one that the model's text is given to"
        return ConfigurationError(
            f"the server at {shown(session.url)} takes no action {{{action_field!r}: text}}: {error}. "
            f"{_fields(session)}{cure}"
        )
    return ToolError(f"the environment refused the action: {error}")


def refused_reset(error: ActionRefusedError, session: Session, *, given: str) -> ConfigurationError:
    """What to raise for a refused reset; `given` says where its arguments come from."""
    return ConfigurationError(f"the reset of the environment at {shown(session.url)} refused {given}: {error}")


def _places(error: ActionRefusedError) -> set[Any]:
    return {found["loc"][0] for found in error.errors if isinstance(found, dict) and found.get("loc")}


def _fields(session: Session) -> str:
    """What the server says that its actions have."""
    try:
        known = get_json(session.url, "schema", token=session.options.token) or {}
    except LostSessionError:
        return ""
    action = known.get("action")
    properties = action.get("properties") if isinstance(action, dict) else None
    names = sorted(name for name in properties or () if name != "metadata")
    return f"Its actions have the fields {', '.join(map(repr, names))}. " if names else ""
