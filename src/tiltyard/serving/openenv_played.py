"""An `Environment` of the `openenv` package behind a session, as its own server plays it."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.envs.openenv.discovery import action_class
from tiltyard.envs.result import flag, scored
from tiltyard.errors import ActionRefusedError, ConfigurationError, EnvError
from tiltyard.serving.played import Data, refuse_unknown
from tiltyard.tools.text import fields

MCP_ACTIONS = {"list_tools": "ListToolsAction", "call_tool": "CallToolAction"}


def is_environment(env: object) -> bool:
    """Whether it is openenv's, a class or an instance; openenv need not be imported to ask."""
    bases = env.__mro__ if isinstance(env, type) else type(env).__mro__
    return any(base.__name__ == "Environment" and base.__module__.startswith("openenv.") for base in bases[1:])


def action_class_of(cls: type, given: Any = None) -> Any:
    """The class of the environment's actions; None for an MCP environment, whose actions are calls of tools.

    Raises:
        ConfigurationError: It is not found, or there is more than one.
    """
    if given is not None:
        return given
    found = _annotated(cls) or action_class(cls, None)
    if found is None and not _derives(cls, "MCPEnvironment"):
        raise ConfigurationError(f"the class of actions of {cls.__name__} is not found; give action_cls=")
    return found


class OpenEnvPlayed:
    """Actions are validated by the environment's own class; asynchronous methods run on a loop of this session."""

    def __init__(self, env: Any, action_cls: Any = None) -> None:
        self._env = env
        self._name = type(env).__name__
        self._action_cls = action_class_of(type(env), action_cls)
        parameters = inspect.signature(self._method("reset")).parameters.values()
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._takes = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
        self._runner: asyncio.Runner | None = None
        self._stack: contextlib.AsyncExitStack | None = None
        if callable(session := getattr(env, "mcp_session", None)):
            self._stack = contextlib.AsyncExitStack()
            self._run(self._stack.enter_async_context, session())

    def facts(self) -> dict[str, Any]:
        """Nothing: clients know such an environment by its own classes."""
        return {}

    def reset(self, data: Data) -> dict[str, Any]:
        """Begin an episode.

        Raises:
            ActionRefusedError: `reset` does not take an argument.
            RolloutError: The environment failed.
        """
        where = f"{self._name}.reset"
        if not self._takes_all:
            refuse_unknown(data, self._takes, where)
        given = {name: value for name, value in data.items() if self._takes_all or name in self._takes}
        return self._answer(guarded(where, EnvError, self._called("reset"), **given), where)

    def step(self, data: Data) -> dict[str, Any]:
        """Act.

        Raises:
            ActionRefusedError: The action does not fit the environment's class.
            RolloutError: The environment failed.
        """
        where = f"{self._name}.step"
        action = self._action(data)
        return self._answer(guarded(where, EnvError, self._called("step"), action), where)

    def state(self) -> dict[str, Any]:
        """The environment's own state."""
        return fields(guarded(f"{self._name}.state", EnvError, getattr, self._env, "state")) or {}

    def close(self) -> None:
        """Close the environment and its MCP session."""
        try:
            if self._stack is not None:
                self._run(self._stack.aclose)
            guarded(f"{self._name}.close", EnvError, self._env.close)
        finally:
            if self._runner is not None:
                self._runner.close()

    def _action(self, data: Data) -> Any:
        cls = self._action_cls
        if (cls is None or cls.__name__ == "Action") and data.get("type") in MCP_ACTIONS:
            types = require("openenv.core.env_server.mcp_types", "openenv")
            cls = getattr(types, MCP_ACTIONS[data["type"]])
        if cls is None:
            errors = [{"type": "literal_error", "loc": ["type"], "msg": "Input should be 'list_tools' or 'call_tool'"}]
            raise ActionRefusedError(f"{self._name} takes calls of tools only", errors)
        try:
            return cls.model_validate(dict(data))
        except ValueError as error:  # pydantic's ValidationError
            raise ActionRefusedError("Invalid message", _errors(error)) from error

    def _answer(self, observation: Any, where: str) -> dict[str, Any]:
        shown = fields(observation)
        if shown is None:
            raise EnvError(f"{where} returned a {type(observation).__name__}; expected an Observation")
        reward, done = scored(shown.pop("reward", None), where), flag(shown.pop("done", False), "done", where)
        metadata = shown.get("metadata") or {}
        return {"observation": shown, "reward": reward, "done": done, "metadata": metadata}

    def _method(self, name: str) -> Callable[..., Any]:
        """The asynchronous form where the environment has one of its own."""
        return getattr(self._env, f"{name}_async" if self._is_async(name) else name)

    def _is_async(self, name: str) -> bool:
        owner = next((cls for cls in type(self._env).__mro__ if f"{name}_async" in cls.__dict__), None)
        return owner is not None and owner.__name__ != "Environment"

    def _called(self, name: str) -> Callable[..., Any]:
        method = self._method(name)
        if not self._is_async(name):
            return method
        return lambda *args, **kwargs: self._run(method, *args, **kwargs)

    def _run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def awaited() -> Any:
            return await method(*args, **kwargs)

        return self._runner.run(awaited())


def _errors(error: ValueError) -> list[Any]:
    """What pydantic says of each field."""
    told: Any = getattr(error, "errors", None)
    if told is None:
        return [{"type": "value_error", "loc": [], "msg": str(error)}]
    return list(told(include_url=False, include_context=False))


def _annotated(cls: type) -> Any:
    """The class of actions that `step` is annotated with."""
    parameters = list(inspect.signature(cls.step).parameters.values())  # pyright: ignore[reportAttributeAccessIssue]  # every Environment has one
    found = parameters[1].annotation if len(parameters) > 1 else None
    return found if isinstance(found, type) and _derives(found, "Action") else None


def _derives(cls: type, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith("openenv.") for base in cls.__mro__[1:])
