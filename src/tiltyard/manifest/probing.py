"""The environment that a manifest names: loaded, made, asked what it is, and closed."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.openenv.remote import RemoteEnvClient
from tiltyard.envs.qa import QADatasetEnv
from tiltyard.envs.turns import as_turns
from tiltyard.errors import ConfigurationError, EnvError, EnvTimeoutError, ManifestError, RolloutError
from tiltyard.manifest.package_names import install_command, named_packages
from tiltyard.manifest.rows_env import rows_env_factory
from tiltyard.manifest.sections import EnvironmentSection
from tiltyard.rollout.entrypoint import build_env, load_entrypoint, max_turns_of
from tiltyard.rollout.workers import EnvWorkers

_OURS = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """What one throwaway environment said about itself.

    Attributes:
        max_turns: Turns of one episode: the manifest's, else the environment's own.
        rows: Training rows; None for an environment that is not made of rows.
        held_out_rows: Rows of the held-out split (its attribute `evaluation_size`); 0 when rows are known to have none,
            None when it does not say.
        tools: Whether it shows tools to the model.
        fingerprint: A hash of the training rows' content, where they are a manifest's `dataset`; None elsewhere.
    """

    max_turns: int
    rows: int | None
    held_out_rows: int | None
    tools: bool
    fingerprint: str | None = None


def env_factory(section: EnvironmentSection) -> Callable[[], Any]:
    """Return what makes a new environment at each call, as its entrypoint does; or a client of the one behind its URL.

    Raises:
        ManifestError: The entrypoint, the rows or the rubric cannot be loaded, or there is nothing to play.
        MissingExtraError: The `datasets` extra, which the rows need, is not installed.
    """
    if section.env_type == "dataset":
        raise ManifestError(
            "environment.env_type: 'dataset' has answers to learn from and nothing to play; tiltyard train learns them"
        )
    if section.dataset is not None:
        return rows_env_factory(section)
    url = section.env_url
    if url is not None:
        return lambda: RemoteEnvClient(
            url,
            action_field=section.action_field,
            mcp_tool=section.mcp_tool,
            request_timeout_s=section.request_timeout_s,
        )
    spec = section.source
    try:
        target = guarded(f"importing {spec!r}", EnvError, load_entrypoint, spec)
    except (ConfigurationError, EnvError) as error:
        raise ManifestError(f"environment.entrypoint: {error}{_place(error)}{_packages(section, error)}") from error
    if not callable(target):
        raise ManifestError(
            f"environment.entrypoint: {spec!r} is a {type(target).__name__}; it must be a class or a "
            "function that returns a new environment"
        )
    return lambda: guarded(f"making {spec!r}", EnvError, build_env, spec, section.env_config)


def probe(section: EnvironmentSection, factory: Callable[[], Any]) -> EnvFacts:
    """Make one environment, ask it, and close it.

    Raises:
        ManifestError: It cannot be made with this `env_config`, is no environment, or a fact is missing or wrong; or
            making, asking or closing it raised or took longer than `request_timeout_s`; or its server cannot be
            reached.
    """
    workers = EnvWorkers(section.request_timeout_s or None, name="tiltyard-probe")
    doing = "making it"
    try:
        env = workers.run(factory)
        doing = "asking it"
        turns = as_turns(env)
        facts = guarded(type(env).__name__, EnvError, _facts, section, env)
        doing = "closing it"
        workers.run(turns.close)
    except ConfigurationError as error:
        raise ManifestError(f"environment: {error}") from error
    except EnvTimeoutError as error:
        raise ManifestError(f"environment: {section.source!r}, {doing}: {error}") from error
    except EnvError as error:
        raise ManifestError(f"environment: {error}{_place(error)}") from error
    except RolloutError as error:
        raise ManifestError(f"environment.env_url: {error}") from error
    finally:
        workers.stop()
    return facts


def _facts(section: EnvironmentSection, env: Any) -> EnvFacts:
    of_rows = isinstance(env, QADatasetEnv)
    return EnvFacts(
        max_turns=section.max_turns or max_turns_of(env, section.source),
        rows=_rows(env, "dataset_size"),
        held_out_rows=0 if of_rows and env.held_out is None else _rows(env, "evaluation_size"),
        tools=not of_rows and bool(getattr(env, "tools", None)),
        fingerprint=env.rows.fingerprint if of_rows else None,
    )


def _rows(env: Any, name: str) -> int | None:
    rows = getattr(env, name, None)
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        raise ConfigurationError(
            f"{type(env).__name__}.{name} is {rows!r}; it is a whole number of rows >= 1, or not there"
        )
    return rows


def _packages(section: EnvironmentSection, error: BaseException) -> str:
    """How to install what the manifest says that the entrypoint needs, where it could not be imported."""
    packages = named_packages(section)
    if not packages or not isinstance(error.__cause__, ModuleNotFoundError):
        return ""
    return f"; environment.env_packages has what it needs: {install_command(packages)}"


def _place(error: BaseException) -> str:
    """Where other people's code raised what an error of ours is chained to, in words; empty where nothing did."""
    if error.__cause__ is None or isinstance(error, ConfigurationError):
        return ""
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", _OURS))]
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
