"""From a manifest with `env_type: dataset` to what runs: the rows, the model that learns them, and the run."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.manifest import Manifest
from tiltyard.manifest.dataset_algorithms import DPOSection, SFTSection
from tiltyard.report.page import leave_report
from tiltyard.rows import Rows, load_rows
from tiltyard.rows.template import PromptTemplate
from tiltyard.train.observer import RunObserver
from tiltyard.train.processes import ALONE, Processes, in_all
from tiltyard.train.run_folder import RunFolder

if TYPE_CHECKING:
    from tiltyard.models.loading import LoadedModel
    from tiltyard.models.trainable import TrainableModel
    from tiltyard.train.dataset import DatasetPlan
    from tiltyard.train.dataset_env import DatasetEnv

# What needs torch is imported by the functions that need it: checking a manifest does not.
# ruff: noqa: PLC0415

EVAL_ROWS = 256
"""Held-out rows of one evaluation where the manifest does not say, or all where there are fewer."""


def rows_of(manifest: Manifest) -> Rows:
    """Load the rows of a manifest.

    Raises:
        ManifestError: They cannot be loaded; the message names the key.
        MissingExtraError: The `datasets` extra, which this source needs, is not installed.
    """
    section = manifest.environment
    assert section.dataset is not None, "the manifest was checked"
    try:
        return load_rows(section.dataset, columns=section.columns, split=section.dataset_split)
    except ConfigurationError as error:
        raise ManifestError(f"environment.dataset: {error}") from error


@dataclass(frozen=True, slots=True)
class GivenRows:
    """What a caller of Python has made already; None is made as the manifest says.

    Attributes:
        rows: The rows, not yet encoded.
        env: The rows, encoded.
        loaded: The model, ready to be made trainable.
        model: The model, trainable as it is; `env` is given then too.
    """

    rows: Rows | None = None
    env: "DatasetEnv | None" = None
    loaded: "LoadedModel | None" = None
    model: "TrainableModel | None" = None


def dataset_env(manifest: Manifest, tokenizer: Any, given: Rows | None = None) -> "DatasetEnv":
    """Encode the rows of a manifest, or those that were given, for its objective.

    Raises:
        ManifestError: They cannot be used so; the message names the key.
        TemplateError: The chat template cannot be used for them.
        MissingExtraError: An extra that they need is not installed.
    """
    from tiltyard.train.dataset_env import DatasetEnv
    from tiltyard.train.examples import RowSettings

    section, algorithm, rows = manifest.environment, manifest.algorithm, given or rows_of(manifest)
    assert isinstance(algorithm, SFTSection | DPOSection), "the manifest was checked"
    assert section.objective is not None, "the manifest was checked"
    template = None
    if section.prompt_template:
        try:
            template = PromptTemplate.read(section.prompt_template, rows.columns, rows.name)
        except ConfigurationError as error:
            raise ManifestError(f"environment.prompt_template: {error}") from error
    try:
        return DatasetEnv(
            rows,
            tokenizer,
            objective=section.objective,
            response_column=section.response_column,
            settings=RowSettings(
                **algorithm.row_settings(),
                chat_template_kwargs=section.chat_template_kwargs,
                tool_parser=manifest.model.tool_parser,
            ),
            prompt_of=template.messages if template else None,
            train_test_split=section.train_test_split,
        )
    except ConfigurationError as error:
        raise type(error)(f"environment: {error}") from error


def dataset_plan(manifest: Manifest, env: "DatasetEnv") -> "DatasetPlan":
    """Return how the run goes on.

    Raises:
        ManifestError: There are fewer held-out rows than `training.eval.tasks`.
    """
    from tiltyard.planning import optimiser_settings, schedule, too_few_held_out
    from tiltyard.train.dataset import DatasetPlan, steps_of

    training, held_out = manifest.training, len(env.held_out)
    wanted = training.eval.tasks
    if wanted is not None and wanted > held_out:
        key = "training.eval.tasks"
        raise ManifestError(too_few_held_out(manifest.environment, key, wanted, held_out, "usable rows"))
    rows = min(EVAL_ROWS, held_out) if wanted is None else wanted
    steps = training.steps
    if training.epochs is not None:
        steps = steps_of(training.epochs, len(env.train), training.batch_size)
    return DatasetPlan(
        replace(schedule(manifest, evaluates=rows > 0), steps=steps),
        optimiser_settings(manifest, steps),
        batch_size=training.batch_size,
        eval_rows=rows,
        pack_tokens=training.pack_tokens,
        seed=training.seed,
    )


def train_dataset_manifest(
    manifest: Manifest,
    folder: RunFolder,
    observer: RunObserver,
    given: GivenRows = GivenRows(),
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train on the rows that the manifest names, from where the folder stands; returns what `summary.json` has.

    Raises:
        ConfigurationError: A part cannot be made as the manifest asks.
        CheckpointError: The folder's checkpoint does not fit the manifest.
        MissingExtraError: The `train` extra is not installed.
    """
    from tiltyard.build import with_loggers

    with folder:
        try:
            observer = with_loggers(manifest, observer) if folder.writes else observer
            go_on = in_all(partial(_prepared, manifest, folder, observer, given, processes), processes)
        except BaseException:
            folder.discard()
            raise
        summary = go_on()
    if folder.writes:
        leave_report(folder.path)
    return summary


def check_dataset_manifest(manifest: Manifest) -> str:
    """Encode the rows with the model's tokenizer; returns their counts, and an example with what is learned in it.

    Raises:
        ConfigurationError: The rows, the template or the model's tokenizer cannot be used.
        MissingExtraError: The `train` extra is not installed.
    """
    require("transformers", "train")
    from tiltyard.models.loading import load_tokenizer
    from tiltyard.train.dataset_env import sequences

    env = dataset_env(manifest, load_tokenizer(manifest.model.name))
    plan = dataset_plan(manifest, env)
    lines = [f"{part.replace('_', '-'):10} {counts}" for part, counts in env.counts.items()]
    lines.append(
        f"steps      {plan.schedule.steps} of {plan.batch_size} rows; the longest row has {env.longest()} tokens"
    )
    lines.append("example    what is learned stands between ⟦ and ⟧")
    lines += [line for example in sequences(env.train[0]) for line in env.shown(example).splitlines()]
    return "\n".join(lines)


def _prepared(
    manifest: Manifest, folder: RunFolder, observer: RunObserver, given: GivenRows, processes: Processes
) -> "partial[dict[str, Any]]":
    """Read the rows and load the model; returns the run."""
    torch = require("torch", "train")
    require("transformers", "train")
    from tiltyard.build import trainable_model
    from tiltyard.models.loading import load_model, load_tokenizer
    from tiltyard.train.dataset import run_dataset

    training, algorithm = manifest.training, manifest.algorithm
    assert isinstance(algorithm, SFTSection | DPOSection), "the manifest was checked"
    section, loaded = manifest.model, given.loaded
    env = given.env
    if env is None:
        env = dataset_env(manifest, loaded.tokenizer if loaded else load_tokenizer(section.name), given.rows)
    plan = replace(dataset_plan(manifest, env), processes=processes)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    model = given.model
    if model is None:
        loaded = loaded or load_model(section.name, dtype=section.dtype, device=section.device)
        model = trainable_model(manifest, loaded.model)
    return partial(run_dataset, env, model, algorithm.settings(), plan, folder, observer)
