"""The learner of preferences: pairs and the reference's log-probabilities in, one optimiser step, and its figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltyard.train.batch import TrainRow
from tiltyard.train.examples import Pair
from tiltyard.train.packing import Pack
from tiltyard.train.preference_loss import PairLogprobs, pair_losses
from tiltyard.train.processes import share, woven
from tiltyard.train.row_learner import RowLearner
from tiltyard.train.supervised_algorithms import DPO


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log-probabilities of the two whole answers of a pair."""

    chosen: float
    rejected: float


ROUNDING_NATS = 1e-3
"""An untrained policy is its own reference; packed with other pairs, its sums differ by less than this."""

NO_REFERENCE = Logprobs(0.0, 0.0)
"""Stands for a reference that is never computed."""


@dataclass(frozen=True, slots=True)
class PairScore:
    """What policy and reference say of a pair.

    Attributes:
        loss: The pair's own loss.
        policy: The policy's log-probabilities.
        reference: The reference's.
        beta: The weight of a reward.
    """

    loss: float
    policy: Logprobs
    reference: Logprobs
    beta: float

    @property
    def chosen_reward(self) -> float:
        """The implicit reward of the chosen answer: beta times how much likelier than under the reference it is."""
        return self.beta * (self.policy.chosen - self.reference.chosen)

    @property
    def rejected_reward(self) -> float:
        """That of the rejected answer."""
        return self.beta * (self.policy.rejected - self.reference.rejected)

    @property
    def margin(self) -> float:
        """How much more the chosen answer is worth."""
        return self.chosen_reward - self.rejected_reward

    @property
    def accuracy(self) -> float:
        """1 when the chosen answer is worth more, 0 when the other one is; half where only rounding tells."""
        return 0.5 if abs(self.margin) <= self.beta * ROUNDING_NATS else float(self.margin > 0)


@dataclass(frozen=True, slots=True)
class PreferenceStep:
    """What one optimiser step came to.

    Attributes:
        scores: What the weights before the step said of each pair; their mean loss is the loss that was minimised.
        tokens: Tokens of all pairs, both sequences counted.
        computed_tokens: Those that went through the model: a prompt does once for both answers.
        learning_rate: The learning rate of the step.
        grad_norm: The norm of the gradient before clipping.
    """

    scores: tuple[PairScore, ...]
    tokens: int
    computed_tokens: int
    learning_rate: float
    grad_norm: float


