"""What a tool is, and how a Python function becomes one."""

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Union, runtime_checkable

from tiltyard._boundary import shown
from tiltyard._coroutines import awaited
from tiltyard.errors import ConfigurationError, ToolCrashError
from tiltyard.tools.text import as_text
from tiltyard.types import StepResult, ToolSchema


class Tool(Protocol):
    """Something that a model can call by name."""

    def __call__(self, tool_name: str, arguments: dict[str, Any]) -> str:
        """Run the tool; its text is what the model sees.

        Raises:
            ToolError: The model's mistake; its text is what the model sees, and the episode goes on.
        """
        ...

    def tool_info(self) -> ToolSchema:
        """The OpenAI function-call schema that the model is shown and its arguments are checked against."""
        ...


@runtime_checkable
class SteppingTool(Protocol):
    """A tool that also has a reward and an end: a step of an environment."""

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run the tool."""
        ...


@runtime_checkable
class IndependentTool(Protocol):
    """A tool that says whether its calls may run at the same time as other calls of the same turn."""

    parallel: bool


@runtime_checkable
class LeasedTool(Protocol):
    """A tool that works with something held elsewhere, such as a session on a server."""

    source: "ToolSource | None"
    """What it holds: two episodes at a time cannot have the same. None where they can."""


class ToolSource(Protocol):
    """Something held elsewhere that one or more tools work with."""

    def renew(self) -> None:
        """Get ready for an episode: what was lost is opened again.

        Raises:
            LostSessionError: It cannot be.
        """
        ...

    def close(self) -> None:
        """Give it back; more than one call does no harm."""
        ...


def result_text(tool_name: str, result: Any) -> str:
    """What a tool returned, as the text that the model sees.

    Raises:
        ToolCrashError: It is a `StepResult`, whose reward and end a plain tool has no way to pass on.
    """
    if isinstance(result, StepResult):
        raise ToolCrashError(
            f"the tool {tool_name!r} returned a StepResult, and a tool returns text: its reward and its end would be "
            "lost. Make it a step of an Env, or give the tool a method step(tool_name, arguments) -> StepResult"
        )
    return as_text(result)


class FunctionTool:
    """A tool made from a function by `tool`."""

    def __init__(self, function: Callable[..., Any], schema: ToolSchema, *, parallel: bool = False) -> None:
        self.function = function
        self.parallel = parallel
        self._schema = schema

    def __call__(self, tool_name: str, arguments: dict[str, Any]) -> str:
        """Call the function with the arguments; what it returns is shown as text."""
        return result_text(tool_name, awaited(self.function(**arguments)))

    def tool_info(self) -> ToolSchema:
        """The schema read from the function's types and docstring."""
        return self._schema


def tool(function: Callable[..., Any], *, parallel: bool = False) -> FunctionTool:
    """Make a tool from a function with type hints and a Google-style docstring.

    Parameters may be `str`, `int`, `float`, `bool`, `list[...]`, `dict[str, ...]`, `Literal[...]`,
    `Any`, and unions of these such as `X | None`; those with a default are optional. The first
    paragraph of the docstring describes the tool, its `Args:` each parameter.

    Args:
        function: What is called; its name is the tool's.
        parallel: Calls of it may run at the same time as each other and as those of other such tools, on
            several threads. Otherwise the calls of a turn run one after the other.

    Raises:
        ConfigurationError: The function or a parameter is not documented, has no type hint, or has one
            that JSON cannot express; names the function and the parameter.
    """
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"a tool is made from a function or a method, got {shown(function)}")
    name = getattr(function, "__name__", type(function).__name__)
    doc = inspect.getdoc(function)
    if not doc:
        raise ConfigurationError(f"tool {name!r} has no docstring; say in one what it does: the model reads it")
    described = _described_arguments(doc)
    parameters, hints = _signature(function, name)
    properties: dict[str, Any] = {}
    required = []
    for parameter in parameters:
        where = f"parameter {parameter.name!r} of tool {name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"{where} must be a named parameter, not *args, **kwargs or positional-only")
        if parameter.name not in hints:
            raise ConfigurationError(f"{where} has no type hint; the schema is made from it")
        if parameter.name not in described:
            raise ConfigurationError(f"{where} is not described; add it under 'Args:' in the docstring")
        schema = {**_type_schema(hints[parameter.name], where), "description": described[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema["default"] = _default(parameter.default, where)
        properties[parameter.name] = schema
    accepted = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    summary = " ".join(doc.split("\n\n", 1)[0].split())
    schema = {"type": "function", "function": {"name": name, "description": summary, "parameters": accepted}}
    return FunctionTool(function, schema, parallel=parallel)


def _signature(function: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """The function's parameters, and their types by name."""
    try:
        return list(inspect.signature(function).parameters.values()), typing.get_type_hints(function)
    except (NameError, TypeError, ValueError) as error:  # a type that is not there, or a function written in C
        raise ConfigurationError(f"the types of tool {name!r} cannot be read: {error}") from error


def _default(value: Any, where: str) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where} has the default {shown(value)}, which JSON cannot express") from error
    return value


_PRIMITIVES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _type_schema(hint: Any, where: str) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    if hint in _PRIMITIVES:
        return {"type": _PRIMITIVES[hint]}
    if hint is Any:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Union or origin is types.UnionType:
        return {"anyOf": [_type_schema(argument, where) for argument in arguments]}
    if hint is list or origin in (list, Sequence):
        return {"type": "array", **({"items": _type_schema(arguments[0], where)} if arguments else {})}
    if hint is dict or origin in (dict, Mapping):
        if arguments and arguments[0] is not str:
            raise ConfigurationError(f"{where} is {hint!r}; the keys of a JSON object are str")
        values = _type_schema(arguments[1], where) if arguments else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    raise ConfigurationError(
        f"{where} is {hint!r}, which JSON cannot express; use str, int, float, bool, list, dict, Literal or a union"
    )


_ARGS = re.compile(r"^(Args|Arguments):[ \t]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def _described_arguments(doc: str) -> dict[str, str]:
    """The parameter descriptions under `Args:`."""
    head = _ARGS.search(doc)
    described: dict[str, str] = {}
    if head is None:
        return described
    indent = name = None
    for line in doc[head.end() :].split("\n")[1:]:
        if line.strip() and not line[0].isspace():
            break
        entry = _ARGUMENT.match(line)
        if entry and (indent is None or len(entry[1]) <= indent):
            indent, name = len(entry[1]), entry[2]
            described[name] = entry[3].strip()
        elif name is not None and line.strip():
            described[name] = f"{described[name]} {line.strip()}".strip()
    return described
