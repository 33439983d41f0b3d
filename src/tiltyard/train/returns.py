"""Credit of single actions: returns, their baselines, and generalised advantage estimation.

An action is a token that the policy sampled, or a whole turn of them. What the environment said between two actions is
no action, and no reward is lost on it: a turn's reward comes with its last token. A turn that nobody scored is left out
as if the environment had said it. Everything is a Python float (float64).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tiltyard.train.advantage import ROUNDING, batch_advantages

ActionGranularity = Literal["turn", "token"]


@dataclass(frozen=True, slots=True)
class Played:
    """One episode as its returns see it.

    Attributes:
        rewards: One per turn; None where the turn was not scored.
        tokens: How many sampled tokens of each turn train; none of a turn that was not scored.
        penalties: What is taken off the reward of each of these tokens, in order; empty takes nothing.
    """

    rewards: tuple[float | None, ...]
    tokens: tuple[int, ...]
    penalties: tuple[float, ...] = ()

    @property
    def size(self) -> float:
        """The size of what its returns are sums of."""
        return sum(abs(reward) for reward in self.rewards if reward is not None) + sum(map(abs, self.penalties))


@dataclass(frozen=True, slots=True)
class Action:
    """One action: its turn, the first of its tokens, how many they are, and its reward."""

    turn: int
    first: int
    tokens: int
    reward: float


@dataclass(frozen=True, slots=True)
class ActionCredit:
    """The credit of one episode's trained tokens, one entry each.

    Attributes:
        advantages: Of the action that the token belongs to.
        targets: What the value at the token should have been; None where no action begins.
    """

    advantages: tuple[float, ...]
    targets: tuple[float | None, ...] = ()


def actions(played: Played, granularity: ActionGranularity) -> list[Action]:
    """The actions of an episode with their rewards.

    The reward of a scored turn without tokens goes to the action before it; where there is none, nothing has earned it.
    """
    found: list[Action] = []
    place = 0
    for turn, (reward, count) in enumerate(zip(played.rewards, played.tokens, strict=True)):
        taken = [*played.penalties[place : place + count]] or [0.0] * count
        sizes = [count] if granularity == "turn" and count else [1] * count
        for size in sizes:
            cost = sum(taken[:size])
            found.append(Action(turn, place, size, -cost if cost else 0.0))
            taken, place = taken[size:], place + size
        if reward is not None and found:
            last = found[-1]
            found[-1] = Action(last.turn, last.first, last.tokens, last.reward + reward)
    return found


def returns(rewards_T: Sequence[float], discount: float, final: float = 0.0) -> list[float]:
    """Each reward plus the discounted ones after it; `final` is what follows the last."""
    ahead, found = final, []
    for reward in reversed(rewards_T):
        ahead = reward + discount * ahead
        found.append(ahead)
    return found[::-1]


def gae(
    rewards_T: Sequence[float], values_T: Sequence[float], *, discount: float, lam: float, final: float = 0.0
) -> list[float]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    `final` is the value of the state after the last action: 0 when the episode was over, an estimate when it was cut.
    """
    following = [*values_T[1:], final]
    errors = [r + discount * after - v for r, v, after in zip(rewards_T, values_T, following, strict=True)]
    return returns(errors, discount * lam)


def gae_credit(
    played: Played,
    values: Sequence[float],
    *,
    granularity: ActionGranularity,
    discount: float,
    lam: float,
    final: float = 0.0,
) -> ActionCredit:
    """The advantages of an episode's tokens and the targets of their values; `values` has one entry per token."""
    steps = actions(played, granularity)
    seen = [values[step.first] for step in steps]
    advantages = gae([step.reward for step in steps], seen, discount=discount, lam=lam, final=final)
    targets: list[float | None] = [None] * sum(played.tokens)
    for step, advantage, value in zip(steps, advantages, seen, strict=True):
        targets[step.first] = advantage + value
    return ActionCredit(_spread(steps, advantages), tuple(targets))


