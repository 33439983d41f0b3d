"""An environment's tools, with the one record of the episode that they share."""

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from tiltyard._boundary import guarded, shown
from tiltyard.envs.base import Env
from tiltyard.envs.observation import process_observation
from tiltyard.envs.result import FAILURE, scored, step_result
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError, RolloutError
from tiltyard.types import StepResult, ToolSchema

ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}


class EpisodeRecord:
    """Where the episode of one environment stands; there is one for each environment, whoever asks."""

    _of_env: ClassVar["weakref.WeakValueDictionary[int, EpisodeRecord]"] = weakref.WeakValueDictionary()

    def __init__(self, env: Env) -> None:
        self.env = env
        self.name = type(env).__name__
        self._step_name = f"{self.name}.step"
        self._last: StepResult | None = None
        self._earned: float | None = None
        self._episode = env.episodes_started

    @classmethod
    def of(cls, env: Env) -> "EpisodeRecord":
        """The record of this environment; it holds the environment, so its id stays taken while the record lives.

        Raises:
            ConfigurationError: It is no `Env`.
        """
        if not isinstance(env, Env):
            raise ConfigurationError(
                f"{shown(env)} has no tool calls: it must be an instance of a subclass of tiltyard.Env. The actions of "
                "a text environment are the model's texts, and it is played without tools"
            )
        record = cls._of_env.get(id(env))
        if record is None:
            record = cls._of_env[id(env)] = cls(env)
        return record

    @property
    def last_result(self) -> StepResult | None:
        """The last step's result; None before the first step of the episode."""
        self._follow()
        return self._last

    @property
    def earned(self) -> float | None:
        """The environment's own `info["episode_reward"]`, else the sum of what was scored; None when nothing was."""
        self._follow()
        own = self._last.info.get("episode_reward") if self._last is not None else None
        return self._earned if own is None else scored(own, f"{self.name} info['episode_reward']")

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Reset the environment and begin a record.

        Raises:
            RolloutError: The environment failed.
        """
        self._begin()
        name = f"{self.name}.reset"
        result = step_result(guarded(name, EnvError, self.env.reset, trajectory), name)
        self._begin()
        self._add(result)
        return result

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Step the environment.

        Raises:
            EpisodeOverError: The episode is over; nothing is run and nothing is earned.
            RolloutError: The environment failed, or says so in `info["failure"]`.
            ToolError: The model's mistake.
        """
        self._follow()
        if self._last is not None and (self._last.done or self._last.truncated):
            raise EpisodeOverError(
                f"{tool_name!r} was called after the episode of {self.name} ended; reset it to begin another"
            )
        result = step_result(guarded(self._step_name, EnvError, self.env.step, tool_name, arguments), self._step_name)
        self._add(result)
        failure = result.info.get(FAILURE)
        if isinstance(failure, RolloutError):
            raise failure
        return result

    def _add(self, result: StepResult) -> None:
        self._last = result
        if result.reward is not None:
            self._earned = (self._earned or 0.0) + result.reward

    def _follow(self) -> None:
        """Begin a new record when the environment was reset by hand."""
        if self._episode != self.env.episodes_started:
            self._begin()

    def _begin(self) -> None:
        self._episode = self.env.episodes_started
        self._last = None
        self._earned = None


class EnvTool:
    """One tool of an environment. All tools of one environment share the record of its episode."""

    def __init__(
        self,
        env: Env,
        tool_name: str = "env_action",
        description: str = "Act in the environment.",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap an environment by hand.

        Args:
            env: The environment; whoever made it closes it.
            tool_name: What the model calls, and the name that `Env.step` gets.
            description: What the model reads.
            parameters: The JSON schema of the arguments; None takes any object.

        Raises:
            ConfigurationError: It is no `Env`.
        """
        function = {"name": tool_name, "description": description, "parameters": dict(parameters or ANY_OBJECT)}
        self._init(env, {"type": "function", "function": function})

    def _init(self, env: Env, schema: ToolSchema) -> None:
        self.record = EpisodeRecord.of(env)
        self._schema = schema
        self.step = self.record.step

    @classmethod
    def from_env(cls, env: Env) -> "list[EnvTool]":
        """One tool for each of `env.tools()`; where it has none, one `env_action` that takes any object.

        Raises:
            ConfigurationError: It is no `Env`.
        """
        return cls.from_schemas(env, EpisodeRecord.of(env).env.tools())

    @classmethod
    def from_schemas(cls, env: Env, schemas: list[ToolSchema]) -> "list[EnvTool]":
        """One tool for each schema, or the one `env_action`."""
        if not schemas:
            return [cls(env)]
        tools = []
        for schema in schemas:
            tool = cls.__new__(cls)
            tool._init(env, schema)
            tools.append(tool)
        return tools

    def __call__(self, tool_name: str, arguments: dict[str, Any]) -> str:
        """Step the environment and give the observation as text; see `EpisodeRecord.step`."""
        return process_observation(self.record.step(tool_name, arguments).observation)

    def tool_info(self) -> ToolSchema:
        """The schema that the model is shown."""
        return self._schema

    @property
    def env(self) -> Env:
        """The environment behind the tool."""
        return self.record.env

    @property
    def last_result(self) -> StepResult | None:
        """The last result of any tool of this environment; None before the first of an episode."""
        return self.record.last_result

    @property
    def done(self) -> bool:
        """True when the last step of any tool of this environment ended the episode."""
        last = self.record.last_result
        return last is not None and last.done

    @property
    def episode_reward(self) -> float | None:
        """What the episode has earned so far, through whichever tool; None when nothing was scored."""
        return self.record.earned
