"""Rubrics: what an answer is worth, made of named parts.

The written rule for every part: bool, int, float and numpy or tensor scalars are numbers; None means "not scored" and
leaves the whole answer unscored, since a sum without it could not be compared with the others of its group; NaN,
infinities, text and lists are errors that name the part and the row, and so is whatever a part raises. An error fails
the episode. No score is ever made up.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from tiltyard._boundary import guarded, shown
from tiltyard.envs.result import scored
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.rewards.answer import Answer, Arguments

_GATE, _THEN = "gate", "then"

MOST = 1e9
"""A weight or a bound of this size is a slip."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rubric says of one answer.

    Attributes:
        reward: What the answer earns; None when it is not scored.
        parts: The score of each part that was asked, without its weight, by its name; those of a part within a part
            have both names, with a dot between.
    """

    reward: float | None
    parts: Mapping[str, float] = field(default_factory=dict)


class Rubric(ABC):
    """Scores answers. One object serves all episodes, from any thread."""

    @abstractmethod
    def score(self, answer: Answer) -> Verdict:
        """Score one answer.

        Raises:
            RolloutError: A part of it failed, or gave what is no number.
        """

    def check(self, columns: Sequence[str]) -> None:  # noqa: B027  # a rubric of one's own may have nothing to check
        """See whether rows with these columns have all that is asked for; nothing is, unless a rubric says so.

        Raises:
            ConfigurationError: They do not; the message has the names that there are.
        """


Scores = Rubric | Callable[..., Any]
"""A rubric, or a function that `tiltyard.rewards.answer` says how to call; async or not."""


class Function(Rubric):
    """One function as a rubric."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        """Take a function.

        Args:
            function: Called by the names of its parameters; returns a number or None. May be async.
            name: What its part is called; None takes its own name.

        Raises:
            ConfigurationError: It cannot be called.
        """
        if not callable(function):
            raise ConfigurationError(f"a part of a rubric is a function or a rubric, got {function!r}")
        self.name = name or getattr(function, "__name__", None) or type(function).__name__
        self._function = function
        self._known: dict[tuple[str, ...], Arguments] = {}
        # An OpenEnv rubric keeps the scores of its children until it is called again, by whichever thread.
        self._children: Callable[[], Iterable[tuple[str, Any]]] | None = getattr(function, "named_rubrics", None)
        self._one_at_a_time = nullcontext() if self._children is None else threading.Lock()

    def check(self, columns: Sequence[str]) -> None:
        """See `Rubric`."""
        self._arguments(columns)

    def score(self, answer: Answer) -> Verdict:
        """See `Rubric`."""
        arguments = self._arguments(tuple(answer.row))
        where = f"the reward {self.name!r}"
        with self._one_at_a_time:
            value = guarded(where, EnvError, self._function, **arguments.fill(answer))
            parts = self._own_parts()
        if arguments.batched:
            if not isinstance(value, list | tuple) or len(value) != 1:
                raise EnvError(f"{where} gave {shown(value)} for one completion; expected a list of one number")
            value = value[0]
        number = scored(value, f"{where} of row {shown(dict(answer.row))}")
        return Verdict(number, parts if number is None else {self.name: number, **parts})

    def _arguments(self, columns: Sequence[str]) -> Arguments:
        known = tuple(columns)
        if known not in self._known:
            self._known[known] = Arguments.of(self._function, known, f"the reward {self.name!r}")
        return self._known[known]

    def _own_parts(self) -> dict[str, float]:
        if self._children is None:
            return {}
        found = {name: getattr(child, "last_score", None) for name, child in self._children()}
        return {f"{self.name}.{name}": float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    rubric: Rubric
    weight: float


class _Composed(Rubric):
    """A rubric of named and weighted parts."""

    def __init__(self, parts: Mapping[str, Scores], weights: Mapping[str, float] | None = None) -> None:
        """Take the parts.

        Args:
            parts: Functions or rubrics by name.
            weights: What the score of each is multiplied with; 1 where none is given.

        Raises:
            ConfigurationError: There is no part, a name or a weight cannot be used, or a weight is for none.
        """
        if not isinstance(parts, Mapping) or not parts:
            raise ConfigurationError(f"{type(self).__name__} takes its parts as a mapping of names, got {parts!r}")
        for name in parts:
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"a part of a {type(self).__name__} has a text as its name, got {name!r}")
            if within := [other for other in parts if name.startswith(f"{other}.")]:
                raise ConfigurationError(
                    f"a part is called {name!r}, as one within the part {within[0]!r} would be; give it another name"
                )
        given = dict(weights or {})
        if unknown := [name for name in given if name not in parts]:
            raise ConfigurationError(f"a weight is given for {unknown[0]!r}; the parts are: {', '.join(parts)}")
        numbers = {name: _number(f"the weight of {name!r}", weight) for name, weight in given.items()}
        self._parts = [_Part(name, _named(part, name), numbers.get(name, 1.0)) for name, part in parts.items()]

    def check(self, columns: Sequence[str]) -> None:
        """See `Rubric`."""
        for part in self._parts:
            part.rubric.check(columns)

    def _sum(self, total: float, parts: Mapping[str, float]) -> float:
        """A sum that can be a reward: finite parts can add up to what is not.

        Raises:
            EnvError: It is infinite or NaN; names the parts.
        """
        if not math.isfinite(total):
            raise EnvError(
                f"the {type(self).__name__} of {', '.join(part.name for part in self._parts)} came to {total!r} from "
                f"{shown(dict(parts))}; a reward is a finite number"
            )
        return total


class WeightedSum(_Composed):
    """The sum of all parts, each times its weight."""

    def score(self, answer: Answer) -> Verdict:
        """See `Rubric`; a part of weight 0 is only looked at, so that its None does not unscore the answer.

        Raises:
            RolloutError: A part failed, or the sum is no finite number.
        """
        total, parts = 0.0, {}
        missing = False
        for part in self._parts:
            verdict = part.rubric.score(answer)
            parts.update(_within(part.name, part.rubric, verdict.parts))
            if verdict.reward is not None:
                total += part.weight * verdict.reward
            elif part.weight != 0:
                missing = True
        return Verdict(None if missing else self._sum(total, parts), parts)


class Sequential(_Composed):
    """Parts one after the other, as far as they pass: the sum of those that were asked, each times its weight.

    A part passes with a score above `above`. The parts behind the first one that does not pass are not asked, and earn
    nothing: put what is cheap first.
    """

    def __init__(
        self, parts: Mapping[str, Scores], weights: Mapping[str, float] | None = None, *, above: float = 0.0
    ) -> None:
        """Take the parts in their order.

        Raises:
            ConfigurationError: There is no part, a name or a number cannot be used, or a weight is for none.
        """
        super().__init__(parts, weights)
        self.above = _number("above", above)

    def score(self, answer: Answer) -> Verdict:
        """See `Rubric`; a part that is not scored leaves the answer unscored, and none behind it is asked.

        Raises:
            RolloutError: A part failed, or the sum is no finite number.
        """
        total, parts = 0.0, {}
        for part in self._parts:
            verdict = part.rubric.score(answer)
            parts.update(_within(part.name, part.rubric, verdict.parts))
            if verdict.reward is None:
                return Verdict(None, parts)
            total += part.weight * verdict.reward
            if verdict.reward <= self.above:
                break
        return Verdict(self._sum(total, parts), parts)


class Gate(Rubric):
    """What an answer is worth, if it passes a condition, and 0 if it does not; then the rest is not asked."""

    def __init__(self, condition: Scores, then: Scores, *, above: float = 0.0) -> None:
        """Take both.

        Args:
            condition: Passes with a score above `above`; it earns nothing itself.
            then: Scores the answers that pass.
            above: See `condition`.

        Raises:
            ConfigurationError: One cannot be called, or `above` is no number.
        """
        self._condition, self._then = _named(condition, _GATE), as_rubric(then)
        self.above = _number("above", above)

    def check(self, columns: Sequence[str]) -> None:
        """See `Rubric`."""
        self._condition.check(columns)
        self._then.check(columns)

    def score(self, answer: Answer) -> Verdict:
        """See `Rubric`; a condition that is not scored leaves the answer unscored."""
        gate = self._condition.score(answer)
        parts = _within(_GATE, self._condition, gate.parts)
        if gate.reward is None:
            return Verdict(None, parts)
        if gate.reward <= self.above:
            return Verdict(0.0, parts)
        verdict = self._then.score(answer)
        return Verdict(verdict.reward, {**parts, **_behind_gate(verdict.parts)})


def as_rubric(scores: Scores) -> Rubric:
    """A rubric, or a function as one.

    Raises:
        ConfigurationError: It is neither.
    """
    return scores if isinstance(scores, Rubric) else Function(scores)


def _number(name: str, value: Any) -> float:
    real: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not -MOST < real < MOST:
        raise ConfigurationError(f"{name} must be a number between {-MOST:g} and {MOST:g}, got {value!r}")
    return float(real)


def _named(scores: Scores, name: str) -> Rubric:
    return scores if isinstance(scores, Rubric) and not isinstance(scores, Function) else _function(scores, name)


def _function(scores: Any, name: str) -> Function:
    return Function(scores._function if isinstance(scores, Function) else scores, name)


def _within(name: str, rubric: Rubric, parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of a part, behind its name; those of a function have it already."""
    return dict(parts) if isinstance(rubric, Function) else {f"{name}.{part}": value for part, value in parts.items()}


def _behind_gate(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of what a gate leads to; a gate among them stands behind `then`, apart from this one."""
    return {
        f"{_THEN}.{name}" if name.partition(".")[0] in (_GATE, _THEN) else name: value for name, value in parts.items()
    }