def return_credit(
    played_N_G: Sequence[Sequence[Played | None]],
    *,
    granularity: ActionGranularity,
    discount: float,
    baseline: Literal["leave_one_out", "batch", "none"],
) -> list[list[ActionCredit | None]]:
    """The advantages of REINFORCE: each action's return less a baseline that no later action changes.

    The baseline of all actions of a turn is the mean of the returns from the beginning of that turn, over the other
    members of the group that played it (leave-one-out: RLOO, Ahmadian et al. 2024, arXiv:2402.14740) or over the whole
    batch. A turn that nobody else played has advantage 0 at its beginning. None stays None.
    """
    steps_N_G = [[actions(p, granularity) if p else [] for p in group] for group in played_N_G]
    returns_N_G = [[returns([s.reward for s in steps], discount) for steps in group] for group in steps_N_G]
    starts_N_G = [
        [_starts(steps, found) for steps, found in zip(*pair, strict=True)]
        for pair in zip(steps_N_G, returns_N_G, strict=True)
    ]
    sizes_N = [max((p.size for p in group if p), default=0.0) for group in played_N_G]
    centred_N_G = _centred(starts_N_G, sizes_N, baseline)
    credit: list[list[ActionCredit | None]] = []
    for played_G, *columns in zip(played_N_G, steps_N_G, returns_N_G, starts_N_G, centred_N_G, strict=True):
        row: list[ActionCredit | None] = []
        for played, steps, found, starts, centred in zip(played_G, *columns, strict=True):
            # G - b, with b = start - centred; written so that equal returns give exactly 0.
            advantages = [(g - starts[s.turn]) + centred[s.turn] for s, g in zip(steps, found, strict=True)]
            row.append(ActionCredit(_spread(steps, advantages)) if played else None)
        credit.append(row)
    return credit


def normalised(credits_N: Sequence[ActionCredit]) -> list[ActionCredit]:
    """Advantages with mean 0 and sample deviation 1 over all tokens; all 0 where only rounding tells them apart."""
    values = [value for credit in credits_N for value in credit.advantages]
    size = max(map(abs, values), default=0.0)
    if not values or max(values) - min(values) <= ROUNDING * size:
        return [ActionCredit((0.0,) * len(credit.advantages), credit.targets) for credit in credits_N]
    mean = math.fsum(values) / len(values)
    deviation = math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)
    return [
        ActionCredit(tuple((value - mean) / deviation for value in credit.advantages), credit.targets)
        for credit in credits_N
    ]


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float | None:
    """1 - Var(target - value) / Var(target): 1 for values that are right, 0 for a constant; None for equal targets."""
    if len(targets) < 2 or max(targets) == min(targets):
        return None
    return 1.0 - _variance([t - v for v, t in zip(values, targets, strict=True)]) / _variance(targets)


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)


def _spread(steps: Sequence[Action], advantages: Sequence[float]) -> tuple[float, ...]:
    return tuple(advantage for step, advantage in zip(steps, advantages, strict=True) for _ in range(step.tokens))


def _starts(steps: Sequence[Action], found: Sequence[float]) -> dict[int, float]:
    """The return from the beginning of each turn."""
    starts: dict[int, float] = {}
    for step, value in zip(steps, found, strict=True):
        starts.setdefault(step.turn, value)
    return starts


def _centred(
    starts_N_G: Sequence[Sequence[dict[int, float]]], sizes_N: Sequence[float], baseline: str
) -> list[list[dict[int, float]]]:
    """The returns from the beginning of each turn, less their baseline."""
    if baseline == "none":
        return [[dict(starts) for starts in group] for group in starts_N_G]
    if baseline == "batch":
        whole = [[starts for group in starts_N_G for starts in group]]
        flat = iter(_of_groups(whole, [max(sizes_N, default=0.0)], leave_out=False)[0])
        return [[next(flat) for _ in group] for group in starts_N_G]
    return _of_groups(starts_N_G, sizes_N, leave_out=True)


def _of_groups(
    starts_N_G: Sequence[Sequence[dict[int, float]]], sizes_N: Sequence[float], *, leave_out: bool
) -> list[list[dict[int, float]]]:
    centred: list[list[dict[int, float]]] = []
    for group, size in zip(starts_N_G, sizes_N, strict=True):
        row: list[dict[int, float]] = [{} for _ in group]
        for turn in sorted({turn for starts in group for turn in starts}):
            column = [starts.get(turn) for starts in group]
            scored = sum(value is not None for value in column)
            factor = scored / (scored - 1) if leave_out and scored > 1 else 1.0
            for found, value in zip(row, batch_advantages([column], "none", [size])[0], strict=True):
                if value is not None:
                    found[turn] = value * factor
        centred.append(row)
    return centred
