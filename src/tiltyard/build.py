"""From a manifest to what runs: the one place where the parts are put together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.envs.turns import Turns
from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.manifest import Manifest
from tiltyard.manifest.probing import EnvFacts, env_factory, probe
from tiltyard.policies.base import Sampling
from tiltyard.rollout.entrypoint import load_processor, text_turns
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.preflight import PreflightReport, preflight
from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks
from tiltyard.train.observer import RunObserver
from tiltyard.train.run_folder import RunFolder
from tiltyard.types import Task

if TYPE_CHECKING:
    from tiltyard.models.trainable import TrainableModel
    from tiltyard.policies.hf import HFPolicy
    from tiltyard.tokens.renderer import Renderer
    from tiltyard.train.plan import RunPlan, Schedule
    from tiltyard.train.rollout import RunParts

# What needs torch is imported by the functions that need it: checking a manifest does not.
# ruff: noqa: PLC0415

PROMPT_S = 1.0
"""How long environments are waited for that have always been prompt: a resumed run then has the batches of another."""

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


def assigner(manifest: Manifest, facts: EnvFacts) -> TaskAssigner:
    """Return what deals the tasks; its name says which environment they are of."""
    section, training = manifest.environment, manifest.training
    name = f"{section.source} {section.env_config}" if section.env_config else section.source
    return TaskAssigner(facts.rows, training.batch_size, seed=training.seed, name=name)


def held_out_tasks(manifest: Manifest, facts: EnvFacts, count: int | None = None) -> list[Task]:
    """Return the tasks of one evaluation: `count`, else as many as the manifest says, else up to `EVAL_TASKS`.

    Raises:
        ManifestError: There are fewer held-out rows than that.
    """
    tasks = manifest.training.eval.tasks if count is None else count
    if tasks is None:
        tasks = min(EVAL_TASKS, facts.held_out_rows or EVAL_TASKS)
    held_out = None if facts.rows is None else facts.held_out_rows or tasks
    try:
        return evaluation_tasks(tasks, dataset_size=held_out, seed=manifest.training.seed) if tasks else []
    except ConfigurationError as error:
        raise ManifestError(f"training.eval.tasks: {error}") from error


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


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model of this process, and what writes and reads its tokens."""

    trainable: "TrainableModel"
    renderer: "Renderer"

    def policy(self, sampled_from: Sampling) -> "HFPolicy":
        """Return what plays with it."""
        from tiltyard.policies.hf import HFPolicy

        return HFPolicy(self.trainable.model, stop_ids=self.renderer.stop_ids, sampling=sampled_from)


def local_model(manifest: Manifest, facts: EnvFacts) -> LocalModel:
    """Load the manifest's model, ready to be trained as the manifest says.

    Raises:
        ConfigurationError: It cannot be loaded or trained so, or its chat template cannot be used.
        MissingExtraError: The `train` extra is not installed.
    """
    torch = require("torch", "train")
    require("transformers", "train")
    from tiltyard.models.loading import load_model
    from tiltyard.models.trainable import LoraSettings, make_trainable
    from tiltyard.tokens.renderer import make_renderer

    training = manifest.training
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    loaded = load_model(manifest.model.name, dtype=manifest.model.dtype, device=manifest.model.device)
    renderer = make_renderer(
        loaded.tokenizer,
        tools=facts.tools,
        chat_template_kwargs=manifest.environment.chat_template_kwargs,
        parser=manifest.model.tool_parser,
    )
    preflight_manifest(manifest, facts, renderer=renderer, tokenizer=loaded.tokenizer)
    trainable = make_trainable(
        loaded.model,
        manifest.model.train,
        lora=LoraSettings(**manifest.model.lora.model_dump()),
        keep_reference=manifest.algorithm.kl_coef > 0,
    )
    return LocalModel(trainable, renderer)


def preflight_manifest(manifest: Manifest, facts: EnvFacts, **tokens: Any) -> PreflightReport:
    """Try out what a run of the manifest relies on; a throwaway environment is reset to its first task.

    Args:
        manifest: The run's.
        facts: What `probe` found.
        tokens: `renderer` and `tokenizer` of `preflight`, where the model is one of this process.

    Raises:
        ConfigurationError: Something cannot work; the message names the cure.
    """
    return preflight(
        env=turns_factory(manifest),
        task=assigner(manifest, facts).next()[0],
        timeout_s=limits(manifest, facts).step_timeout_s,
        **tokens,
    )


def turns_factory(manifest: Manifest) -> Callable[[], Turns]:
    """Return what makes a new environment at each call, as turns, with the manifest's bound on observations."""
    section, max_chars = manifest.environment, manifest.rollout.max_observation_chars
    make_env = env_factory(section)
    try:
        processor = load_processor(section.observation_processor)
    except ConfigurationError as error:
        raise ManifestError(f"environment.observation_processor: {error}") from error
    return lambda: text_turns(make_env(), section.observation_field, processor, max_chars)


def run_parts(manifest: Manifest, facts: EnvFacts, folder: RunFolder, observer: RunObserver) -> "RunParts":
    """Load the model, make the environments, and put everything together; the run closes the collector.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        MissingExtraError: The `train` extra is not installed.
    """
    require("torch", "train")
    from tiltyard.rollout.collector import RolloutCollector
    from tiltyard.train.interrupt import Interrupts
    from tiltyard.train.learner import Learner, OptimiserSettings
    from tiltyard.train.recorder import Recorder, WatchedPolicy
    from tiltyard.train.rollout import RunParts

    training, model = manifest.training, local_model(manifest, facts)
    interrupts = Interrupts()
    recorder = Recorder(folder, observer, interrupts)
    policy = model.policy(sampling(manifest))
    learner = Learner(
        model.trainable,
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
    collector = RolloutCollector(
        turns_factory(manifest),
        training.batch_size,
        manifest.algorithm.group_size,
        policy=WatchedPolicy(policy, recorder),
        renderer=model.renderer,
        limits=limits(manifest, facts),
        assigner=assigner(manifest, facts),
        seed=training.seed,
        on_finished=recorder,
        linger_s=manifest.rollout.linger_s,
        prompt_s=PROMPT_S,
    )
    return RunParts(collector, policy, model.trainable, learner, recorder)


def train_manifest(manifest: Manifest, folder: RunFolder, observer: RunObserver) -> dict[str, Any]:
    """Train what the manifest names, from where the folder stands; returns what `summary.json` has.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        CheckpointError: The folder's checkpoint does not fit the manifest.
        MissingExtraError: The `train` extra is not installed.
    """
    with folder:
        plan, parts = _prepared(manifest, folder, observer)
        from tiltyard.train.rollout import run_rollouts

        return run_rollouts(parts, plan, folder, observer)


def _prepared(manifest: Manifest, folder: RunFolder, observer: RunObserver) -> "tuple[RunPlan, RunParts]":
    """Ask the environment first and load the model last; a new folder goes away when something cannot be made."""
    try:
        facts = probe(manifest.environment, env_factory(manifest.environment))
        require("torch", "train")
        return run_plan(manifest, facts), run_parts(manifest, facts, folder, observer)
    except BaseException:
        folder.discard()
        raise
