"""The folder of one run: what was asked, what happened step by step and episode by episode, and what came of it.

`config.yaml` is the manifest with every default spelled out, `run.json` what a resumed run goes on from.
`writer.lock` is there while a process writes the folder, and names it.
`metrics.jsonl` has one line a step, `trajectories.jsonl` one line for every finished episode, failed and evaluated
ones included, as soon as it is finished. `checkpoints/` holds the last checkpoints, `summary.json` what came of it.

A run that was interrupted and resumed plays the interrupted step again: both lines stay, and `attempt` tells which
process wrote them (0 is the first).
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.rollout.trace import TraceWriter, cut_unfinished
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.processes import Processes, in_all
from tiltyard.train.writer import WriterLock

_WITHOUT_STATE = "delete it to go on without what it counted, from the last checkpoint"


class RunFolder:
    """An open run folder. Made by `create` or `resume`; `close` closes its files.

    Attributes:
        path: Where it is.
        attempt: How many processes worked on the run before this one.
        writes: Whether this process is the one that writes; in another, what it is told to write is left to that one.
    """

    def __init__(self, path: Path, attempt: int, lock: WriterLock | None = None) -> None:
        self.path = path
        self.attempt = attempt
        self.writes = lock is not None
        self._lock = lock
        self._trajectories = TraceWriter(path / "trajectories.jsonl") if self.writes else None

    @classmethod
    def create(cls, path: str | Path, config: str) -> "RunFolder":
        """Start a folder with the text of its `config.yaml`.

        Raises:
            ConfigurationError: There is something at this path already, no folder can be made there, or another
                process has just made it.
        """
        path = Path(path).absolute()
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise ConfigurationError(f"{path} is there already; resume that run with --resume, or give another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {path} cannot be made: {error.strerror}; give another --out"
            ) from error
        with _locked(path) as lock:
            (path / "config.yaml").write_text(config, encoding="utf-8")
            folder = cls(path, 0, lock)
            folder.write_state(attempts=1)
            return folder

    @classmethod
    def resume(cls, path: str | Path, config: str) -> "RunFolder":
        """Open the folder of a run that was begun before; `config` is what its `config.yaml` says from now on.

        Raises:
            ConfigurationError: There is no run at this path, its `run.json` is damaged, or another process writes it.
        """
        path = Path(path).absolute()
        if not (path / "config.yaml").is_file():
            raise ConfigurationError(f"{path} is no run folder: it has no config.yaml; give the folder of a run")
        with _locked(path) as lock:
            attempt = _read_state(path).get("attempts", 1)
            _write(path / "config.yaml", config)
            cut_unfinished(path / "metrics.jsonl")
            folder = cls(path, attempt, lock)
            folder.write_state(attempts=folder.attempt + 1)
            return folder

    @classmethod
    def shared(cls, open_folder: "Callable[[], RunFolder]", processes: Processes) -> "RunFolder":
        """Open the folder in the first process, and `beside` it in the others.

        Raises:
            TiltyardError: The first process could not open it; it is raised in all.
        """
        folder = in_all(lambda: open_folder() if processes.rank == 0 else None, processes)
        path = processes.gather("" if folder is None else str(folder.path))[0]
        return cls.beside(path) if folder is None else folder

    @classmethod
    def beside(cls, path: str | Path) -> "RunFolder":
        """Open the folder that another process of the same run writes; this one reads it and writes nothing.

        Raises:
            ConfigurationError: There is no run at this path, or its `run.json` is damaged.
        """
        path = Path(path).absolute()
        return cls(path, _read_state(path).get("attempts", 1) - 1)

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    def write_trajectory(self, trajectory: Trajectory, *, phase: str, step: int, group: str | None) -> None:
        """Append a finished episode.

        Args:
            trajectory: What happened.
            phase: "train", or the name of the evaluation, such as "eval_before".
            step: The step that it was played for, from 1; in an evaluation, the steps done before it.
            group: The key of its group; None outside training.
        """
        if self._trajectories is not None:
            self._trajectories.write(trajectory, phase=phase, step=step, group=group, attempt=self.attempt)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append the line of one step; what is no finite number becomes null."""
        if not self.writes:
            return
        line = json.dumps(finite({"attempt": self.attempt, **metrics}), allow_nan=False)
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Read the lines of the steps so far; a step that was played again is there twice, the last one counts."""
        file = self.path / "metrics.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            yield json.loads(line)

    def read_state(self) -> dict[str, Any]:
        """Return what `write_state` kept; empty at first.

        Raises:
            ConfigurationError: The file is damaged.
        """
        return _read_state(self.path)

    def write_state(self, **values: Any) -> None:
        """Keep values that a resumed run needs, beside those that are kept already."""
        if self.writes:
            _write_json(self.path / "run.json", finite({**self.read_state(), **values}))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`, whole or not at all."""
        if self.writes:
            _write_json(self.path / "summary.json", finite(summary))

    def close(self) -> None:
        """Close the folder's files, and let another process write it; later calls do nothing."""
        if self._trajectories is not None:
            self._trajectories.close()
        if self._lock is not None:
            self._lock.release()

    def discard(self) -> None:
        """Take the folder away again: the run could not begin. One that was begun before stays as it is."""
        self.close()
        if self.attempt == 0 and self.writes:
            for name in ("config.yaml", "run.json", "trajectories.jsonl"):
                (self.path / name).unlink()
            self.path.rmdir()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def finite(value: Any) -> Any:
    """Return the value with None for every number that is not finite: JSON has no NaN, and no reader wants one."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


@contextmanager
def _locked(path: Path) -> Iterator[WriterLock]:
    """Take the lock of a folder; it is given back where the folder cannot be opened."""
    lock = WriterLock.take(path)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _read_state(path: Path) -> dict[str, Any]:
    file = path / "run.json"
    try:
        state: Any = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ConfigurationError(f"{file} is damaged ({error}); {_WITHOUT_STATE}") from error
    if not isinstance(state, dict):
        raise ConfigurationError(f"{file} is damaged: it holds a {type(state).__name__}; {_WITHOUT_STATE}")
    return state


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    _write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all; half a character becomes its escape, which JSON reads back."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(beside, path)
