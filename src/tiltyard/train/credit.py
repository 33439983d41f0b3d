"""Who gets which advantage: from the rewards of a batch to every sampled token, as each algorithm has it.

Most algorithms know it once the episodes are over (`token_credit`). Where the reference model or a value head has a
say, it is known only after a forward pass (`late_credit`), and what was known before says which tokens train.
"""

from __future__ import annotations  # a batch is made with what is here

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tiltyard.train.advantage import Score, assign, turns_are_rewarded
from tiltyard.train.algorithms import LLMREINFORCE, Algorithm
from tiltyard.train.algorithms.group_relative import GroupRelative
from tiltyard.train.algorithms.return_based import ReturnBased
from tiltyard.train.returns import ActionCredit, ActionGranularity, Played, gae_credit, normalised, return_credit

if TYPE_CHECKING:
    from tiltyard.train.batch import Batch, TrainRow

CreditGranularity = Literal["trajectory", "turn", "token"]

TurnOfToken = Sequence[int]
"""The turn of every sampled token of an episode, in order; empty where the tokens are not known."""

TokenCredit = tuple[float | None, ...]
"""One advantage for each sampled token; None for one that stays out of the loss."""


@dataclass(frozen=True, slots=True)
class Credits:
    """The advantages of a batch's sampled tokens.

    Attributes:
        by_group: Per group and member the credit of its tokens; None for a member without a score.
        granularity: What one advantage is for.
        zero_variance: Groups with two or more scored members whose advantages are all exactly 0.
        small: Groups with fewer scored members than the baseline needs; they teach nothing.
        unscored_turns: Turns of scored episodes that stay out of the loss because nobody scored them.
    """

    by_group: list[list[TokenCredit | None]]
    granularity: CreditGranularity
    zero_variance: int
    small: int
    unscored_turns: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a forward pass before the update says of a row's trained tokens.

    Attributes:
        penalties: What the divergence from the reference takes off each token's reward; empty takes nothing.
        values: The value head's estimate where each token is sampled; empty without one.
        final: Its estimate of what follows the last action; 0 where the episode was over.
    """

    penalties: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    final: float = 0.0


def token_credit(
    scores_N_G: Sequence[Sequence[Score]], turns_N_G: Sequence[Sequence[TurnOfToken]], algorithm: Algorithm
) -> Credits:
    """The advantages of a batch's tokens, as far as they are known without a forward pass."""
    if isinstance(algorithm, GroupRelative):
        assigned = assign(scores_N_G, algorithm.advantage_granularity, algorithm.scale_rewards, algorithm.turn_discount)
        by_group = [
            [None if credit is None else tuple(credit[t] for t in turns) for credit, turns in zip(*pair, strict=True)]
            for pair in zip(assigned.by_group, turns_N_G, strict=True)
        ]
        unscored = sum(a is None for group in assigned.by_group for credit in group or () for a in credit or ())
        return Credits(by_group, assigned.granularity, assigned.zero_variance, assigned.small, unscored)
    granularity = _of_actions(scores_N_G, algorithm)
    played_N_G = [
        [_played(score, turns) for score, turns in zip(*pair, strict=True)]
        for pair in zip(scores_N_G, turns_N_G, strict=True)
    ]
    if isinstance(algorithm, LLMREINFORCE):
        found_N_G = _reinforced(played_N_G, granularity, algorithm)
    else:
        found_N_G = [[p and ActionCredit((0.0,) * sum(p.tokens)) for p in group] for group in played_N_G]
    by_group = [
        [found and _with_gaps(found, score, turns) for found, score, turns in zip(*row, strict=True)]
        for row in zip(found_N_G, scores_N_G, turns_N_G, strict=True)
    ]
    return _counted(by_group, granularity, scores_N_G, algorithm)


def late_credit(batch: Batch, seen: Mapping[int, Seen], algorithm: Algorithm) -> dict[int, ActionCredit]:
    """The advantages of every row's trained tokens; `seen` and what comes back are by the id of the row."""
    if isinstance(algorithm, GroupRelative):
        return _late_group_relative(batch, seen, algorithm)
    granularity: ActionGranularity = "token" if batch.granularity == "token" else "turn"
    if isinstance(algorithm, LLMREINFORCE):
        return _late_reinforce(batch, seen, granularity, algorithm)
    rows = [row for group in batch.groups for row in group]
    found = [
        gae_credit(
            _played_row(row, batch.scores[g][row.member], seen),
            _of(row, seen).values,
            granularity=granularity,
            discount=algorithm.discount,
            lam=algorithm.gae_lambda,
            final=_of(row, seen).final,
        )
        for g, group in enumerate(batch.groups)
        for row in group
    ]
    return dict(zip(map(id, rows), normalised(found) if algorithm.normalise_advantages else found, strict=True))


def _of_actions(scores_N_G: Sequence[Sequence[Score]], algorithm: ReturnBased) -> ActionGranularity:
    if algorithm.advantage_granularity != "auto":
        return algorithm.advantage_granularity
    return "turn" if turns_are_rewarded(scores_N_G) else "token"


