"""One episode, written once and free of I/O: a generator that drivers feed.

The rules, in the order in which they are checked (the tests number them the same way):

 1. Each turn is one reply of the policy and at most one step of the environment.
 2. `done`, then `truncated`, then `stopped` of the environment end the episode; the policy is not asked again.
 3. A reply that sampling cut short (`length`, `context`) never reaches the environment, whole or in
    part: the episode ends truncated, and its calls are answered as not run. That turn is not scored, or
    earns `length_reward` where the limits name one and the turn reached its token limit.
 4. `max_tool_calls`: calls beyond it are answered as not run, and the episode ends after that turn.
 5. `max_turns` is checked after a turn: the policy is never asked once more, and an episode that is
    over on its last turn is over, not truncated.
 6. `max_seconds` is checked before the policy is asked.
 7. Every call has an id that is unique in the episode and exactly one result. Where the environment
    shows no tools, what looks like a call is text.
 8. Rewards are one for each turn; None is "not scored". An environment that ends the episode with a
    reward of None did not score it: the episode failed.
 9. A `RolloutError`, from the environment or thrown in by the driver, ends the episode as failed (a
    `PromptTooLongError` as truncated) and keeps what happened before. Anything else escapes.
10. Where the conversation opens with the beginning of an answer, the first reply is that answer, its beginning
    included, and takes its place.
"""

import hashlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tiltyard._boundary import reason
from tiltyard.envs.turns import Turns, as_turns
from tiltyard.errors import EnvError, RolloutError
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tools.messages import assistant_message, begun_answer, text_with_calls, tool_message
from tiltyard.types import Message, Prompt, Reply, Task, ToolCall, ToolSchema, Turn

NOT_RUN_CUT = "Not run: the message was cut off before its end."
NOT_RUN_LIMIT = "not run: the limit of {limit} tool calls in one episode is used up"


@dataclass(frozen=True, slots=True)
class EnvCall:
    """Work of the environment that the driver runs, on whichever thread.

    Attributes:
        what: Which half of the protocol it is.
        call: Does the work; raises nothing but `RolloutError`, a configuration error or a bug.
        timeout_s: How long it may take; on a longer one throw `EnvTimeoutError` into the flow. None = no bound.
    """

    what: Literal["reset", "step"]
    call: Callable[[], Turn]
    timeout_s: float | None


EpisodeFlow = Generator[Prompt | EnvCall, Reply | Turn, Trajectory]


