"""Progress of a run in the terminal: a live line where there is a terminal, one plain line a step elsewhere."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tiltyard.report.rows import is_of_rows, row_step_parts
from tiltyard.report.summary import score_text
from tiltyard.train.observer import RunObserver


def terminal_observer(stream: TextIO | None = None) -> RunObserver:
    """Return the observer that fits the stream (standard error by default)."""
    target: TextIO = sys.stderr if stream is None else stream
    return LiveProgress(target) if target.isatty() else PlainProgress(target)


class PlainProgress:
    """One line for each step and each evaluation."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = _Clock()

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """Say where the run is kept."""
        self._clock.start(done, steps)
        self._say(f"run folder {folder}" + (f", resumed after step {done}" if done else ""))

    def phase_started(self, phase: str, episodes: int) -> None:
        """Announce evaluations, which take long and print nothing else."""
        if phase != "train":
            self._say(f"{phase}: {episodes} episodes")

    def episode_finished(self) -> None:
        """Say nothing: a line an episode would drown the steps."""

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """Say what came out."""
        self._say(f"{phase}: {score_text(score)}")

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Say the step's figures."""
        self._clock.step(metrics["step"])
        self._say(step_text(metrics, self._clock))

    def run_finished(self) -> None:
        """Nothing is left open."""

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveProgress:
    """A bar that moves with the episodes, and a line for each step above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415  # a run without a terminal does not pay for rich
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # as above

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=Console(file=stream), transient=True)
        self._steps = self._progress.add_task("steps", total=None, detail="")
        self._episodes = self._progress.add_task("episodes", total=None, detail="")
        self._clock = _Clock()

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """Show the bars."""
        self._clock.start(done, steps)
        self._progress.start()
        self._progress.update(self._steps, total=steps, completed=done, detail=f"{done}/{steps}")
        self._say(f"run folder {folder}" + (f", resumed after step {done}" if done else ""))

    def phase_started(self, phase: str, episodes: int) -> None:
        """Set the second bar to the episodes of the phase."""
        self._progress.reset(
            self._episodes, total=episodes, description=phase.replace("_", " "), detail=f"0/{episodes}"
        )

    def episode_finished(self) -> None:
        """Move the second bar."""
        self._progress.advance(self._episodes)
        task = self._progress.tasks[self._episodes]
        self._progress.update(self._episodes, detail=f"{task.completed:.0f}/{task.total or 0:.0f}")

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """Say what came out, above the bars."""
        self._say(f"{phase}: {score_text(score)}")

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Say the step's figures, and move the first bar."""
        self._clock.step(metrics["step"])
        self._say(step_text(metrics, self._clock))
        detail = f"{metrics['step']}/{self._clock.steps}{self._clock.left_text()}"
        self._progress.update(self._steps, completed=metrics["step"], detail=detail)

    def run_finished(self) -> None:
        """Take the bars away."""
        self._progress.stop()

    def _say(self, text: str) -> None:
        # Markup is off: a task or a path may hold square brackets.
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def step_text(metrics: Mapping[str, Any], clock: "_Clock") -> str:
    """Say one step in a line; figures that the environment does not give are left out."""
    step = f"step {metrics['step']:>{len(str(clock.steps))}}/{clock.steps}"
    if is_of_rows(metrics):
        return "  ".join([step, *row_step_parts(metrics)]) + clock.left_text()
    parts = [step, f"reward {_number(metrics['reward'])}"]
    parts += [f"{name} {metrics[name]:.2f}" for name in ("success", "valid") if metrics[name] is not None]
    if metrics["tokens_per_s"] is not None:
        parts.append(f"{metrics['tokens_per_s']:.0f} tokens/s")
    parts += [f"{metrics[name]} {name}" for name in ("failed", "truncated") if metrics[name]]
    if metrics["skipped"]:
        parts.append("nothing to learn from")
    return "  ".join(parts) + clock.left_text()


class _Clock:
    """Knows how long the steps that are left will take, from those of this attempt."""

    def __init__(self) -> None:
        self.steps = 0
        self._done = self._first = 0
        self._began = 0.0

    def start(self, done: int, steps: int) -> None:
        self.steps = steps
        self._first = self._done = done
        self._began = time.monotonic()

    def step(self, step: int) -> None:
        self._done = step

    def left_text(self) -> str:
        played, left = self._done - self._first, self.steps - self._done
        if not played or not left:
            return ""
        seconds = round((time.monotonic() - self._began) / played * left)
        return f"  {seconds // 60}:{seconds % 60:02d} left"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
