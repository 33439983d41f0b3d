"""The catalogue of policy-gradient algorithms: each is a frozen set of fields and the loss that they describe."""

from __future__ import annotations  # the loss's tensors are named without importing torch

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tiltyard.errors import ConfigurationError
from tiltyard.train.advantage import Granularity, Scale

if TYPE_CHECKING:
    from tiltyard.train.loss import TokenBatch, TokenTerms

KLEstimator = Literal["k1", "k2", "k3"]
Normaliser = Literal["token", "sequence", "constant"]
OldLogprobs = Literal["sampler", "trainer"]


@dataclass(frozen=True, slots=True)
class GRPO:
    """Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300), with DAPO's two clip bounds.

    Attributes:
        group_size: Episodes of one task.
        advantage_granularity: "trajectory" gives all turns of an episode one advantage, "turn" compares each
            turn with the same turn of the group; "auto" picks "turn" where turns are rewarded.
        turn_discount: What a later turn's reward counts for an earlier turn, under "turn" (0: nothing).
        scale_rewards: What centred rewards are divided by: the group's deviation, nothing, or the batch's.
        clip_low: The ratio is clipped below at 1 - clip_low.
        clip_high: The ratio is clipped above at 1 + clip_high (DAPO, arXiv:2503.14476, uses 0.28).
        kl_coef: The weight of the KL term to the reference model; 0 needs no reference.
        kl_estimator: See `tiltyard.train.loss.kl_to_reference`.
        loss_normaliser: "token" averages over the trained tokens of the optimiser step, "sequence" over the
            means of its sequences, "constant" divides each sequence's sum by `constant_length`.
        constant_length: The length of the "constant" normaliser (Dr. GRPO, arXiv:2503.20783).
        epochs: How often one batch is gone through.
        minibatches: Optimiser steps in one epoch; groups are dealt to them whole.
        old_logprobs: The ratio's denominator: the "sampler"'s log-probabilities, or those that the "trainer"
            computes before the first step (which also serves samples that came without).
    """

    group_size: int = 8
    advantage_granularity: Granularity = "auto"
    turn_discount: float = 0.0
    scale_rewards: Scale = "group"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"
    loss_normaliser: Normaliser = "token"
    constant_length: int | None = None
    epochs: int = 1
    minibatches: int = 1
    old_logprobs: OldLogprobs = "sampler"

    def __post_init__(self) -> None:
        if self.advantage_granularity == "token":
            raise ConfigurationError(
                "advantage_granularity 'token' does not exist for GRPO, which has no value of single tokens; "
                "use 'turn', 'trajectory' or 'auto'"
            )
        _one_of("advantage_granularity", self.advantage_granularity, get_args(Granularity))
        _one_of("scale_rewards", self.scale_rewards, get_args(Scale))
        _one_of("kl_estimator", self.kl_estimator, get_args(KLEstimator))
        _one_of("loss_normaliser", self.loss_normaliser, get_args(Normaliser))
        _one_of("old_logprobs", self.old_logprobs, get_args(OldLogprobs))
        _at_least("group_size", self.group_size, 2)
        _at_least("epochs", self.epochs, 1)
        _at_least("minibatches", self.minibatches, 1)
        _between("turn_discount", self.turn_discount, 0.0, 1.0)
        _between("clip_low", self.clip_low, 0.0, 1.0)
        _between("clip_high", self.clip_high, 0.0, float("inf"))
        _between("kl_coef", self.kl_coef, 0.0, float("inf"))
        if self.loss_normaliser == "constant":
            _at_least("constant_length (for loss_normaliser 'constant')", self.constant_length or 0, 1)
        elif self.constant_length is not None:
            raise ConfigurationError(
                f"constant_length is only for loss_normaliser 'constant', got {self.constant_length!r} "
                f"with {self.loss_normaliser!r}"
            )

    def token_terms(self, tokens: TokenBatch) -> TokenTerms:
        """The loss of every trained token, before it is averaged."""
        from tiltyard.train.loss import clipped_terms, with_kl  # noqa: PLC0415  # keeps torch out of a manifest's import

        terms = clipped_terms(tokens, clip_low=self.clip_low, clip_high=self.clip_high)
        if tokens.reference is None or not self.kl_coef:
            return terms
        return with_kl(terms, tokens, coefficient=self.kl_coef, estimator=self.kl_estimator)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{name} must be an integer >= {low}, got {value!r}")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or value == float("inf"):
        raise ConfigurationError(f"{name} must be between {low:g} and {high:g} and finite, got {value!r}")
