"""The paths that a manifest names: where they are looked for, and whether they are there."""

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.manifest.yaml_text import Problem
from tiltyard.rows.loading import HUB, hub_id, is_path, row_path

_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def settle_paths(tree: MutableMapping[str, Any], base: Path, problems: list[Problem]) -> None:
    """Make every path of the tree absolute, in place; `~` and `$NAME` are filled in.

    Relative paths start from `base`, the manifest's own folder. What is wrong is added to `problems`, each with the
    absolute path that was looked for.
    """
    for section, key, settle in _SETTLED:
        part = tree.get(section)
        if isinstance(part, MutableMapping) and isinstance(part.get(key), str):
            try:
                part[key] = settle(part[key], base)
            except ValueError as error:
                problems.append(Problem(f"{section}.{key}", str(error)))


def _entrypoint(spec: str, base: Path) -> str:
    file, colon, attribute = spec.rpartition(":")
    if spec.startswith(("http://", "https://", "ws://", "wss://")):
        raise ValueError(f"must be module:attr or path.py:attr, got a URL; write env_url: {spec}")
    if colon and file.endswith(".py") and all(map(str.isidentifier, attribute.split("."))):
        return f"{_existing(file, base)}:{attribute}"
    if not _SPEC.fullmatch(spec):
        raise ValueError(f"must be module:attr or path.py:attr, got {spec!r}")
    return spec


def _model(name: str, base: Path) -> str:
    looks_like_path = name.startswith((".", "/", "~", "$")) or name.endswith(".gguf")
    if looks_like_path or (base / name).exists():
        return str(_existing(name, base))
    return name


def _existing(written: str, base: Path) -> Path:
    filled = os.path.expandvars(os.path.expanduser(written))
    if "$" in filled:
        raise ValueError(f"{written!r} names an environment variable that is not set")
    path = (base / filled).resolve()
    if not path.exists():
        raise ValueError(f"there is no {path} (given as {written!r}, relative to {base})")
    return path


def _rows(source: str, base: Path) -> str:
    try:
        return str(row_path(source, base)) if is_path(source) else f"{HUB}{hub_id(source, base)}"
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _file(written: str, base: Path) -> str:
    path = _existing(written, base)
    if not path.is_file():
        raise ValueError(f"{path} is a folder; give the Python file in it (given as {written!r})")
    return str(path)


_SETTLED = (
    ("environment", "dataset", _rows),
    ("environment", "name", _rows),
    ("environment", "rubric_file_path", _file),
    ("environment", "reward_file_path", _file),
    ("environment", "entrypoint", _entrypoint),
    ("environment", "observation_processor", _entrypoint),
    ("model", "name", _model),
)
"""The keys that name files, each with what makes its path absolute."""
