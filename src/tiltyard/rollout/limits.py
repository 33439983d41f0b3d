"""The limits of one episode, and the order in which they are checked."""

import math
import numbers
from dataclasses import dataclass, replace

from tiltyard.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one episode. None means "no bound" throughout.

    Checked in this order, each at the place named, and the first that holds ends the episode:
    1. a reset or step that passes `step_timeout_s` (while it runs; the episode fails with `env_error`);
    2. `done`, then `truncated` of the environment (after each step);
    3. `max_tool_calls` (before the calls of a turn run: those beyond it are answered as not run, and the
       episode ends after that turn);
    4. `max_turns` (after a turn: never one model call more than `max_turns`);
    5. `max_seconds` (before a model call);
    6. `max_context` (before a model call: with no room left no request is made);
    7. `max_tokens_per_turn` and the room left in the context (while sampling; what was cut there never
       reaches the environment).

    Attributes:
        max_turns: Model calls in one episode.
        max_tokens_per_turn: Sampled tokens in one turn.
        max_context: Tokens of the whole transcript, sampled or not.
        max_seconds: Wall-clock seconds of the whole episode.
        max_tool_calls: Tool calls that are run in one episode.
        step_timeout_s: Wall-clock seconds of one reset or step of the environment.
        length_reward: What a turn earns that reached `max_tokens_per_turn`; None leaves it unscored.
    """

    max_turns: int = 6
    max_tokens_per_turn: int = 256
    max_context: int | None = None
    max_seconds: float | None = None
    max_tool_calls: int | None = None
    step_timeout_s: float | None = 300.0
    length_reward: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tokens_per_turn"):
            check_count(name, getattr(self, name))
        for name in ("max_context", "max_tool_calls"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), " or None")
        for name in ("max_seconds", "step_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise ConfigurationError(f"{name} must be > 0 seconds or None, got {value!r}")
        reward = self.length_reward
        if reward is not None and not (_is_number(reward) and math.isfinite(reward)):
            raise ConfigurationError(f"length_reward must be finite or None, got {reward!r}")


def check_count(name: str, value: object, otherwise: str = "") -> None:
    """Check a number of things of which there is at least one; a bool is none, and nothing is rounded.

    Args:
        name: The argument's.
        value: What was given.
        otherwise: What else it may be, for the message.

    Raises:
        ConfigurationError: It is not a whole number >= 1.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number >= 1{otherwise}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def limits_of(max_turns: int, max_trajectory_tokens: int | None, limits: Limits | None) -> Limits:
    """The limits of a rollout, whose two most used ones have arguments of their own.

    Raises:
        ConfigurationError: One is given in both ways, with two values.
    """
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigurationError(f"limits must be a Limits(...), got {limits!r}")
    base = limits or Limits()
    if base.max_turns not in (Limits().max_turns, max_turns):
        raise ConfigurationError(
            f"max_turns is {max_turns!r} and limits.max_turns is {base.max_turns!r}; give it once, as max_turns"
        )
    if max_trajectory_tokens is not None and base.max_context not in (None, max_trajectory_tokens):
        raise ConfigurationError(
            f"max_trajectory_tokens is {max_trajectory_tokens!r} and limits.max_context is {base.max_context!r}; they "
            "are one limit: give one of them"
        )
    context = base.max_context if max_trajectory_tokens is None else max_trajectory_tokens
    return replace(base, max_turns=max_turns, max_context=context)