def episode_flow(
    env: object,
    task: Task,
    limits: Limits,
    episode_id: str,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EpisodeFlow:
    """Play one episode; the module's docstring has the rules.

    Yields a `Prompt`, to be answered with a `Reply`, or an `EnvCall`, to be answered with what its
    `call` returns. At either, the driver may throw a `RolloutError` in. The environment is not closed.

    Args:
        env: Anything that `as_turns` takes; not shared with an episode that runs at the same time.
        task: What the episode is about.
        limits: Its bounds. Those on tokens are the driver's, who says in `Reply.finish_reason` what was cut.
        episode_id: Unique within the run.
        clock: Seconds that only grow.

    Returns:
        What happened, without a transcript: a driver that has one adds it.
    """
    state = _State(as_turns(env), task, limits, clock)
    try:
        ending, error = yield from _play(state)
    except RolloutError as failure:
        ending = Ending(failure.ending)
        error = reason(failure) if ending.failed else None
    return state.trajectory(episode_id, ending, error)


def episode(
    env: object,
    task: Task,
    limits: Limits | None = None,
    *,
    episode_id: str = "episode",
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Prompt, Reply, Trajectory]:
    """Play one episode whose environment runs in line: only prompts are yielded.

    A step cannot be bounded in time here: it runs in the thread that sends the reply.
    """
    flow = episode_flow(env, task, limits or Limits(), episode_id, clock=clock)
    send: Callable[[Any], Prompt | EnvCall] = flow.send
    value: Any = None
    while True:
        try:
            request = send(value)
        except StopIteration as end:
            return end.value
        send = flow.send
        try:
            value = request.call() if isinstance(request, EnvCall) else (yield request)
        except RolloutError as failure:
            send, value = flow.throw, failure


def _play(state: "_State") -> Generator[Prompt | EnvCall, Reply | Turn, tuple[Ending, str | None]]:
    """The loop: the ending, and what was wrong when it is a failed one that nothing raised."""
    turns, task, limits = state.turns, state.task, state.limits
    turn = yield EnvCall("reset", lambda: turns.start(task), limits.step_timeout_s)
    state.open(_as_turn(turn))
    while True:
        ending = state.ending()
        if ending is Ending.UNSCORED:
            return ending, "the environment ended the episode with reward None: it was not scored"
        if ending is not None:
            return ending, None
        reply = state.answer(_as_reply((yield Prompt(state.messages, state.new, state.tools))))
        if reply.finish_reason != "stop":
            state.refuse(reply.tool_calls)
            if reply.finish_reason == "context":
                return Ending.CONTEXT, None
            state.rewards[-1] = limits.length_reward
            return Ending.LENGTH, None
        turn = yield EnvCall("step", lambda reply=reply: turns.reply(reply), limits.step_timeout_s)
        state.observe(_as_turn(turn))


def _as_turn(value: object) -> Turn:
    if not isinstance(value, Turn):
        raise TypeError(f"an EnvCall is answered with the Turn that its call returns, got {value!r}")
    return value


def _as_reply(value: object) -> Reply:
    if not isinstance(value, Reply):
        raise TypeError(f"a Prompt is answered with a Reply, got {value!r}")
    return value


class _State:
    """What has happened so far; the lists only grow, so that a turn costs the same however many came before."""

    def __init__(self, turns: Turns, task: Task, limits: Limits, clock: Callable[[], float]) -> None:
        self.turns = turns
        self.task = task
        self.limits = limits
        self.clock = clock
        self.began = clock()
        self.messages: list[Message] = []
        self.new: Sequence[Message] = ()
        self.tools: Sequence[ToolSchema] = ()
        self.rewards: list[float | None] = []
        self.turn = Turn()
        self.start_reward = 0.0
        self.first_observation: str | None = None
        self.ids: set[str] = set()
        self.calls = 0
        self.calls_used_up = False

    def open(self, turn: Turn) -> None:
        """Take what the environment's reset gave."""
        self.turn = turn
        self.tools = self.turns.tools()
        self.start_reward = turn.reward or 0.0
        self.first_observation = _digest(turn.messages)
        self.messages.extend(_opening(self.task.messages, turn.messages))
        self.ids.update(_call_ids(self.messages))
        self.new = tuple(self.messages)
        if not self.messages and not (turn.done or turn.truncated):
            raise EnvError("reset gave no observation and the task has no messages: there is nothing to answer")

    def answer(self, reply: Reply) -> Reply:
        """Record a reply; its calls come back with ids, and with an error where the limit is reached."""
        if reply.tool_calls and not self.tools:
            reply = replace(reply, text=text_with_calls(reply), tool_calls=())
        elif reply.tool_calls:
            reply = replace(reply, tool_calls=tuple(map(self._admit, reply.tool_calls)))
        if not self.rewards and begun_answer(self.messages):
            self.messages.pop()
        self.messages.append(assistant_message(reply))
        self.rewards.append(None)
        self.turn = Turn()
        return reply

    def observe(self, turn: Turn) -> None:
        """Take what the environment's step gave."""
        self.turn = turn
        self.rewards[-1] = turn.reward
        self.new = turn.messages
        self.messages.extend(turn.messages)
        self.ids.update(_call_ids(turn.messages))

    def refuse(self, calls: Sequence[ToolCall]) -> None:
        """Answer the calls of a message that was cut off."""
        self.messages.extend(tool_message(call, NOT_RUN_CUT) for call in calls)

    def ending(self) -> Ending | None:
        """Why the episode is over now; None when the policy is to be asked."""
        turn = self.turn
        if turn.done:
            return Ending.UNSCORED if turn.reward is None else Ending.DONE
        if turn.truncated:
            return Ending.ENV_TRUNCATED
        return Ending.STOP if turn.stopped else self._limit_reached()

    def _limit_reached(self) -> Ending | None:
        limits = self.limits
        if self.calls_used_up:
            return Ending.MAX_TOOL_CALLS
        if len(self.rewards) >= limits.max_turns:
            return Ending.MAX_TURNS
        if limits.max_seconds is not None and self.clock() - self.began >= limits.max_seconds:
            return Ending.TIMEOUT
        return None

    def trajectory(self, episode_id: str, ending: Ending, error: str | None) -> Trajectory:
        """The episode as data."""
        success = self.turn.info.get("success")
        return Trajectory(
            episode_id=episode_id,
            task=self.task,
            ending=ending,
            messages=tuple(self.messages),
            tools=tuple(self.tools),
            rewards=tuple(self.rewards),
            start_reward=self.start_reward,
            error=error,
            first_observation=self.first_observation,
            info=dict(self.turn.info),  # the environment may go on writing to its own
            success=None if success is None else bool(success),
            seconds=self.clock() - self.began,
        )

    def _admit(self, call: ToolCall) -> ToolCall:
        if call.error is None:
            self.calls += 1
            limit = self.limits.max_tool_calls
            if limit is not None and self.calls > limit:
                self.calls_used_up = True
                call = replace(call, error=NOT_RUN_LIMIT.format(limit=limit))
        if not call.id or call.id in self.ids:
            call = replace(call, id=self._fresh_id())
        self.ids.add(call.id)
        return call

    def _fresh_id(self) -> str:
        """The same run generates the same ids: some templates show them to the model."""
        number = len(self.ids)
        while f"call_{number}" in self.ids:
            number += 1
        return f"call_{number}"


def _opening(given: Sequence[Message], observed: Sequence[Message]) -> list[Message]:
    """The task's messages, then the first observation, behind one system prompt: the task's, else the environment's."""
    systems = [message for message in observed if message["role"] == "system"]
    rest = [message for message in observed if message["role"] != "system"]
    if any(message["role"] == "system" for message in given):
        systems = []
    return [*systems, *given, *rest]


def _call_ids(messages: Sequence[Message]) -> Iterator[str]:
    """The ids of the calls in messages that the policy did not write: no call of its own may have one of them."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                yield call["id"]


def _digest(messages: Sequence[Message]) -> str:
    """A short hash of the first observation, equal for members of a group."""
    text = json.dumps(messages, ensure_ascii=True, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
