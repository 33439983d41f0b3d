"""How `check_env` makes, plays and disturbs an environment, each call with a deadline."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env
from tiltyard.envs.turns import TextTurns, ToolTurns, Turns, as_turns
from tiltyard.errors import EnvError, EnvTimeoutError, TiltyardError
from tiltyard.tools.messages import assistant_message
from tiltyard.tools.schema import ArgumentsCheck
from tiltyard.types import Message, Reply, Task, ToolCall, ToolSchema, Turn

Play = Callable[[Sequence[Message], Sequence[ToolSchema]], Reply]
"""Answers a conversation, given its tools."""

Answer = Callable[[Any], str]
"""The answer of the task that an environment was reset to."""

ANSWER_KEYS = ("answer", "solution", "target", "expected", "ground_truth")
REWARD_IN_TEXT = re.compile(
    r"""["']?\b(?:reward|done|terminated)\b["']?\s*[:=]\s*(?:-?\d|true|false|None|null)""", re.I
)
SHORTEST_SECRET = 3
"""Shorter answers stand in many texts by chance; only one that is named by the caller is looked for."""

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

RAISED = object()
"""A step that was refused."""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that was played: what was replied, and the turns, the reset's first."""

    turns: tuple[Turn, ...]
    replies: tuple[Reply, ...]

    @property
    def over(self) -> bool:
        """True when the environment ended the episode."""
        return self.turns[-1].done or self.turns[-1].truncated


@dataclass(slots=True)
class Subject:
    """The environment under test, and how it is tried; see `check_env` for the fields.

    Attributes:
        name: The environment's class, once one was made.
        made: What the factory made, to be closed at the end.
    """

    source: Any
    seed: int
    player: Play
    answer: Answer | None
    instances: int
    max_turns: int
    timeout_s: float
    name: str = "the environment"
    made: list[Any] = field(default_factory=list)

    @property
    def is_factory(self) -> bool:
        """True when the source makes environments, rather than being one."""
        return isinstance(self.source, type) or (
            callable(self.source) and not hasattr(self.source, "reset") and not hasattr(self.source, "start")
        )

    def make(self) -> tuple[Turns, Any]:
        """An environment as turns and as it is."""
        env = self.source
        if self.is_factory:
            env = self._bounded("making it", self.source)
            self.made.append(env)
        self.name = type(env).__name__
        return as_turns(env), env

    def start(self, turns: Turns, env: Any, *, seed: int | None = None) -> Turn:
        """Begin an episode."""
        task = self._task(env, self.seed if seed is None else seed)
        return self._bounded("reset", lambda: turns.start(task))

    def start_all(self, made: Sequence[tuple[Turns, Any]]) -> list[str]:
        """Begin an episode in each at the same time; the first observations."""
        gate = threading.Barrier(len(made))

        def start(turns: Turns, task: Task) -> Turn:
            gate.wait()
            return turns.start(task)

        calls = [
            _Call("reset", partial(start, turns, self._task(env, self.seed + i))) for i, (turns, env) in enumerate(made)
        ]
        return [shown(call.result(self.timeout_s).messages) for call in calls]

    def reply(self, turns: Turns, reply: Reply) -> Turn:
        """Answer the environment once."""
        return self._bounded(f"step({_short(reply)})", lambda: turns.reply(reply))

    def play(self, turns: Turns, env: Any) -> Played:
        """Play an episode to its end, to `max_turns` replies, or to a reply without a call where calls are needed."""
        seen = [self.start(turns, env)]
        messages = list(seen[0].messages)
        replies: list[Reply] = []
        while not (seen[-1].done or seen[-1].truncated or seen[-1].stopped) and len(replies) < self.max_turns:
            reply = guarded("play", EnvError, self.player, messages, turns.tools())
            replies.append(reply)
            seen.append(self.reply(turns, reply))
            messages += [assistant_message(reply), *seen[-1].messages]
        return Played(tuple(seen), tuple(replies))

    def step_after_the_end(self, turns: Turns, env: Any, played: Played) -> Any:
        """The reward of one more step after an episode that is over, or `RAISED`."""
        reply = played.replies[-1] if played.replies else Reply("")
        try:
            if isinstance(turns, ToolTurns) and isinstance(env, Env):
                call = next(iter(reply.tool_calls), ToolCall("", {}))
                return self._bounded("step", lambda: env.step(call.name, call.arguments or {}).reward)
            if isinstance(turns, TextTurns):
                return self._bounded("step", lambda: env.step(reply.text)[1])
            return self._bounded("reply", lambda: turns.reply(reply).reward)
        except EnvTimeoutError:
            raise
        except TiltyardError:
            return RAISED

    def secrets(self, env: Any, played: Played) -> Iterator[tuple[str, str]]:
        """What no observation before the end may hold."""
        if self.answer is not None:
            yield "the answer", guarded("answer", EnvError, self.answer, env)
            return
        for turn in played.turns:
            for key in ANSWER_KEYS:
                text = str(turn.info.get(key, ""))
                if len(text) >= SHORTEST_SECRET:
                    yield f"info[{key!r}]", text

    def tells_the_reward(self, text: str) -> str | None:
        """The part of a text that tells the reward or the end as data."""
        found = REWARD_IN_TEXT.search(text)
        return found[0] if found else None

    def close(self, env: Any) -> None:
        """Close the environment itself, where it can be closed."""
        close = getattr(env, "close", None)
        if close is not None:
            self._bounded("close", close)

    def _task(self, env: Any, seed: int) -> Task:
        size = getattr(env, "dataset_size", None)
        return Task(seed=seed, row_index=seed % size if size else None)

    def _bounded(self, what: str, call: Callable[[], Any]) -> Any:
        return _Call(what, call).result(self.timeout_s)


