"""Finished groups made into training rows: what trains, with which advantage, and what was left out and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tiltyard.errors import ConfigurationError, TranscriptError
from tiltyard.rollout.groups import Group
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.advantage import Score
from tiltyard.train.algorithms import LLMPPO, Algorithm
from tiltyard.train.algorithms.group_relative import GroupRelative
from tiltyard.train.credit import CreditGranularity, Credits, TokenCredit, token_credit

Truncated = Literal["keep", "zero", "mask"]
"""What an episode that was cut teaches.

"keep": what its reward says; nothing when it was cut before anything was scored. "zero": its reward, and that of each
of its turns, counts as 0, scored or not. "mask": nothing, but its reward stays in the group's baseline (DAPO's overlong
filtering, arXiv:2503.14476).
"""


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One episode as the trainer sees it; all sequences have one length.

    Attributes:
        episode_id: The episode, for messages.
        ids: The tokens up to the last one that trains.
        mask: True where the token is in the loss and its gradient is not known to be 0.
        logprobs: The sampler's log-probability; None where it is not sampled, or not known.
        advantages: 0 where the mask is False.
        counted: How many tokens of the episode the loss is averaged over: those of the mask, and those
            left out of it because their advantage is exactly 0, which changes no gradient.
        turns: The turn that each token was sampled in, and -1 for the others; empty where all is one turn.
        member: The episode's place in its group.
        cut: The episode was cut outside its task, so that something would have followed: its end has a value.
    """

    episode_id: str
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    advantages: tuple[float, ...]
    counted: int
    turns: tuple[int, ...] = ()
    member: int = field(default=0, compare=False)
    cut: bool = False

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.advantages)}
        if self.turns:
            lengths.add(len(self.turns))
        if len(lengths) != 1:
            raise TranscriptError(
                f"row {self.episode_id}: {len(self.ids)} ids, {len(self.mask)} mask, {len(self.logprobs)} "
                f"log-probabilities and {len(self.advantages)} advantages; there must be one of each per token"
            )
        if self.mask and self.mask[0]:
            raise TranscriptError(f"row {self.episode_id}: its first token is sampled, but nothing comes before it")
        if self.counted < self.trained:
            raise TranscriptError(f"row {self.episode_id}: {self.trained} tokens train but only {self.counted} count")
        for name, values in (("advantage", self.advantages), ("log-probability", self.logprobs)):
            bad = [value for value, on in zip(values, self.mask, strict=True) if on and not _finite_or_none(value)]
            if bad:
                raise TranscriptError(f"row {self.episode_id}: a trained token has the {name} {bad[0]!r}")

    @property
    def trained(self) -> int:
        """How many tokens have a gradient."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What became of the episodes of a batch.

    Attributes:
        episodes: All of them.
        failed: Neither in the baseline nor in the loss.
        unscored: Cut before anything was scored, and likewise left out.
        truncated: Cut short; treated as `truncated_policy` says.
        truncated_policy: "keep", "zero" or "mask".
        groups: Tasks.
        zero_variance_groups: Groups whose members did equally well; they have no gradient and are not computed.
        small_groups: Groups with fewer than two scored members; they teach nothing.
        unscored_turns: Turns of scored episodes that stay out of the loss because nobody scored them.
        untrainable: Scored episodes without tokens to train on; their reward is in the baseline.
        sampled_tokens: Sampled in all episodes, failed ones included.
        counted_tokens: The tokens that the loss is averaged over.
        trained_tokens: The tokens that are computed.
    """

    episodes: int
    failed: int
    unscored: int
    truncated: int
    truncated_policy: Truncated
    groups: int
    zero_variance_groups: int
    small_groups: int
    unscored_turns: int
    untrainable: int
    sampled_tokens: int
    counted_tokens: int
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one update, by group; a row without trained tokens only takes part in the mean.

    Attributes:
        groups: Rows of the episodes that have a score, by task.
        granularity: What the advantages were taken over.
        counts: What became of every episode.
        scores: The rewards of all members of each group, those without a row included.
    """

    groups: tuple[tuple[TrainRow, ...], ...]
    granularity: CreditGranularity
    counts: BatchCounts
    scores: tuple[tuple[Score, ...], ...] = ()

    @property
    def empty(self) -> bool:
        """True when no token has a gradient; the learner then skips the update."""
        return self.counts.trained_tokens == 0

    @property
    def teaching(self) -> int:
        """How many groups have a token with a gradient."""
        return sum(any(row.trained for row in rows) for rows in self.groups)


def build_batch(groups: Sequence[Group], algorithm: Algorithm, *, truncated: Truncated = "keep") -> Batch:
    """Make training rows of finished groups.

    A failed episode is left out of the baseline and of the loss; a truncated one is treated as `truncated` says. One
    without token ids, which a served model may give, is left out of the loss only.
    Tokens whose advantage is exactly 0 have no gradient; unless another term gives them one, they are not computed,
    but still count in the mean, so that leaving them out changes nothing.

    Raises:
        ConfigurationError: No scored episode has tokens, or one has sampled tokens without a log-probability
            although the algorithm compares with the sampler's.
        TranscriptError: The tokens of an episode are out of line.
    """
    if truncated not in ("keep", "zero", "mask"):
        raise ConfigurationError(f"truncated must be 'keep', 'zero' or 'mask', got {truncated!r}")
    members = [list(group.members) for group in groups]
    scores = tuple(tuple(_score(trajectory, truncated, algorithm) for trajectory in group) for group in members)
    turns = [[_turn_of_token(trajectory) for trajectory in group] for group in members]
    credited = token_credit(scores, turns, algorithm)
    rows = [
        tuple(
            _row(trajectory, credit, algorithm, member, truncated)
            for member, (trajectory, credit) in enumerate(zip(group, credits_G, strict=True))
            if credit is not None
            and trajectory.transcript is not None
            and not (truncated == "mask" and trajectory.truncated)
            and not _dropped(credits_G, algorithm)
        )
        for group, credits_G in zip(members, credited.by_group, strict=True)
    ]
    return Batch(tuple(rows), credited.granularity, _counts(members, scores, credited, rows, truncated), scores)


def _counts(
    members: Sequence[Sequence[Trajectory]],
    scores: Sequence[Sequence[Score]],
    credited: Credits,
    rows: Sequence[Sequence[TrainRow]],
    truncated: Truncated,
) -> BatchCounts:
    everyone = [trajectory for group in members for trajectory in group]
    totals = [score.total for group in scores for score in group]
    return BatchCounts(
        episodes=len(everyone),
        failed=sum(trajectory.failed for trajectory in everyone),
        unscored=sum(not t.failed and total is None for t, total in zip(everyone, totals, strict=True)),
        truncated=sum(trajectory.truncated for trajectory in everyone),
        truncated_policy=truncated,
        groups=len(members),
        zero_variance_groups=credited.zero_variance,
        small_groups=credited.small,
        unscored_turns=credited.unscored_turns,
        untrainable=len(_untrainable(everyone)),
        sampled_tokens=sum(t.transcript.sampled for t in everyone if t.transcript is not None),
        counted_tokens=sum(row.counted for group in rows for row in group),
        trained_tokens=sum(row.trained for group in rows for row in group),
    )


def _score(trajectory: Trajectory, truncated: Truncated, algorithm: Algorithm) -> Score:
    """The rewards that teach: the environment's, less what the algorithm takes off an overlong episode."""
    if not trajectory.failed and trajectory.truncated and truncated == "zero":
        return Score(0.0, (0.0,) * trajectory.turns)
    rewards, total = list(trajectory.rewards), trajectory.reward
    penalty = algorithm.overlong(trajectory.transcript.sampled) if trajectory.transcript else 0.0
    scored = [turn for turn, reward in enumerate(rewards) if reward is not None]
    if total is not None and penalty and scored:
        total -= penalty
        rewards[scored[-1]] = (rewards[scored[-1]] or 0.0) - penalty
    return Score(total, tuple(rewards))


