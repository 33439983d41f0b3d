"""From a manifest to what runs: the one place where the parts are put together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.errors import ManifestError
from tiltyard.manifest import Manifest
from tiltyard.manifest.algorithms import PolicyGradientSection
from tiltyard.manifest.asynchronous import asynchronous_problems
from tiltyard.manifest.dataset_algorithms import DPOSection
from tiltyard.manifest.probing import EnvFacts, env_factory, probe
from tiltyard.manifest.turns_factory import TurnsFactory
from tiltyard.planning import assigner, limits, optimiser_settings, placement, run_plan, sampling
from tiltyard.policies.base import Sampling
from tiltyard.report.loggers import LoggerObserver, make_loggers
from tiltyard.report.page import leave_report
from tiltyard.rollout.preflight import PreflightReport, preflight
from tiltyard.train.observer import Observers, OneAtATime, RunObserver
from tiltyard.train.processes import ALONE, Processes, in_all, share_of
from tiltyard.train.run_folder import RunFolder

if TYPE_CHECKING:
    from tiltyard.models.beside import BesideModel
    from tiltyard.models.loading import LoadedModel
    from tiltyard.models.trainable import TrainableModel
    from tiltyard.policies.hf import HFPolicy
    from tiltyard.tokens.renderer import Renderer
    from tiltyard.train.plan import RunPlan
    from tiltyard.train.rollout import RunParts

# What needs torch is imported by the functions that need it: checking a manifest does not.
# ruff: noqa: PLC0415

PROMPT_S = 1.0
"""How long environments are waited for that have always been prompt: a resumed run then has the batches of another."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller of Python has made already; None is made as the manifest says.

    Attributes:
        make_env: Makes a new environment at each call.
        loaded: The model, ready to be made trainable.
        model: The model, trainable as it is.
    """

    make_env: Callable[[], Any] | None = None
    loaded: "LoadedModel | None" = None
    model: "LocalModel | None" = None


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model of this process, and what writes and reads its tokens."""

    trainable: "TrainableModel"
    renderer: "Renderer"

    def policy(self, sampled_from: Sampling) -> "HFPolicy":
        """Return what plays with it."""
        from tiltyard.policies.hf import HFPolicy

        return HFPolicy(self.trainable.model, stop_ids=self.renderer.stop_ids, sampling=sampled_from)


def local_model(manifest: Manifest, facts: EnvFacts, given: Given = Given()) -> LocalModel:
    """Load the manifest's model, ready to be trained as the manifest says.

    Raises:
        ConfigurationError: It cannot be loaded or trained so, or its chat template cannot be used.
        MissingExtraError: The `train` extra is not installed.
    """
    torch = require("torch", "train")
    require("transformers", "train")
    from tiltyard.models.loading import load_model
    from tiltyard.tokens.renderer import make_renderer

    training = manifest.training
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    if given.model is not None:
        preflight_manifest(manifest, facts, given, renderer=given.model.renderer)
        return given.model
    section = manifest.model
    loaded = given.loaded or load_model(section.name, dtype=section.dtype, device=section.device)
    renderer = make_renderer(
        loaded.tokenizer,
        tools=facts.tools,
        chat_template_kwargs=manifest.environment.chat_template_kwargs,
        parser=section.tool_parser,
    )
    preflight_manifest(manifest, facts, given, renderer=renderer, tokenizer=loaded.tokenizer)
    return LocalModel(trainable_model(manifest, loaded.model), renderer)


def trainable_model(manifest: Manifest, model: Any) -> "TrainableModel":
    """Say which parameters of the loaded model train, as the manifest does.

    Raises:
        ConfigurationError: It cannot be trained so.
    """
    from tiltyard.models.recompute import recompute_layers
    from tiltyard.models.trainable import LoraSettings, make_trainable

    section, algorithm = manifest.model, manifest.algorithm
    if section.gradient_checkpointing:
        recompute_layers(model)
    lora = LoraSettings(**section.lora.model_dump())
    if isinstance(algorithm, PolicyGradientSection):
        refers = algorithm.kl_coef > 0
    else:
        refers = isinstance(algorithm, DPOSection) and not algorithm.reference_free
    return make_trainable(model, section.train, lora=lora, keep_reference=refers)


def preflight_manifest(
    manifest: Manifest,
    facts: EnvFacts,
    given: Given = Given(),
    **tokens: Any,
) -> PreflightReport:
    """Try out what a run of the manifest relies on; a throwaway environment is reset to its first task.

    Args:
        manifest: The run's.
        facts: What `probe` found.
        given: What is there already.
        tokens: `renderer` and `tokenizer` of `preflight`, where the model is one of this process.

    Raises:
        ConfigurationError: Something cannot work; the message names the cure.
    """
    return preflight(
        env=turns_factory(manifest, given),
        task=assigner(manifest, facts).next()[0],
        timeout_s=limits(manifest, facts).step_timeout_s,
        **tokens,
    )


def turns_factory(manifest: Manifest, given: Given = Given()) -> TurnsFactory:
    """Return what makes a new environment at each call, as turns, with the manifest's bound on observations."""
    return TurnsFactory(manifest.environment, manifest.rollout.max_observation_chars, given.make_env)


