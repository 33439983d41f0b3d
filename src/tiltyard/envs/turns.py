"""Every environment as turns: `as_turns` is the only place that asks what an environment is."""

from collections.abc import Iterable, Sequence
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env, TurnEnv
from tiltyard.envs.observation import MAX_OBSERVATION_CHARS
from tiltyard.envs.opening import checked_messages
from tiltyard.envs.result import flag, info_of, scored, usable_schemas
from tiltyard.envs.text_turns import TextTurns
from tiltyard.envs.tool_turns import ToolTurns
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.tools.manager import ToolManager
from tiltyard.types import Reply, Task, ToolSchema, Turn

__all__ = ["GuardedTurns", "TextTurns", "ToolTurns", "Turns", "as_turns", "guarded", "refuse_shared"]


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
        name = f"{self._name}.tools"
        self._tools = tuple(usable_schemas(guarded(name, EnvError, lambda: list(self._turns.tools())), name))
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
        where = f"{self._name}.{method}"
        return Turn(
            tuple(checked_messages(turn.messages, where)),
            scored(turn.reward, where),
            flag(turn.done, "done", where),
            flag(turn.truncated, "truncated", where),
            flag(turn.stopped, "stopped", where),
            info_of(turn.info, where),
        )


Turns = ToolTurns | TextTurns | GuardedTurns
"""What `as_turns` gives: a `TurnEnv` whose failures are `RolloutError`s."""


def as_turns(env: object, *, max_observation_chars: int | None = MAX_OBSERVATION_CHARS) -> Turns:
    """An environment as turns: an `Env`, a `ToolManager`, a text environment or a `TurnEnv`.

    `max_observation_chars` is the budget of one observation (None sets no bound); a `TurnEnv` has its own.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(env, Turns):
        return env
    if isinstance(env, Env | ToolManager):
        return ToolTurns(env, max_observation_chars=max_observation_chars)
    if isinstance(env, type):
        raise ConfigurationError(f"{env.__name__} is a class; an environment is an instance of one: {env.__name__}()")
    if _has(env, "start", "reply", "tools", "close"):
        return GuardedTurns(env)  # pyright: ignore[reportArgumentType]  # its four methods were just seen
    if _has(env, "reset", "step"):
        return TextTurns(env, max_observation_chars=max_observation_chars)
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
