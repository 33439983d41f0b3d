"""From a manifest to what runs: the one place where the parts are put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.envs.turns import as_turns
from tiltyard.errors import ConfigurationError, EnvError, ManifestError
from tiltyard.manifest import EnvironmentSection, Manifest, load_manifest, manifest_from_text, manifest_to_yaml
from tiltyard.policies.base import Sampling
from tiltyard.rollout.entrypoint import build_env, load_entrypoint, max_turns_of
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks
from tiltyard.train.observer import RunObserver
from tiltyard.train.run_folder import RunFolder

if TYPE_CHECKING:
    from tiltyard.train.rollout import RunParts, RunPlan

# What needs torch is imported by the functions that need it: checking a manifest does not.
# ruff: noqa: PLC0415

EVAL_TASKS = 64
"""Tasks of one evaluation where the manifest does not say, or all held-out rows where there are fewer."""

MAY_CHANGE = frozenset(
    {
        *("training.steps", "training.save_every", "training.keep_checkpoints", "training.threads", "model.device"),
        *("training.eval.every", "training.eval.after"),
    }
)
"""What a resumed run may have other than the run that it goes on with."""


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """What one throwaway environment said about itself.

    Attributes:
        max_turns: Turns of one episode: the manifest's, else the environment's own.
        rows: Training rows; None for an environment that is not made of rows.
        held_out_rows: Rows of the held-out split (its attribute `evaluation_size`); None when it does not say.
        tools: Whether it shows tools to the model.
    """

    max_turns: int
    rows: int | None
    held_out_rows: int | None
    tools: bool


def env_factory(section: EnvironmentSection) -> Callable[[], Any]:
    """Return what makes a new environment at each call, as its entrypoint does.

    Raises:
        ManifestError: The entrypoint cannot be loaded.
    """
    try:
        target = load_entrypoint(section.entrypoint)
    except ConfigurationError as error:
        raise ManifestError(f"environment.entrypoint: {error}") from error
    if not callable(target):
        raise ManifestError(
            f"environment.entrypoint: {section.entrypoint!r} is a {type(target).__name__}; it must be a class or a "
            "function that returns a new environment"
        )
    return lambda: build_env(section.entrypoint, section.env_config)


def probe(section: EnvironmentSection, factory: Callable[[], Any]) -> EnvFacts:
    """Make one environment, ask it, and close it.

    Raises:
        ManifestError: It cannot be made with this `env_config`, is no environment, or a fact is missing.
    """
    try:
        env = factory()
        turns = as_turns(env)
        max_turns = section.max_turns or max_turns_of(env, section.entrypoint)
    except ConfigurationError as error:
        raise ManifestError(f"environment: {error}") from error
    facts = EnvFacts(
        max_turns=max_turns,
        rows=getattr(env, "dataset_size", None),
        held_out_rows=getattr(env, "evaluation_size", None),
        tools=bool(getattr(env, "tools", None)),
    )
    guarded(f"{type(env).__name__}.close", EnvError, turns.close)
    return facts


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


def assigner(manifest: Manifest, facts: EnvFacts) -> TaskAssigner:
    """Return what deals the tasks; its name says which environment they are of."""
    section, training = manifest.environment, manifest.training
    name = f"{section.entrypoint} {section.env_config}" if section.env_config else section.entrypoint
    return TaskAssigner(facts.rows, training.batch_size, seed=training.seed, name=name)


def run_plan(manifest: Manifest, facts: EnvFacts) -> "RunPlan":
    """Return how long the run goes on, and when it evaluates on what.

    Raises:
        ManifestError: There are fewer held-out rows than `training.eval.tasks`.
    """
    from tiltyard.train.rollout import EvalPlan, RunPlan

    training, planned = manifest.training, manifest.training.eval
    tasks = planned.tasks
    if tasks is None:
        tasks = min(EVAL_TASKS, facts.held_out_rows or EVAL_TASKS)
    held_out = None if facts.rows is None else facts.held_out_rows or tasks
    try:
        held_out_tasks = evaluation_tasks(tasks, dataset_size=held_out, seed=training.seed) if tasks else []
    except ConfigurationError as error:
        raise ManifestError(f"training.eval.tasks: {error}") from error
    return RunPlan(
        steps=training.steps,
        evaluation=EvalPlan(
            tasks=tuple(held_out_tasks),
            sampling=sampling(manifest, evaluation=True),
            every=planned.every,
            before=planned.before,
            after=planned.after,
        ),
        max_reward=manifest.environment.max_reward,
        truncated=training.truncated,
        save_every=training.save_every,
        keep_checkpoints=training.keep_checkpoints,
    )


def run_parts(manifest: Manifest, facts: EnvFacts, folder: RunFolder, observer: RunObserver) -> "RunParts":
    """Load the model, make the environments, and put everything together; the run closes the collector.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        MissingExtraError: The `train` extra is not installed.
    """
    torch = require("torch", "train")
    require("transformers", "train")
    from tiltyard.models.loading import load_model
    from tiltyard.models.trainable import LoraSettings, make_trainable
    from tiltyard.policies.hf import HFPolicy
    from tiltyard.rollout.collector import RolloutCollector
    from tiltyard.tokens.renderer import make_renderer
    from tiltyard.train.interrupt import Interrupts
    from tiltyard.train.learner import Learner, OptimiserSettings
    from tiltyard.train.recorder import Recorder, WatchedPolicy
    from tiltyard.train.rollout import RunParts

    training = manifest.training
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    loaded = load_model(manifest.model.name, dtype=manifest.model.dtype, device=manifest.model.device)
    renderer = make_renderer(
        loaded.tokenizer, tools=facts.tools, chat_template_kwargs=manifest.environment.chat_template_kwargs
    )
    model = make_trainable(
        loaded.model,
        manifest.model.train,
        lora=LoraSettings(**manifest.model.lora.model_dump()),
        keep_reference=manifest.algorithm.kl_coef > 0,
    )
    interrupts = Interrupts()
    recorder = Recorder(folder, observer, interrupts)
    policy = HFPolicy(model.model, stop_ids=renderer.stop_ids, sampling=sampling(manifest))
    learner = Learner(
        model,
        manifest.algorithm.settings(),
        OptimiserSettings(
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
            warmup_steps=training.warmup_steps,
            max_grad_norm=training.max_grad_norm,
        ),
        sampling=sampling(manifest),
        before_step=interrupts.hold,
    )
    make_env, max_chars = env_factory(manifest.environment), manifest.rollout.max_observation_chars
    collector = RolloutCollector(
        lambda: as_turns(make_env(), max_observation_chars=max_chars),
        training.batch_size,
        manifest.algorithm.group_size,
        policy=WatchedPolicy(policy, recorder),
        renderer=renderer,
        limits=limits(manifest, facts),
        assigner=assigner(manifest, facts),
        seed=training.seed,
        on_finished=recorder,
    )
    return RunParts(collector, policy, model, learner, recorder)


def train_manifest(manifest: Manifest, folder: RunFolder, observer: RunObserver) -> dict[str, Any]:
    """Train what the manifest names, from where the folder stands; returns what `summary.json` has.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        CheckpointError: The folder's checkpoint does not fit the manifest.
        MissingExtraError: The `train` extra is not installed.
    """
    with folder:
        plan, parts = _prepared(manifest, folder, observer)
        from tiltyard.train.rollout import train_llm_rollout

        return train_llm_rollout(parts, plan, folder, observer)


def evaluate_manifest(
    manifest: Manifest, out: str | Path, observer: RunObserver, *, checkpoint: str | Path | None = None
) -> dict[str, Any]:
    """Play the held-out tasks of the manifest once; returns what the new folder's `summary.json` has under `eval`.

    Args:
        manifest: Names the environment, the model and the tasks.
        out: The folder to make.
        observer: Is told how it goes.
        checkpoint: A run folder, or one of its checkpoints; None plays the model as it is.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks, or there are no tasks.
        CheckpointError: The checkpoint does not fit the manifest.
    """
    if manifest.training.eval.tasks == 0:
        raise ManifestError("training.eval.tasks: an evaluation needs at least 1 task, got 0")
    with RunFolder.create(out, manifest_to_yaml(manifest)) as folder:
        plan, parts = _prepared(manifest, folder, observer)
        from tiltyard.train.checkpoint import load_weights
        from tiltyard.train.rollout import evaluate

        step = 0 if checkpoint is None else load_weights(checkpoint, parts.model).step
        parts.policy.weights_changed()
        return evaluate(parts, plan, folder, observer, step=step)


def _prepared(manifest: Manifest, folder: RunFolder, observer: RunObserver) -> "tuple[RunPlan, RunParts]":
    """Ask the environment first and load the model last; a new folder goes away when something cannot be made."""
    try:
        facts = probe(manifest.environment, env_factory(manifest.environment))
        require("torch", "train")
        return run_plan(manifest, facts), run_parts(manifest, facts, folder, observer)
    except BaseException:
        folder.discard()
        raise


def resumed_manifest(run: str | Path, manifest: str | Path | None, overrides: Sequence[str] = ()) -> Manifest:
    """Return the manifest to go on with a run: the run's own, with what `manifest` or `overrides` may change.

    Raises:
        ConfigurationError: There is no run in the folder.
        ManifestError: Something else than `MAY_CHANGE` differs from the run; all of it is listed.
    """
    config = Path(run) / "config.yaml"
    if not config.is_file():
        raise ConfigurationError(f"{config.parent.absolute()} is no run folder: it has no config.yaml")
    text = config.read_text(encoding="utf-8")
    before = manifest_from_text(text, source=str(config), base=config.absolute().parent)
    after = load_manifest(manifest or config, overrides)
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    changed = [key for key in {**old, **new} if key not in MAY_CHANGE and old.get(key) != new.get(key)]
    if changed:
        lines = [f"{key}: the run has {old.get(key)!r}, now it is {new.get(key)!r}" for key in changed]
        raise ManifestError(
            "\n  ".join([f"{Path(run)} was begun with other settings; resume with them, or begin a new run", *lines])
        )
    return after


def _flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(value, dict) and dotted not in ("environment.env_config", "environment.chat_template_kwargs"):
            flat |= _flat(value, dotted)
        else:
            flat[dotted] = value
    return flat
