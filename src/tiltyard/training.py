"""Training from Python: an environment, a model and settings that are plain objects, in place of a manifest."""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.build import Given, LocalModel, train_manifest
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.manifest import Manifest, load_manifest, manifest_from_values, manifest_to_yaml
from tiltyard.manifest.resuming import manifest_of, refuse_changes, refuse_episodes
from tiltyard.report.summary import learned_nothing
from tiltyard.report.terminal import terminal_observer
from tiltyard.rollout.entrypoint import build_env, is_url
from tiltyard.train.observer import RunObserver, SilentObserver
from tiltyard.train.processes import Processes, joined
from tiltyard.train.run_folder import RunFolder

if TYPE_CHECKING:
    from tiltyard.models.loading import LoadedModel

# What needs torch is imported by the functions that need it.
# ruff: noqa: PLC0415

Config = Manifest | Mapping[str, Any] | str | os.PathLike[str]
"""A manifest, the path of one, or what one would say: `{"training": {"steps": 20}}`."""

EnvFactory = Callable[..., Any] | str
"""An environment's class or a function that makes one; or `module:attr`, `path.py:attr`, or a server's URL."""

_SOURCES = ("entrypoint", "env_url", "dataset", "rubric_file_path", "rubric_name")
ELSEWHERE = "given_in_python"
"""Stands in the run folder's manifest for an object that no other process can find."""


def train_llm_rollout(
    config: Config | None = None,
    env_factory: EnvFactory | None = None,
    policy: "str | LoadedModel | LocalModel | None" = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observer: RunObserver | None = None,
) -> dict[str, Any]:
    """Train a language model in an environment; every key of a manifest and its default holds here too.

    Under `torchrun` or `accelerate launch` each process calls this, and all train one model.

    Args:
        config: The settings. Of a mapping, what is left out has a manifest's default. None with `resume` takes those
            that the run was begun with.
        env_factory: Makes a new environment at each call, with `environment.env_config` as keyword arguments. None
            takes the one that `config` names.
        policy: The model that plays and learns: its name, what `load_model` returned, or one that is trainable as it
            is. Its weights are changed in place; with a KL term the reference is the model as it is given, so a run
            goes on with the model as it was before the run. None takes the one that `config` names.
        out: The run folder to make, or to go on in; None makes one in `runs`, named after the time.
        resume: Go on with the run in `out`.
        observer: Is told how it goes; None shows the progress that the command line shows.

    Returns:
        What the run folder's `summary.json` has.

    Raises:
        ConfigurationError: The settings, the environment or the model cannot be used so.
        CheckpointError: The run to go on with is of another model or other data.
        MissingExtraError: The `train` extra is not installed, or that of a logger.
        NonFiniteError: A loss or gradient was not finite.
    """
    require("torch", "train")
    path, settings = begun(config, out, resume=resume)
    manifest = _with(settings, env_factory, policy)
    given = Given(_made_by(env_factory, manifest), **_model_of(policy))
    folder, processes = opened(path, manifest, resume=resume)
    summary = train_manifest(manifest, folder, observer or observer_of(folder), given, processes)
    if learned_nothing(summary):
        warnings.warn(
            f"nothing was learned in {summary['steps_done']} steps: no two scored episodes of a group differed, so no "
            f"weight changed; {summary['failed']} of {summary['episodes']} episodes failed",
            stacklevel=2,
        )
    return summary


def begun(
    config: Config | None, out: str | os.PathLike[str] | None, *, resume: bool
) -> tuple[Path, Manifest | dict[str, Any]]:
    """The folder of a run that is called for, and its settings as they were given.

    Raises:
        ConfigurationError: There is no run to go on with, the folder is that of an evaluation or a rollout, or
            `config` is of no known kind.
    """
    if resume and out is None:
        raise ConfigurationError("resume goes on with the run in `out`: give its folder")
    path = Path(out if out is not None else f"runs/train-{time.strftime('%Y%m%d-%H%M%S')}")
    if resume:
        refuse_episodes(path)
    return path, manifest_of(path) if resume and config is None else settings_of(config)


