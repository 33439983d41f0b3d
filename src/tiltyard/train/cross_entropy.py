"""Log-probabilities of learned tokens from hidden states, a few places at a time: never all logits at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tiltyard.train.forward import ForwardPlan, hidden_and_head, unwrapped, vocabulary
from tiltyard.train.packing import Pack

LOGITS_AT_ONCE = 2**25
"""Logits that are held at once: 128 MB in float32."""

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Scored:
    """What the model says of the learned tokens of a pack, [K], in the pack's order; no gradient.

    Attributes:
        logp: Log-probabilities in float32.
        right: True where the token was the most probable one.
    """

    logp: Tensor
    right: Tensor


class PackScorer:
    """One forward pass over a pack, from which log-probabilities are taken in pieces.

    The logits of a piece are gone before those of the next one are made. Where what goes backward depends on all of
    them (`backward_from`), those of more than one piece are computed twice.
    """

    def __init__(
        self, model: nn.Module, pack: Pack, plan: ForwardPlan, *, logits_at_once: int = LOGITS_AT_ONCE
    ) -> None:
        causal = unwrapped(model)
        self._hidden, self._head = hidden_and_head(causal, pack, plan)
        self._pack = pack
        self._size = max(1, logits_at_once // vocabulary(causal))

    def logprobs(self) -> Scored:
        """Every token's log-probability, without gradient."""
        with torch.no_grad():
            return self._joined([_scored(piece, self._head) for piece in self._pieces(self._hidden)])

    def backward(self, weights: Tensor) -> Scored:
        """Go backward from minus the sum of `weights`, [K], times the log-probabilities, which are returned."""
        return self._backward(lambda logp, inside: weights[inside])

    def backward_from(self, weights_of: Callable[[Tensor], Tensor]) -> Scored:
        """The same with weights that depend on all log-probabilities: [K] to [K]."""
        if len(self._hidden) <= self._size:
            return self._backward(lambda logp, inside: weights_of(logp))
        return self.backward(weights_of(self.logprobs().logp))

    def _backward(self, weights_of: Callable[[Tensor, Tensor], Tensor]) -> Scored:
        """As `backward`; the weights are those of a piece, given its log-probabilities and which tokens it has."""
        leaf = self._hidden.detach().requires_grad_(self._hidden.requires_grad)
        found = []
        for piece in self._pieces(leaf):
            scored = _scored(piece, self._head)
            weights = weights_of(scored.logp.detach(), piece.inside)
            (scored.logp * -weights).sum().backward()
            found.append(Scored(scored.logp.detach(), scored.right))
        if leaf.grad is not None:
            self._hidden.backward(leaf.grad)
        return self._joined(found)

    def _pieces(self, hidden: Tensor) -> "Iterator[_Piece]":
        source = self._pack.source
        for start in range(0, len(hidden), self._size):
            inside = ((source >= start) & (source < start + self._size)).nonzero().squeeze(-1)
            places = hidden[start : start + self._size]
            yield _Piece(inside, places, source[inside] - start, self._pack.targets[inside])

    def _joined(self, pieces: list[Scored]) -> Scored:
        logp = torch.zeros(len(self._pack.targets), dtype=torch.float32, device=self._hidden.device)
        right = torch.zeros_like(logp, dtype=torch.bool)
        for piece, scored in zip(self._pieces(self._hidden), pieces, strict=True):
            logp[piece.inside], right[piece.inside] = scored.logp.detach(), scored.right
        return Scored(logp, right)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some places of a pack: which tokens are predicted there, their hidden states, and where each finds its own."""

    inside: Tensor
    hidden: Tensor
    source: Tensor
    targets: Tensor


def _scored(piece: _Piece, head: Head) -> Scored:
    logits = head(piece.hidden)
    right = logits.detach().argmax(-1)[piece.source] == piece.targets
    logp: Any = _Picked.apply(logits.float(), piece.source, piece.targets)
    return Scored(logp, right)


class _Picked(torch.autograd.Function):
    """The log-probability of each target; going backward, the probabilities take the place of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, source: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        total = logits.logsumexp(-1)
        ctx.save_for_backward(logits, total, source, targets)
        return logits[source, targets] - total[source]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        logits, total, source, targets = ctx.saved_tensors
        weight = torch.zeros_like(total).index_add_(0, source, grad)
        found = (logits - total[:, None]).exp_().mul_(-weight[:, None])
        found.index_put_((source, targets), grad, accumulate=True)
        return found, None, None
