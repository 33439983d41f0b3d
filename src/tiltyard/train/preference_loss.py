"""Preference losses as pure functions of summed log-probabilities, one entry per pair, in float32."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from tiltyard.train.supervised_algorithms import DPO


@dataclass(frozen=True, slots=True)
class PairLogprobs:
    """The log-probability of each whole answer under the policy and under the reference; all tensors are [P].

    Attributes:
        chosen: The policy's of the preferred answer, with gradient.
        rejected: The policy's of the other one, with gradient.
        reference_chosen: The reference's; zeros where there is none.
        reference_rejected: As `reference_chosen`.
    """

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor

    def log_ratio(self) -> Tensor:
        """How much more than the reference the policy prefers the chosen answer, in nats."""
        return (self.chosen - self.reference_chosen) - (self.rejected - self.reference_rejected)


def sigmoid_loss(log_ratio: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """DPO (Rafailov et al. 2023, arXiv:2305.18290, eq. 7): `-log sigmoid(beta * h)`.

    With label smoothing e, conservative DPO (Mitchell 2023, "A note on DPO with noisy preferences", eq. 3):
    `-(1 - e) log sigmoid(beta * h) - e log sigmoid(-beta * h)`.
    """
    margin = beta * log_ratio
    kept = -(1 - label_smoothing) * functional.logsigmoid(margin)
    return kept - label_smoothing * functional.logsigmoid(-margin) if label_smoothing else kept


def ipo_loss(log_ratio: Tensor, beta: float) -> Tensor:
    """IPO (Azar et al. 2023, arXiv:2310.12036, eq. 17): `(h - 1 / (2 * tau))²`, with tau = beta."""
    return (log_ratio - 1 / (2 * beta)).square()


def pair_losses(pairs: PairLogprobs, chosen_tokens: Tensor, algorithm: DPO) -> Tensor:
    """The loss of every pair, [P], with the RPO term where one is asked for.

    Args:
        pairs: The log-probabilities.
        chosen_tokens: [P], how many tokens of each chosen answer are learned.
        algorithm: Which loss.
    """
    h = pairs.log_ratio()
    loss = (
        ipo_loss(h, algorithm.beta)
        if algorithm.loss == "ipo"
        else sigmoid_loss(h, algorithm.beta, algorithm.label_smoothing)
    )
    return loss - algorithm.nll_coef * pairs.chosen / chosen_tokens if algorithm.nll_coef else loss