class _Call:
    """A call on a thread of its own, which a hang leaves behind."""

    def __init__(self, what: str, call: Callable[[], Any]) -> None:
        self._what = what
        self._call = call
        self._value: Any = None
        self._error: TiltyardError | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._value = guarded(self._what, EnvError, self._call)
        except TiltyardError as error:
            self._error = error
        finally:
            self._ended.set()

    def result(self, timeout_s: float) -> Any:
        """What the call returned.

        Raises:
            EnvTimeoutError: It took longer than that.
            TiltyardError: What it raised, as `guarded` makes it.
        """
        if not self._ended.wait(timeout_s):
            raise EnvTimeoutError(f"{self._what} did not return within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value


def first_replies(messages: Sequence[Message], tools: Sequence[ToolSchema], shift: int = 0) -> Reply:
    """A player that knows nothing: counts from 1, or calls the tools in turn with the first values they allow.

    `shift` is where it begins: another number is another episode.
    """
    turn = shift + sum(message["role"] == "assistant" for message in messages)
    if not tools:
        return Reply(str(turn + 1))
    schema = tools[turn % len(tools)]["function"]
    call = ToolCall(schema["name"], _first_value(schema.get("parameters") or NO_PARAMETERS, turn), id=f"check_{turn}")
    return Reply("", tool_calls=(call,))


def odd_replies(subject: Subject) -> Iterator[tuple[str, Reply]]:
    """Replies that a model in training writes, each with what it is."""
    turns, env = subject.make()
    subject.start(turns, env)
    if not turns.tools():
        for text in ("", " \n", "\x00\u200b\U0001f600", "-1", "9" * 40, "<|im_end|>", "word " * 4000):
            yield f"the text {text[:12]!r} of {len(text)} characters", Reply(text)
        return
    yield "a call of an unknown tool", Reply("", tool_calls=(ToolCall("no_such_tool", {}, "odd"),))
    for schema in turns.tools():
        check, parameters = ArgumentsCheck(schema), schema["function"].get("parameters") or NO_PARAMETERS
        usual = _first_value(parameters, 0)
        for name in parameters.get("properties", {}):
            for value in ("", "word " * 4000, 0, -1, 10**12, -0.5, None, [], {}):
                arguments = {**usual, name: value}
                if check(arguments) is None:
                    call = ToolCall(check.name, arguments, "odd")
                    yield f"{check.name}({name}={str(value)[:12]!r})", Reply("", tool_calls=(call,))


def shown(messages: Sequence[Message]) -> str:
    """What the model sees of messages, as one text."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def said(played: Played) -> list[tuple[str, float | None, bool]]:
    """What an episode came to, to compare two of them."""
    return [(shown(turn.messages), turn.reward, turn.done) for turn in played.turns]


def _short(reply: Reply) -> str:
    text = ", ".join(call.name for call in reply.tool_calls) or repr(reply.text)
    return text if len(text) <= 40 else text[:40] + "…"


_FIRST = {"string": "a", "boolean": True, "null": None}


def _first_value(schema: Mapping[str, Any], turn: int) -> Any:
    """A simple value that a schema allows, in most cases."""
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed:
        return allowed[turn % len(allowed)]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return _first_value(choices[0], turn)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        named = schema.get("properties", {})
        return {name: _first_value(named.get(name, {}), turn) for name in schema.get("required", ())}
    if kind == "array":
        return [_first_value(schema.get("items") or {}, turn)] * schema.get("minItems", 0)
    return _first_number(schema, turn) if kind in ("integer", "number") else _FIRST.get(kind)


def _first_number(schema: Mapping[str, Any], turn: int) -> Any:
    number = schema.get("minimum", 1) + turn
    return min(number, schema.get("maximum", number))
