"""Picks tokens from logits under a sampling distribution, and gives their exact log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tiltyard.policies.base import Sampling

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Picked:
    """One token per row, and its log-probability under the distribution that it was drawn from."""

    ids: list[int]
    logprobs: list[float]


def restrict(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply a sampling distribution to logits of shape [..., V]: -inf where a token cannot be drawn.

    Temperature first, then `top_k`, then `top_p` on what is left. Temperature 0 leaves the logits as they
    are, since a greedy token is scored under the full distribution at temperature 1. Among equal logits the
    one with the lower id is kept first.
    """
    if sampling.temperature == 0:
        return logits
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1:
        return logits
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[..., sampling.top_k :] = False
        ranked = ranked.masked_fill(~keep, float("-inf"))
    if sampling.top_p < 1:
        probabilities = ranked.double().softmax(dim=-1)
        # A token stays while those before it do not yet reach top_p; so the first always stays.
        keep &= probabilities.cumsum(dim=-1) - probabilities < sampling.top_p
    allowed = torch.zeros_like(keep).scatter_(-1, order, keep)
    return logits.masked_fill(~allowed, float("-inf"))


def pick(logits: torch.Tensor, uniforms: torch.Tensor, sampling: Sampling) -> Picked:
    """Draw one token per row of logits [B, V] by inverting the distribution at uniforms [B] in [0, 1).

    Each row depends on nothing but its own logits and its own uniform.
    """
    logits = restrict(logits.float(), sampling)
    peak, best = logits.max(dim=-1)
    weights = (logits - peak[:, None]).exp_()
    if sampling.temperature == 0:
        ids, total = best, weights.sum(dim=-1, dtype=torch.float64)
    else:
        ids, total = _invert(weights, uniforms.to(weights.device))
    chosen = logits.gather(-1, ids[:, None]).squeeze(-1)
    logprobs = (chosen - peak).double() - total.log()
    return Picked(ids.tolist(), logprobs.tolist())


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index at which each row's running sum passes uniform * total, and the totals.

    The sums are float64, first over blocks and then inside one block: a sum over the whole vocabulary in
    float32 loses the tail, and in float64 costs several passes over it.
    """
    rows, vocabulary = weights.shape
    blocks = torch.nn.functional.pad(weights, (0, -vocabulary % _BLOCK)).view(rows, -1, _BLOCK)
    ends = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = ends[:, -1]
    target = uniforms.double() * total
    block = torch.searchsorted(ends, target[:, None], right=True).clamp_(max=ends.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK)).squeeze(1).double()
    reached = before + inside.cumsum(dim=-1)
    offset = torch.searchsorted(reached, target[:, None], right=True)
    # Rounding may carry the target past the last token of the block that has any weight.
    last = _BLOCK - 1 - (inside > 0).flip(-1).byte().argmax(dim=-1, keepdim=True)
    ids = block * _BLOCK + torch.minimum(offset, last)
    # Only logits that are not numbers lead past the vocabulary; their total says so.
    return ids.squeeze(1).clamp_(max=vocabulary - 1), total


def uniforms(seed: int, position: int, count: int) -> np.ndarray:
    """The numbers in [0, 1) that draw the tokens at `count` positions from `position` on, for one seed.

    Each number is a function of the seed and its own position alone.
    """
    generator = np.random.Philox(key=seed % 2**64, counter=position)
    # One step of the counter gives four words; the first of each belongs to that position.
    words = generator.random_raw(4 * count)[::4]
    return (words >> np.uint64(11)) * 2.0**-53
