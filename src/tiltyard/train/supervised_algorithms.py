"""What supervised training minimises: the catalogue of SFT and of preference losses, without torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from tiltyard.errors import ConfigurationError

SFTNormaliser = Literal["token", "sequence"]
PreferenceLoss = Literal["sigmoid", "ipo"]


@dataclass(frozen=True, slots=True)
class SFT:
    """Supervised fine-tuning: the negative log-likelihood of the answers.

    Attributes:
        loss_normaliser: The loss is the mean over all learned "token"s of the optimiser step, or over the means of its
            "sequence"s, so that a short answer counts as much as a long one.
    """

    loss_normaliser: SFTNormaliser = "token"

    def __post_init__(self) -> None:
        if self.loss_normaliser not in get_args(SFTNormaliser):
            raise ConfigurationError(f"loss_normaliser must be 'token' or 'sequence', got {self.loss_normaliser!r}")


@dataclass(frozen=True, slots=True)
class DPO:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290) and its relatives.

    Attributes:
        loss: "sigmoid" is DPO's; "ipo" is the squared loss of Azar et al. 2023 (arXiv:2310.12036).
        beta: How strongly the policy is held to the reference; IPO's tau.
        label_smoothing: How often a label is taken to be wrong (conservative DPO, Mitchell 2023); with "sigmoid" only.
        nll_coef: Weight of the chosen answer's mean negative log-likelihood beside it (RPO, Pang et al. 2024,
            arXiv:2404.19733).
        reference_free: The reference gives every answer the same probability, and is never computed.
    """

    loss: PreferenceLoss = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    nll_coef: float = 0.0
    reference_free: bool = False

    def __post_init__(self) -> None:
        if self.loss not in get_args(PreferenceLoss):
            raise ConfigurationError(f"loss must be 'sigmoid' or 'ipo', got {self.loss!r}")
        if not 0 < self.beta < float("inf"):
            raise ConfigurationError(f"beta must be > 0 and finite, got {self.beta!r}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigurationError(f"label_smoothing must be >= 0 and < 0.5, got {self.label_smoothing!r}")
        if self.label_smoothing and self.loss != "sigmoid":
            raise ConfigurationError(
                f"label_smoothing is only for loss 'sigmoid', got {self.label_smoothing!r} with {self.loss!r}"
            )
        if not 0 <= self.nll_coef < float("inf"):
            raise ConfigurationError(f"nll_coef must be >= 0 and finite, got {self.nll_coef!r}")
