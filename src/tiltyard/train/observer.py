"""What is told how a run goes: the progress in a terminal, or a test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class RunObserver(Protocol):
    """Is told how a run goes, from the thread that runs it."""

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """The run begins, with `done` of its `steps` done by an earlier attempt."""
        ...

    def phase_started(self, phase: str, episodes: int) -> None:
        """So many episodes are about to be played for "train", "eval_before", "eval_after" or "eval_<step>"."""
        ...

    def episode_finished(self) -> None:
        """One of them is finished."""
        ...

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """An evaluation is over; `score` is what `summary.json` has of it."""
        ...

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """A step is over; `metrics` is its line of `metrics.jsonl`."""
        ...

    def run_finished(self) -> None:
        """The run is over, whole or not; no call follows."""
        ...


class SilentObserver:
    """Says nothing."""

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """Say nothing."""

    def phase_started(self, phase: str, episodes: int) -> None:
        """Say nothing."""

    def episode_finished(self) -> None:
        """Say nothing."""

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """Say nothing."""

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Say nothing."""

    def run_finished(self) -> None:
        """Say nothing."""
