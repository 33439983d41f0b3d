"""A tool-call environment behind a session: the actions and observations of MCP environments."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env
from tiltyard.envs.result import step_result
from tiltyard.envs.tool import EnvTool
from tiltyard.errors import ActionRefusedError, ConfigurationError, EnvError, EpisodeOverError, ToolError
from tiltyard.serving.played import Data, Progress, about, answer, mistake
from tiltyard.tools.manager import ERROR, ToolManager
from tiltyard.types import StepResult, ToolCall, ToolSchema

PREFIX = "Error: "
KINDS = {"unknown_tool": "tool_not_found", "bad_arguments": "invalid_args"}


class ToolPlayed:
    """An action is `{"type": "call_tool", "tool_name", "arguments"}`, or `{"type": "list_tools"}`."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._name = type(env).__name__
        self._schemas: list[ToolSchema] | None = None
        self._manager = ToolManager()
        self._progress = Progress()
        self._over: str | None = "before the first reset"

    def facts(self) -> dict[str, Any]:
        """What the environment says about itself."""
        return {"env": self._name, **about(self._env), "actions": "tools"}

    def reset(self, data: Data) -> dict[str, Any]:
        """Begin an episode with everything that was sent: an `Env` is told of its task in one dict.

        Raises:
            RolloutError: The environment failed.
        """
        task = {"messages": [], "seed": None, "row_index": None, "evaluation": False, **data}
        self._over = "after a reset that failed"
        result = step_result(guarded(f"{self._name}.reset", EnvError, self._env.reset, task), f"{self._name}.reset")
        self._use_tools()
        self._over = "after the end of the episode" if result.done or result.truncated else None
        self._progress.begin(data)
        return answer(result, self.facts())

    def step(self, data: Data) -> dict[str, Any]:
        """Call a tool, or list the tools; the latter is no step of the environment.

        Raises:
            ActionRefusedError: The action is neither.
            EpisodeOverError: The episode is over, or was never begun.
            RolloutError: The environment failed.
        """
        if data.get("type") == "list_tools":
            self._use_tools()
            return listed(self._schemas or [])
        call = called(data)
        if self._over is not None:
            raise EpisodeOverError(f"a step {self._over}; reset begins an episode")
        self._progress.steps += 1
        result = self._run(call)
        if ERROR in result.info:
            text = str(result.observation).removeprefix(PREFIX)
            return tool_mistake(call.name, text, KINDS.get(result.info[ERROR], "execution_error"))
        if result.done or result.truncated:
            self._over = "after the end of the episode"
        shown = {"tool_name": call.name, "result": result.observation, "error": None}
        return answer(StepResult(shown, result.reward, result.done, result.info, result.truncated))  # pyright: ignore[reportArgumentType]  # an object, as MCP environments give

    def state(self) -> dict[str, Any]:
        """How far the episode is, and what the environment says about itself."""
        return self._progress.as_data(self.facts())

    def close(self) -> None:
        """Close the environment."""
        guarded(f"{self._name}.close", EnvError, self._env.close)

    def _run(self, call: ToolCall) -> StepResult:
        if self._schemas:
            return self._manager.step(call)
        where = f"{self._name}.step"  # an environment that lists no tools takes any name
        try:
            return step_result(guarded(where, EnvError, self._env.step, call.name, call.arguments or {}), where)
        except ToolError as error:
            return StepResult(f"{PREFIX}{error}", info={ERROR: "failed"})

    def _use_tools(self) -> None:
        schemas = guarded(f"{self._name}.tools", EnvError, self._env.tools)
        if schemas == self._schemas:
            return
        try:
            self._manager = ToolManager(EnvTool.from_schemas(self._env, schemas) if schemas else None)
        except ConfigurationError as error:
            raise EnvError(f"{self._name}.tools gave tools that cannot be used: {error}") from error
        self._schemas = list(schemas)


def listed(schemas: Sequence[ToolSchema]) -> dict[str, Any]:
    """The answer to `list_tools`."""
    tools = [
        {
            "name": schema["function"]["name"],
            "description": schema["function"].get("description") or "",
            "input_schema": schema["function"].get("parameters") or {"type": "object", "properties": {}},
        }
        for schema in schemas
    ]
    return {"observation": {"tools": tools}, "reward": None, "done": False, "metadata": {}}


def called(data: Data) -> ToolCall:
    """The call that an action is.

    Raises:
        ActionRefusedError: It is none.
    """
    errors = []
    if data.get("type", "call_tool") != "call_tool":
        told = f"Input should be 'call_tool' or 'list_tools', got {data['type']!r}"
        errors.append({"type": "literal_error", "loc": ["type"], "msg": told})
    name, arguments = data.get("tool_name"), data.get("arguments", {})
    if not isinstance(name, str) or not name:
        errors.append({"type": "missing", "loc": ["tool_name"], "msg": "Field required, a string"})
    if not isinstance(arguments, Mapping):
        errors.append({"type": "dict_type", "loc": ["arguments"], "msg": "Input should be an object"})
    if errors or not isinstance(name, str):
        raise ActionRefusedError('an action is {"type": "call_tool", "tool_name": …, "arguments": {…}}', errors)
    return ToolCall(name, dict(arguments))


def tool_mistake(name: str, text: str, kind: str) -> dict[str, Any]:
    """The answer to a call that the model got wrong, as MCP environments give it."""
    return mistake({"tool_name": name, "result": None, "error": {"error_type": kind, "message": text}}, text)
