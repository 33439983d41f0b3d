"""Where a run's figures go beside `metrics.jsonl`: TensorBoard, Weights & Biases, trackio, or a logger of your own."""

import math
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, LoggerError

PROJECT = "tiltyard"
"""What our runs are filed under, where a logger asks for it."""


class Logger(Protocol):
    """Takes the figures of a run. What it raises is warned of once, and the run goes on without it."""

    name: str

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """The run in this folder begins or goes on; `config` is its manifest."""
        ...

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Take figures by name: `train/reward`, `eval_before/mean`; steps are counted from 1, 0 is before the first."""
        ...

    def finish(self) -> None:
        """The run is over, whole or not; called once after `start`."""
        ...


class LoggerObserver:
    """Tells a logger what an observer is told (`tiltyard.train.observer.RunObserver`)."""

    def __init__(self, logger: Logger, config: Mapping[str, Any]) -> None:
        self._logger = logger
        self._config = config
        self._works = True
        self._started = False

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """Begin."""
        del done, steps
        self._started = True
        self._call(self._logger.start, folder, self._config)

    def phase_started(self, phase: str, episodes: int) -> None:
        """No figure is known yet."""

    def episode_finished(self) -> None:
        """The step's figures have it."""

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """Log the evaluation; those in between go into one curve, `eval/...`, with the first and the last."""
        self._log(score, "eval")

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Log the step."""
        self._log(metrics, "train")

    def run_finished(self) -> None:
        """End."""
        if self._started:
            self._call(self._logger.finish)

    def _log(self, figures: Mapping[str, Any], prefix: str) -> None:
        told = {name: value for name, value in figures.items() if name != "step"}
        self._call(self._logger.log, dict(flat(told, prefix)), int(figures["step"]))

    def _call(self, call: Callable[..., None], *args: Any) -> None:
        if not self._works:
            return
        try:
            guarded(f"the logger {self._logger.name!r}", LoggerError, call, *args)
        except (LoggerError, ConfigurationError) as error:
            self._works = False
            warnings.warn(f"{error}; the run goes on without it", stacklevel=2)


def flat(figures: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Give every finite number of nested figures under its path; a bool is no number."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}/{name}")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}/{name}", float(value)


class TensorBoardLogger:
    """Writes event files into the run folder: `tensorboard --logdir runs`."""

    name = "tensorboard"

    def __init__(self) -> None:
        # The event writer alone: the package's summary module would import TensorFlow where there is one.
        self._events = require("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._protos = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._summaries = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._writer: Any = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Open a new event file; the curves of earlier attempts go on in it."""
        del config
        self._writer = self._events.EventFileWriter(str(folder / "tensorboard"))

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Write one event, and have it on the disk."""
        import time  # noqa: PLC0415  # only event files ask for the time of day

        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(value=[value(tag=name, simple_value=x) for name, x in figures.items()])
        self._writer.add_event(self._protos.Event(summary=summary, step=step, wall_time=time.time()))
        self._writer.flush()

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger:
    """Logs to Weights & Biases: into the run folder alone, unless WANDB_MODE or WANDB_API_KEY is set."""

    name = "wandb"

    def __init__(self) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self._run: Any = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with the one of the same folder."""
        configured = any(os.environ.get(name) for name in ("WANDB_MODE", "WANDB_API_KEY"))
        self._run = self._wandb.init(
            project=PROJECT,
            name=folder.name,
            id=_kept_id(folder / "wandb" / "id"),
            dir=str(folder),
            config=dict(config),
            mode=None if configured else "offline",
            resume="allow" if configured else None,
            settings=self._wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
        )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures; those of one step are one row."""
        self._run.log(dict(figures), step=step)

    def finish(self) -> None:
        """Write what is left."""
        self._run.finish()


class TrackioLogger:
    """Logs to trackio's database on this machine: `trackio show --project tiltyard`."""

    name = "trackio"

    def __init__(self) -> None:
        self._trackio: Any = require("trackio", "trackio")
        self._run: Any = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with the one of the same folder's name."""
        self._run = self._trackio.init(
            project=PROJECT, name=folder.name, config=dict(config), resume="allow", embed=False, auto_log_gpu=False
        )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures."""
        self._run.log(dict(figures), step=step)

    def finish(self) -> None:
        """Write what is left."""
        self._trackio.finish()


LOGGERS: Mapping[str, Callable[[], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "trackio": TrackioLogger,
}
"""The loggers that a manifest can name."""


def make_loggers(names: Sequence[str]) -> list[Logger]:
    """Return the loggers of these names.

    Raises:
        ConfigurationError: There is no logger of that name.
        MissingExtraError: A logger's package is not installed; the message names the extra.
    """
    unknown = [name for name in names if name not in LOGGERS]
    if unknown:
        raise ConfigurationError(f"a logger is one of {', '.join(LOGGERS)}, got {unknown[0]!r}")
    return [LOGGERS[name]() for name in names]


def _kept_id(file: Path) -> str:
    """An id that a resumed run has too."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()
