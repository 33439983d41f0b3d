"""The JSON schemas that `/schema` shows: what a session's actions, observations and states look like."""

from typing import Any

from tiltyard.serving.openenv_played import OpenEnvPlayed
from tiltyard.serving.played import Played
from tiltyard.serving.tool_played import ToolPlayed

METADATA = {"type": "object", "additionalProperties": True}
STATE = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "step_count": {"type": "integer", "minimum": 0, "default": 0},
    },
    "additionalProperties": True,
}
TEXT_ACTION = {
    "title": "TextAction",
    "type": "object",
    "properties": {"message": {"type": "string"}, "metadata": METADATA},
    "required": ["message"],
    "additionalProperties": False,
}
CALL_ACTION = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": True},
        "metadata": METADATA,
    },
    "required": ["tool_name"],
    "additionalProperties": False,
}
TEXT_OBSERVATION = {"title": "TextObservation", "type": "object", "properties": {"message": {}}}
CALL_OBSERVATION = {
    "title": "CallToolObservation",
    "type": "object",
    "properties": {"tool_name": {"type": "string"}, "result": {}, "error": {}},
}


def schemas_of(played: Played, env: Any, action_cls: Any) -> dict[str, Any]:
    """The schemas of one environment; `action_cls` is that of an OpenEnv environment's actions."""
    if isinstance(played, OpenEnvPlayed):
        action = CALL_ACTION if action_cls is None else action_cls.model_json_schema()
        return {"action": action, "observation": _returned(env, "step"), "state": _returned(env, "state")}
    if isinstance(played, ToolPlayed):
        return {"action": CALL_ACTION, "observation": CALL_OBSERVATION, "state": STATE}
    return {"action": TEXT_ACTION, "observation": TEXT_OBSERVATION, "state": STATE}


def _returned(env: Any, name: str) -> dict[str, Any]:
    """The schema of what a method or property is annotated to return."""
    found = getattr(type(env), name)
    function = found.fget if isinstance(found, property) else found
    annotated: Any = getattr(function, "__annotations__", {}).get("return")
    known: Any = getattr(annotated, "model_json_schema", None)
    return {"type": "object", "additionalProperties": True} if known is None else known()
