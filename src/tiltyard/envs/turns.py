"""Every environment as turns: `as_turns` is the only place that asks what an environment is."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env, TurnEnv
from tiltyard.envs.observation import MAX_OBSERVATION_CHARS, clip_observation, process_observation
from tiltyard.envs.result import text_reset, text_step
from tiltyard.envs.tool import EnvTool, EpisodeRecord
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError, ToolError
from tiltyard.tools.manager import ERROR, ToolManager
from tiltyard.tools.messages import text_with_calls, tool_message
from tiltyard.types import Message, Reply, StepResult, Task, ToolCall, ToolSchema, Turn

__all__ = ["GuardedTurns", "TextTurns", "ToolTurns", "as_turns", "guarded", "refuse_shared"]

NOT_RUN_OVER = "Not run: the episode was over before this call."
ANSWERED_ABOVE = "Answered with the call above."
TRUNCATED_MARK = "observation_truncated"
RESET_OPTIONS = ("seed", "row_index", "evaluation")


class ToolTurns:
    """An `Env`, or a `ToolManager`, as turns: the calls of a reply are run in order.

    The first result that is `done` or `truncated` ends the episode; the calls left over are answered as
    not run, so that each call has exactly one result. A turn's reward is the sum of what its calls
    scored, None when calls ran and none was scored; calls answered with an error earn nothing. A reply
    without a call ends the episode. `info` is that of the last call that ran, with `tool_errors`
    (how many calls were answered with an error), `not_run` (their ids) and `observation_truncated`.
    """

    def __init__(self, env: Env | ToolManager, *, max_observation_chars: int | None = MAX_OBSERVATION_CHARS) -> None:
        self._env = env if isinstance(env, Env) else None
        self._manager = ToolManager() if isinstance(env, Env) else env
        self._schemas: list[ToolSchema] | None = None
        self._max_chars = max_observation_chars
        self._closed = False

    @property
    def sources(self) -> tuple[object, ...]:
        """The environments behind the turns: what two episodes at a time cannot share."""
        return tuple(record.env for record in self._records())

    def start(self, task: Task) -> Turn:
        """Reset the environment, then ask it for its tools.

        Raises:
            RolloutError: The environment failed, or its tools cannot be used.
        """
        options = {"seed": task.seed, "row_index": task.row_index, "evaluation": task.evaluation}
        results = [
            record.reset({"messages": list(task.messages), **options, **task.data}) for record in self._records()
        ]
        messages: list[Message] = []
        if self._env is not None:
            self._use_tools_of(self._env)
            messages += _system_messages(self._env)
        info: dict[str, Any] = {}
        for result in results:
            info.update(result.info)
            text = self._shown(result.observation, info)
            if text:
                messages.append({"role": "user", "content": text})
        done, truncated = any(result.done for result in results), any(result.truncated for result in results)
        return Turn(tuple(messages), _summed(results), done, truncated, info=info)

    def reply(self, reply: Reply) -> Turn:
        """Run the calls of one reply.

        Raises:
            RolloutError: A tool crashed, or the environment failed.
        """
        if not reply.tool_calls:
            return Turn(stopped=True)
        messages: list[Message] = []
        ran: list[StepResult] = []
        not_run: list[str] = []
        marks: dict[str, Any] = {}
        over = False
        for call in reply.tool_calls:
            if over:
                not_run.append(call.id)
                messages.append(tool_message(call, NOT_RUN_OVER))
                continue
            result = self._manager.step(call)
            messages.append(tool_message(call, self._shown(result.observation, marks)))
            if ERROR in result.info:
                marks["tool_errors"] = marks.get("tool_errors", 0) + 1
                continue
            ran.append(result)
            over = result.done or result.truncated
        if not_run:
            marks["not_run"] = tuple(not_run)
        if not ran:
            return Turn(tuple(messages), info=marks)
        last = ran[-1]
        return Turn(tuple(messages), _summed(ran), last.done, last.truncated, info={**last.info, **marks})

    def tools(self) -> list[ToolSchema]:
        """The tools of the episode that was started last."""
        return self._manager.tool_infos()

    def close(self) -> None:
        """Close the environment; more than one call closes it once.

        Raises:
            EnvError: Its `close` raised.
        """
        if self._closed:
            return
        self._closed = True
        for record in self._records():
            guarded(f"{record.name}.close", EnvError, record.env.close)

    def _records(self) -> list[EpisodeRecord]:
        if self._env is not None:
            return [EpisodeRecord.of(self._env)]
        records = [tool.record for tool in self._manager.tools if isinstance(tool, EnvTool)]
        return list({id(record): record for record in records}.values())

    def _use_tools_of(self, env: Env) -> None:
        """Offer what the environment offers in this episode; the tools are made anew only when they changed."""
        name = f"{type(env).__name__}.tools"
        schemas = guarded(name, EnvError, env.tools)
        if self._schemas is not None and schemas == self._schemas:
            return
        try:
            self._manager = ToolManager(EnvTool.from_schemas(env, schemas))
        except ConfigurationError as error:
            raise EnvError(f"{name} gave tools that cannot be used: {error}") from error
        self._schemas = list(schemas)

    def _shown(self, observation: Any, marks: dict[str, Any]) -> str:
        text, cut = clip_observation(process_observation(observation), self._max_chars)
        if cut:
            marks[TRUNCATED_MARK] = True
        return text


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
        self._max_chars = max_observation_chars
        self._field = observation_field
        self._processor = observation_processor
        name = type(env).__name__
        self._reset_name, self._step_name = f"{name}.reset", f"{name}.step"
        self._options = _reset_options(env)
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
            ConfigurationError: The task names a row, and the environment's `reset` takes none.
            RolloutError: The environment failed.
        """
        if task.row_index is not None and "row_index" not in self._options:
            raise ConfigurationError(
                f"the task names row {task.row_index}, but {self._reset_name} takes no row_index; "
                "add the parameters row_index and evaluation to it, or give tasks without a row"
            )
        self._over = True
        options = {name: getattr(task, name) for name in RESET_OPTIONS if name in self._options}
        result = text_reset(guarded(self._reset_name, EnvError, self._env.reset, **options), self._reset_name)
        self._tools = _text_tools(self._env)
        info = dict(result.info)
        messages = [*_system_messages(self._env), {"role": "user", "content": self._shown(result.observation, info)}]
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
            raw = guarded(self._step_name, EnvError, self._env.step, action)
        except ToolError as error:
            return Turn(_answered(reply.tool_calls, f"Error: {error}"), info={ERROR: "failed"})
        result = text_step(raw, self._step_name)
        text, cut = clip_observation(self._text(result.observation), self._max_chars)
        info = {**result.info, TRUNCATED_MARK: True} if cut else result.info
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

    def _text(self, observation: Any) -> str:
        if self._processor is not None:
            observation = guarded("observation_processor", EnvError, self._processor, observation)
        return process_observation(observation, self._field)

    def _shown(self, observation: Any, info: dict[str, Any]) -> str:
        text, cut = clip_observation(self._text(observation), self._max_chars)
        if cut:
            info[TRUNCATED_MARK] = True
        return text


