"""The figures of one update, and the sums that they are made from."""

import math
from dataclasses import dataclass, field

from tiltyard.train.batch import Batch
from tiltyard.train.forward import PackOutput
from tiltyard.train.loss import TokenBatch, TokenTerms
from tiltyard.train.packing import Pack


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """What one update did. Means are over trained tokens; the figures of a skipped update are None.

    Attributes:
        step: Optimiser steps taken so far.
        skipped: No token had a gradient, and nothing was changed.
        loss: The loss whose gradient was used (mean over the update's optimiser steps).
        grad_norm: Before clipping (mean over the update's optimiser steps).
        learning_rate: Of the last optimiser step.
        kl: The KL estimate to the reference; None without a KL term.
        clip_fraction: The share of tokens whose gradient the clip took away.
        ratio_mean: New probability over old.
        ratio_max: The largest.
        entropy: In nats, of the sampled distributions.
        sampler_difference_mean: Absolute difference in nats between the sampler's log-probabilities and the
            trainer's, before the first optimiser step; None when the sampler gave none.
        sampler_difference_max: The largest.
        tokens_compared: The tokens of these two figures.
        tokens_counted: The tokens that the loss was averaged over.
        tokens_trained: Those of them with a gradient.
        tokens_computed: Tokens that went through the model, padding included and shared prefixes once.
    """

    step: int
    skipped: bool
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    kl: float | None = None
    clip_fraction: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    entropy: float | None = None
    sampler_difference_mean: float | None = None
    sampler_difference_max: float | None = None
    tokens_compared: int = 0
    tokens_counted: int = 0
    tokens_trained: int = 0
    tokens_computed: int = 0


@dataclass(slots=True)
class Tally:
    """Sums over the packs of an update; the optimiser steps append their loss and norm."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tokens: int = 0
    computed: int = 0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float | None = None
    ratio: float = 0.0
    ratio_max: float = 0.0
    differences: int = 0
    difference: float = 0.0
    difference_max: float = 0.0

    @property
    def difference_mean(self) -> float:
        """Mean over the tokens whose sampler's log-probability is known; there must be one."""
        return self.difference / self.differences

    def add(self, pack: Pack, output: PackOutput, tokens: TokenBatch, terms: TokenTerms) -> None:
        """Count one pack."""
        self.tokens += len(pack.targets)
        self.computed += pack.ids.numel()
        self.clipped += terms.clipped.sum().item()
        self.entropy += output.entropy.sum().item()
        self.ratio += terms.ratio.sum().item()
        self.ratio_max = max(self.ratio_max, terms.ratio.max().item())
        if terms.kl is not None:
            self.kl = (self.kl or 0.0) + terms.kl.sum().item()
        if not self.losses:  # before the first optimiser step, when the weights are still those of the sampler
            apart = (tokens.logp.detach() - pack.sampler).abs()
            apart = apart[~apart.isnan()]
            self.differences += len(apart)
            self.difference += apart.sum().item()
            self.difference_max = max(self.difference_max, apart.max().item() if len(apart) else 0.0)

    def metrics(self, step: int, learning_rate: float, batch: Batch) -> UpdateMetrics:
        """The means."""
        return UpdateMetrics(
            step=step,
            skipped=False,
            loss=math.fsum(self.losses) / len(self.losses),
            grad_norm=math.fsum(self.norms) / len(self.norms),
            learning_rate=learning_rate,
            kl=None if self.kl is None else self.kl / self.tokens,
            clip_fraction=self.clipped / self.tokens,
            ratio_mean=self.ratio / self.tokens,
            ratio_max=self.ratio_max,
            entropy=self.entropy / self.tokens,
            sampler_difference_mean=self.difference_mean if self.differences else None,
            sampler_difference_max=self.difference_max if self.differences else None,
            tokens_compared=self.differences,
            tokens_counted=batch.counts.counted_tokens,
            tokens_trained=batch.counts.trained_tokens,
            tokens_computed=self.computed,
        )
