"""Losses as pure functions over the trained tokens of a step, one vector entry per token.

Masks select and never multiply: 0 * NaN is NaN, in the value and in the gradient. All arithmetic is float32, whatever
the model's dtype. How tokens are averaged is decided before any of them is computed (`token_weights`), so that the sum
over micro-batches is the loss of the whole optimiser step, whatever the split.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tiltyard.train.algorithms import KLEstimator, Normaliser

MAX_LOG_RATIO = 20.0
"""Beyond this a probability ratio is constant: exp(20) is 5e8, and no clip bound is near."""

K3_LINEAR_FROM = 6.0
"""Beyond this many nats k3 goes on along its tangent: exp would overflow, and a cut would lose the pull back."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What the loss of a set of tokens is made of; all tensors are [K], one entry per token.

    Attributes:
        logp: The model's log-probabilities, with gradient.
        old: The log-probabilities at the time of sampling.
        advantages: The advantage of the turn that the token belongs to.
        row: The number of the sequence that the token belongs to.
        reference: The reference model's log-probabilities; None where no KL term is asked for.
    """

    logp: Tensor
    old: Tensor
    advantages: Tensor
    row: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """The loss of every token, [K], with what the log shows of it.

    Attributes:
        loss: With gradient; not yet averaged.
        ratio: New probability over old, without gradient.
        clipped: True where the clip took the gradient away.
        kl: The KL estimate, without gradient; None where there is no KL term.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor | None = None


def select(tokens: TokenBatch, mask: Tensor) -> TokenBatch:
    """Only the tokens where `mask` (bool, [K]) is True: what the others hold, NaN included, is never touched."""
    reference = None if tokens.reference is None else tokens.reference[mask]
    return TokenBatch(
        tokens.logp[mask], tokens.old[mask], tokens.advantages[mask], tokens.row[mask], reference=reference
    )


def clipped_terms(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> TokenTerms:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with DAPO's separate upper bound.

    `loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`. With an unchanged policy the
    ratio is 1 and the gradient is that of `-A * logp`.
    """
    log_ratio = (tokens.logp.float() - tokens.old.float()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio, advantages = log_ratio.exp(), tokens.advantages.float()
    plain = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return TokenTerms(-torch.minimum(plain, bounded), ratio.detach(), (bounded < plain).detach())


def kl_to_reference(logp: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """A per-token estimate of KL(policy || reference) from the policy's own samples, in float32.

    With r = reference - logp: k1 = -r (unbiased, its gradient is not that of the KL), k2 = r²/2, k3 = e^r - 1 - r
    (Schulman 2020, "Approximating KL divergence"; GRPO's choice). Beyond `K3_LINEAR_FROM` k3 continues along its
    tangent, so that value and gradient stay finite in every dtype and still pull the policy back.
    """
    r = reference.float() - logp.float()
    if estimator == "k1":
        return -r
    if estimator == "k2":
        return r * r / 2
    near = r.clamp(max=K3_LINEAR_FROM)
    slope = math.expm1(K3_LINEAR_FROM)
    tangent = slope - K3_LINEAR_FROM + slope * (r - K3_LINEAR_FROM)
    return torch.where(r > K3_LINEAR_FROM, tangent, torch.expm1(near) - near)


def with_kl(terms: TokenTerms, tokens: TokenBatch, *, coefficient: float, estimator: KLEstimator) -> TokenTerms:
    """Add `coefficient` times the KL estimate to every token's loss."""
    assert tokens.reference is not None
    kl = kl_to_reference(tokens.logp, tokens.reference, estimator)
    return replace(terms, loss=terms.loss + coefficient * kl, kl=kl.detach())


def token_weights(counts: Sequence[int], normaliser: Normaliser, constant_length: int | None = None) -> list[float]:
    """The weight of a token of each row in the loss of an optimiser step.

    Args:
        counts: The trained tokens of every row of the step (not of a micro-batch); a row of 0 counts nowhere.
        normaliser: "token": 1 / all tokens. "sequence": 1 / (rows * the row's tokens). "constant":
            1 / (rows * `constant_length`).
        constant_length: For "constant" only.

    Returns:
        One weight per row; 0 for a row without trained tokens.
    """
    rows, total = sum(count > 0 for count in counts), sum(counts)
    if normaliser == "token":
        divisors = [total] * len(counts)
    elif normaliser == "sequence":
        divisors = [rows * count for count in counts]
    else:
        assert constant_length is not None
        divisors = [rows * constant_length] * len(counts)
    return [1.0 / divisor if count else 0.0 for count, divisor in zip(counts, divisors, strict=True)]


def weighted_sum(terms: TokenTerms, tokens: TokenBatch, weight_of_row: Tensor) -> Tensor:
    """The share of the step's loss that these tokens hold; 0, and still able to go backward, where there are none."""
    return (terms.loss * weight_of_row[tokens.row]).sum()