class PreferenceLearner(RowLearner[DPO]):
    """Learns which of two answers is the better one; see `RowLearner`. `algorithm` says which loss."""

    def update(self, pairs: Sequence[Pair], references: Sequence[Logprobs]) -> PreferenceStep:
        """Take one optimiser step over all of these pairs: the mean of their losses.

        Args:
            pairs: What is learned.
            references: What the reference says of each.

        Raises:
            NonFiniteError: A loss or the gradient is NaN or inf. The step was not taken; the rows are named.
        """
        self._optimiser.clear()
        mine, theirs = share(pairs, self.processes), share(references, self.processes)
        parts = self.together(lambda: self._backward(mine, theirs, of=len(pairs)))
        norm = self.take_step([pair.row_id for pair in pairs])
        scores, computed = woven([scores for scores, _ in parts]), sum(computed for _, computed in parts)
        tokens = sum(len(pair.chosen.ids) + len(pair.rejected.ids) for pair in pairs)
        return PreferenceStep(tuple(scores), tokens, computed, self._optimiser.learning_rate, norm)

    def _backward(
        self, pairs: Sequence[Pair], references: Sequence[Logprobs], *, of: int
    ) -> tuple[list[PairScore], int]:
        """Add the gradient of these pairs `of` so many; returns their scores, and the tokens computed."""
        scores: list[PairScore] = []
        computed = 0
        for first, last, pack in self._packs(pairs):
            held = _Held(pack, pairs[first:last], references[first:last], self.algorithm)
            self.scorer(pack).backward_from(lambda logp, held=held: held.weights(logp) / of)
            self.refuse_non_finite(
                held.losses, torch.arange(last - first, device=pack.row.device), [p.row_id for p in held.pairs]
            )
            self._optimiser.collect()
            scores += held.scores()
            computed += pack.ids.numel()
        return scores, computed

    def score(self, pairs: Sequence[Pair], references: Sequence[Logprobs]) -> list[PairScore]:
        """Score each pair as the model is now."""
        mine = self._score(share(pairs, self.processes), share(references, self.processes))
        return woven(self.processes.gather(mine))

    @torch.no_grad()
    def _score(self, pairs: Sequence[Pair], references: Sequence[Logprobs]) -> list[PairScore]:
        scores: list[PairScore] = []
        for first, last, pack in self._packs(pairs):
            held = _Held(pack, pairs[first:last], references[first:last], self.algorithm)
            with torch.enable_grad():
                held.weights(self.scorer(pack).logprobs().logp)
            scores += held.scores()
        return scores

    def reference_logprobs(self, pairs: Sequence[Pair]) -> list[Logprobs]:
        """What the model before training says of each pair."""
        return woven(self.processes.gather(self._reference_logprobs(share(pairs, self.processes))))

    @torch.no_grad()
    def _reference_logprobs(self, pairs: Sequence[Pair]) -> list[Logprobs]:
        found: list[Logprobs] = []
        with self.trainable.reference():
            for _, _, pack in self._packs(pairs):
                chosen, rejected = _sums(self.scorer(pack).logprobs().logp, pack)
                found += [Logprobs(*both) for both in zip(chosen.tolist(), rejected.tolist(), strict=True)]
        return found

    def _packs(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, int, Pack]]:
        """Pairs laid out whole: the first of each pack, the one behind its last, and the pack."""
        first = 0
        while first < len(pairs):
            last, tokens = first, 0
            while last < len(pairs) and (last == first or tokens + _size(pairs[last]) <= self.pack_tokens):
                tokens += _size(pairs[last])
                last += 1
            rows = [e.row() for pair in pairs[first:last] for e in (pair.chosen, pair.rejected)]
            yield from ((first, last, self.on_device(pack)) for pack in self.plan.packs(rows, _whole(rows)))
            first = last


class _Held:
    """The pairs of a pack, with what their log-probabilities come to."""

    def __init__(self, pack: Pack, pairs: Sequence[Pair], references: Sequence[Logprobs], algorithm: DPO) -> None:
        device = pack.row.device
        self.pairs = pairs
        self.losses = torch.zeros(0)
        self._pack, self._references, self._algorithm = pack, references, algorithm
        self._reference = torch.tensor([[r.chosen, r.rejected] for r in references], device=device)
        self._chosen_tokens = torch.tensor([pair.chosen.trained for pair in pairs], device=device)
        self._policy = torch.zeros(0, 2)

    def weights(self, logp: Tensor) -> Tensor:
        """Minus the derivative of the summed losses by each token's log-probability, [K]."""
        with torch.enable_grad():
            leaf = logp.detach().requires_grad_()
            chosen, rejected = _sums(leaf, self._pack)
            policy = PairLogprobs(chosen, rejected, self._reference[:, 0], self._reference[:, 1])
            losses = pair_losses(policy, self._chosen_tokens, self._algorithm)
            (grad,) = torch.autograd.grad(losses.sum(), leaf)
        self.losses = losses.detach()
        self._policy = torch.stack([chosen, rejected], 1).detach()
        return -grad

    def scores(self) -> list[PairScore]:
        beta = self._algorithm.beta
        both = zip(self.losses.tolist(), self._policy.tolist(), self._references, strict=True)
        return [PairScore(loss, Logprobs(*policy), reference, beta) for loss, policy, reference in both]


def _sums(logp: Tensor, pack: Pack) -> tuple[Tensor, Tensor]:
    """The log-probabilities of whole answers, [P] chosen and [P] rejected; rows come in pairs."""
    by_row = torch.zeros(len(pack.rows), device=logp.device).index_add(0, pack.row, logp)
    return by_row[0::2], by_row[1::2]


def _size(pair: Pair) -> int:
    """The tokens of a pair, its prompt once."""
    return len(pair.chosen.ids) + len(pair.rejected.ids) - pair.chosen.mask.find(1)


def _whole(rows: Sequence[TrainRow]) -> int:
    """A bound that these rows do not pass in one pack, padded or not."""
    return len(rows) * max(len(row.ids) for row in rows)
