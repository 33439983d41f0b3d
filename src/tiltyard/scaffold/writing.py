"""Writes the files of a first environment into a new folder, and finds the manifest in such a folder."""

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tiltyard.errors import ConfigurationError
from tiltyard.manifest.json_schema import schema_text

MANIFEST = "train.yaml"
SCHEMA = "manifest.schema.json"

_FILES = {
    "env.py": "the environment",
    MANIFEST: "what runs: the environment, the model, how it is trained",
    "test_env.py": "tests of the environment, without a model",
    SCHEMA: "lets an editor complete train.yaml",
}
"""The files of the folder, each with what it is."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The folder that was written, and what to do next."""

    folder: Path

    def __str__(self) -> str:
        paths = {str(self.folder / name): told for name, told in _FILES.items()}
        wide = max(map(len, paths))
        lines = [f"{path:{wide}}  {told}" for path, told in paths.items()]
        folder, manifest = (shlex.quote(str(path)) for path in (self.folder, self.folder / MANIFEST))
        commands = (f"tiltyard check {folder}", f"python -m pytest {folder}", f"tiltyard train {manifest}")
        return "\n".join([*lines, "next:", *(f"  {command}" for command in commands)])


def write_scaffold(folder: str | Path, *, tools: bool = False) -> Scaffold:
    """Write an environment that works, a manifest that trains it, and a test.

    Args:
        folder: The folder to make; one that is there must be empty.
        tools: An environment of tool calls; otherwise one of text.

    Raises:
        ConfigurationError: There is something in the folder, or it cannot be written.
    """
    path = Path(folder)
    templates = files("tiltyard.scaffold") / "templates" / ("tools" if tools else "text")
    texts = {SCHEMA: schema_text()}
    texts |= {name: (templates / f"{name}.txt").read_text(encoding="utf-8") for name in _FILES if name != SCHEMA}
    try:
        path.mkdir(parents=True, exist_ok=True)
        if there := sorted(entry.name for entry in path.iterdir()):
            raise ConfigurationError(f"{path} is not empty, and nothing is written over; it has {', '.join(there[:8])}")
        for name in _FILES:
            (path / name).write_text(texts[name], encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    return Scaffold(path)


def manifest_in(folder: Path) -> Path:
    """The manifest in a folder as `tiltyard init` writes it.

    Raises:
        ConfigurationError: There is none.
    """
    found = [folder / name for name in (MANIFEST, "train.yml", "train.toml") if (folder / name).is_file()]
    if not found:
        others = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml", ".toml"))
        instead = f"; give one of its files: {', '.join(others)}" if others else ""
        raise ConfigurationError(f"{folder} is a folder without a {MANIFEST}{instead}")
    return found[0]
