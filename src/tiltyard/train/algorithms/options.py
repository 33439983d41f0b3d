"""What all policy-gradient algorithms share: their common fields, and how a token's loss is put together."""

from __future__ import annotations  # the loss's tensors are named without importing torch

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.train.loss import TokenBatch, TokenTerms

KLEstimator = Literal["k1", "k2", "k3"]
KLPlace = Literal["loss", "reward"]
Normaliser = Literal["token", "sequence", "constant"]
OldLogprobs = Literal["sampler", "trainer"]


@dataclass(frozen=True, slots=True)
class PolicyGradient(ABC):
    """The fields that every algorithm has.

    Attributes:
        group_size: Episodes of one task.
        kl_coef: The weight of the KL term to the reference model; 0 needs no reference.
        kl_estimator: See `tiltyard.train.loss.kl_to_reference`.
        kl_in: "loss" adds the term to the loss of every token; "reward" takes it off the rewards, before any
            baseline, so that it counts like what the environment says (Ouyang et al. 2022, arXiv:2203.02155).
        loss_normaliser: "token" averages over the trained tokens of the optimiser step, "sequence" over the
            means of its sequences, "constant" divides each sequence's sum by `constant_length`.
        constant_length: The length of the "constant" normaliser (Dr. GRPO, arXiv:2503.20783).
        epochs: How often one batch is gone through.
        minibatches: Optimiser steps in one epoch; groups are dealt to them whole.
        old_logprobs: The ratio's denominator: the "sampler"'s log-probabilities, or those that the "trainer"
            computes before the first step (which also serves samples that came without).
        sampler_cap: Weighs every token with the trainer's old probability over the sampler's, at most this:
            truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You
            Off-Policy RL Training"; Ionides 2008). Needs `old_logprobs` "trainer"; None does not correct.
        entropy_coef: The weight of the entropy that is added to what is maximised.
        overlong_penalty: What an episode of `overlong_until` sampled tokens or more loses, rising linearly from 0 at
            `overlong_from` (DAPO, arXiv:2503.14476, eq. 13, where it is 1).
        overlong_from: Sampled tokens of an episode up to which it loses nothing.
        overlong_until: Sampled tokens from which it loses all of the penalty.
    """

    group_size: int = 8
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"
    kl_in: KLPlace = "loss"
    loss_normaliser: Normaliser = "token"
    constant_length: int | None = None
    epochs: int = 1
    minibatches: int = 1
    old_logprobs: OldLogprobs = "sampler"
    sampler_cap: float | None = None
    entropy_coef: float = 0.0
    overlong_penalty: float = 0.0
    overlong_from: int | None = None
    overlong_until: int | None = None

    def __post_init__(self) -> None:
        one_of("kl_estimator", self.kl_estimator, get_args(KLEstimator))
        one_of("kl_in", self.kl_in, get_args(KLPlace))
        one_of("loss_normaliser", self.loss_normaliser, get_args(Normaliser))
        one_of("old_logprobs", self.old_logprobs, get_args(OldLogprobs))
        at_least("group_size", self.group_size, 1)
        at_least("epochs", self.epochs, 1)
        at_least("minibatches", self.minibatches, 1)
        between("kl_coef", self.kl_coef, 0.0, math.inf)
        between("entropy_coef", self.entropy_coef, 0.0, math.inf)
        self._check_normaliser()
        self._check_sampler_cap()
        self._check_overlong()

    @property
    def kl_in_loss(self) -> bool:
        """True when every token's loss has a KL term."""
        return self.kl_coef > 0 and self.kl_in == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """True when rewards are known only once the reference model was asked."""
        return self.kl_coef > 0 and self.kl_in == "reward"

    @property
    def credits_late(self) -> bool:
        """True when advantages need a forward pass, so that the learner and not the batch has them."""
        return self.kl_in_reward

    @property
    def trains_without_advantage(self) -> bool:
        """True when a token whose advantage is 0 has a gradient all the same."""
        return self.kl_coef > 0 or self.entropy_coef > 0

    @property
    def needs_old_pass(self) -> bool:
        """True when the trainer's own log-probabilities are wanted before the first of several optimiser steps."""
        return self.old_logprobs == "trainer" and self.epochs * self.minibatches > 1

    def overlong(self, sampled: int) -> float:
        """What an episode of so many sampled tokens loses."""
        if not self.overlong_penalty or self.overlong_from is None or self.overlong_until is None:
            return 0.0
        share = (sampled - self.overlong_from) / (self.overlong_until - self.overlong_from)
        return self.overlong_penalty * min(1.0, max(0.0, share))

    def token_terms(self, tokens: TokenBatch) -> TokenTerms:
        """The loss of every trained token, before it is averaged."""
        from tiltyard.train import loss  # noqa: PLC0415  # keeps torch out of a manifest's import

        terms = self.policy_terms(tokens)
        if self.sampler_cap is not None:
            terms = loss.with_sampler_correction(terms, tokens, cap=self.sampler_cap)
        if self.kl_in_loss and tokens.reference is not None:
            terms = loss.with_kl(terms, tokens, coefficient=self.kl_coef, estimator=self.kl_estimator)
        if self.entropy_coef and tokens.entropy is not None:
            terms = loss.with_entropy(terms, tokens, coefficient=self.entropy_coef)
        return terms

    @abstractmethod
    def policy_terms(self, tokens: TokenBatch) -> TokenTerms:
        """The algorithm's own surrogate, without what all algorithms may add."""

    def _check_normaliser(self) -> None:
        if self.loss_normaliser == "constant":
            at_least("constant_length (for loss_normaliser 'constant')", self.constant_length or 0, 1)
        elif self.constant_length is not None:
            raise ConfigurationError(
                f"constant_length is only for loss_normaliser 'constant', got {self.constant_length!r} "
                f"with {self.loss_normaliser!r}"
            )

    def _check_sampler_cap(self) -> None:
        if self.sampler_cap is None:
            return
        between("sampler_cap", self.sampler_cap, 1.0, math.inf)
        if self.old_logprobs != "trainer":
            raise ConfigurationError(
                f"sampler_cap needs old_logprobs 'trainer', got {self.old_logprobs!r}: it corrects from the sampler's "
                "log-probabilities to the trainer's"
            )

    def _check_overlong(self) -> None:
        between("overlong_penalty", self.overlong_penalty, 0.0, math.inf)
        bounds = (self.overlong_from, self.overlong_until)
        if not self.overlong_penalty:
            if bounds != (None, None):
                raise ConfigurationError(
                    f"overlong_from and overlong_until are only for an overlong_penalty above 0, got {bounds}"
                )
            return
        if None in bounds:
            raise ConfigurationError(f"overlong_penalty needs overlong_from and overlong_until, got {bounds}")
        at_least("overlong_from", self.overlong_from or 0, 0)
        at_least("overlong_until (above overlong_from)", self.overlong_until or 0, (self.overlong_from or 0) + 1)


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not on the list."""
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def at_least(name: str, value: int, low: int) -> None:
    """Refuse what is no integer of this size."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{name} must be an integer >= {low}, got {value!r}")


def between(name: str, value: float, low: float, high: float) -> None:
    """Refuse what is no finite number of this range."""
    if not low <= value <= high or value == math.inf:
        raise ConfigurationError(f"{name} must be between {low:g} and {high:g} and finite, got {value!r}")
