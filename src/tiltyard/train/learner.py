"""The learner: one batch in, one or more optimiser steps, and the figures that describe them."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tiltyard.errors import ConfigurationError, NonFiniteError
from tiltyard.policies.base import Sampling
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import Batch, TrainRow
from tiltyard.train.forward import (
    ForwardPlan,
    PackOutput,
    check_packing,
    check_sampling,
    device_of,
    pack_logprobs,
    token_logprobs,
    unwrapped,
)
from tiltyard.train.loss import TokenBatch, TokenTerms, token_weights, weighted_sum
from tiltyard.train.optimiser import Optimiser, OptimiserSettings
from tiltyard.train.packing import Pack
from tiltyard.train.update_metrics import Tally, UpdateMetrics

MIN_PACK_TOKENS = 512
"""The smallest default for a pack: below it the matrix products get small."""

SAMPLER_DIFFERENCE_NATS = {torch.float32: 0.01}
"""Mean difference between sampler and trainer beyond which a warning is due; 0.05 for shorter floats."""

ROWS_NAMED = 5


class Trainable(Protocol):
    """What the learner needs of a model under training (`tiltyard.models.trainable`)."""

    @property
    def model(self) -> nn.Module:
        """What forward passes are made on."""
        ...

    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters that train."""
        ...

    def reference(self) -> AbstractContextManager[Any]:
        """A context in which the model is what it was before training."""
        ...