class GuardedTurns:
    """A `TurnEnv` that is not ours: what it raises fails its episode, its tools are asked once an episode."""

    def __init__(self, turns: TurnEnv) -> None:
        self._turns = turns
        self._name = type(turns).__name__
        self._tools: Sequence[ToolSchema] = ()
        self._closed = False

    @property
    def sources(self) -> tuple[object, ...]:
        """The environment itself."""
        return (self._turns,)

    def start(self, task: Task) -> Turn:
        """Begin an episode.

        Raises:
            RolloutError: The environment failed.
        """
        turn = self._checked("start", guarded(f"{self._name}.start", EnvError, self._turns.start, task))
        self._tools = tuple(guarded(f"{self._name}.tools", EnvError, self._turns.tools))
        return turn

    def reply(self, reply: Reply) -> Turn:
        """Answer one reply.

        Raises:
            RolloutError: The environment failed.
        """
        return self._checked("reply", guarded(f"{self._name}.reply", EnvError, self._turns.reply, reply))

    def tools(self) -> Sequence[ToolSchema]:
        """The tools of the episode that was started last."""
        return self._tools

    def close(self) -> None:
        """Close the environment; more than one call closes it once.

        Raises:
            EnvError: Its `close` raised.
        """
        if not self._closed:
            self._closed = True
            guarded(f"{self._name}.close", EnvError, self._turns.close)

    def _checked(self, method: str, turn: Any) -> Turn:
        if not isinstance(turn, Turn):
            raise EnvError(f"{self._name}.{method} returned a {type(turn).__name__}; expected a Turn")
        return turn


