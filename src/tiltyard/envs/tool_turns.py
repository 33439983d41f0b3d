"""A tool-call environment, or a set of tools, as turns."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env
from tiltyard.envs.observation import MAX_OBSERVATION_CHARS, TRUNCATED_MARK, clip_observation, process_observation
from tiltyard.envs.opening import system_messages
from tiltyard.envs.result import usable_schemas
from tiltyard.envs.tool import EnvTool, EpisodeRecord
from tiltyard.errors import ConfigurationError, EnvError, LostSessionError
from tiltyard.tools.at_once import run_at_once
from tiltyard.tools.manager import ERROR, ToolManager
from tiltyard.tools.messages import tool_message
from tiltyard.types import Message, Reply, StepResult, Task, ToolCall, ToolSchema, Turn

NOT_RUN_OVER = "Not run: the episode was over before this call."


class ToolTurns:
    """An `Env`, or a `ToolManager`, as turns: the calls of a reply are run in order.

    They run at once, on threads of their own, where every tool that they name says that its calls are
    independent (`tool(fn, parallel=True)`); the results come in the order of the calls either way.
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
        return (*(record.env for record in self._records()), *self._manager.sources)

    def start(self, task: Task) -> Turn:
        """Reset the environment, then ask it for its tools.

        Raises:
            RolloutError: The environment failed, or its tools cannot be used.
        """
        for source in self._manager.sources:
            guarded(f"{type(source).__name__}.renew", LostSessionError, source.renew)
        options = {"seed": task.seed, "row_index": task.row_index, "evaluation": task.evaluation}
        results = [
            record.reset({"messages": list(task.messages), **options, **task.data}) for record in self._records()
        ]
        messages: list[Message] = []
        if self._env is not None:
            self._use_tools_of(self._env)
            messages += system_messages(self._env)
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
        results = self._results(reply.tool_calls)
        for call in reply.tool_calls:
            if over:
                not_run.append(call.id)
                messages.append(tool_message(call, NOT_RUN_OVER))
                continue
            result = next(results)
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
        for source in self._manager.sources:
            guarded(f"{type(source).__name__}.close", EnvError, source.close)

    def _results(self, calls: Sequence[ToolCall]) -> Iterator[StepResult]:
        """The calls' results, in order; a call that is not independent runs when its result is asked for."""
        if len(calls) > 1 and self._manager.independent(calls):
            return iter(run_at_once([partial(self._manager.step, call) for call in calls]))
        return map(self._manager.step, calls)

    def _records(self) -> list[EpisodeRecord]:
        if self._env is not None:
            return [EpisodeRecord.of(self._env)]
        records = [tool.record for tool in self._manager.tools if isinstance(tool, EnvTool)]
        return list({id(record): record for record in records}.values())

    def _use_tools_of(self, env: Env) -> None:
        """Offer what the environment offers in this episode; the tools are made anew only when they changed."""
        name = f"{type(env).__name__}.tools"
        schemas: list[ToolSchema] = guarded(name, EnvError, lambda: list(env.tools()))
        if self._schemas is not None and guarded(name, EnvError, lambda: schemas == self._schemas):
            return
        usable_schemas(schemas, name)
        try:
            self._manager = ToolManager(EnvTool.from_schemas(env, schemas))
        except ConfigurationError as error:
            raise EnvError(f"{name} gave tools that cannot be used: {error}") from error
        self._schemas = schemas

    def _shown(self, observation: Any, marks: dict[str, Any]) -> str:
        text, cut = clip_observation(process_observation(observation), self._max_chars)
        if cut:
            marks[TRUNCATED_MARK] = True
        return text


def _summed(results: Sequence[StepResult]) -> float | None:
    """The sum of the rewards that were given; None when there are results and none was scored."""
    if len(results) == 1:
        return results[0].reward
    given = [result.reward for result in results if result.reward is not None]
    return sum(given, 0.0) if given or not results else None