def run_parts(
    manifest: Manifest,
    facts: EnvFacts,
    folder: RunFolder,
    observer: RunObserver,
    given: Given = Given(),
    processes: Processes = ALONE,
) -> "RunParts":
    """Load the model, make the environments, and put everything together; the run closes the collector.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        MissingExtraError: The `train` extra is not installed.
    """
    require("torch", "train")
    from tiltyard.rollout.collector import RolloutCollector
    from tiltyard.train.interrupt import Interrupts, hold_together
    from tiltyard.train.learner import Learner
    from tiltyard.train.recorder import Recorder, WatchedPolicy
    from tiltyard.train.rollout import RunParts

    assert isinstance(manifest.algorithm, PolicyGradientSection), "the manifest was checked"
    training, algorithm = manifest.training, manifest.algorithm.settings()
    settings = optimiser_settings(manifest, training.steps * algorithm.epochs * algorithm.minibatches)
    model = local_model(manifest, facts, given)
    interrupts = Interrupts()
    recorder = Recorder(folder, observer, interrupts)
    beside = _beside(manifest, model, processes)
    policy = (model if beside is None else replace(model, trainable=beside.trainable)).policy(sampling(manifest))
    learner = Learner(
        model.trainable,
        algorithm,
        settings,
        sampling=sampling(manifest),
        pack_tokens=training.pack_tokens,
        before_step=partial(hold_together, interrupts, processes),
        processes=processes,
    )
    collector = RolloutCollector(
        turns_factory(manifest, given),
        share_of(training.batch_size, "training.batch_size", processes),
        algorithm.group_size,
        policy=WatchedPolicy(policy, recorder),
        renderer=model.renderer,
        on_finished=recorder,
        **_played_with(manifest, facts, processes),
    )
    return RunParts(collector, policy, model.trainable, learner, recorder, processes, beside)


def _played_with(manifest: Manifest, facts: EnvFacts, processes: Processes) -> dict[str, Any]:
    """What the collector of one of the processes takes of the manifest."""
    return {
        "limits": limits(manifest, facts),
        "assigner": assigner(manifest, facts, rank=processes.rank, world_size=processes.count),
        "seed": manifest.training.seed,
        "linger_s": manifest.rollout.linger_s,
        "prompt_s": PROMPT_S,
        "rank": processes.rank,
        "world_size": processes.count,
        "placement": placement(manifest),
    }


def _beside(manifest: Manifest, model: LocalModel, processes: Processes) -> "BesideModel | None":
    """What an asynchronous run samples from; None for any other run."""
    from tiltyard.models.beside import BesideModel

    if not manifest.training.asynchronous:
        return None
    if processes.count > 1:
        raise ManifestError(
            f"training.asynchronous: only with one process, got {processes.count}; leave it out, or start the run "
            "without torchrun"
        )
    if problems := list(asynchronous_problems(manifest)):
        raise ManifestError(str(problems[0]))
    return BesideModel(model.trainable)


def train_manifest(
    manifest: Manifest,
    folder: RunFolder,
    observer: RunObserver,
    given: Given = Given(),
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train what the manifest names, from where the folder stands; returns what `summary.json` has.

    With several processes each calls this: the first with the folder that it made, the others with `RunFolder.beside`.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        CheckpointError: The folder's checkpoint does not fit the manifest.
        MissingExtraError: The `train` extra is not installed, or that of a logger.
    """
    if manifest.environment.env_type == "dataset":
        from tiltyard.build_dataset import train_dataset_manifest

        return train_dataset_manifest(manifest, folder, observer, processes=processes)
    with folder:
        try:
            observer = with_loggers(manifest, observer) if folder.writes else observer
            observer = OneAtATime(observer) if manifest.training.asynchronous else observer
            plan, parts = in_all(
                partial(_prepared, manifest, folder, observer, given, processes),
                processes,
                undo=lambda made: made[1].collector.close(),
            )
        except BaseException:
            folder.discard()
            raise
        from tiltyard.train.ahead import run_ahead
        from tiltyard.train.rollout import run_rollouts

        summary = (run_rollouts if parts.beside is None else run_ahead)(parts, plan, folder, observer)
    if folder.writes:
        leave_report(folder.path)
    return summary


def with_loggers(manifest: Manifest, observer: RunObserver) -> RunObserver:
    """Return an observer that tells the manifest's loggers too.

    Raises:
        MissingExtraError: A logger's package is not installed; the message names the extra.
    """
    loggers = make_loggers(manifest.training.loggers)
    return Observers(observer, *(LoggerObserver(logger, manifest.model_dump()) for logger in loggers))


def _prepared(
    manifest: Manifest, folder: RunFolder, observer: RunObserver, given: Given, processes: Processes
) -> "tuple[RunPlan, RunParts]":
    """Ask the environment first and load the model last; a new folder goes away when something cannot be made."""
    facts = probe(manifest.environment, given.make_env or env_factory(manifest.environment))
    require("torch", "train")
    return run_plan(manifest, facts), run_parts(manifest, facts, folder, observer, given, processes)
