"""What is told how a run goes: the progress in a terminal, or a test."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class RunObserver(Protocol):
    """Is told how a run goes, from the thread that runs it; of an asynchronous run see `OneAtATime`."""

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


class Observers:
    """Several observers, told one after the other in their order."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.run_started(folder, done=done, steps=steps)

    def phase_started(self, phase: str, episodes: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.phase_started(phase, episodes)

    def episode_finished(self) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.episode_finished()

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.evaluated(phase, score)

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.step_finished(metrics)

    def run_finished(self) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.run_finished()


class OneAtATime:
    """Tells an observer from several threads, one call after the other, and nothing once the run is over."""

    def __init__(self, observer: RunObserver) -> None:
        self._observer = observer
        self._telling = threading.RLock()
        self._over = False

    def run_started(self, folder: Path, *, done: int, steps: int) -> None:
        """Tell it."""
        with self._telling:
            self._observer.run_started(folder, done=done, steps=steps)

    def phase_started(self, phase: str, episodes: int) -> None:
        """Tell it."""
        with self._telling:
            self._observer.phase_started(phase, episodes)

    def episode_finished(self) -> None:
        """Tell it."""
        with self._telling:
            if not self._over:
                self._observer.episode_finished()

    def evaluated(self, phase: str, score: Mapping[str, Any]) -> None:
        """Tell it."""
        with self._telling:
            self._observer.evaluated(phase, score)

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """Tell it."""
        with self._telling:
            self._observer.step_finished(metrics)

    def run_finished(self) -> None:
        """Tell it, and nothing more."""
        with self._telling:
            self._over = True
            self._observer.run_finished()


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