def _played(score: Score, turn_of_token: TurnOfToken) -> Played | None:
    """An episode as its returns see it; where its tokens are not known, one for each turn stands for them."""
    if score.total is None:
        return None
    given = turn_of_token or range(len(score.turns))
    counts = [sum(turn == t for turn in given) for t in range(len(score.turns))]
    return Played(score.turns, tuple(0 if r is None else n for r, n in zip(score.turns, counts, strict=True)))


def _with_gaps(found: ActionCredit, score: Score, turn_of_token: TurnOfToken) -> TokenCredit:
    """The advantages with None where a token's turn was not scored."""
    remaining = iter(found.advantages)
    return tuple(None if score.turns[turn] is None else next(remaining) for turn in turn_of_token)


def _reinforced(
    played_N_G: Sequence[Sequence[Played | None]], granularity: ActionGranularity, algorithm: LLMREINFORCE
) -> list[list[ActionCredit | None]]:
    found_N_G = return_credit(
        played_N_G, granularity=granularity, discount=algorithm.discount, baseline=algorithm.baseline
    )
    if not algorithm.normalise_advantages:
        return found_N_G
    flat = iter(normalised([found for group in found_N_G for found in group if found]))
    return [[found and next(flat) for found in group] for group in found_N_G]


def _counted(
    by_group: list[list[TokenCredit | None]],
    granularity: CreditGranularity,
    scores_N_G: Sequence[Sequence[Score]],
    algorithm: ReturnBased,
) -> Credits:
    scored = [sum(score.total is not None for score in group) for group in scores_N_G]
    compared = isinstance(algorithm, LLMREINFORCE) and algorithm.baseline == "leave_one_out"
    flat = [not any(any(credit) for credit in group if credit) for group in by_group]
    return Credits(
        by_group,
        granularity,
        zero_variance=sum(compared and n >= 2 and is_flat for n, is_flat in zip(scored, flat, strict=True)),
        small=sum(n < (2 if compared else 1) for n in scored),
        unscored_turns=sum(s.turns.count(None) for group in scores_N_G for s in group if s.total is not None),
    )


def _of(row: TrainRow, seen: Mapping[int, Seen]) -> Seen:
    return seen.get(id(row), Seen())


def _trained_turns(row: TrainRow) -> list[int]:
    return [turn for turn, on in zip(row.turns, row.mask, strict=True) if on]


def _played_row(row: TrainRow, score: Score, seen: Mapping[int, Seen]) -> Played:
    turns = _trained_turns(row)
    counts = tuple(sum(turn == t for turn in turns) for t in range(len(score.turns)))
    return Played(score.turns, counts, _of(row, seen).penalties)


def _late_reinforce(
    batch: Batch, seen: Mapping[int, Seen], granularity: ActionGranularity, algorithm: LLMREINFORCE
) -> dict[int, ActionCredit]:
    rows_N = [{row.member: row for row in group} for group in batch.groups]
    played_N_G = [
        [_played_row(rows[m], s, seen) if m in rows else _played(s, ()) for m, s in enumerate(scores_G)]
        for rows, scores_G in zip(rows_N, batch.scores, strict=True)
    ]
    found_N_G = _reinforced(played_N_G, granularity, algorithm)
    return {
        id(row): credit
        for rows, found_G in zip(rows_N, found_N_G, strict=True)
        for m, row in rows.items()
        if (credit := found_G[m]) is not None
    }


def _late_group_relative(batch: Batch, seen: Mapping[int, Seen], algorithm: GroupRelative) -> dict[int, ActionCredit]:
    scores_N_G = [list(group) for group in batch.scores]
    for scores_G, rows in zip(scores_N_G, batch.groups, strict=True):
        for row in rows:
            scores_G[row.member] = _less(scores_G[row.member], _trained_turns(row), _of(row, seen).penalties)
    granularity = "turn" if batch.granularity == "turn" else "trajectory"
    assigned = assign(scores_N_G, granularity, algorithm.scale_rewards, algorithm.turn_discount)
    found: dict[int, ActionCredit] = {}
    for credits_G, rows in zip(assigned.by_group, batch.groups, strict=True):
        for row in rows:
            credit = credits_G[row.member] or ()
            found[id(row)] = ActionCredit(tuple(credit[turn] or 0.0 for turn in _trained_turns(row)))
    return found


def _less(score: Score, turns: Sequence[int], penalties: Sequence[float]) -> Score:
    """The score less the penalties of its tokens; a turn that was not scored stays so."""
    if score.total is None or not penalties:
        return score
    taken = [0.0] * len(score.turns)
    for turn, penalty in zip(turns, penalties, strict=True):
        taken[turn] += penalty
    turn_rewards = (None if r is None else r - cost for r, cost in zip(score.turns, taken, strict=True))
    return replace(score, total=score.total - sum(penalties), turns=tuple(turn_rewards))
