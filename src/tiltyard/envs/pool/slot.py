"""One environment in a worker, in the terms of the pool: whatever it is outside, it is reset and stepped."""

from collections.abc import Callable
from typing import Any, Protocol

from tiltyard._boundary import guarded, shown
from tiltyard.envs.base import Env
from tiltyard.envs.own_random import caller_of
from tiltyard.envs.pool.recipe import EnvRecipe
from tiltyard.envs.result import step_result, text_reset, text_step, usable_schemas
from tiltyard.envs.text_turns import TextTurns, reset_options, taken_options, text_tools
from tiltyard.envs.turns import GuardedTurns, as_turns
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError, TiltyardError, ToolError
from tiltyard.types import StepResult

ABOUT = ("dataset_size", "evaluation_size", "max_turns", "system_prompt", "examples")
"""Attributes by which an environment says something about itself, beside its tools."""

Facts = dict[str, Any]
"""What there is to know of an environment without calling it: `kind`, `name`, and what it says about itself."""


class Played(Protocol):
    """An environment of one kind. Each method that it has not is refused by the slot."""

    kind: str
    env: Any

    def tools(self) -> list[Any]:
        """The schemas of the episode that was begun last."""
        ...

    def close(self) -> None:
        """Give back what the environment holds."""
        ...


class ToolPlayed:
    """A tool-call environment."""

    kind = "tool"

    def __init__(self, env: Env) -> None:
        self.env = env
        self._name = type(env).__name__
        self._step_name = f"{self._name}.step"

    def reset(self, trajectory: dict[str, Any] | None) -> StepResult:
        """Begin an episode."""
        name = f"{self._name}.reset"
        return step_result(guarded(name, EnvError, self.env.reset, trajectory), name)

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run one tool call."""
        name = self._step_name
        return step_result(guarded(name, EnvError, self.env.step, tool_name, arguments), name)

    def tools(self) -> list[Any]:
        """The environment's schemas."""
        name = f"{self._name}.tools"
        return usable_schemas(guarded(name, EnvError, lambda: list(self.env.tools())), name)

    def close(self) -> None:
        """Close it."""
        guarded(f"{self._name}.close", EnvError, self.env.close)


class TextPlayed:
    """A text environment: the action is `arguments["message"]`, whatever the tool's name."""

    kind = "text"

    def __init__(self, env: Any) -> None:
        self.env = env
        self._name = type(env).__name__
        self._call = caller_of(env)
        self._takes = reset_options(env)

    def reset(self, trajectory: dict[str, Any] | None) -> StepResult:
        """Begin an episode."""
        name = f"{self._name}.reset"
        options = taken_options(self._takes, trajectory or {}, name)
        return text_reset(guarded(name, EnvError, self._call, self.env.reset, **options), name)

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Act with a text."""
        del tool_name
        action = arguments.get("message")
        if not isinstance(action, str):
            raise ToolError(f"the action of {self._name} is a text, given as message; got {shown(arguments)}")
        name = f"{self._name}.step"
        return text_step(guarded(name, EnvError, self._call, self.env.step, action), name)

    def tools(self) -> list[Any]:
        """The schemas that the environment shows."""
        return text_tools(self.env)

    def close(self) -> None:
        """Close it, where it can be closed."""
        if callable(close := getattr(self.env, "close", None)):
            guarded(f"{self._name}.close", EnvError, close)


class TurnPlayed:
    """A `TurnEnv` of somebody else's."""

    kind = "turn"

    def __init__(self, env: Any, turns: GuardedTurns) -> None:
        self.env = env
        self._turns = turns
        self.start = turns.start
        self.reply = turns.reply
        self.close = turns.close

    def tools(self) -> list[Any]:
        """The schemas of the episode."""
        return list(self._turns.tools())


def played(env: Any) -> Played:
    """An environment in the terms of the pool."""
    if isinstance(env, Env):
        return ToolPlayed(env)
    turns = as_turns(env)
    if isinstance(turns, TextTurns) and turns is not env:
        return TextPlayed(env)
    return TurnPlayed(env, turns if isinstance(turns, GuardedTurns) else GuardedTurns(turns))


class Slot:
    """The environment of one slot; all its calls come from one thread.

    An environment that failed is in a state that nobody knows: what follows is refused, and the next reset makes a
    fresh one.
    """

    def __init__(self, number: int, recipe: EnvRecipe) -> None:
        self.number = number
        self._recipe = recipe
        self._played: Played | None = None
        self._facts: Facts | None = None
        self._failed = False

    def make(self) -> Facts:
        """Make the environment.

        Raises:
            ConfigurationError: It is none that can be pooled.
            EnvError: It could not be made.
        """
        self._played = played(self._recipe.make())
        self._failed = False
        self._facts = _facts(self._played)
        return self._facts

    def run(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """One call.

        Raises:
            TiltyardError: Whatever went wrong.
        """
        if method == "close":
            return self._close()
        begins = method in BEGIN
        if self._failed and not begins:
            raise EpisodeOverError(f"{method} was called after the environment failed; call reset() to begin another")
        try:
            if begins and (self._failed or self._played is None):
                self._renew()
            result = self._call(method)(*arguments)
        except (ToolError, EpisodeOverError, ConfigurationError):
            raise  # the caller's mistake, or the model's: the environment is what it was
        except EnvError as error:
            if isinstance(error.__cause__, EpisodeOverError):
                raise error.__cause__ from None  # as above: a step after the end
            self._failed = True
            raise
        except BaseException:
            self._failed = True
            raise
        return (result, self._news()) if begins else result

    def _call(self, method: str) -> Callable[..., Any]:
        call = getattr(self._played, method, None) if method in CALLS else None
        if call is not None:
            return call
        env = getattr(self._played, "env", None)
        name, kind = type(env).__name__, getattr(self._played, "kind", None)
        if method == "evaluate" and callable(own := getattr(env, "evaluate", None)):
            return lambda *args: guarded(f"{name}.evaluate", EnvError, own, args[0], **args[1])
        raise ConfigurationError(f"{name} is a {kind} environment and has no {method}; use the pool's get_adapters")

    def _news(self) -> Facts | None:
        """What there is to know of the environment, where a reset has changed it; None where it has not."""
        assert self._played is not None
        facts = _facts(self._played)
        if facts == self._facts:
            return None
        self._facts = facts
        return facts

    def _renew(self) -> None:
        """A fresh environment in the place of one that failed, which is closed if it can be."""
        try:
            self._close()
        except EnvError:
            self._played = None  # it failed before, and this says nothing new
        self.make()

    def _close(self) -> None:
        gone, self._played = self._played, None
        if gone is not None:
            gone.close()


CALLS = frozenset({"reset", "step", "start", "reply"})
BEGIN = frozenset({"reset", "start"})


def _facts(one: Played) -> Facts:
    """What there is to know; where the tools cannot be told, the error stands in their place."""
    env = one.env
    facts: Facts = {"kind": one.kind, "name": type(env).__name__}
    for name in ABOUT:
        value = guarded(f"{facts['name']}.{name}", EnvError, getattr, env, name, None)
        if value is not None:
            facts[name] = value
    try:
        facts["tools"] = one.tools()
    except TiltyardError as error:
        facts["tools_error"] = str(error)
    return facts
