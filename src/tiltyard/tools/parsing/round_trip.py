"""Whether a family's calls of a tool are read back as they were written."""

import json
from collections.abc import Mapping
from typing import Any

from tiltyard.tools.parsing.family import Family
from tiltyard.tools.parsing.values import MAX_DEPTH
from tiltyard.types import ToolCall, ToolSchema

_SAMPLES: dict[str, Any] = {
    "string": ' 1.10 "a"\n  <b> \\ é </b> ',
    "integer": 7,
    "number": 2.5,
    "boolean": True,
    "null": None,
}


def round_trip_problem(family: Family, tool: ToolSchema) -> str:
    """What goes wrong when a call of this tool is written and read back, in words; "" for nothing.

    Every property of the tool is given, strings with what usually breaks them: spaces at both ends, digits,
    quotes, a line break and tags.
    """
    function = tool["function"]
    arguments = sample_arguments(function.get("parameters") or {})
    text = family.render_call(ToolCall(function["name"], arguments))
    calls = family.parse(text, tools=[tool]).calls
    if [(call.name, call.arguments) for call in calls] == [(function["name"], arguments)]:
        return ""
    got = "; ".join(call.error or f"{call.name}({json.dumps(call.arguments)})" for call in calls) or "no call"
    return f"a call of {function['name']!r}, written as {text!r}, is read back by the parser {family.name!r} as: {got}"


def sample_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with a value for each property, of the first type that its schema names."""
    properties = parameters.get("properties") or {}
    return {key: _sample(schema, parameters, 0) for key, schema in properties.items()}


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return _SAMPLES["string"]
    if isinstance(schema.get("$ref"), str):
        return _sample(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    branches = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if schema.get(key)), None)
    return _sample(branches[0], root, depth + 1) if branches else _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "array":
        return [_sample(schema.get("items", {}), root, depth + 1)]
    if kind == "object":
        inner = schema.get("properties") or {"key": schema.get("additionalProperties")}
        return {key: _sample(one, root, depth + 1) for key, one in inner.items()}
    return _SAMPLES.get(str(kind), _SAMPLES["string"])


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
