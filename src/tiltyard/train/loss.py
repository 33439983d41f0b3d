"""Losses as pure functions over the trained tokens of a step, one vector entry per token.

Masks select and never multiply: 0 * NaN is NaN, in the value and in the gradient. All arithmetic is float32, whatever
the model's dtype (float64 stays float64). How tokens are averaged is decided before any of them is computed
(`token_weights`), so that the sum over micro-batches is the loss of the whole optimiser step, whatever the split.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

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
        unit: The number of what has one advantage and, with GSPO, one ratio (an episode or a turn); all tokens of
            one are here. None where nothing asks.
        sampler: The sampler's log-probabilities; None where nothing corrects for them.
        entropy: Of the distribution that the token was drawn from, with gradient; None where no bonus is asked for.
    """

    logp: Tensor
    old: Tensor
    advantages: Tensor
    row: Tensor
    reference: Tensor | None = None
    unit: Tensor | None = None
    sampler: Tensor | None = None
    entropy: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """The loss of every token, [K], with what the log shows of it.

    Attributes:
        loss: With gradient; not yet averaged.
        ratio: New probability over old, without gradient; with GSPO that of the token's unit.
        clipped: True where a bound was at work: it took the gradient away, or made it smaller where the ratio is
            only a weight.
        kl: The KL estimate, without gradient; None where there is no KL term.
        correction: What the token was weighed with for the sampler's sake; None without such a correction.
        capped: True where the correction is at its cap; None without one.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor | None = None
    correction: Tensor | None = None
    capped: Tensor | None = None


def select(tokens: TokenBatch, mask: Tensor) -> TokenBatch:
    """Only the tokens where `mask` (bool, [K]) is True: what the others hold, NaN included, is never touched."""
    given: dict[str, Tensor | None] = {f.name: getattr(tokens, f.name) for f in fields(tokens)}
    return replace(tokens, **{name: value[mask] for name, value in given.items() if value is not None})


def clipped_terms(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> TokenTerms:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with DAPO's separate upper bound.

    `loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`. With an unchanged policy the
    ratio is 1 and the gradient is that of `-A * logp`.
    """
    ratio = _log_ratio(tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _surrogate(ratio, _long(tokens.advantages), clip_low, clip_high)


def sequence_clipped_terms(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> TokenTerms:
    """GSPO's clipped surrogate (Zheng et al. 2025, arXiv:2507.18071, eq. 5 to 7), given to each token of its unit.

    The ratio of a unit is the exponential of the mean of its tokens' log-ratios. The mean over a unit's tokens is the
    unit's surrogate, so that the "sequence" normaliser makes the paper's loss of it.
    """
    assert tokens.unit is not None
    log_ratio = _log_ratio(tokens)
    _, unit = tokens.unit.unique(return_inverse=True)
    sums = log_ratio.new_zeros(int(unit.max()) + 1 if len(unit) else 0).index_add(0, unit, log_ratio)
    counts = unit.bincount(minlength=len(sums))
    ratio = (sums / counts).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[unit]
    return _surrogate(ratio, _long(tokens.advantages), clip_low, clip_high)


def weighted_terms(tokens: TokenBatch, *, low: float, high: float) -> TokenTerms:
    """The policy gradient with a bounded ratio as a weight: `loss = -clip(ratio, low, high) * A * logp`.

    The ratio has no gradient, so that a bound makes a token's gradient smaller and never takes it away: CISPO (MiniMax
    2025, arXiv:2506.13585, eq. 4 and 5). On policy the ratio is 1 and this is REINFORCE (Williams 1992).
    """
    ratio = _log_ratio(tokens).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight = ratio.clamp(low, high)
    return TokenTerms(-weight * _long(tokens.advantages) * _long(tokens.logp), ratio, weight != ratio)


def with_sampler_correction(terms: TokenTerms, tokens: TokenBatch, *, cap: float) -> TokenTerms:
    """Weigh every token's loss with min(old / sampler, cap), without gradient: truncated importance sampling.

    `tokens.old` are the trainer's log-probabilities at the start of the update, on the weights that it has then;
    `tokens.sampler` those that the tokens were drawn with, by another program or from older weights. Where the two
    agree the weight is 1. (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training";
    the cap is that of Ionides 2008, "Truncated Importance Sampling".)
    """
    assert tokens.sampler is not None
    apart = (_long(tokens.old) - _long(tokens.sampler)).detach()
    whole = apart.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight = whole.clamp(max=cap)
    return replace(terms, loss=terms.loss * weight, correction=weight, capped=whole > cap)


def kl_to_reference(logp: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """A per-token estimate of KL(policy || reference) from the policy's own samples, in float32.

    With r = reference - logp: k1 = -r (unbiased, its gradient is not that of the KL), k2 = r²/2, k3 = e^r - 1 - r
    (Schulman 2020, "Approximating KL divergence"; GRPO's choice). Beyond `K3_LINEAR_FROM` k3 continues along its
    tangent, so that value and gradient stay finite in every dtype and still pull the policy back.
    """
    r = _long(reference) - _long(logp)
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


def with_entropy(terms: TokenTerms, tokens: TokenBatch, *, coefficient: float) -> TokenTerms:
    """Take `coefficient` times the entropy off every token's loss (Williams and Peng 1991)."""
    assert tokens.entropy is not None
    return replace(terms, loss=terms.loss - coefficient * _long(tokens.entropy))


@dataclass(frozen=True, slots=True)
class ValueTerms:
    """The loss of every value, [K], with gradient, and True in `clipped` where the bound took the gradient away."""

    loss: Tensor
    clipped: Tensor


def value_terms(values: Tensor, before: Tensor, returns: Tensor, *, clip: float) -> ValueTerms:
    """Half the squared error of values, with PPO's bound on how far one update moves them.

    `loss = max((V - R)², (before + clip(V - before, ±clip) - R)²) / 2` (Schulman et al. 2016, in the code of
    arXiv:1707.06347; Huang et al. 2022, "The 37 implementation details of PPO", detail 9). `clip` 0 sets no bound.
    """
    error = (values - returns).square() / 2
    if not clip:
        return ValueTerms(error, torch.zeros_like(error, dtype=torch.bool))
    bounded = (before + (values - before).clamp(-clip, clip) - returns).square() / 2
    return ValueTerms(torch.maximum(error, bounded), (bounded > error).detach())


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


def _long(values: Tensor) -> Tensor:
    """In float32, or in float64 where they are that already."""
    return values if values.dtype == torch.float64 else values.float()


def _log_ratio(tokens: TokenBatch) -> Tensor:
    return _long(tokens.logp) - _long(tokens.old)


def _surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> TokenTerms:
    plain = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return TokenTerms(-torch.minimum(plain, bounded), ratio.detach(), (bounded < plain).detach())
