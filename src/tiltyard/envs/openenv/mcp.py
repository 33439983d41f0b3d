"""MCP environments: their tools are listed and called by actions of a step, so that rewards stay right."""

from collections.abc import Mapping
from typing import Any

from tiltyard._optional import require
from tiltyard.envs.observation import process_observation
from tiltyard.envs.openenv.address import get_json
from tiltyard.errors import EnvError
from tiltyard.tools.text import as_text, fields
from tiltyard.types import ToolSchema

LIST_TOOLS: Mapping[str, Any] = {"type": "list_tools"}


def call_action(tool_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The action that calls a tool."""
    return {"type": "call_tool", "tool_name": tool_name, "arguments": dict(arguments)}


def tool_schemas(observation: Any) -> list[ToolSchema]:
    """The tools that the answer to `LIST_TOOLS` names, as function-call schemas.

    Raises:
        EnvError: It names none because listing them failed, or is no such answer.
    """
    found = fields(observation) or {}
    tools = found.get("tools")
    metadata = found.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("error_type") == "list_tools_failed":
        raise EnvError(f"the environment could not list its tools: {metadata.get('error')}")
    if not isinstance(tools, list | tuple):
        raise EnvError(f"the environment did not answer with its tools, but with {as_text(found)[:200]}")
    return [_schema(fields(tool) or {}) for tool in tools]


def tool_text(observation: Any) -> str:
    """What the model reads of a call's answer; a call that failed is a text that says so."""
    found = fields(observation) or {}
    error = fields(found.get("error"))
    if error:
        return f"Error: {error.get('message')}"
    if "tool_name" not in found:
        return process_observation(observation)
    result = found.get("result")
    known = fields(result)
    if known is None or not isinstance(known.get("content"), list | tuple):
        return process_observation(result)
    texts = [_block(block) for block in known["content"]]
    if not texts:
        return process_observation(known.get("data"))
    text = "\n".join(texts)
    return f"Error: {text}" if known.get("is_error") is True else text


def mcp_types() -> Any:
    """The module of openenv's own classes for these actions, for those who need more than dicts."""
    return require("openenv.core.env_server.mcp_types", "openenv")


def speaks_mcp(url: str, token: str | None) -> bool:
    """Whether the server at this address says that its actions are calls of tools."""
    known = get_json(url, "schema", token=token) or {}
    action = known.get("action")
    if not isinstance(action, Mapping):
        return False
    properties = action.get("properties")
    kind = properties.get("type") if isinstance(properties, Mapping) else None
    if isinstance(kind, Mapping) and kind.get("const") in ("call_tool", "list_tools"):
        return True
    # The base class of actions has no field of its own: what else than tools could be asked of it?
    return action.get("title") == "Action" and set(properties or ()) <= {"metadata"}


def _schema(tool: Mapping[str, Any]) -> ToolSchema:
    parameters = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    function = {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _block(block: Any) -> str:
    found = fields(block)
    if found is None:
        return as_text(block)
    if isinstance(found.get("text"), str):
        return found["text"]
    kind = found.get("type", "content")
    return f"[{kind}: not shown]" if kind in ("image", "audio", "resource") else as_text(found)