def _turn_of_token(trajectory: Trajectory) -> list[int]:
    transcript = trajectory.transcript
    if transcript is None:
        return []
    return [turn for turn, on in zip(transcript.turn, transcript.mask, strict=True) if on]


def _dropped(credits_G: Sequence[TokenCredit | None], algorithm: Algorithm) -> bool:
    """True for a group that is to be left out because none of its members did better than another."""
    drops = isinstance(algorithm, GroupRelative) and algorithm.zero_variance == "drop"
    return drops and not any(any(credit) for credit in credits_G if credit)


def _untrainable(everyone: Sequence[Trajectory]) -> list[Trajectory]:
    """The scored episodes without tokens.

    Raises:
        ConfigurationError: They are all that there are: the policy never gives any.
    """
    scored = [trajectory for trajectory in everyone if trajectory.reward is not None]
    without = [trajectory for trajectory in scored if trajectory.transcript is None]
    if without and len(without) == len(scored):
        raise ConfigurationError(
            f"episode {without[0].episode_id} has no token ids ({without[0].untrainable or 'the policy gave none'}), "
            "and no scored episode of the batch has any, so nothing can be trained on; train with a policy that gives "
            "them (a local model)"
        )
    return without


def _row(
    trajectory: Trajectory, credit: TokenCredit, algorithm: Algorithm, member: int, truncated: Truncated
) -> TrainRow:
    transcript = trajectory.transcript
    assert transcript is not None
    known = all(not on or logprob is not None for on, logprob in zip(transcript.mask, transcript.logprobs, strict=True))
    if not known and (algorithm.old_logprobs == "sampler" or algorithm.sampler_cap is not None):
        raise ConfigurationError(
            f"episode {trajectory.episode_id} has sampled tokens without a log-probability; sample with "
            "log-probabilities, or set old_logprobs to 'trainer' to have them recomputed, without a sampler_cap"
        )
    cut = isinstance(algorithm, LLMPPO) and trajectory.truncated and truncated == "keep"
    remaining = iter(credit)
    given = [next(remaining) if on else None for on in transcript.mask]
    every = algorithm.trains_without_advantage or algorithm.credits_late
    computed = [value is not None and (value != 0 or every) for value in given]
    end = max((index + 1 for index, on in enumerate(computed) if on), default=0)
    end = len(given) if cut and end else end
    return TrainRow(
        episode_id=trajectory.episode_id,
        ids=tuple(transcript.ids[:end]),
        mask=tuple(computed[:end]),
        logprobs=tuple(transcript.logprobs[:end]),
        advantages=tuple(value or 0.0 for value in given[:end]),
        counted=sum(value is not None for value in given),
        turns=tuple(transcript.turn[:end]),
        member=member,
        cut=cut and end > 0,
    )


def _finite_or_none(value: float | None) -> bool:
    return value is None or math.isfinite(value)
