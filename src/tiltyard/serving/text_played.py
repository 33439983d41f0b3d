"""A text environment behind a session."""

import inspect
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.own_random import caller_of
from tiltyard.envs.result import text_reset, text_step
from tiltyard.errors import EnvError, EpisodeOverError, ToolError
from tiltyard.serving.played import Data, Progress, about, answer, mistake, refuse_unknown, text_action
from tiltyard.types import StepResult, ToolSchema

DEFAULTS = {"seed": None, "row_index": None, "evaluation": False}
"""What `reset` is given of these where it takes them, as in the process itself."""


class TextPlayed:
    """An action is `{"message": text}`; an observation that is no object comes under `message`."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._name = type(env).__name__
        self._call = caller_of(env)
        parameters = inspect.signature(env.reset).parameters.values()
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        named = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
        self._takes = named | set(DEFAULTS) if self._takes_all else named
        self._progress = Progress()
        self._over: str | None = "before the first reset"

    def facts(self) -> dict[str, Any]:
        """What the environment says about itself, its tools included."""
        said = {"env": self._name, **about(self._env), "reset_options": sorted(self._takes), "actions": "text"}
        tools = self._tools()
        return {**said, "tools": tools} if tools else said

    def reset(self, data: Data) -> dict[str, Any]:
        """Begin an episode.

        Raises:
            ActionRefusedError: `reset` does not take an argument.
            RolloutError: The environment failed.
        """
        where = f"{self._name}.reset"
        ignored = [] if self._takes_all else refuse_unknown(data, self._takes, where)
        given = {name: data.get(name, default) for name, default in DEFAULTS.items() if name in self._takes}
        given |= {name: value for name, value in data.items() if self._takes_all or name in self._takes}
        self._over = "after a reset that failed"
        result = text_reset(guarded(where, EnvError, self._call, self._env.reset, **given), where)
        self._over = None
        self._progress.begin(data)
        own = self.facts()
        return answer(result, {**own, "ignored": ignored} if ignored else own, ended=False)

    def step(self, data: Data) -> dict[str, Any]:
        """Act.

        Raises:
            ActionRefusedError: The action is no text.
            EpisodeOverError: The episode is over, or was never begun.
            RolloutError: The environment failed.
        """
        action = text_action(data, self._name)
        if self._over is not None:
            raise EpisodeOverError(f"a step {self._over}; reset begins an episode")
        self._progress.steps += 1
        where = f"{self._name}.step"
        try:
            result: StepResult = text_step(guarded(where, EnvError, self._call, self._env.step, action), where)
        except ToolError as error:
            return mistake({"message": f"Error: {error}"}, str(error))
        if result.done or result.truncated:
            self._over = "after the end of the episode"
        return answer(result)

    def state(self) -> dict[str, Any]:
        """How far the episode is, and what the environment says about itself."""
        return self._progress.as_data(self.facts())

    def close(self) -> None:
        """Close the environment, where it has a `close`."""
        if callable(close := getattr(self._env, "close", None)):
            guarded(f"{self._name}.close", EnvError, close)

    def _tools(self) -> list[ToolSchema]:
        tools: Any = getattr(self._env, "tools", None)
        if callable(tools):
            tools = guarded(f"{self._name}.tools", EnvError, tools)
        return list(tools or ())
