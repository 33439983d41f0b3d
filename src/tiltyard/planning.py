"""What the values of a manifest become: limits, distributions, tasks, schedules. No model, no environment is made."""

from typing import TYPE_CHECKING

from tiltyard.envs.pool.ray_session import RayOptions
from tiltyard.errors import ManifestError
from tiltyard.manifest import Manifest
from tiltyard.manifest.environment import EnvironmentSection
from tiltyard.manifest.probing import EnvFacts
from tiltyard.policies.base import Sampling
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.placement import Placement
from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks
from tiltyard.types import Task

if TYPE_CHECKING:
    from tiltyard.train.optimiser import OptimiserSettings
    from tiltyard.train.plan import RunPlan, Schedule

# What needs torch is imported by the functions that need it: checking a manifest does not.
# ruff: noqa: PLC0415

EVAL_TASKS = 64
"""Tasks of one evaluation where the manifest does not say, or all held-out rows where there are fewer."""


def limits(manifest: Manifest, facts: EnvFacts) -> Limits:
    """Return what bounds each episode."""
    rollout = manifest.rollout
    return Limits(
        max_turns=facts.max_turns,
        max_tokens_per_turn=rollout.max_tokens_per_turn,
        length_reward=rollout.length_reward,
        max_context=rollout.max_context,
        max_seconds=rollout.max_seconds,
        max_tool_calls=rollout.max_tool_calls,
        step_timeout_s=manifest.environment.request_timeout_s or None,
    )


def sampling(manifest: Manifest, *, evaluation: bool = False) -> Sampling:
    """Return the distribution to sample from, in training or in evaluation."""
    rollout, temperature = manifest.rollout, manifest.training.eval.temperature
    if not evaluation or temperature is None:
        temperature = rollout.temperature
    return Sampling(temperature=temperature, top_p=rollout.top_p, top_k=rollout.top_k)


def placement(manifest: Manifest) -> Placement:
    """Return where the environments live."""
    rollout = manifest.rollout
    ray = RayOptions(address=rollout.ray_address) if rollout.backend == "ray" else None
    return Placement(rollout.backend, rollout.workers, ray)


def assigner(manifest: Manifest, facts: EnvFacts, *, rank: int = 0, world_size: int = 1) -> TaskAssigner:
    """Return what deals the tasks to one of so many processes; its name says which environment they are of."""
    section, training = manifest.environment, manifest.training
    told = [section.source, *([str(section.env_config)] if section.env_config else [])]
    name = " ".join(told if facts.fingerprint is None else [*told, f"({facts.fingerprint})"])
    groups = training.batch_size // world_size
    return TaskAssigner(facts.rows, groups, seed=training.seed, rank=rank, world_size=world_size, name=name)


def held_out_tasks(manifest: Manifest, facts: EnvFacts, count: int | None = None) -> list[Task]:
    """Return the tasks of one evaluation: `count`, else as many as the manifest says, else up to `EVAL_TASKS`.

    There are none where it is known that no row is held out and no number of them was asked for.

    Raises:
        ManifestError: There are fewer held-out rows than that; the message says what to do.
    """
    tasks = manifest.training.eval.tasks if count is None else count
    known = EVAL_TASKS if facts.held_out_rows is None else facts.held_out_rows
    if tasks is None:
        tasks = min(EVAL_TASKS, known)
    held_out = None if facts.rows is None else tasks if facts.held_out_rows is None else known
    if held_out is not None and tasks > held_out:
        key = "training.eval.tasks" if count is None else "--tasks"
        raise ManifestError(too_few_held_out(manifest.environment, key, tasks, held_out))
    return evaluation_tasks(tasks, dataset_size=held_out, seed=manifest.training.seed) if tasks else []


def too_few_held_out(section: EnvironmentSection, key: str, wanted: int, there: int, rows: str = "rows") -> str:
    """Say that an evaluation cannot be of so many rows, and what to do."""
    split = section.train_test_split
    found = f"{key} is {wanted}, and {f'only {there}' if there else 'no'} {rows} are held out"
    if not section.dataset:
        return f"{found} by the environment; ask for at most {there}"
    if split == 1:
        return (
            f"{found}: environment.train_test_split is 1, which trains on all; set it below 1, or ask for 0 "
            "evaluation tasks"
        )
    return f"{found}: environment.train_test_split is {split:g}; lower it, or ask for at most {there}"


def run_plan(manifest: Manifest, facts: EnvFacts) -> "RunPlan":
    """Return how long the run goes on, and when it evaluates on what.

    Raises:
        ManifestError: There are fewer held-out rows than `training.eval.tasks`.
    """
    from tiltyard.train.plan import RunPlan

    tasks = tuple(held_out_tasks(manifest, facts))
    return RunPlan(
        schedule=schedule(manifest, evaluates=bool(tasks)),
        tasks=tasks,
        eval_sampling=sampling(manifest, evaluation=True),
        max_reward=manifest.environment.max_reward,
        truncated=manifest.training.truncated,
    )


def schedule(manifest: Manifest, *, evaluates: bool) -> "Schedule":
    """Return how long the run goes on, when it evaluates (if there is something to evaluate on), and what it keeps."""
    from tiltyard.train.plan import Schedule

    training, planned = manifest.training, manifest.training.eval
    return Schedule(
        steps=training.steps,
        save_every=training.save_every,
        keep_checkpoints=training.keep_checkpoints,
        eval_every=planned.every,
        eval_before=planned.before,
        eval_after=planned.after,
        evaluates=evaluates,
    )


def optimiser_settings(manifest: Manifest, total_steps: int) -> "OptimiserSettings":
    """Return how the optimiser steps, so many times in all."""
    from tiltyard.train.optimiser import OptimiserSettings

    training = manifest.training
    if training.schedule != "constant" and total_steps <= training.warmup_steps:
        raise ManifestError(
            f"training.warmup_steps: must be < {total_steps}, the run's optimiser steps, where training.schedule is "
            f"{training.schedule}, got {training.warmup_steps}"
        )
    return OptimiserSettings(
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        warmup_steps=training.warmup_steps,
        max_grad_norm=training.max_grad_norm,
        schedule=training.schedule,
        total_steps=total_steps,
        end_share=training.schedule_end,
    )