Turns = ToolTurns | TextTurns | GuardedTurns
"""What `as_turns` gives: a `TurnEnv` whose failures are `RolloutError`s."""


def as_turns(env: object) -> Turns:
    """An environment as turns: an `Env`, a `ToolManager`, a text environment or a `TurnEnv`.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(env, Turns):
        return env
    if isinstance(env, Env | ToolManager):
        return ToolTurns(env)
    if isinstance(env, type):
        raise ConfigurationError(f"{env.__name__} is a class; an environment is an instance of one: {env.__name__}()")
    if _has(env, "start", "reply", "tools", "close"):
        return GuardedTurns(env)  # pyright: ignore[reportArgumentType]  # its four methods were just seen
    if _has(env, "reset", "step"):
        return TextTurns(env)
    raise ConfigurationError(
        f"{env!r} is not an environment: subclass tiltyard.Env, or give an object with "
        "reset(seed=None) -> (text, info) and step(action) -> (text, reward, terminated, truncated, info)"
    )


def refuse_shared(envs: Iterable[object]) -> None:
    """Check that episodes that run at the same time have an environment each.

    Raises:
        ConfigurationError: Two of them would write to the same one.
    """
    seen: set[int] = set()
    for env in envs:
        for source in as_turns(env).sources:
            if id(source) in seen:
                raise ConfigurationError(
                    f"one {type(source).__name__} was given to several episodes that run at once, which would mix "
                    "them up; give a factory that makes one for each, e.g. env_factory=lambda: "
                    f"{type(source).__name__}(...)"
                )
            seen.add(id(source))


def _has(env: object, *names: str) -> bool:
    return all(callable(getattr(env, name, None)) for name in names)


def _summed(results: Sequence[StepResult]) -> float | None:
    """The sum of the rewards that were given; None when there are results and none was scored."""
    if len(results) == 1:
        return results[0].reward
    given = [result.reward for result in results if result.reward is not None]
    return sum(given, 0.0) if given or not results else None


def _reset_options(env: Any) -> frozenset[str]:
    """Which of the options the environment's `reset` takes; `**kwargs` takes all."""
    parameters = inspect.signature(env.reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset(RESET_OPTIONS)
    return frozenset(parameter.name for parameter in parameters) & frozenset(RESET_OPTIONS)


def _system_messages(env: Any) -> list[Message]:
    prompt = getattr(env, "system_prompt", None)
    return [{"role": "system", "content": prompt}] if prompt else []


def _text_tools(env: Any) -> list[ToolSchema]:
    """The optional attribute `tools` of a text environment, a list or a method."""
    tools: Any = getattr(env, "tools", None)
    if callable(tools):
        tools = guarded(f"{type(env).__name__}.tools", EnvError, tools)
    return list(tools or ())


def _answered(calls: Sequence[ToolCall], text: str) -> tuple[Message, ...]:
    if not calls:
        return ({"role": "user", "content": text},)
    return (tool_message(calls[0], text), *(tool_message(call, ANSWERED_ABOVE) for call in calls[1:]))
