"""Algorithms whose baseline is the group: GRPO, GSPO and CISPO."""

from __future__ import annotations  # the loss's tensors are named without importing torch

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from tiltyard.errors import ConfigurationError
from tiltyard.train.advantage import Granularity, Scale
from tiltyard.train.algorithms.options import Normaliser, PolicyGradient, at_least, between, one_of

if TYPE_CHECKING:
    from tiltyard.train.loss import TokenBatch, TokenTerms

ZeroVariance = Literal["count", "drop"]


@dataclass(frozen=True, slots=True)
class GroupRelative(PolicyGradient):
    """The fields of every algorithm whose baseline is the group.

    Attributes:
        advantage_granularity: "trajectory" gives all turns of an episode one advantage, "turn" compares each
            turn with the same turn of the group; "auto" picks "turn" where turns are rewarded.
        turn_discount: What a later turn's reward counts for an earlier turn, under "turn" (0: nothing).
        scale_rewards: What centred rewards are divided by: the group's deviation, nothing, or the batch's.
        zero_variance: What a group is whose members did equally well: "count" has its tokens in the mean that the
            loss is, "drop" leaves them out of it.
        resample_rounds: How often as many groups of other tasks are sampled as were dropped, at most, until the batch
            is full of groups that teach something: DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476). Needs
            `zero_variance` "drop"; 0 samples none.
    """

    advantage_granularity: Granularity = "auto"
    turn_discount: float = 0.0
    scale_rewards: Scale = "group"
    zero_variance: ZeroVariance = "count"
    resample_rounds: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.advantage_granularity == "token":
            raise ConfigurationError(
                f"advantage_granularity 'token' does not exist for {type(self).__name__}, which has no value of "
                "single tokens; use 'turn', 'trajectory' or 'auto'"
            )
        PolicyGradient.__post_init__(self)
        one_of("advantage_granularity", self.advantage_granularity, get_args(Granularity))
        one_of("scale_rewards", self.scale_rewards, get_args(Scale))
        one_of("zero_variance", self.zero_variance, get_args(ZeroVariance))
        at_least("group_size", self.group_size, 2)
        between("turn_discount", self.turn_discount, 0.0, 1.0)
        at_least("resample_rounds", self.resample_rounds, 0)
        if self.resample_rounds and self.zero_variance != "drop":
            raise ConfigurationError(
                f"resample_rounds needs zero_variance 'drop', got {self.zero_variance!r}: other groups are sampled in "
                "the place of those that are dropped"
            )


@dataclass(frozen=True, slots=True)
class GRPO(GroupRelative):
    """Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300), with DAPO's two clip bounds.

    Dr. GRPO (Liu et al. 2025, arXiv:2503.20783) is `scale_rewards="none"` with `loss_normaliser="constant"`.

    Attributes:
        clip_low: The ratio is clipped below at 1 - clip_low.
        clip_high: The ratio is clipped above at 1 + clip_high (DAPO, arXiv:2503.14476, uses 0.28).
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        GroupRelative.__post_init__(self)
        between("clip_low", self.clip_low, 0.0, 1.0)
        between("clip_high", self.clip_high, 0.0, math.inf)

    def policy_terms(self, tokens: TokenBatch) -> TokenTerms:
        """PPO's clipped surrogate, token by token."""
        from tiltyard.train.loss import clipped_terms  # noqa: PLC0415  # keeps torch out of a manifest's import

        return clipped_terms(tokens, clip_low=self.clip_low, clip_high=self.clip_high)


@dataclass(frozen=True, slots=True)
class GSPO(GroupRelative):
    """Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071): one ratio for what has one advantage.

    The ratio is the geometric mean over the tokens of the episode, or of the turn where turns have advantages of their
    own. A group's sequences are averaged, not its tokens, as in the paper.

    Attributes:
        clip_low: The ratio of the sequence is clipped below at 1 - clip_low; the paper's, as such ratios are near 1.
        clip_high: It is clipped above at 1 + clip_high.
    """

    loss_normaliser: Normaliser = "sequence"
    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        GroupRelative.__post_init__(self)
        between("clip_low", self.clip_low, 0.0, 1.0)
        between("clip_high", self.clip_high, 0.0, math.inf)

    def policy_terms(self, tokens: TokenBatch) -> TokenTerms:
        """The clipped surrogate of each sequence, given to each of its tokens."""
        from tiltyard.train.loss import sequence_clipped_terms  # noqa: PLC0415  # keeps torch out of a manifest's import

        return sequence_clipped_terms(tokens, clip_low=self.clip_low, clip_high=self.clip_high)


@dataclass(frozen=True, slots=True)
class CISPO(GroupRelative):
    """Clipped importance sampling policy optimisation (MiniMax 2025, "MiniMax-M1", arXiv:2506.13585, eq. 4).

    The ratio is a weight without gradient, bounded on both sides, so that no token ever loses its gradient.

    Attributes:
        clip_low: The weight is at least 1 - clip_low; 1 sets no lower bound, as in the paper.
        clip_high: The weight is at most 1 + clip_high (Khatri et al. 2025, arXiv:2510.13786, find 4 to 5 good).
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        GroupRelative.__post_init__(self)
        between("clip_low", self.clip_low, 0.0, 1.0)
        between("clip_high", self.clip_high, 0.0, math.inf)

    def policy_terms(self, tokens: TokenBatch) -> TokenTerms:
        """The log-probability, weighed with the bounded ratio and the advantage."""
        from tiltyard.train.loss import weighted_terms  # noqa: PLC0415  # keeps torch out of a manifest's import

        return weighted_terms(tokens, low=1 - self.clip_low, high=1 + self.clip_high)