class Learner:
    """Takes optimiser steps on batches, with gradients accumulated over packs of rows.

    The model is put in eval mode: dropout would make the ratio to the sampler's log-probabilities noise.
    Its forward plan is checked once, at construction (`check_packing`).

    Args:
        trainable: The model and which of its parameters train.
        algorithm: The loss.
        settings: Of the optimiser.
        sampling: What the batches were sampled with.
        pack_tokens: The most tokens in one forward pass; None takes the model's hidden size, at least 512,
            where attention over a packed sequence is still cheap against the rest.
        before_step: Called when the gradient of an optimiser step is complete, right before the weights change.
    """

    def __init__(
        self,
        trainable: Trainable,
        algorithm: GRPO,
        settings: OptimiserSettings,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008  # frozen
        pack_tokens: int | None = None,
        before_step: Callable[[], None] | None = None,
    ) -> None:
        check_sampling(sampling)
        self.trainable = trainable
        self.algorithm = algorithm
        self.settings = settings
        self.sampling = sampling
        self.step = 0
        parameters = trainable.parameters()
        if not parameters:
            raise ConfigurationError("the model has no parameter to train; pick 'full', 'last:K' or 'lora'")
        trainable.model.eval()
        self.plan: ForwardPlan = check_packing(trainable.model)
        config = unwrapped(trainable.model).config.get_text_config()
        self._pack_tokens = pack_tokens or max(MIN_PACK_TOKENS, config.hidden_size)
        self._optimiser = Optimiser(parameters, settings)
        self._before_step = before_step or (lambda: None)
        self._warned = False

    def update(self, batch: Batch) -> UpdateMetrics:
        """Learn from one batch; a batch without a gradient changes nothing and says so.

        Raises:
            NonFiniteError: A loss or a gradient is NaN or inf. The step was not taken; the rows are named.
        """
        if batch.empty:
            return UpdateMetrics(step=self.step, skipped=True, tokens_counted=batch.counts.counted_tokens)
        rows = [row for group in batch.groups for row in group if row.trained]
        known = self._known_before(rows)
        tally = Tally()
        for _ in range(self.algorithm.epochs):
            for window in _windows(batch.groups, self.algorithm.minibatches):
                self._optimiser_step(window, known, tally)
        self._warn_of_difference(tally)
        return tally.metrics(self.step, self._optimiser.learning_rate, batch)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the step; the weights are the trainable model's to save."""
        return {"step": self.step, "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            CheckpointError: It belongs to other parameters.
        """
        self._optimiser.load_state_dict(state["optimiser"])
        self.step = int(state["step"])

    def _known_before(self, rows: Sequence[TrainRow]) -> "_Known":
        """What stays fixed during the update: old and reference log-probabilities, by row."""
        known = _Known()
        with torch.no_grad():
            steps = self.algorithm.epochs * self.algorithm.minibatches
            if self.algorithm.old_logprobs == "trainer" and steps > 1:
                known.old = dict(zip(map(id, rows), self._all_logprobs(rows), strict=True))
            if self.algorithm.kl_coef > 0:
                with self.trainable.reference():
                    known.reference = dict(zip(map(id, rows), self._all_logprobs(rows), strict=True))
        return known

    def _all_logprobs(self, rows: Sequence[TrainRow]) -> list[Tensor]:
        return token_logprobs(self.trainable.model, rows, self.sampling, self.plan, max_tokens=self._pack_tokens)

    def _optimiser_step(self, window: Sequence[Sequence[TrainRow]], known: "_Known", tally: Tally) -> None:
        rows = [row for group in window for row in group]
        if not any(row.trained for row in rows):
            return
        algorithm = self.algorithm
        weights = token_weights([row.counted for row in rows], algorithm.loss_normaliser, algorithm.constant_length)
        weight_of = dict(zip(map(id, rows), weights, strict=True))
        self._optimiser.clear()
        total = 0.0
        for pack in self.plan.packs(rows, self._pack_tokens):
            pack = pack.to(device_of(self.trainable.model))  # noqa: PLW2901  # the same pack, elsewhere
            output = pack_logprobs(self.trainable.model, pack, self.sampling, self.plan)
            tokens = self._tokens(pack, output, known)
            terms = algorithm.token_terms(tokens)
            self._refuse_non_finite(terms, tokens, pack)
            weight = torch.tensor([weight_of[id(row)] for row in pack.rows], device=output.logp.device)
            loss = weighted_sum(terms, tokens, weight)
            loss.backward()
            self._optimiser.collect()
            total += loss.item()
            tally.add(pack, output, tokens, terms)
        tally.losses.append(total)
        tally.norms.append(self._apply(rows))

    def _tokens(self, pack: Pack, output: PackOutput, known: "_Known") -> TokenBatch:
        if known.old:
            old = torch.cat([known.old[id(row)] for row in pack.rows])
        elif self.algorithm.old_logprobs == "trainer":
            old = output.logp.detach()
        else:
            old = pack.sampler
        reference = torch.cat([known.reference[id(row)] for row in pack.rows]) if known.reference else None
        return TokenBatch(output.logp, old, pack.advantages, pack.row, reference)

    def _refuse_non_finite(self, terms: TokenTerms, tokens: TokenBatch, pack: Pack) -> None:
        bad = ~(terms.loss.isfinite() & tokens.logp.isfinite() & tokens.old.isfinite())
        if bad.any():
            self._optimiser.clear()
            names = [pack.rows[index].episode_id for index in tokens.row[bad].unique().tolist()]
            raise NonFiniteError(
                f"the loss is NaN or inf in the rows of {_named(names)}; the step was not taken. "
                "Look at their log-probabilities, or lower the learning rate"
            )

    def _apply(self, rows: Sequence[TrainRow]) -> float:
        """Clip the gradient and take the step; returns the norm before clipping."""
        norm = self._optimiser.norm()
        if not math.isfinite(norm):
            self._optimiser.clear()
            raise NonFiniteError(
                f"the gradient's norm is {norm!r} in a step over {_named([r.episode_id for r in rows if r.trained])}; "
                "the step was not taken. Lower the learning rate, or train in float32"
            )
        self._before_step()
        self.step += 1
        self._optimiser.take(self.step, norm)
        return norm

    def _warn_of_difference(self, tally: Tally) -> None:
        limit = SAMPLER_DIFFERENCE_NATS.get(unwrapped(self.trainable.model).dtype, 0.05)
        if not self._warned and tally.differences and tally.difference_mean > limit:
            self._warned = True
            warnings.warn(
                f"sampler and trainer disagree by {tally.difference_mean:.3g} nats on average (limit {limit}): "
                "the ratio does not start at 1. Is the sampler on the current weights and the same temperature?",
                stacklevel=3,
            )


@dataclass(slots=True)
class _Known:
    """Log-probabilities by the id of the row; empty where they are not needed."""

    old: dict[int, Tensor] = field(default_factory=dict)
    reference: dict[int, Tensor] = field(default_factory=dict)


def _windows(groups: Sequence[Sequence[TrainRow]], count: int) -> Iterator[Sequence[Sequence[TrainRow]]]:
    """The groups in `count` runs of nearly equal length; an empty one is left out."""
    for index in range(count):
        window = groups[index * len(groups) // count : (index + 1) * len(groups) // count]
        if window:
            yield window


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - ROWS_NAMED} more" if len(names) > ROWS_NAMED else ""
    return ", ".join(names[:ROWS_NAMED]) + more
