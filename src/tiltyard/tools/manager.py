"""The tools of one episode: which there are, and what a call to one of them gives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tiltyard._boundary import guarded, shown
from tiltyard.errors import ConfigurationError, ToolCrashError, ToolError
from tiltyard.tools.base import IndependentTool, LeasedTool, SteppingTool, Tool, ToolSource, result_text
from tiltyard.tools.messages import parse_call
from tiltyard.tools.schema import ArgumentsCheck, tool_name
from tiltyard.tools.text import as_text
from tiltyard.types import StepResult, ToolCall, ToolSchema

ERROR = "tool_error"
"""The key in a result's `info` that says why a call was answered with an error; absent when it ran."""


@dataclass(slots=True)
class _Entry:
    tool: Tool
    schema: ToolSchema
    check: ArgumentsCheck
    step: Any = field(default=None)


class ToolManager:
    """A set of tools with unique names.

    A call that names no known tool, or whose arguments are not sound JSON or do not fit the schema, is
    not run: its result is a text that the model can act on, and so is a `ToolError` of the tool.
    """

    def __init__(self, tools: Sequence[Tool] | Mapping[str, Tool] | None = None) -> None:
        """Register the tools.

        Raises:
            ConfigurationError: As `register`; or a key of the mapping is not its tool's name, or these are no tools.
        """
        self._entries: dict[str, _Entry] = {}
        if isinstance(tools, Mapping):
            for name, one in tools.items():
                own = self._schema_of(one)["function"]["name"]
                if own != name:
                    raise ConfigurationError(f"the key {name!r} holds the tool {own!r}; use the tool's own name")
                self.register(one)
        elif isinstance(tools, Iterable):
            for one in tools:
                self.register(one)
        elif tools is not None:
            raise ConfigurationError(
                f"ToolManager takes a list of tools, a dict of them by name, or nothing, got {shown(tools)}; put one "
                "tool in a list, and an environment's into EnvTool.from_env(env)"
            )

    def register(self, tool: Tool) -> Self:
        """Add a tool.

        Raises:
            ConfigurationError: It is not a tool, its schema is not valid, or its name is taken.
        """
        schema = self._schema_of(tool)
        name = tool_name(schema)
        if name in self._entries:
            raise ConfigurationError(f"a tool named {name!r} is registered already; unregister it first")
        step = tool.step if isinstance(tool, SteppingTool) else None
        self._entries[name] = _Entry(tool, schema, ArgumentsCheck(schema), step)
        return self

    def unregister(self, name: str) -> Tool:
        """Remove a tool and return it.

        Raises:
            ConfigurationError: There is none of that name; lists those there are.
        """
        if name not in self._entries:
            raise ConfigurationError(f"there is no tool {name!r}; there are: {self._known()}")
        return self._entries.pop(name).tool

    @property
    def names(self) -> list[str]:
        """The tools' names, in the order in which they were registered."""
        return list(self._entries)

    @property
    def tools(self) -> list[Tool]:
        """The tools, in the order in which they were registered."""
        return [entry.tool for entry in self._entries.values()]

    def copy(self) -> "ToolManager":
        """Another set of the same tools; the tools themselves are shared."""
        other = ToolManager()
        other._entries = dict(self._entries)
        return other

    @property
    def sources(self) -> list[ToolSource]:
        """What the tools hold elsewhere and cannot share with another episode, each once."""
        held = [one.source for one in self.tools if isinstance(one, LeasedTool) and one.source is not None]
        return list({id(source): source for source in held}.values())

    def independent(self, calls: Sequence[ToolCall]) -> bool:
        """Whether these calls may run at the same time: every tool that they name says so.

        A step of an environment never is: it may end the episode, and then those behind it are not run.
        """
        entries = [self._entries.get(call.name) for call in calls if call.error is None]
        return all(entry is None or _independent(entry) for entry in entries)

    def tool_infos(self) -> list[ToolSchema]:
        """The schemas that the model is shown."""
        return [entry.schema for entry in self._entries.values()]

    def step(self, tool_call: ToolCall | Mapping[str, Any]) -> StepResult:
        """Run one call, given as a `ToolCall` or in OpenAI form; a plain tool earns 0 and is never done.

        A call that is answered with an error has `info["tool_error"]` and earns nothing.

        Raises:
            RolloutError: The tool crashed (`ToolCrashError`), or the environment behind it failed.
        """
        call = tool_call if isinstance(tool_call, ToolCall) else parse_call(tool_call)
        if call.error is not None:
            return _refused("unreadable_call", call.error)
        entry = self._entries.get(call.name)
        if entry is None:
            return _refused("unknown_tool", f"there is no tool {call.name!r}; the tools are: {self._known()}")
        arguments = call.arguments or {}
        # A schema can break while it is used, e.g. on a reference that leads nowhere.
        problem = guarded(f"the schema of tool {call.name!r}", ToolCrashError, entry.check, arguments)
        if problem is not None:
            return _refused("bad_arguments", problem)
        try:
            if entry.step is not None:
                return entry.step(call.name, arguments)
            given: Any = guarded(f"tool {call.name!r}", ToolCrashError, entry.tool, call.name, arguments)
            return StepResult(result_text(call.name, given))
        except ToolError as error:
            return _refused("failed", str(error))

    def __call__(self, tool_call: ToolCall | Mapping[str, Any]) -> str:
        """Run one call and give its text; see `step`."""
        return as_text(self.step(tool_call).observation)

    def _known(self) -> str:
        return ", ".join(self._entries) or "none"

    @staticmethod
    def _schema_of(tool: Tool) -> ToolSchema:
        if not callable(getattr(tool, "tool_info", None)) or not callable(tool):
            raise ConfigurationError(
                f"{tool!r} is not a tool: it needs tool_info() and __call__(tool_name, arguments); "
                "make one from a function with tiltyard.tool(fn)"
            )
        schema = tool.tool_info()
        tool_name(schema)
        return schema


def _independent(entry: _Entry) -> bool:
    return entry.step is None and isinstance(entry.tool, IndependentTool) and entry.tool.parallel


def _refused(kind: str, text: str) -> StepResult:
    return StepResult(f"Error: {text}", info={ERROR: kind})
