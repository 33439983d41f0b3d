"""Training on rows from Python: rows, a model and settings that are plain objects, in place of a manifest."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard._optional import require
from tiltyard.build_dataset import GivenRows, train_dataset_manifest
from tiltyard.errors import ConfigurationError
from tiltyard.manifest import Manifest, manifest_from_values
from tiltyard.rows import Rows, load_rows
from tiltyard.train.observer import RunObserver
from tiltyard.training import ELSEWHERE, Config, begun, named, observer_of, opened

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

    Under `torchrun` or `accelerate launch` each process calls this, and all train one model.

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

    path, settings = begun(config, out, resume=resume)
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
    folder, processes = opened(path, manifest, resume=resume)
    return train_dataset_manifest(manifest, folder, observer or observer_of(folder), given, processes)


def _with(config: Manifest | dict[str, Any], rows: "DatasetEnv | Rows | None", policy: Any) -> Manifest:
    """Put the names of what was given as an object into the manifest, in place of what stood there."""
    values, environment = named(config, policy, "dataset", "train_llm_dataset learns from rows")
    if rows is not None:
        environment["dataset"] = f"hub:{ELSEWHERE}/rows"
        objective = None if isinstance(rows, Rows) else rows.objective
        if objective is not None and environment.setdefault("objective", objective) != objective:
            raise ConfigurationError(
                f"the DatasetEnv is for {objective!r}, and environment.objective is {environment['objective']!r}"
            )
    return manifest_from_values({**values, "environment": environment}, source="config", base=Path.cwd())
