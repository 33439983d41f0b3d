"""Where each trajectory of a rollout gets the environment that it plays in."""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.turns import ToolTurns, Turns, as_turns, refuse_shared
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.rollout.limits import check_count
from tiltyard.rollout.shown import unknown_tools
from tiltyard.rollout.workers import Closing
from tiltyard.tools.manager import ToolManager
from tiltyard.tools.schema import tool_name
from tiltyard.types import Reply, Task, ToolCall, ToolSchema, Turn

Row = Mapping[str, Any]
"""One trajectory as the caller gives it: `messages`, and whatever else its task needs."""

ToolSource = ToolManager | Sequence[ToolManager] | Callable[..., ToolManager]
"""The tools of the trajectories: one set for all, one for each, or what makes one for each."""


class EpisodeEnv:
    """The environment of one episode, a `TurnEnv`: made on the thread of its reset, so that many are made at once.

    Attributes:
        turns: The environment itself, once it is made.
    """

    def __init__(self, make: Callable[[], Turns], shown: Sequence[str] | None, drop: Callable[[Turns], None]) -> None:
        """Make nothing yet.

        Args:
            make: Gives the environment.
            shown: The names of the tools that the model is shown, of those that there are; None shows all.
            drop: Takes an environment that came after `leave`.
        """
        self.turns: Turns | None = None
        self._make = make
        self._shown = shown
        self._drop = drop
        self._left = False
        self._lock = threading.Lock()
        self._hidden: frozenset[str] = frozenset()

    def start(self, task: Task) -> Turn:
        """Make the environment and reset it.

        Raises:
            ConfigurationError: What was made is no environment, or another episode has it.
            RolloutError: Making or resetting it failed, or it lacks a tool that the trajectory shows.
        """
        turns = self._make()
        with self._lock:
            self.turns, left = turns, self._left
        if left:
            self._drop(turns)
            raise EnvError("the environment was made after its episode had been given up")
        turn = turns.start(task)
        names = [tool_name(schema) for schema in turns.tools()]
        if self._shown is not None:
            if unknown := [name for name in self._shown if name not in names]:
                raise EnvError(unknown_tools(unknown, names))
            self._hidden = frozenset(names) - frozenset(self._shown)
        return turn

    def reply(self, reply: Reply) -> Turn:
        """Answer one reply; a call of a tool that is not shown is answered as that of an unknown one."""
        assert self.turns is not None
        if self._hidden and any(call.name in self._hidden for call in reply.tool_calls):
            reply = replace(reply, tool_calls=tuple(map(self._refused, reply.tool_calls)))
        return self.turns.reply(reply)

    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the model is shown."""
        assert self.turns is not None
        return [schema for schema in self.turns.tools() if tool_name(schema) not in self._hidden]

    def close(self) -> None:
        """Do nothing: whoever made the environment closes it."""

    def leave(self) -> Turns | None:
        """Give the environment up; None when there is none yet: one that comes later is dropped."""
        with self._lock:
            self._left = True
            return self.turns

    def _refused(self, call: ToolCall) -> ToolCall:
        if call.name not in self._hidden:
            return call
        known = ", ".join(tool_name(schema) for schema in self.tools()) or "none"
        return replace(call, error=f"there is no tool {call.name!r}; the tools are: {known}")


class EnvSource:
    """What the trajectories of a rollout play in: tools that are given, or what makes environments."""

    def __init__(
        self,
        tool_manager: ToolSource | None,
        env_factory: Callable[[], Any] | None,
        *,
        max_observation_chars: int | None,
    ) -> None:
        """Check what was given.

        Raises:
            ConfigurationError: Both were given, or one is of the wrong kind.
        """
        if tool_manager is not None and env_factory is not None:
            raise ConfigurationError(
                "tool_manager and env_factory were both given, and each says where the tools come from; give one"
            )
        if env_factory is not None and not callable(env_factory):
            kind = type(env_factory).__name__
            raise ConfigurationError(
                f"env_factory must be a function or class that makes a new environment, got {env_factory!r}; write "
                f"env_factory=lambda: {kind}(...)"
            )
        if max_observation_chars is not None:
            check_count("max_observation_chars", max_observation_chars, " or None")
        managers = [tool_manager] if isinstance(tool_manager, ToolManager) else tool_manager
        if isinstance(managers, Sequence):
            for manager in managers:
                if not isinstance(manager, ToolManager):
                    raise ConfigurationError(
                        f"tool_manager holds a {type(manager).__name__}; a list of tools is ToolManager([...]), and a "
                        "list has one ToolManager for each trajectory"
                    )
            self._make = None
        elif managers is not None and not callable(managers):
            raise ConfigurationError(
                f"tool_manager must be a ToolManager, a list of them, or a function that makes one, got {managers!r}; "
                "an environment goes to env_factory=lambda: ..."
            )
        else:
            self._make = managers
        self.single = isinstance(tool_manager, ToolManager)
        self.managers: Sequence[ToolManager] | None = managers if isinstance(managers, Sequence) else None
        self.env_factory = env_factory
        self.max_chars = max_observation_chars
        self._takes_row = self._make is not None and _takes_one(self._make)

    @property
    def makes_envs(self) -> bool:
        """True when environments are made for the trajectories, rather than given."""
        return self.env_factory is not None or self._make is not None

    @property
    def given_tools(self) -> list[ToolSchema]:
        """The schemas of the tools that were given; empty where tools are made later."""
        return [schema for manager in self.managers or () for schema in manager.tool_infos()]

    def check(self, rows: Sequence[Row]) -> None:
        """Refuse rows that cannot be played together, before any is.

        Raises:
            ConfigurationError: There is not one manager for each, or two would play in one environment.
        """
        if self.managers is None:
            return
        if not self.single and len(self.managers) != len(rows):
            raise ConfigurationError(
                f"tool_manager is a list of {len(self.managers)} for {len(rows)} trajectories; give one for each"
            )
        refuse_shared(map(ToolTurns, [*self.managers] * (min(len(rows), 2) if self.single else 1)))

    def made_for(self, row: Row) -> Turns:
        """A new environment, of an `env_factory` or of a factory of managers; whoever asks for it closes it.

        Raises:
            ConfigurationError: What was made is not what it should be.
            EnvError: The factory raised.
        """
        if self.env_factory is not None:
            return as_turns(guarded("env_factory", EnvError, self.env_factory), max_observation_chars=self.max_chars)
        assert self._make is not None
        arguments = (row,) if self._takes_row else ()
        manager = guarded("tool_manager", EnvError, self._make, *arguments)
        if not isinstance(manager, ToolManager):
            raise ConfigurationError(f"tool_manager returned {manager!r}; it must return a new ToolManager")
        return ToolTurns(manager, max_observation_chars=self.max_chars)


class EnvLender:
    """Lends the environments of one call of a rollout to its episodes, and closes at the end those that it made.

    What an `env_factory` made is reused by later episodes until it breaks; what a factory of managers made serves
    one episode. What the caller gave is never closed here.
    """

    def __init__(self, source: EnvSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._idle: list[Turns] = []
        self._made: dict[int, Turns] = {}
        self._given: dict[int, int] = {}
        self._closing = Closing()
        self._closed = False

    def lend(self, number: int, row: Row, shown: Sequence[str] | None) -> EpisodeEnv:
        """The environment of trajectory `number`.

        Raises:
            ConfigurationError: There is none for it, or it is that of an earlier trajectory.
        """
        source = self._source
        if source.makes_envs:
            return EpisodeEnv(lambda: self._get(row), shown, self._retire)
        if source.managers is None:
            manager = ToolManager()
        elif source.single:
            manager = source.managers[0]
        elif number < len(source.managers):
            manager = source.managers[number]
        else:
            raise ConfigurationError(
                f"tool_manager is a list of {len(source.managers)}, and there are more trajectories; give one for each"
            )
        if shown is not None and (unknown := [name for name in shown if name not in manager.names]):
            raise ConfigurationError(f"trajectory {number}: {unknown_tools(unknown, manager.names)}")
        turns = ToolTurns(manager, max_observation_chars=source.max_chars)
        for env in turns.sources:
            if self._given.setdefault(id(env), number) != number:
                kind = type(env).__name__
                raise ConfigurationError(
                    f"trajectories {self._given[id(env)]} and {number} share one {kind}, which would mix them up; give "
                    f"env_factory=lambda: {kind}(...), or a function that makes a ToolManager for each trajectory"
                )
        return EpisodeEnv(lambda: turns, shown, lambda turns: None)

    def make_ready(self) -> None:
        """Make the environment of the first episode now, where it does not depend on the trajectory.

        Raises:
            ConfigurationError: What was made is no environment.
            EnvError: The factory raised.
        """
        if self._source.env_factory is not None:
            self._idle.append(self._get({}))

    def take_back(self, env: EpisodeEnv, *, broken: bool) -> None:
        """Take the environment of an episode that is over."""
        turns = env.leave()
        if turns is None or id(turns) not in self._made:
            return
        if broken or self._source.env_factory is None:
            self._retire(turns)
            return
        with self._lock:
            self._idle.append(turns)

    def close(self, timeout_s: float = 5.0) -> int:
        """Close what was made, all at once; returns how many did not close in time. Their failures are logged."""
        with self._lock:
            self._closed = True
            made = list(self._made.values())
            self._made.clear()
            self._idle.clear()
        self._closing.start([turns.close for turns in made])
        return self._closing.wait(timeout_s)

    def _get(self, row: Row) -> Turns:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        turns = self._source.made_for(row)
        with self._lock:
            others = {id(source): other for other in self._made.values() for source in other.sources}
            shared = [source for source in turns.sources if id(source) in others]
            if not shared and not self._closed:
                self._made[id(turns)] = turns
        if shared:
            kind = type(shared[0]).__name__
            raise ConfigurationError(
                f"the factory returned one {kind} for two episodes, which would mix them up; return a new one at each "
                "call"
            )
        if self._closed:
            self._closing.start([turns.close])
            raise EnvError("the environment was made after the rollout had ended")
        return turns

    def _retire(self, turns: Turns) -> None:
        with self._lock:
            mine = self._made.pop(id(turns), None) is not None
        if mine:
            self._closing.start([turns.close])


def _takes_one(factory: Callable[..., Any]) -> bool:
    """Whether a factory asks for the trajectory: it has a parameter that must be given."""
    parameters = inspect.signature(factory).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)
