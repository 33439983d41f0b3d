"""A text environment as turns."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiltyard._boundary import guarded, shown
from tiltyard.envs.observation import MAX_OBSERVATION_CHARS, TRUNCATED_MARK, clip_observation, process_observation
from tiltyard.envs.opening import system_messages
from tiltyard.envs.own_random import caller_of
from tiltyard.envs.result import text_reset, text_step, usable_schemas
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError, ToolError
from tiltyard.tools.manager import ERROR
from tiltyard.tools.messages import text_with_calls, tool_message
from tiltyard.types import Message, Reply, Task, ToolCall, ToolSchema, Turn

ANSWERED_ABOVE = "Answered with the call above."
RESET_OPTIONS = ("seed", "row_index", "evaluation")


class TextTurns:
    """A text environment as turns: the text of a reply is the action, the observation a user message.

    `reset` gets only those of `seed`, `row_index` and `evaluation` that it takes. Where the environment
    shows tools, the calls that the model made are part of its action, each as `<tool_call>{json}</tool_call>`
    whatever the model's family writes; the first call gets the observation as its result. A `ToolError`
    of `step` is shown to the model and earns nothing.
    """

    def __init__(
        self,
        env: Any,
        *,
        max_observation_chars: int | None = MAX_OBSERVATION_CHARS,
        observation_field: str | None = None,
        observation_processor: Callable[[Any], str] | None = None,
    ) -> None:
        self._env = env
        self._call = caller_of(env)
        self._max_chars = max_observation_chars
        self._field = observation_field
        self._processor = observation_processor
        name = type(env).__name__
        self._reset_name, self._step_name = f"{name}.reset", f"{name}.step"
        self._options = reset_options(env)
        self._tools: list[ToolSchema] = []
        self._over = True
        self._closed = False

    @property
    def sources(self) -> tuple[object, ...]:
        """The environment behind the turns: what two episodes at a time cannot share."""
        return (self._env,)

    def start(self, task: Task) -> Turn:
        """Reset the environment.

        Raises:
            ConfigurationError: The task names a row, and the environment's `reset` cannot be told which.
            RolloutError: The environment failed.
        """
        given = {name: getattr(task, name) for name in RESET_OPTIONS}
        options = taken_options(self._options, given, self._reset_name)
        self._over = True
        result = text_reset(
            guarded(self._reset_name, EnvError, self._call, self._env.reset, **options), self._reset_name
        )
        self._tools = text_tools(self._env)
        info = dict(result.info)
        messages = [*system_messages(self._env), {"role": "user", "content": self._shown(result.observation, info)}]
        self._over = False
        return Turn(tuple(messages), None, info=info)

    def reply(self, reply: Reply) -> Turn:
        """Act with the text of one reply.

        Raises:
            EpisodeOverError: The episode is over, or was never started.
            RolloutError: The environment failed.
        """
        if self._over:
            raise EpisodeOverError(f"{self._step_name} was asked for after the episode ended; start another first")
        action = text_with_calls(reply)
        try:
            raw = guarded(self._step_name, EnvError, self._call, self._env.step, action)
        except ToolError as error:
            return Turn(_answered(reply.tool_calls, f"Error: {error}"), info={ERROR: "failed"})
        result = text_step(raw, self._step_name)
        marks: dict[str, Any] = {}
        text = self._shown(result.observation, marks)
        info = {**result.info, **marks} if marks else result.info
        self._over = result.done or result.truncated
        return Turn(_answered(reply.tool_calls, text), result.reward, result.done, result.truncated, info=info)

    def tools(self) -> list[ToolSchema]:
        """The schemas that the environment shows to the model."""
        return self._tools

    def close(self) -> None:
        """Close the environment where it can be closed; more than one call closes it once.

        Raises:
            EnvError: Its `close` raised.
        """
        if self._closed:
            return
        self._closed = True
        close = getattr(self._env, "close", None)
        if close is not None:
            guarded(f"{type(self._env).__name__}.close", EnvError, close)

    def _shown(self, observation: Any, marks: dict[str, Any]) -> str:
        if self._processor is not None:
            observation = _processed(self._processor, observation)
        text, cut = clip_observation(process_observation(observation, self._field), self._max_chars)
        if cut:
            marks[TRUNCATED_MARK] = True
        return text


def _processed(processor: Callable[[Any], str], observation: Any) -> Any:
    processed = guarded("observation_processor", EnvError, processor, observation)
    if processed is None and observation is not None:
        raise EnvError(f"observation_processor returned None for {shown(observation)}; return the text of it")
    return processed


def reset_options(env: Any) -> frozenset[str]:
    """Which of the options the environment's `reset` takes; `**kwargs` takes all."""
    parameters = inspect.signature(env.reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset(RESET_OPTIONS)
    return frozenset(parameter.name for parameter in parameters) & frozenset(RESET_OPTIONS)


def taken_options(takes: frozenset[str], given: Mapping[str, Any], reset_name: str) -> dict[str, Any]:
    """The options of a task that a `reset` takes.

    Raises:
        ConfigurationError: The task names a row, and the `reset` cannot be told which.
    """
    row, evaluation = given.get("row_index"), bool(given.get("evaluation"))
    needed = {"row_index"} if row is not None else set()
    if row is not None and evaluation:
        needed.add("evaluation")  # without it the held-out rows would be training rows
    if missing := needed - takes:
        raise ConfigurationError(
            f"the task names {'evaluation' if evaluation else 'training'} row {row}, but "
            f"{reset_name} takes no {' and no '.join(sorted(missing))}; "
            "add the parameters row_index and evaluation to it, or give tasks without a row"
        )
    return {name: given[name] for name in RESET_OPTIONS if name in takes and name in given}


def text_tools(env: Any) -> list[ToolSchema]:
    """The optional attribute `tools` of a text environment, a list or a method."""
    name = f"{type(env).__name__}.tools"

    def listed() -> list[ToolSchema]:
        tools: Any = getattr(env, "tools", None)
        given: Any = tools() if callable(tools) else tools
        return list(given or ())

    return usable_schemas(guarded(name, EnvError, listed), name)


def _answered(calls: Sequence[ToolCall], text: str) -> tuple[Message, ...]:
    if not calls:
        return ({"role": "user", "content": text},)
    return (tool_message(calls[0], text), *(tool_message(call, ANSWERED_ABOVE) for call in calls[1:]))
