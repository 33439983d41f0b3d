"""What came back from an environment, checked: rewards, flags and the shape of a step."""

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard._boundary import guarded, shown
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.tools.schema import tool_name
from tiltyard.types import StepResult, ToolSchema

TEXT_STEP = "(observation, reward, terminated, truncated, info)"

WORDS = ("success", "valid")
"""What evaluation reads in `info`: each a bool, and `valid` also a list of them."""

FAILURE = "failure"
"""The key in a step's `info` that has the `RolloutError` of a failed episode, where `step` does not raise it."""


def scored(value: Any, where: str) -> float | None:
    """A reward as a float; None stays "not scored".

    bool, int, float, numpy scalars and 0-d arrays or tensors are numbers. Text, lists, arrays with an
    axis, NaN and infinities are not rewards: nothing is parsed, reduced or replaced.

    Raises:
        EnvError: It is not a finite number; names the value.
    """
    if value is None:
        return None
    number = value if type(value) is float else _as_float(value, where)
    if not math.isfinite(number):
        raise EnvError(f"{where} gave reward {shown(value)}; a reward is a finite number, or None for 'not scored'")
    return number


def _as_float(value: Any, where: str) -> float:
    value = _plain(value, where)
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise EnvError(
        f"{where} gave reward {shown(value)} of type {type(value).__name__}; a reward is a finite number, "
        "or None for 'not scored'"
    )


def _plain(value: Any, where: str) -> Any:
    """The Python number in a numpy scalar or in a 0-d array or tensor; any other value as it is."""
    if not isinstance(value, numbers.Real) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return guarded(f"{where}: {type(value).__name__}.item", EnvError, value.item)
    return value


def flag(value: Any, name: str, where: str) -> bool:
    """A `done`, `terminated` or `truncated` as a bool.

    Raises:
        EnvError: It is neither a bool, of numpy's kind too, nor 0 or 1: "False" as text would be true.
    """
    if value is True or value is False:
        return value
    value = _plain(value, where)
    if isinstance(value, numbers.Real) and value in (0, 1):
        return bool(value)
    raise EnvError(f"{where} gave {name}={shown(value)}; it must be True or False")


def info_of(value: Any, where: str) -> dict[str, Any]:
    """An environment's info as a dict.

    Raises:
        EnvError: It is not a mapping, or a word of it that evaluation counts is not a bool.
    """
    if type(value) is not dict:
        if not isinstance(value, Mapping):
            raise EnvError(f"{where} gave info {shown(value)}; it must be a dict")
        value = guarded(f"{where}: the info", EnvError, dict, value)
    for word in WORDS:
        said = value.get(word)
        for one in said if word == "valid" and isinstance(said, list | tuple) else () if said is None else (said,):
            flag(one, f"info[{word!r}]", where)
    return value


def step_result(value: Any, where: str) -> StepResult:
    """A tool environment's result, its reward and flags checked.

    Raises:
        EnvError: It is not a `StepResult`, or a field of it breaks the protocol.
    """
    if not isinstance(value, StepResult):
        raise EnvError(f"{where} returned {_kind(value)}; expected a StepResult")
    reward = scored(value.reward, where)
    done, truncated = flag(value.done, "done", where), flag(value.truncated, "truncated", where)
    info = info_of(value.info, where)
    return StepResult(value.observation, reward, done, info, truncated)


def usable_schemas(schemas: Sequence[Any], where: str) -> list[ToolSchema]:
    """An environment's tool schemas, each with a name and such that JSON can hold it.

    Raises:
        EnvError: One is not; says which.
    """
    for number, schema in enumerate(schemas):
        try:
            guarded(f"the JSON of tool {tool_name(schema)!r}", EnvError, json.dumps, schema)
        except (ConfigurationError, EnvError) as error:
            raise EnvError(f"{where} gave tools that cannot be used: tool {number}: {error}") from error
    return list(schemas)


def text_reset(value: Any, where: str) -> StepResult:
    """A text environment's reset as a `StepResult`; its reward is None, since a reset scores nothing.

    Raises:
        EnvError: It is not `(observation, info)`.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise EnvError(f"{where} returned {_kind(value)}; expected (observation, info)")
    return StepResult(value[0], None, info=info_of(value[1], where))


def text_step(value: Any, where: str) -> StepResult:
    """A text environment's step as a `StepResult`.

    Raises:
        EnvError: It is not the five values of the protocol, or one of them breaks it.
    """
    if not isinstance(value, tuple | list) or len(value) != 5:
        raise EnvError(f"{where} returned {_kind(value)}; expected {TEXT_STEP}")
    observation, reward, terminated, truncated, info = value
    return StepResult(
        observation,
        scored(reward, where),
        flag(terminated, "terminated", where),
        info_of(info, where),
        flag(truncated, "truncated", where),
    )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
