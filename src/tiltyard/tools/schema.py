"""Arguments checked against a tool's JSON schema, compiled once."""

from collections.abc import Mapping
from typing import Any

import jsonschema
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from referencing import Registry

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError
from tiltyard.types import ToolSchema

MAX_PROBLEMS = 3
"""How many problems of one call are told to the model."""

MAX_PROBLEM_CHARS = 300


def tool_name(schema: ToolSchema) -> str:
    """The name in an OpenAI function-call schema.

    Raises:
        ConfigurationError: It has no `function.name`.
    """
    function = schema.get("function") if isinstance(schema, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            'a tool schema must be {"type": "function", "function": {"name": …, "description": …, '
            f'"parameters": …}}}}, got {shown(schema)}'
        )
    return name


class ArgumentsCheck:
    """Checks arguments against one tool's parameters. Nothing is converted: "1" is not 1, and 1 is not "1"."""

    def __init__(self, schema: ToolSchema) -> None:
        """Compile the tool's parameters.

        Raises:
            ConfigurationError: The parameters are not a JSON schema of an object.
        """
        self.name = tool_name(schema)
        parameters = schema["function"].get("parameters") or {"type": "object", "properties": {}}
        try:
            Draft202012Validator.check_schema(parameters)
        except jsonschema.SchemaError as error:
            raise ConfigurationError(
                f"the parameters of tool {self.name!r} are not a JSON schema: {error.message}"
            ) from error
        if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
            raise ConfigurationError(f"the parameters of tool {self.name!r} must be of type 'object'")
        self._validator: Validator = Draft202012Validator(parameters, registry=Registry())  # fetches nothing

    def __call__(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments, as text for the model; None when they fit."""
        problems = []
        for error in self._validator.iter_errors(arguments):
            where = "".join(f"[{part!r}]" for part in error.absolute_path)
            problems.append(f"{where + ': ' if where else ''}{error.message[:MAX_PROBLEM_CHARS]}")
            if len(problems) == MAX_PROBLEMS:
                break
        if not problems:
            return None
        return f"the arguments of {self.name!r} do not fit its schema: {'; '.join(problems)}"
