"""The figures of one update, and the sums that they are made from."""

import math
import operator
from dataclasses import dataclass, field, fields

from tiltyard.train.batch import Batch
from tiltyard.train.forward import PackOutput
from tiltyard.train.known import Known
from tiltyard.train.loss import TokenBatch, TokenTerms, ValueTerms
from tiltyard.train.packing import Pack
from tiltyard.train.processes import Processes


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
        clip_fraction: The share of tokens whose ratio a bound held, where that took gradient away.
        clip_low_fraction: The share of those whose ratio was below 1.
        clip_high_fraction: The share of those whose ratio was above 1.
        ratio_mean: New probability over old; with GSPO of a sequence, at each of its tokens.
        ratio_min: The smallest.
        ratio_max: The largest.
        policy_kl: How far the update has gone: an estimate (k3) of KL(old || new), from the ratios.
        correction_mean: The weight of the sampler correction; None without one.
        correction_capped: The share of tokens whose weight is at the cap; None without one.
        value_loss: Of the value head, before its coefficient; None without one.
        value_clip_fraction: The share of values whose gradient the bound took away.
        explained_variance: How well the values before the update foretold their targets: 1 right, 0 no better than a
            constant, below 0 worse.
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
    clip_low_fraction: float | None = None
    clip_high_fraction: float | None = None
    ratio_mean: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    policy_kl: float | None = None
    correction_mean: float | None = None
    correction_capped: float | None = None
    value_loss: float | None = None
    value_clip_fraction: float | None = None
    explained_variance: float | None = None
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
    clipped_low: float = 0.0
    entropy: float = 0.0
    kl: float | None = None
    ratio: float = 0.0
    ratio_min: float = math.inf
    ratio_max: float = 0.0
    policy_kl: float = 0.0
    correction: float | None = None
    capped: float = 0.0
    values: int = 0
    value_loss: float = 0.0
    values_clipped: float = 0.0
    differences: int = 0
    difference: float = 0.0
    difference_max: float = 0.0

    @property
    def difference_mean(self) -> float:
        """Mean over the tokens whose sampler's log-probability is known; there must be one."""
        return self.difference / self.differences

    def add(
        self, pack: Pack, output: PackOutput, tokens: TokenBatch, terms: TokenTerms, value: ValueTerms | None = None
    ) -> None:
        """Count one pack."""
        self.tokens += len(pack.targets)
        self.computed += pack.ids.numel()
        self.clipped += terms.clipped.sum().item()
        self.clipped_low += (terms.clipped & (terms.ratio < 1)).sum().item()
        self.entropy += output.entropy.sum().item()
        self.ratio += terms.ratio.sum().item()
        self.ratio_min = min(self.ratio_min, terms.ratio.min().item())
        self.ratio_max = max(self.ratio_max, terms.ratio.max().item())
        self.policy_kl += (terms.ratio - 1 - terms.ratio.log()).sum().item()
        if terms.correction is not None and terms.capped is not None:
            self.correction = (self.correction or 0.0) + terms.correction.sum().item()
            self.capped += terms.capped.sum().item()
        if value is not None:
            self.values += len(value.loss)
            self.value_loss += value.loss.sum().item()
            self.values_clipped += value.clipped.sum().item()
        if terms.kl is not None:
            self.kl = (self.kl or 0.0) + terms.kl.sum().item()
        if not self.losses:  # before the first optimiser step, when the weights are still those of the sampler
            apart = (tokens.logp.detach() - pack.sampler).abs()
            apart = apart[~apart.isnan()]
            self.differences += len(apart)
            self.difference += apart.sum().item()
            self.difference_max = max(self.difference_max, apart.max().item() if len(apart) else 0.0)

    def add_up(self, processes: Processes) -> None:
        """Make it the sums over all processes; their losses and norms are the same already."""
        if processes.count == 1:
            return
        for rank, other in enumerate(processes.gather(self)):
            if rank != processes.rank:
                self._merge(other)

    def _merge(self, other: "Tally") -> None:
        joins = {"ratio_min": min, "ratio_max": max, "difference_max": max}
        for name in {each.name for each in fields(self)} - {"losses", "norms"}:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours is None or theirs is None:
                setattr(self, name, theirs if ours is None else ours)
            else:
                setattr(self, name, joins.get(name, operator.add)(ours, theirs))

    def metrics(self, step: int, learning_rate: float, batch: Batch, known: Known) -> UpdateMetrics:
        """The means."""
        return UpdateMetrics(
            step=step,
            skipped=False,
            loss=math.fsum(self.losses) / len(self.losses),
            grad_norm=math.fsum(self.norms) / len(self.norms),
            learning_rate=learning_rate,
            kl=known.kl if self.kl is None else self.kl / self.tokens,
            clip_fraction=self.clipped / self.tokens,
            clip_low_fraction=self.clipped_low / self.tokens,
            clip_high_fraction=(self.clipped - self.clipped_low) / self.tokens,
            ratio_mean=self.ratio / self.tokens,
            ratio_min=self.ratio_min,
            ratio_max=self.ratio_max,
            policy_kl=self.policy_kl / self.tokens,
            correction_mean=None if self.correction is None else self.correction / self.tokens,
            correction_capped=None if self.correction is None else self.capped / self.tokens,
            value_loss=self.value_loss / self.values if self.values else None,
            value_clip_fraction=self.values_clipped / self.values if self.values else None,
            explained_variance=known.explained_variance,
            entropy=self.entropy / self.tokens,
            sampler_difference_mean=self.difference_mean if self.differences else None,
            sampler_difference_max=self.difference_max if self.differences else None,
            tokens_compared=self.differences,
            tokens_counted=batch.counts.counted_tokens,
            tokens_trained=batch.counts.trained_tokens,
            tokens_computed=self.computed,
        )
