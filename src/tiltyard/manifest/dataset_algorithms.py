"""`algorithm` of a manifest with `env_type: dataset`: what is learned from rows, and how rows become tokens."""

from typing import Any, Literal

from pydantic import Field

from tiltyard.manifest.section import Section
from tiltyard.train import supervised_algorithms

_ROW_KEYS = ("max_length", "too_long", "plain_text", "turns")


class RowsSection(Section):
    """The keys of every algorithm that learns from rows."""

    max_length: int | None = Field(default=None, ge=2, description="The most tokens of a row; not given, no bound.")
    too_long: Literal["drop", "cut"] = Field(
        default="drop", description="A longer row is left out, or loses its end; both are counted."
    )
    plain_text: bool = Field(
        default=False, description="Texts are trained on as they are, without the chat template around them."
    )

    def row_settings(self) -> dict[str, Any]:
        """Return what says how rows become tokens, by the names of `RowSettings`."""
        return self.model_dump(include={*_ROW_KEYS})


class SFTSection(RowsSection):
    """`algorithm` with `name: SFT`."""

    name: Literal["SFT"] = Field(default="SFT", description="The algorithm; the default with `objective: sft`.")
    turns: Literal["all", "last"] = Field(
        default="all", description="Which of a conversation's assistant turns are learned."
    )
    loss_normaliser: Literal["token", "sequence"] = Field(
        default="token", description="The loss is the mean over tokens, or over rows."
    )

    def settings(self) -> supervised_algorithms.SFT:
        """Return what the trainer takes."""
        return supervised_algorithms.SFT(**self.model_dump(exclude={"name", *_ROW_KEYS}))


class DPOSection(RowsSection):
    """`algorithm` with `name: DPO`."""

    name: Literal["DPO"] = Field(default="DPO", description="The algorithm; the default with `objective: preference`.")
    loss: Literal["sigmoid", "ipo"] = Field(default="sigmoid", description="The loss of DPO, or that of IPO.")
    beta: float = Field(default=0.1, gt=0, description="How strongly the untrained model holds; IPO's tau.")
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="How often a pair is taken to be the wrong way round; only `sigmoid`."
    )
    nll_coef: float = Field(default=0.0, ge=0, description="Weight of the chosen answer's own likelihood.")
    reference_free: bool = Field(default=False, description="No untrained model holds.")

    def settings(self) -> supervised_algorithms.DPO:
        """Return what the trainer takes.

        Raises:
            ConfigurationError: Two values do not go together.
        """
        return supervised_algorithms.DPO(**self.model_dump(exclude={"name", *_ROW_KEYS}))
