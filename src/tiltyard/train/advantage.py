"""Advantages: how much better an episode, or one of its turns, did than its group.

The group-relative baseline is GRPO's (Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1); leaving the
standard deviation out is Dr. GRPO's (Liu et al. 2025, arXiv:2503.20783); taking it over the batch is Lite PPO's (Liu
et al. 2025, arXiv:2508.08221). Everything is a Python float (float64), and no epsilon is added to a deviation: rewards
that differ by no more than what adding up their turns rounds off are equal, and give exactly 0 instead of a rounding
error divided by another one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["group", "none", "batch"]
"""What centred rewards are divided by: their group's sample standard deviation, nothing, or the batch's."""

Granularity = Literal["auto", "trajectory", "turn"]

ROUNDING = 1e-12
"""Of the size of what was added up: 0.1 + 0.2 and 0.3 are one reward, 0.5 and 0.5000001 are two."""

TurnCredit = tuple[float | None, ...]
"""One advantage per turn of an episode; None for a turn that nobody scored, which then stays out of the loss."""


@dataclass(frozen=True, slots=True)
class Score:
    """The rewards of one episode, as the baseline sees them.

    Attributes:
        total: The episode's reward; None takes the episode out of baseline and loss.
        turns: One reward per turn; None where the turn was not scored.
    """

    total: float | None
    turns: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Credits:
    """The advantages of a batch.

    Attributes:
        by_group: Per group and member the credit of its turns; None for a member without a score.
        granularity: "trajectory" or "turn": what "auto" came to.
        zero_variance: Groups with two or more scored members whose advantages are all exactly 0.
        small: Groups with fewer than two scored members; they teach nothing.
    """

    by_group: list[list[TurnCredit | None]]
    granularity: Literal["trajectory", "turn"]
    zero_variance: int
    small: int


def group_advantages(rewards_G: Sequence[float | None], scale: Scale = "group") -> list[float | None]:
    """The advantages of one group: reward minus the mean of the scored members, divided as `scale` says.

    None (not scored) counts neither in the mean nor in the deviation and stays None. Equal rewards, and a
    single scored member, give exactly 0 under every scale. The deviation is the sample's (n - 1).
    """
    return batch_advantages([rewards_G], scale)[0]


def batch_advantages(
    rewards_N_G: Sequence[Sequence[float | None]], scale: Scale = "group", sizes_N: Sequence[float] | None = None
) -> list[list[float | None]]:
    """`group_advantages` for every group of a batch; `scale="batch"` divides by the deviation of all scored rewards.

    `sizes_N` is the size of the numbers that each group's rewards are sums of; None takes the rewards' own.
    """
    divisor = (
        _deviation([r for rewards_G in rewards_N_G for r in rewards_G if r is not None]) if scale == "batch" else 1.0
    )
    by = None if scale == "group" else divisor
    sizes_N = [0.0] * len(rewards_N_G) if sizes_N is None else sizes_N
    return [_centred(rewards_G, by, size) for rewards_G, size in zip(rewards_N_G, sizes_N, strict=True)]


def turn_advantages(
    rewards_G_T: Sequence[Sequence[float | None]], scale: Scale = "group", discount: float = 0.0
) -> list[TurnCredit]:
    """The advantages of one group's turns: turn t of a member against turn t of the members that played it.

    The members that played turn t have all taken t turns before it, so its rewards are compared with rewards
    that were as far into the episode. A turn that only one member played (or that only one has scored) gives
    exactly 0, as a group of one does. `discount` adds to a turn's own reward the discounted later ones
    (0: its own only; 1: the reward to go), without those that were not scored.
    """
    return _turn_credits([rewards_G_T], scale, discount)[0]


def assign(
    scores_N_G: Sequence[Sequence[Score]],
    granularity: Granularity = "auto",
    scale: Scale = "group",
    discount: float = 0.0,
) -> Credits:
    """Give every turn of a batch its advantage.

    "trajectory" gives all turns of an episode the advantage of its total. "turn" compares turn with turn (see
    `turn_advantages`). "auto" is "turn" when some scored episode has more than one turn and a reward other
    than 0 before its last turn, and "trajectory" otherwise: an environment that only pays at the end has no
    per-turn rewards, whatever it returns in between.
    """
    chosen: Literal["trajectory", "turn"] = "turn" if turns_are_rewarded(scores_N_G) else "trajectory"
    if granularity != "auto":
        chosen = granularity
    if chosen == "turn":
        turns = [[s.turns if s.total is not None else (None,) * len(s.turns) for s in group] for group in scores_N_G]
        found = _turn_credits(turns, scale, discount)
    else:
        sizes = [max((_size(s.turns) for s in group), default=0.0) for group in scores_N_G]
        totals = batch_advantages([[s.total for s in group] for group in scores_N_G], scale, sizes)
        found = [
            [(advantage,) * len(s.turns) for s, advantage in zip(group, advantages, strict=True)]
            for group, advantages in zip(scores_N_G, totals, strict=True)
        ]
    by_group = [
        [credit if s.total is not None else None for s, credit in zip(group, row, strict=True)]
        for group, row in zip(scores_N_G, found, strict=True)
    ]
    small = sum(_scored(row) < 2 for row in by_group)
    flat = sum(_scored(row) >= 2 and not any(any(credit) for credit in row if credit is not None) for row in by_group)
    return Credits(by_group, chosen, zero_variance=flat, small=small)


def turns_are_rewarded(scores_N_G: Sequence[Sequence[Score]]) -> bool:
    """True when some scored episode has a reward other than 0 before its last turn."""
    return any(any(s.turns[:-1]) for group in scores_N_G for s in group if s.total is not None)


def _scored(credits_G: Sequence[TurnCredit | None]) -> int:
    return sum(credit is not None for credit in credits_G)


def _size(rewards: Sequence[float | None]) -> float:
    """The size of what is added up: sums that differ by a rounding error of it are equal."""
    return sum(abs(reward) for reward in rewards if reward is not None)


def _centred(rewards_G: Sequence[float | None], divisor: float | None, size: float) -> list[float | None]:
    """Rewards minus their mean over `divisor`; None divides by their own deviation."""
    scored = [reward for reward in rewards_G if reward is not None]
    if not scored or not ROUNDING * max(size, _size(scored)) < max(scored) - min(scored) < math.inf:
        return [None if reward is None else 0.0 for reward in rewards_G]
    mean = math.fsum(scored) / len(scored)
    by = _deviation(scored) if divisor is None else divisor
    return [None if reward is None else (reward - mean) / by for reward in rewards_G]


def _deviation(values: Sequence[float]) -> float:
    """The sample standard deviation (n - 1); 1 where there is none, since every value is then centred to 0."""
    if len(values) < 2 or min(values) == max(values):
        return 1.0
    if not math.isfinite(_size(values)):
        return math.inf
    mean = math.fsum(values) / len(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1) or 1.0


def _turn_credits(
    rewards_N_G_T: Sequence[Sequence[Sequence[float | None]]], scale: Scale, discount: float
) -> list[list[TurnCredit]]:
    returns = [[_to_go(rewards_T, discount) for rewards_T in group] for group in rewards_N_G_T]
    lengths = [max((len(member) for member in group), default=0) for group in returns]
    columns = [
        [member[t] if t < len(member) else None for member in group]
        for group, length in zip(returns, lengths, strict=True)
        for t in range(length)
    ]
    sizes = [
        max((_size(member) for member in group), default=0.0)
        for group, length in zip(rewards_N_G_T, lengths, strict=True)
        for _ in range(length)
    ]
    column = iter(batch_advantages(columns, scale, sizes))
    by_group: list[list[TurnCredit]] = []
    for group, length in zip(returns, lengths, strict=True):
        by_turn = [next(column) for _ in range(length)]
        by_group.append([tuple(by_turn[t][g] for t in range(len(member))) for g, member in enumerate(group)])
    return by_group


def _to_go(rewards_T: Sequence[float | None], discount: float) -> list[float | None]:
    """Each turn's reward plus the discounted later ones; None stays None, and is nothing to the turns before it."""
    ahead, returns = 0.0, []
    for reward in reversed(rewards_T):
        ahead = (reward or 0.0) + discount * ahead
        returns.append(None if reward is None else ahead)
    return returns[::-1]
