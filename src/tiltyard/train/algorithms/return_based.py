"""Algorithms that credit each token or turn with what came after it: LLMPPO and LLMREINFORCE."""

from __future__ import annotations  # the loss's tensors are named without importing torch

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tiltyard.errors import ConfigurationError
from tiltyard.train.algorithms.options import PolicyGradient, at_least, between, one_of

if TYPE_CHECKING:
    from tiltyard.train.loss import TokenBatch, TokenTerms

StepGranularity = Literal["auto", "turn", "token"]
Baseline = Literal["leave_one_out", "batch", "none"]


@dataclass(frozen=True, slots=True)
class ReturnBased(PolicyGradient):
    """The fields of every algorithm that credits actions with what came after them.

    Attributes:
        advantage_granularity: What one action is: a "token" or a whole "turn". "auto" picks "turn" where some turn
            before an episode's last is rewarded, and "token" otherwise.
        discount: What one action later counts.
        normalise_advantages: Advantages have mean 0 and deviation 1 over the tokens of the batch.
    """

    advantage_granularity: StepGranularity = "auto"
    discount: float = 1.0
    normalise_advantages: bool = False

    def __post_init__(self) -> None:
        PolicyGradient.__post_init__(self)
        one_of("advantage_granularity", self.advantage_granularity, get_args(StepGranularity))
        between("discount", self.discount, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class LLMPPO(ReturnBased):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with a value head on the model.

    The head sees the hidden state that a token is sampled from; generalised advantage estimation (Schulman et al. 2016,
    arXiv:1506.02438) runs over what the policy sampled and skips what the environment said.

    Attributes:
        group_size: Episodes of one task; nothing is compared within a group.
        gae_lambda: 1 trusts the returns, 0 the value head.
        clip_low: The ratio is clipped below at 1 - clip_low.
        clip_high: The ratio is clipped above at 1 + clip_high.
        value_coef: The weight of the value loss. It matters with `value_trains_model`: AdamW takes the scale of a loss
            away from a head that learns alone.
        value_clip: The value may move this far from where it was before the update; 0 does not bound it.
        value_learning_rate: The head's own, constant.
        value_trains_model: The value loss changes the model too; otherwise it stops at the head.
    """

    group_size: int = 1
    normalise_advantages: bool = True
    gae_lambda: float = 0.95
    clip_low: float = 0.2
    clip_high: float = 0.2
    value_coef: float = 0.5
    value_clip: float = 0.2
    value_learning_rate: float = 1e-3
    value_trains_model: bool = False

    def __post_init__(self) -> None:
        ReturnBased.__post_init__(self)
        between("gae_lambda", self.gae_lambda, 0.0, 1.0)
        between("clip_low", self.clip_low, 0.0, 1.0)
        between("clip_high", self.clip_high, 0.0, math.inf)
        between("value_coef", self.value_coef, 0.0, math.inf)
        between("value_clip", self.value_clip, 0.0, math.inf)
        if not 0 < self.value_learning_rate < math.inf:
            raise ConfigurationError(f"value_learning_rate must be > 0 and finite, got {self.value_learning_rate!r}")

    @property
    def credits_late(self) -> bool:
        """True: advantages need the value head's opinion."""
        return True

    @property
    def trains_without_advantage(self) -> bool:
        """True: every token has a value to learn."""
        return True

    def policy_terms(self, tokens: TokenBatch) -> TokenTerms:
        """PPO's clipped surrogate, token by token."""
        from tiltyard.train.loss import clipped_terms  # noqa: PLC0415  # keeps torch out of a manifest's import

        return clipped_terms(tokens, clip_low=self.clip_low, clip_high=self.clip_high)


@dataclass(frozen=True, slots=True)
class LLMREINFORCE(ReturnBased):
    """REINFORCE (Williams 1992) with a baseline; leave-one-out is RLOO (Ahmadian et al. 2024, arXiv:2402.14740).

    Attributes:
        baseline: What is taken off a return: the mean of the other members' at the same turn ("leave_one_out"), the
            mean of the batch's ("batch"), or nothing ("none").
        ratio_cap: In updates of several steps a token is weighed with its new probability over the old one, without
            gradient and at most this.
    """

    baseline: Baseline = "leave_one_out"
    ratio_cap: float = 2.0

    def __post_init__(self) -> None:
        ReturnBased.__post_init__(self)
        one_of("baseline", self.baseline, get_args(Baseline))
        if self.baseline == "leave_one_out":
            at_least("group_size (for baseline 'leave_one_out')", self.group_size, 2)
        between("ratio_cap", self.ratio_cap, 1.0, math.inf)

    def policy_terms(self, tokens: TokenBatch) -> TokenTerms:
        """The log-probability, weighed with the advantage and, off policy, the bounded ratio."""
        from tiltyard.train.loss import weighted_terms  # noqa: PLC0415  # keeps torch out of a manifest's import

        return weighted_terms(tokens, low=0.0, high=self.ratio_cap)
