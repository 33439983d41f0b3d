"""What a manifest may say: its sections, their keys, and what each key takes.

Values are checked strictly: text is never taken for a number, a bool never for an int, 3.0 never for 3. An
int is a fine float. A key without a value, or with null, means its default.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tiltyard.manifest.algorithms import AlgorithmSection, GRPOSection
from tiltyard.manifest.environment import EnvironmentSection
from tiltyard.manifest.section import Section
from tiltyard.tools.parsing import FAMILIES


def _check_trained_part(value: str) -> str:
    kind, colon, count = value.partition(":")
    if value in ("full", "lora") or (kind == "last" and colon and count.isdecimal() and int(count) >= 1):
        return value
    raise ValueError("must be full, lora, or last:K for the last K layers (such as last:8)")


def _check_tool_parser(value: str | None) -> str | None:
    if value is None or value in FAMILIES:
        return value
    raise ValueError(f"must be one of: {', '.join(FAMILIES)}")


class LoraSection(Section):
    """`model.lora`: the adapter, with `train: lora`."""

    rank: int = Field(default=16, ge=1, description="Rank of the adapter.")
    alpha: float = Field(
        default=32.0, gt=0, description="Scale of the adapter; what is added is alpha / rank times it."
    )
    targets: str | list[str] = Field(default="all-linear", description="Modules that get an adapter.")


class ModelSection(Section):
    """`model`: who plays."""

    name: str = Field(min_length=1, description="`smollm2-135m-instruct`, a local folder, a .gguf file or a hub id.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Numbers that the weights are; the optimiser steps in float32 in any case."
    )
    device: str = Field(default="auto", description="`auto`, `cpu`, `cuda`, `cuda:1`.")
    tool_parser: Annotated[str | None, AfterValidator(_check_tool_parser)] = Field(
        default=None, description="How the model writes tool calls; not given, its chat template is asked."
    )
    train: Annotated[str, AfterValidator(_check_trained_part)] = Field(
        default="full", description="What learns: `full`, `last:K` (the last K layers) or `lora`."
    )
    lora: LoraSection = Field(default=LoraSection(), description="The adapter, with `train: lora`.")
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations again going backward: less memory, about a third more work."
    )


class RolloutSection(Section):
    """`rollout`: how episodes are sampled."""

    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature while training.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling; 1 keeps all tokens.")
    top_k: int = Field(default=0, ge=0, description="Sampling from so many tokens; 0 keeps all.")
    max_tokens_per_turn: int = Field(default=256, ge=1, description="Sampled tokens of one turn.")
    length_reward: float | None = Field(
        default=None, description="What a turn earns that reached `max_tokens_per_turn`; not given, it is not scored."
    )
    max_context: int | None = Field(
        default=None, ge=1, description="Tokens of one episode; not given, the model's own bound."
    )
    max_seconds: float | None = Field(default=None, gt=0, description="Seconds of one episode; not given, no bound.")
    max_tool_calls: int | None = Field(
        default=None, ge=1, description="Tool calls of one episode; not given, no bound."
    )
    max_observation_chars: int = Field(
        default=32_000, ge=1, description="Characters of one observation; of a longer one head and tail are kept."
    )
    linger_s: float = Field(
        default=0.05,
        ge=0,
        description="Seconds that an episode waits to be sampled in one batch with others, while environments work.",
    )
    backend: Literal["local", "process", "ray"] = Field(
        default="local",
        description="Where environments live: in this process, in worker processes, or on a Ray cluster.",
    )
    workers: int | None = Field(
        default=None, ge=1, description="With `backend: process` or `ray`: how many workers; not given, as many as fit."
    )
    ray_address: str | None = Field(
        default=None, description="With `backend: ray`: a running cluster; not given, one is started on this machine."
    )


class EvalSection(Section):
    """`training.eval`: the held-out tasks."""

    tasks: int | None = Field(
        default=None, ge=0, description="Held-out tasks of one evaluation, each played once; not given, up to 64."
    )
    every: int = Field(default=0, ge=0, description="Evaluate each so many steps; 0 not in between.")
    before: bool = Field(default=True, description="Evaluate before the first step.")
    after: bool = Field(default=True, description="Evaluate after the last step.")
    temperature: float | None = Field(default=None, ge=0, description="0 is greedy; not given, that of `rollout`.")


class TrainingSection(Section):
    """`training`: how long and how fast."""

    steps: int = Field(default=100, ge=1, description="Steps of the whole run, resumed parts included.")
    epochs: int | None = Field(
        default=None, ge=1, description="With `env_type: dataset`: passes over the training rows, in place of `steps`."
    )
    batch_size: int = Field(default=8, ge=1, description="Groups in one step; episodes are this times `group_size`.")
    learning_rate: float = Field(default=1e-5, gt=0, description="Learning rate after the warm-up.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which the learning rate rises from 0.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate falls from the warm-up to the last step."
    )
    schedule_end: float = Field(
        default=0.0, ge=0, le=1, description="Share of the learning rate that is left at the last step, where it falls."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay; norms and biases do not decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled down to this norm.")
    pack_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of one forward pass, whose gradients add up to the step's; not given, the hidden size.",
    )
    seed: int = Field(default=0, ge=0, description="All randomness of the run derives from it.")
    save_every: int = Field(
        default=10, ge=0, description="Checkpoint each so many steps, and at the end; 0 only at the end."
    )
    keep_checkpoints: int = Field(default=2, ge=1, description="Last checkpoints that stay, beside the best.")
    asynchronous: bool = Field(
        default=False,
        description="Sample the next batch while training on this one, with weights that are one step older.",
    )
    truncated: Literal["keep", "zero", "mask"] = Field(
        default="keep", description="Truncated episodes: train as they are, count as reward 0, or stay out of the loss."
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="Threads of torch; not given, left as they are."
    )
    loggers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        default=[], description="Where figures go beside `metrics.jsonl`, which is always written."
    )
    eval: EvalSection = Field(default=EvalSection(), description="Evaluation on held-out tasks.")


class Manifest(Section):
    """One run: environment, model, algorithm, rollout and training."""

    environment: EnvironmentSection
    model: ModelSection
    algorithm: AlgorithmSection = GRPOSection()
    rollout: RolloutSection = RolloutSection()
    training: TrainingSection = TrainingSection()
