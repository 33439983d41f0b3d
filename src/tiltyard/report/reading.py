"""Reads a run folder for its report: whole, unfinished, or with a line that a crash cut."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tiltyard.errors import ConfigurationError
from tiltyard.train.writer import Writer, Writing, writer_of


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run folder says of its run, the episodes left out.

    Attributes:
        path: The folder.
        config: The manifest with every default, as plain values.
        state: `run.json`.
        summary: `summary.json`; empty while the run goes on, or when its process was killed.
        steps: The line of each step in order; of a step that was played again the last one.
        writer: Who wrote it when it was read.
        notes: What could not be read, each in a sentence.
    """

    path: Path
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    summary: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    writer: Writer
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def ended(self) -> bool:
        """Whether the last attempt left its summary; False while it goes on, and for good where it was killed."""
        return bool(self.summary) and self.summary.get("attempts", 1) == self.state.get("attempts", 1)

    @property
    def over(self) -> bool:
        """Whether nothing more comes: the last attempt came to its end, or nobody is there to go on with it."""
        return self.ended or self.writer.writing in (Writing.NOBODY, Writing.GONE)

    @property
    def evaluations(self) -> dict[str, Mapping[str, Any]]:
        """Every evaluation so far by its phase, in the order of their steps."""
        found: dict[str, Mapping[str, Any]] = {}
        for scores in (self.state.get("evaluations"), self.summary.get("evaluations")):
            found.update(scores if isinstance(scores, Mapping) else {})
        found.update({name: self.summary[name] for name in ("eval_before", "eval_after") if self.summary.get(name)})
        last = {"eval_after": 1}
        return dict(sorted(found.items(), key=lambda item: (item[1].get("step") or 0, last.get(item[0], 0))))


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read the folder of a run, an evaluation or a rollout.

    Raises:
        ConfigurationError: It is no such folder.
    """
    path = Path(path).absolute()
    if not (path / "config.yaml").is_file():
        raise ConfigurationError(f"{path} is no run folder: it has no config.yaml; give the folder of a run")
    writer = writer_of(path)  # first: one that is gone now has written all that is read below
    notes: list[str] = []
    steps: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(_lines(path / "metrics.jsonl"), start=1):
        figures = parsed(line)
        if isinstance(figures.get("step"), int):
            steps[figures["step"]] = figures
        else:
            notes.append(f"Line {number} of metrics.jsonl cannot be read and is left out.")
    return RunRecord(
        path=path,
        config=_config(path / "config.yaml", notes),
        state=_object(path / "run.json", notes),
        summary=_object(path / "summary.json", notes),
        steps=tuple(steps[step] for step in sorted(steps)),
        writer=writer,
        notes=tuple(notes),
    )


def parsed(line: bytes | str) -> dict[str, Any]:
    """Read a line of JSON; empty where it is no object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def flat_config(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Give every value of a manifest as text under its dotted path."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat_config(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def _lines(file: Path) -> Iterator[bytes]:
    """The finished lines of a file; the process that writes it may be in the middle of the last."""
    if file.is_file():
        with file.open("rb") as lines:
            yield from (line for line in lines if line.endswith(b"\n"))


def _object(file: Path, notes: list[str]) -> dict[str, Any]:
    if not file.is_file():
        return {}
    found = parsed(file.read_bytes())
    if not found:
        notes.append(f"{file.name} cannot be read and is left out.")
    return found


def _config(file: Path, notes: list[str]) -> dict[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        config = None
    if not isinstance(config, dict):
        notes.append("config.yaml cannot be read and is left out.")
        return {}
    return config
