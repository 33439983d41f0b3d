"""What the scores of held-out rows amount to, each figure with its 95 % interval over the rows."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tiltyard.train import interval
from tiltyard.train.interval import Interval, t95

if TYPE_CHECKING:
    from tiltyard.train.preference_learner import PairScore
    from tiltyard.train.sft_learner import ExampleScore


def ratio(values: Sequence[float], sizes: Sequence[float]) -> Interval:
    """The interval of a mean over all tokens of rows that are drawn whole.

    It is the ratio of two sums, whose variance is that of its residuals over the rows (Cochran 1977, "Sampling
    Techniques", 6.4): tokens of one row are no independent draws. One row has no interval.

    Args:
        values: The sum over each row's tokens.
        sizes: How many tokens each row has.
    """
    n, size = len(values), sum(sizes)
    if not size:
        return Interval(None, None, None, 0)
    centre = sum(values) / size
    if n == 1:
        return Interval(centre, None, None, 1)
    residuals = sum((value - centre * tokens) ** 2 for value, tokens in zip(values, sizes, strict=True))
    half = t95(n - 1) * math.sqrt(residuals * n / (n - 1)) / size
    return Interval(centre, centre - half, centre + half, n)


def sft_evaluation(scores: "Sequence[ExampleScore]") -> dict[str, Any]:
    """The mean loss of a token, which is what is compared, and the share of tokens that were the first choice."""
    sizes = [score.tokens for score in scores]
    right = asdict(ratio([score.right for score in scores], sizes))
    bounded = {end: None if right[end] is None else min(max(right[end], 0.0), 1.0) for end in ("low", "high")}
    return {
        "metric": "loss",
        **asdict(ratio([score.nll for score in scores], sizes)),
        "token_accuracy": {**right, **bounded},
        "rows": len(scores),
        "tokens": sum(sizes),
    }


def preference_evaluation(scores: "Sequence[PairScore]") -> dict[str, Any]:
    """The share of pairs whose chosen answer has the higher reward, which is what is compared, and how far apart."""
    return {
        "metric": "accuracy",
        **asdict(interval.share(sum(score.accuracy for score in scores), len(scores))),
        "loss": asdict(interval.mean([score.loss for score in scores])),
        "margin": asdict(interval.mean([score.margin for score in scores])),
        **pair_means(scores),
        "rows": len(scores),
    }


def pair_means(scores: "Sequence[PairScore]") -> dict[str, float]:
    """The mean rewards and log-probabilities of both answers."""
    sums = {
        "chosen_reward": sum(score.chosen_reward for score in scores),
        "rejected_reward": sum(score.rejected_reward for score in scores),
        "chosen_logp": sum(score.policy.chosen for score in scores),
        "rejected_logp": sum(score.policy.rejected for score in scores),
    }
    return {name: total / len(scores) for name, total in sums.items()}
