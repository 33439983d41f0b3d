"""An OpenEnv environment in this process, without a server."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.envs.base import Env
from tiltyard.envs.observation import process_observation
from tiltyard.envs.openenv.client import checked_callable, reset_arguments
from tiltyard.envs.openenv.codec import build_action, made
from tiltyard.envs.openenv.discovery import action_class, environment_class, is_client, load_class
from tiltyard.envs.openenv.mcp import mcp_types, tool_schemas, tool_text
from tiltyard.envs.openenv.wire import truncated
from tiltyard.envs.result import flag, scored
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError
from tiltyard.types import StepResult, ToolSchema


class OpenEnv(Env):
    """An `Environment` of an OpenEnv package, made and called in this process.

    `tools()` is empty unless it is an MCP environment, whose real tools it then gives: `EnvTool.from_env` makes one
    generic `env_action` of any arguments, which are the fields of the package's Action. Give schemas to `EnvTool`, or
    subclass and override `tools`, when the model should see the actions.

    Attributes:
        env: The environment itself.
    """

    def __init__(
        self,
        env_name: str | None = None,
        env_cls: Any = None,
        env_kwargs: Mapping[str, Any] | None = None,
        action_cls: Any = None,
        action_mapper: Callable[[str, dict[str, Any]], Any] | None = None,
        **older: Any,
    ) -> None:
        """Find the classes and make the environment.

        Args:
            env_name: An installed package: its Environment is found in `<env_name>.server`, its Action in the package.
            env_cls: The Environment class itself, `module:Class` or `module.Class`; exactly one of the two.
            env_kwargs: Keyword arguments of the Environment.
            action_cls: The class of actions; None finds it.
            action_mapper: `(tool_name, arguments) -> action`, an action or a dict of its fields; None takes the
                arguments as the fields.
            older: `base_url` and what went with it; raises.

        Raises:
            ConfigurationError: A class is not found, or more than one is; or the environment takes other arguments.
            EnvError: The environment could not be made.
        """
        if "base_url" in older:
            raise ConfigurationError(
                f"OpenEnv runs an environment in this process; for the server at {older['base_url']!r} write "
                f"OpenEnvClient(base_url={older['base_url']!r}, …) (tool_schema is called tools there)"
            )
        if older:
            raise TypeError(f"OpenEnv() got an unexpected keyword argument {next(iter(older))!r}")
        if (env_name is None) == (env_cls is None):
            raise ConfigurationError(f"give env_name or env_cls, exactly one; got {env_name!r} and {env_cls!r}")
        cls = environment_class(env_name) if env_name is not None else load_class(env_cls, "env_cls")
        self._name = cls.__name__
        if is_client(cls):
            raise ConfigurationError(f"{self._name} is a client of servers: give it to OpenEnvClient, with a base_url")
        self._mcp = any(base.__name__ == "MCPEnvironment" for base in cls.__mro__)
        self._map = None if action_mapper is None else checked_callable(action_mapper, "action_mapper")
        self._action_cls = load_class(action_cls, "action_cls")
        if self._action_cls is None and not self._mcp:
            self._action_cls = action_class(cls, env_name)
        if self._action_cls is None and not self._mcp and action_mapper is None:
            raise ConfigurationError(
                f"the class of actions of {self._name} is not found; give action_cls='module:Class', or action_mapper"
            )
        self.env = made(cls, env_kwargs or {}, "env_kwargs")
        self._reset = _blocking(self.env, "reset")
        self._step = _blocking(self.env, "step")
        self._takes = _named(self.env.reset_async if _is_async(self.env, "reset") else self.env.reset)
        self._over: str | None = "before the first reset()"
        self._earned: float | None = None
        self._closed = False

    @property
    def episode_reward(self) -> float | None:
        """What the episode has earned so far; None when nothing was scored."""
        return self._earned

    def tools(self) -> list[ToolSchema]:
        """The real tools of an MCP environment; none for any other, whose one tool is `env_action`.

        Raises:
            EnvError: They cannot be listed.
        """
        if not self._mcp:
            return []
        action = mcp_types().ListToolsAction()
        return tool_schemas(guarded(f"{self._name}.step", EnvError, self._step, action))

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin an episode with the seed, and those fields of the task that the environment's `reset` takes.

        Raises:
            ConfigurationError: The task names a row, and the environment takes none.
            EnvError: The environment failed.
            EpisodeOverError: It was closed.
        """
        if self._closed:
            raise EpisodeOverError(f"reset() after close(): make a new OpenEnv of {self._name}")
        self._over, self._earned = "after a reset() that failed", None
        given = reset_arguments(trajectory)
        taken = {name: value for name, value in given.items() if self._takes is None or name in self._takes}
        if "row_index" in given and "row_index" not in taken:
            raise ConfigurationError(
                f"the task names row {given['row_index']}, but {self._name}.reset takes no row_index"
            )
        observation = guarded(f"{self._name}.reset", EnvError, self._reset, **taken)
        return self._taken(observation, "reset")

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Act once.

        Raises:
            ToolError: The arguments are not those of an action; the episode goes on.
            EnvError: The environment failed.
            EpisodeOverError: The episode is over, or has not begun.
        """
        if self._over is not None:
            raise EpisodeOverError(f"{tool_name!r} was called {self._over}; call reset() to begin an episode")
        action = self._action(tool_name, arguments)
        return self._taken(guarded(f"{self._name}.step", EnvError, self._step, action), "step")

    def close(self) -> None:
        """Close the environment; more than one call closes it once.

        Raises:
            EnvError: Its `close` raised.
        """
        self._over = "after close()"
        if not self._closed:
            self._closed = True
            guarded(f"{self._name}.close", EnvError, self.env.close)

    def _action(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        if self._map is not None:
            action = guarded("action_mapper", EnvError, self._map, tool_name, arguments)
        elif self._mcp:
            return mcp_types().CallToolAction(tool_name=tool_name, arguments=arguments)
        else:
            action = arguments
        if self._action_cls is not None and isinstance(action, Mapping):
            return build_action(self._action_cls, action)
        return action

    def _taken(self, observation: Any, method: str) -> StepResult:
        where = f"{self._name}.{method}"
        if observation is None or not hasattr(observation, "done"):
            raise EnvError(f"{where} returned a {type(observation).__name__}; expected an Observation of openenv")
        reward = scored(observation.reward, where)
        if reward is not None:
            self._earned = (self._earned or 0.0) + reward
        metadata = getattr(observation, "metadata", None) or {}
        done, cut = flag(observation.done, "done", where), truncated(metadata)
        self._over = "after the end of the episode" if done or cut else None
        text = tool_text(observation) if self._mcp else process_observation(observation)
        return StepResult(text, reward, done, {"raw_result": observation, "episode_reward": self._earned}, cut)


def _is_async(env: Any, method: str) -> bool:
    """Whether the environment has its own `reset_async` or `step_async`: then that is the one that servers call."""
    own = getattr(type(env), f"{method}_async", None)
    base = next((cls for cls in type(env).__mro__ if cls.__module__.startswith("openenv.core.env_server.inter")), None)
    return own is not None and own is not getattr(base, f"{method}_async", None)


def _blocking(env: Any, method: str) -> Callable[..., Any]:
    """The method that a server of openenv would call, as one that blocks."""
    if not _is_async(env, method):
        return getattr(env, method)
    run = require("openenv.core.utils", "openenv").run_async_safely
    call = getattr(env, f"{method}_async")
    return lambda *args, **kwargs: run(call(*args, **kwargs))


def _named(reset: Callable[..., Any]) -> frozenset[str] | None:
    """The arguments that a `reset` takes by name; None when it takes any."""
    parameters = inspect.signature(reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
