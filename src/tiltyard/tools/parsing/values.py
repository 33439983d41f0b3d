"""Arguments that a family writes as bare text, typed by the tool's schema and by nothing else."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.tools.messages import refuse_constant
from tiltyard.types import ToolSchema

_AS_PYTHON = {"True": (True, "boolean"), "False": (False, "boolean"), "None": (None, "null")}
_TYPE_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def parameters_of(tools: Sequence[ToolSchema], name: str) -> Mapping[str, Any]:
    """The parameters' JSON schema of a tool; an empty one where there is none."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}


def typed(text: str, key: str, parameters: Mapping[str, Any]) -> Any:
    """The text of an argument as the value that the tool's schema asks for.

    A string stays as it is written, wherever the schema takes a string or says nothing about the type;
    `null` is null where the schema takes both. Other types are read as JSON, with `True`, `False` and
    `None` as some templates write them. What cannot be read stays text: it fails the schema, and the
    model is told so.
    """
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(schema, Mapping):
        return text
    schema = _resolved(schema, parameters)
    if isinstance(schema.get("enum"), list):
        return _member(text, schema["enum"])
    types = _types(schema, parameters)
    if not types or ("string" in types and not (text.strip() == "null" and "null" in types)):
        return text
    value, its_type = _AS_PYTHON.get(text.strip(), (None, ""))
    return value if its_type in types else _json(text)


def written(value: Any) -> str:
    """A value as bare text: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text


def _member(text: str, members: list[Any]) -> Any:
    if text in members:
        return text
    value = _json(text)
    return value if any(type(value) is type(member) and value == member for member in members) else text


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema takes; empty where it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(map(str, declared))
    if "const" in schema:
        return frozenset((_TYPE_NAMES.get(type(schema["const"]), "object"),))
    if isinstance(schema.get("enum"), list):
        return frozenset(_TYPE_NAMES.get(type(member), "object") for member in schema["enum"])
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if not isinstance(branches, list) or depth > MAX_DEPTH:
        return frozenset()
    found = [_types(_resolved(one, root), root, depth + 1) for one in branches if isinstance(one, Mapping)]
    return frozenset().union(*found) if all(found) else frozenset()


MAX_DEPTH = 20
"""How deep references and unions are followed; a schema that refers to itself ends there."""


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference within the tool's own schema leads to; an empty one when it leads nowhere."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root if reference.startswith("#/") else None
        for part in reference[2:].split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = found if isinstance(found, Mapping) else {}
    return {}
