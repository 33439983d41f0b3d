"""The manifest of a run that goes on: its own, with what may change in between."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.manifest.loading import load_manifest, manifest_from_text
from tiltyard.manifest.sections import Manifest
from tiltyard.train.run_folder import RunFolder

MAY_CHANGE = frozenset(
    {
        *("training.steps", "training.save_every", "training.keep_checkpoints", "training.threads", "model.device"),
        *("training.eval.every", "training.eval.after", "training.loggers"),
        *("rollout.backend", "rollout.workers", "rollout.ray_address"),
    }
)
"""What a resumed run may have other than the run that it goes on with."""


def resumed_manifest(run: str | Path, manifest: str | Path | None, overrides: Sequence[str] = ()) -> Manifest:
    """Return the manifest to go on with a run: the run's own, with what `manifest` or `overrides` may change.

    Raises:
        ConfigurationError: There is no run in the folder.
        ManifestError: Something else than `MAY_CHANGE` differs from the run; all of it is listed.
    """
    before = manifest_of(run)
    after = load_manifest(manifest or Path(run) / "config.yaml", overrides)
    refuse_changes(run, before, after)
    return after


def manifest_of(run: str | Path) -> Manifest:
    """Return the manifest of the run in this folder.

    Raises:
        ConfigurationError: There is no run in the folder, or its `config.yaml` is damaged.
    """
    config = Path(run) / "config.yaml"
    if not config.is_file():
        raise ConfigurationError(f"{config.parent.absolute()} is no run folder: it has no config.yaml")
    text = config.read_text(encoding="utf-8")
    return manifest_from_text(text, source=str(config), base=config.absolute().parent)


def kept_request(run: str | Path) -> dict[str, Any] | None:
    """Return what an evaluation or a rollout was begun with; None in the folder of a training run.

    Raises:
        ConfigurationError: Its `run.json` is damaged.
    """
    return RunFolder.beside(run).read_state().get("request")


def refuse_episodes(run: str | Path) -> None:
    """Refuse to train in the folder of an evaluation or a rollout.

    Raises:
        ConfigurationError: It is one, or its `run.json` is damaged.
    """
    if kept_request(run) is not None:
        raise ConfigurationError(
            f"{Path(run).absolute()} holds an evaluation or a rollout, and no run to go on with; give the folder of a "
            "run, or begin one with --out"
        )


def refuse_changes(run: str | Path, before: Manifest, after: Manifest) -> None:
    """Refuse to go on with a run under a manifest that differs in more than `MAY_CHANGE`.

    Raises:
        ManifestError: It does; all of it is listed.
    """
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    # Where the learning rate falls towards the last step, another last step is another run from the first one on.
    may = MAY_CHANGE if before.training.schedule == "constant" else MAY_CHANGE - {"training.steps"}
    changed = [key for key in {**old, **new} if key not in may and old.get(key) != new.get(key)]
    if changed:
        lines = [f"{key}: the run has {old.get(key)!r}, now it is {new.get(key)!r}" for key in changed]
        raise ManifestError(
            "\n  ".join([f"{Path(run)} was begun with other settings; resume with them, or begin a new run", *lines])
        )


def _flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(value, dict) and dotted not in ("environment.env_config", "environment.chat_template_kwargs"):
            flat |= _flat(value, dotted)
        else:
            flat[dotted] = value
    return flat
