"""The `algorithm` section: the keys of each algorithm, told apart by `name`.

A new algorithm is a class here with a `name` of its own and a `settings()`, and its place in `Algorithm`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from tiltyard.manifest.dataset_algorithms import DPOSection, SFTSection
from tiltyard.manifest.section import Section
from tiltyard.train import algorithms


class PolicyGradientSection(Section):
    """The keys of every algorithm that learns from rollouts."""

    name: Any = Field(description="The algorithm.")  # each has a literal of its own; here for the keys' order
    group_size: int = Field(default=8, ge=1, description="Episodes of one task.")
    kl_coef: float = Field(
        default=0.0, ge=0, description="Weight of the divergence from the untrained model; 0 leaves it out."
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="How that divergence is estimated.")
    kl_in: Literal["loss", "reward"] = Field(
        default="loss", description="Whether the divergence is added to the loss or taken off the rewards."
    )
    loss_normaliser: Literal["token", "sequence", "constant"] = Field(
        default="token", description="The loss is the mean over tokens, over episodes, or a sum over `constant_length`."
    )
    constant_length: int | None = Field(default=None, ge=1, description="Only with `loss_normaliser: constant`.")
    epochs: int = Field(default=1, ge=1, description="How often one batch is gone through.")
    minibatches: int = Field(default=1, ge=1, description="Optimiser steps in one epoch of a batch.")
    old_logprobs: Literal["sampler", "trainer"] = Field(
        default="sampler", description="Whose log-probabilities the ratio divides by."
    )
    sampler_cap: float | None = Field(
        default=None,
        ge=1,
        description="Weighs tokens with the trainer's probability over the sampler's, at most this; not given, not at "
        "all. With `old_logprobs: trainer`.",
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of an entropy bonus.")
    overlong_penalty: float = Field(
        default=0.0, ge=0, description="What an episode of `overlong_until` sampled tokens loses; 0 takes nothing."
    )
    overlong_from: int | None = Field(
        default=None, ge=0, description="Sampled tokens of an episode at which `overlong_penalty` begins, from 0."
    )
    overlong_until: int | None = Field(
        default=None, ge=1, description="Sampled tokens of an episode from which it is taken whole."
    )


class GroupRelativeSection(PolicyGradientSection):
    """The keys of every algorithm whose baseline is the group."""

    group_size: int = Field(default=8, ge=2, description="Episodes of one task; their mean reward is the baseline.")
    advantage_granularity: Literal["auto", "trajectory", "turn"] = Field(
        default="auto", description="One advantage an episode, or one a turn; `auto` takes turns where they are scored."
    )
    turn_discount: float = Field(
        default=0.0, ge=0, le=1, description="What a later turn's reward counts for an earlier turn, under `turn`."
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        default="group", description="Advantages are divided by the standard deviation of this, or not at all."
    )
    zero_variance: Literal["count", "drop"] = Field(
        default="count", description="Groups of equal rewards are in the mean of the loss, or left out of it."
    )
    resample_rounds: int = Field(
        default=0,
        ge=0,
        description="How often other groups are sampled in the place of those left out, at most, until the batch is "
        "full. With `zero_variance: drop`.",
    )


class GRPOSection(GroupRelativeSection):
    """`algorithm` with `name: GRPO`."""

    name: Literal["GRPO"] = Field(default="GRPO", description="The algorithm.")
    clip_low: float = Field(default=0.2, ge=0, le=1, description="The ratio is clipped below 1 minus this.")
    clip_high: float = Field(default=0.2, ge=0, description="The ratio is clipped above 1 plus this.")

    def settings(self) -> algorithms.GRPO:
        """Return what the trainer takes.

        Raises:
            ConfigurationError: Two values do not go together.
        """
        return algorithms.GRPO(**self.model_dump(exclude={"name"}))


class GSPOSection(GroupRelativeSection):
    """`algorithm` with `name: GSPO`."""

    name: Literal["GSPO"] = Field(default="GSPO", description="The algorithm.")
    loss_normaliser: Literal["token", "sequence", "constant"] = Field(
        default="sequence", description=PolicyGradientSection.model_fields["loss_normaliser"].description
    )
    clip_low: float = Field(default=3e-4, ge=0, le=1, description="The ratio is clipped below 1 minus this.")
    clip_high: float = Field(default=4e-4, ge=0, description="The ratio is clipped above 1 plus this.")

    def settings(self) -> algorithms.GSPO:
        """Return what the trainer takes.

        Raises:
            ConfigurationError: Two values do not go together.
        """
        return algorithms.GSPO(**self.model_dump(exclude={"name"}))


class CISPOSection(GroupRelativeSection):
    """`algorithm` with `name: CISPO`."""

    name: Literal["CISPO"] = Field(default="CISPO", description="The algorithm.")
    clip_low: float = Field(default=1.0, ge=0, le=1, description="The ratio is clipped below 1 minus this.")
    clip_high: float = Field(default=4.0, ge=0, description="The ratio is clipped above 1 plus this.")

    def settings(self) -> algorithms.CISPO:
        """Return what the trainer takes.

        Raises:
            ConfigurationError: Two values do not go together.
        """
        return algorithms.CISPO(**self.model_dump(exclude={"name"}))


class ReturnBasedSection(PolicyGradientSection):
    """The keys of every algorithm that credits actions with what came after them."""

    advantage_granularity: Literal["auto", "turn", "token"] = Field(
        default="auto", description="What one action is, a token or a turn; `auto` takes turns where they are scored."
    )
    discount: float = Field(default=1.0, ge=0, le=1, description="What one action later counts.")
    normalise_advantages: bool = Field(
        default=False, description="Advantages have mean 0 and deviation 1 over the tokens of the batch."
    )


class LLMPPOSection(ReturnBasedSection):
    """`algorithm` with `name: LLMPPO`."""

    name: Literal["LLMPPO"] = Field(default="LLMPPO", description="The algorithm.")
    group_size: int = Field(default=1, ge=1, description="Episodes of one task.")
    normalise_advantages: bool = Field(
        default=True, description=ReturnBasedSection.model_fields["normalise_advantages"].description
    )
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="1 trusts the returns, 0 the value head.")
    clip_low: float = Field(default=0.2, ge=0, le=1, description="The ratio is clipped below 1 minus this.")
    clip_high: float = Field(default=0.2, ge=0, description="The ratio is clipped above 1 plus this.")
    value_coef: float = Field(
        default=0.5, ge=0, description="Weight of the value loss; it matters with `value_trains_model`."
    )
    value_clip: float = Field(
        default=0.2, ge=0, description="How far a value may move in one update; 0 does not bound it."
    )
    value_learning_rate: float = Field(default=1e-3, gt=0, description="Learning rate of the value head.")
    value_trains_model: bool = Field(
        default=False, description="The value loss changes the model too; otherwise it stops at the value head."
    )

    def settings(self) -> algorithms.LLMPPO:
        """Return what the trainer takes.

        Raises:
            ConfigurationError: Two values do not go together.
        """
        return algorithms.LLMPPO(**self.model_dump(exclude={"name"}))


class LLMREINFORCESection(ReturnBasedSection):
    """`algorithm` with `name: LLMREINFORCE`."""

    name: Literal["LLMREINFORCE"] = Field(default="LLMREINFORCE", description="The algorithm.")
    baseline: Literal["leave_one_out", "batch", "none"] = Field(
        default="leave_one_out",
        description="What is taken off a return: the mean of the group's other members, of the batch, or nothing.",
    )
    ratio_cap: float = Field(
        default=2.0, ge=1, description="The most that a token's new probability over its old one weighs."
    )

    def settings(self) -> algorithms.LLMREINFORCE:
        """Return what the trainer takes.

        Raises:
            ConfigurationError: Two values do not go together.
        """
        return algorithms.LLMREINFORCE(**self.model_dump(exclude={"name"}))


DEFAULT_ALGORITHM = "GRPO"


def algorithm_name(value: Any) -> Any:
    """Return the name that tells an `algorithm` section apart; without one it is the default."""
    return value.get("name", DEFAULT_ALGORITHM) if isinstance(value, Mapping) else getattr(value, "name", None)


AlgorithmSection = Annotated[
    Annotated[GRPOSection, Tag("GRPO")]
    | Annotated[GSPOSection, Tag("GSPO")]
    | Annotated[CISPOSection, Tag("CISPO")]
    | Annotated[LLMPPOSection, Tag("LLMPPO")]
    | Annotated[LLMREINFORCESection, Tag("LLMREINFORCE")]
    | Annotated[SFTSection, Tag("SFT")]
    | Annotated[DPOSection, Tag("DPO")],
    Discriminator(algorithm_name),
]

ALGORITHM_SECTIONS: Mapping[str, type[Section]] = {
    get_args(tagged)[1].tag: get_args(tagged)[0] for tagged in get_args(get_args(AlgorithmSection)[0])
}
"""The classes of the `algorithm` section, by name."""
