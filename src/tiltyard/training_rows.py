"""Training on rows from Python: rows, a model and settings that are plain objects, in place of a manifest."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.build_dataset import GivenRows, train_dataset_manifest
from tiltyard.errors import ConfigurationError
from tiltyard.manifest import Manifest, manifest_from_values, manifest_to_yaml
from tiltyard.manifest.resuming import manifest_of, refuse_changes
from tiltyard.report.terminal import terminal_observer
from tiltyard.rows import Rows, load_rows
from tiltyard.train.observer import RunObserver
from tiltyard.train.run_folder import RunFolder
from tiltyard.training import ELSEWHERE, Config, settings_of

if TYPE_CHECKING:
    from tiltyard.models.loading import LoadedModel
    from tiltyard.models.trainable import TrainableModel
    from tiltyard.train.dataset_env import DatasetEnv, RowSource

# What needs torch is imported by the functions that need it.
# ruff: noqa: PLC0415


def train_llm_dataset(
    config: Config | None = None,
    env: "DatasetEnv | RowSource | None" = None,
    policy: "str | LoadedModel | TrainableModel | None" = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observer: RunObserver | None = None,
) -> dict[str, Any]:
    """Train a language model on rows; every key of a manifest and its default holds here too.

    Args:
        config: The settings. Of a mapping, what is left out has a manifest's default. None with `resume` takes those
            that the run was begun with.
        env: What is learned from: a `DatasetEnv`, whose objective, template and split hold, or rows as `load_rows`
            takes them. None takes the rows that `config` names.
        policy: The model that learns: its name, what `load_model` returned, or, with a `DatasetEnv`, what
            `make_trainable` returned. Its weights are changed in place. None takes the one that `config` names.
        out: The run folder to make, or to go on in; None makes one in `runs`, named after the time.
        resume: Go on with the run in `out`.
        observer: Is told how it goes; None shows the progress that the command line shows.

    Returns:
        What the run folder's `summary.json` has.

    Raises:
        ConfigurationError: The settings, the rows or the model cannot be used so, or there is nothing to learn.
        CheckpointError: The run to go on with is of another model or other rows.
        MissingExtraError: An extra that this needs is not installed.
        NonFiniteError: A loss or gradient was not finite.
    """
    require("torch", "train")
    from tiltyard.models.loading import LoadedModel
    from tiltyard.models.trainable import TrainableModel
    from tiltyard.train.dataset_env import DatasetEnv

    if resume and out is None:
        raise ConfigurationError("resume goes on with the run in `out`: give its folder")
    path = Path(out if out is not None else f"runs/train-{time.strftime('%Y%m%d-%H%M%S')}")
    settings = manifest_of(path) if resume and config is None else settings_of(config)
    rows = env if env is None or isinstance(env, DatasetEnv | Rows) else load_rows(env)
    if isinstance(policy, TrainableModel) and not isinstance(env, DatasetEnv):
        raise ConfigurationError("a model that is trainable already has no tokenizer here: give a DatasetEnv with it")
    if not (policy is None or isinstance(policy, str | LoadedModel | TrainableModel)):
        raise ConfigurationError(
            "policy must be the name of a model, what load_model returns, or what make_trainable returns, got "
            f"{type(policy).__name__}"
        )
    manifest = _with(settings, rows, policy)
    given = GivenRows(
        rows=rows if isinstance(rows, Rows) else None,
        env=rows if isinstance(rows, DatasetEnv) else None,
        loaded=policy if isinstance(policy, LoadedModel) else None,
        model=policy if isinstance(policy, TrainableModel) else None,
    )
    if resume:
        refuse_changes(path, manifest_of(path), manifest)
    folder = (RunFolder.resume if resume else RunFolder.create)(path, manifest_to_yaml(manifest))
    return train_dataset_manifest(manifest, folder, terminal_observer() if observer is None else observer, given)


def _with(config: Manifest | dict[str, Any], rows: "DatasetEnv | Rows | None", policy: Any) -> Manifest:
    """Put the names of what was given as an object into the manifest, in place of what stood there."""
    values = config.model_dump() if isinstance(config, Manifest) else dict(config)
    environment, model = (dict(values.get(name) or {}) for name in ("environment", "model"))
    environment.setdefault("env_type", "dataset")
    if environment["env_type"] != "dataset":
        raise ConfigurationError(
            f"train_llm_dataset learns from rows: environment.env_type is dataset, got {environment['env_type']!r}"
        )
    if rows is not None:
        environment["dataset"] = f"hub:{ELSEWHERE}/rows"
        objective = None if isinstance(rows, Rows) else rows.objective
        if objective is not None and environment.setdefault("objective", objective) != objective:
            raise ConfigurationError(
                f"the DatasetEnv is for {objective!r}, and environment.objective is {environment['objective']!r}"
            )
    if policy is not None:
        model["name"] = policy if isinstance(policy, str) else getattr(policy, "name", f"{ELSEWHERE}/policy")
    made: Mapping[str, Any] = {**values, "environment": environment, "model": model}
    return manifest_from_values(made, source="config", base=Path.cwd())