def opened(path: Path, manifest: Manifest, *, resume: bool) -> tuple[RunFolder, Processes]:
    """The run's folder, made or opened by the first process, and those that train together.

    Raises:
        ConfigurationError: It cannot be made, there is no run to go on with, or the run is of other settings.
    """
    if resume:
        refuse_changes(path, manifest_of(path), manifest)
    processes = joined()
    start = RunFolder.resume if resume else RunFolder.create
    return RunFolder.shared(lambda: start(path, manifest_to_yaml(manifest)), processes), processes


def observer_of(folder: RunFolder) -> RunObserver:
    """What tells of the run where nothing else is given: one of its processes, as the command line does."""
    return terminal_observer() if folder.writes else SilentObserver()


def settings_of(config: Config | None) -> Manifest | dict[str, Any]:
    """The settings as they were given: whole, or those of a mapping."""
    if isinstance(config, Manifest):
        return config
    if isinstance(config, str | os.PathLike):
        return load_manifest(Path(config))
    if config is not None and not isinstance(config, Mapping):
        raise ConfigurationError(
            f"config must be a mapping such as {{'training': {{'steps': 20}}}}, a Manifest or the path of one, got "
            f"{type(config).__name__}"
        )
    return dict(config or {})


def _with(config: Manifest | dict[str, Any], env_factory: Any, policy: Any) -> Manifest:
    """Put the names of what was given as an object into the manifest, in place of what stood there."""
    values, environment = named(config, policy, "rollout", "train_llm_rollout has a model play")
    if env_factory is not None:
        environment.update(dict.fromkeys(_SOURCES))
        name = _name_of(env_factory)
        environment["env_url" if is_url(name) else "entrypoint"] = name
    return manifest_from_values({**values, "environment": environment}, source="config", base=Path.cwd())


def named(
    config: Manifest | dict[str, Any], policy: Any, env_type: str, what: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A manifest's values with the name of a model that was given, and its environment, which must be of this type.

    Raises:
        ConfigurationError: It is of another type; `what` says why that cannot be.
    """
    values = config.model_dump() if isinstance(config, Manifest) else dict(config)
    environment, model = (dict(values.get(name) or {}) for name in ("environment", "model"))
    if environment.setdefault("env_type", env_type) != env_type:
        raise ConfigurationError(f"{what}: environment.env_type is {env_type}, got {environment['env_type']!r}")
    if policy is not None:
        model["name"] = policy if isinstance(policy, str) else getattr(policy, "name", f"{ELSEWHERE}/policy")
    return {**values, "model": model}, environment


def _name_of(env_factory: Any) -> str:
    """What the run folder's manifest says of the environment; an object that no other process can find gets no name."""
    if isinstance(env_factory, str):
        return env_factory
    if not callable(env_factory):
        raise ConfigurationError(
            f"env_factory must make a new environment at each call, got the {type(env_factory).__name__} "
            f"{env_factory!r}; write env_factory=lambda: {type(env_factory).__name__}(...)"
        )
    module, name = getattr(env_factory, "__module__", None), getattr(env_factory, "__qualname__", "")
    found = bool(module) and module != "__main__" and all(part.isidentifier() for part in name.split("."))
    return f"{module}:{name}" if found else f"{ELSEWHERE}:env_factory"


def _made_by(env_factory: Any, manifest: Manifest) -> Callable[[], Any] | None:
    """What makes an environment of the object that was given; None where the manifest's own words say it."""
    if env_factory is None or isinstance(env_factory, str):
        return None
    what, config = f"making {manifest.environment.source!r}", manifest.environment.env_config
    return lambda: guarded(what, EnvError, build_env, env_factory, config)


def _model_of(policy: Any) -> dict[str, Any]:
    if policy is None or isinstance(policy, str):
        return {}
    from tiltyard.models.loading import LoadedModel

    if isinstance(policy, LoadedModel):
        return {"loaded": policy}
    if isinstance(policy, LocalModel):
        return {"model": policy}
    raise ConfigurationError(
        f"policy must be the name of a model, what load_model returns, or a LocalModel, got {type(policy).__name__}"
    )
