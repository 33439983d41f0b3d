"""The learner of SFT: examples in, one optimiser step, and what it came to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltyard.train.batch import TrainRow
from tiltyard.train.examples import Example
from tiltyard.train.loss import token_weights
from tiltyard.train.processes import share, woven
from tiltyard.train.row_learner import RowLearner
from tiltyard.train.supervised_algorithms import SFT


@dataclass(frozen=True, slots=True)
class SFTStep:
    """What one optimiser step came to.

    Attributes:
        loss: The loss whose gradient was taken.
        token_accuracy: The share of the learned tokens that were the model's first choice.
        rows: Examples.
        tokens: Tokens of all examples.
        trained_tokens: Those that were learned.
        computed_tokens: Those that went through the model: what examples share from the start is computed once.
        learning_rate: The learning rate of the step.
        grad_norm: The norm of the gradient before clipping.
    """

    loss: float
    token_accuracy: float
    rows: int
    tokens: int
    trained_tokens: int
    computed_tokens: int
    learning_rate: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class ExampleScore:
    """What the model says of one example.

    Attributes:
        nll: The summed negative log-likelihood of its learned tokens.
        tokens: How many they are.
        right: How many of them were the model's first choice.
    """

    nll: float
    tokens: int
    right: int


class SFTLearner(RowLearner[SFT]):
    """Learns examples; see `RowLearner`. `algorithm` says how tokens are averaged."""

    def update(self, examples: Sequence[Example]) -> SFTStep:
        """Take one optimiser step over all of these, in as many forward passes as they need.

        Raises:
            NonFiniteError: A log-probability or the gradient is NaN or inf. The step was not taken; the rows are named.
        """
        weights = token_weights([example.trained for example in examples], self.algorithm.loss_normaliser)
        rows = [example.row() for example in examples]
        weight_of = dict(zip(map(id, rows), weights, strict=True))
        self._optimiser.clear()
        parts = self.together(lambda: self._backward(share(rows, self.processes), weight_of))
        loss, right, computed = map(math.fsum, zip(*parts, strict=True))
        norm = self.take_step([example.row_id for example in examples])
        trained = sum(example.trained for example in examples)
        return SFTStep(
            loss=loss,
            token_accuracy=right / trained,
            rows=len(examples),
            tokens=sum(len(example.ids) for example in examples),
            trained_tokens=trained,
            computed_tokens=int(computed),
            learning_rate=self._optimiser.learning_rate,
            grad_norm=norm,
        )

    def _backward(self, rows: Sequence[TrainRow], weight_of: Mapping[int, float]) -> tuple[float, int, int]:
        """Add the gradient of these rows; returns their part of the loss, tokens right and tokens computed."""
        loss, right, computed = 0.0, 0, 0
        for pack in map(self.on_device, self.plan.packs(rows, self.pack_tokens)):
            weight = torch.tensor([weight_of[id(row)] for row in pack.rows], device=pack.row.device)[pack.row]
            scored = self.scorer(pack).backward(weight)
            self.refuse_non_finite(scored.logp, pack.row, [row.episode_id for row in pack.rows])
            self._optimiser.collect()
            loss -= (weight * scored.logp).sum().item()
            right += int(scored.right.sum())
            computed += pack.ids.numel()
        return loss, right, computed

    def score(self, examples: Sequence[Example]) -> list[ExampleScore]:
        """Score each example as the model is now."""
        return woven(self.processes.gather(self._score(share(examples, self.processes))))

    @torch.no_grad()
    def _score(self, examples: Sequence[Example]) -> list[ExampleScore]:
        rows = [example.row() for example in examples]
        found: dict[int, ExampleScore] = {}
        for pack in map(self.on_device, self.plan.packs(rows, self.pack_tokens)):
            scored = self.scorer(pack).logprobs()
            nll, right = (_by_row(values, pack.row, len(pack.rows)) for values in (-scored.logp, scored.right))
            for row, *values in zip(pack.rows, nll, right, strict=True):
                found[id(row)] = ExampleScore(values[0], row.trained, round(values[1]))
        return [found[id(row)] for row in rows]


def _by_row(values: Tensor, row: Tensor, rows: int) -> list[float]:
    return torch.zeros(rows, dtype=torch.float64, device=row.device).index_add_(0, row, values.double()).tolist()
