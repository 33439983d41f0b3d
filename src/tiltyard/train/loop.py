"""The loop of every training run: evaluate, step, checkpoint, go on after an interrupt, and sum up."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from tiltyard.errors import TiltyardError
from tiltyard.train.best import Best, best_of
from tiltyard.train.checkpoint import (
    Stateful,
    Weights,
    best_checkpoint,
    load_checkpoint,
    mark_best,
    newest_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
    saved_steps,
    step_of,
)
from tiltyard.train.interrupt import Interrupts
from tiltyard.train.observer import RunObserver
from tiltyard.train.plan import Schedule
from tiltyard.train.run_folder import RunFolder

BEFORE, AFTER = "eval_before", "eval_after"


class Counting(Stateful, Protocol):
    """A learner: what holds the optimiser, and counts its steps."""

    @property
    def step(self) -> int:
        """Optimiser steps so far."""
        ...


class Work(Protocol):
    """What a run repeats: over rollouts (`rollout.RolloutWork`), or over a dataset.

    Attributes:
        interrupts: Hold Ctrl-C from the first change of the weights; the learner's `before_step` is their `hold`.
    """

    interrupts: Interrupts

    @property
    def model(self) -> Weights:
        """What holds the weights that learn."""
        ...

    @property
    def learner(self) -> Counting:
        """What changes them."""
        ...

    def step(self, number: int) -> dict[str, Any]:
        """Do a step, counted from 1; returns its figures. It may be dropped until `interrupts` hold."""
        ...

    def evaluate(self, phase: str, step: int) -> dict[str, Any]:
        """Evaluate the weights after so many steps: `metric` and its `mean`, and whatever else is known."""
        ...

    def comparable(self, evaluations: Mapping[str, Any]) -> dict[str, Any]:
        """All evaluations so far as results of one metric."""
        ...

    def position(self) -> dict[str, Any]:
        """Where the data stands after the last step or evaluation that was finished; JSON can hold it."""
        ...

    def go_to(self, position: Mapping[str, Any], *, evaluations: int) -> None:
        """Stand there, with at least so many evaluations behind."""
        ...

    def state(self) -> dict[str, Any]:
        """What was counted so far."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Count on from there; an empty state is that of a new run."""
        ...

    def begin(self, step: int) -> None:
        """The run goes on after so many steps, with the weights that it had then."""
        ...

    def summary(self) -> dict[str, Any]:
        """What `summary.json` has beside what the loop knows, once all is closed."""
        ...

    def close(self) -> None:
        """Close what the work holds; called once.

        Raises:
            ExceptionGroup: Some of it failed to close.
        """
        ...


def run(work: Work, schedule: Schedule, folder: RunFolder, observer: RunObserver) -> dict[str, Any]:
    """Go on from where the folder stands to the last step; returns what `summary.json` has.

    The first Ctrl-C ends the run after what cannot be left half done: the step whose weights are changing is
    finished, any other is dropped, and the last finished step is checkpointed. The summary then says `interrupted`.
    The second one ends the process at once. An error of ours leaves a checkpoint of the last finished step too,
    where the weights are still those of it.

    Raises:
        CheckpointError: The folder's checkpoint does not fit the work.
        TiltyardError: The work failed.
    """
    loop = _Loop(work, schedule, folder, observer)
    with work.interrupts:
        with loop.whole():
            interrupted = loop.play()
        return loop.close(interrupted=interrupted)


class _Loop:
    """The state of one run while it goes on."""

    def __init__(self, work: Work, schedule: Schedule, folder: RunFolder, observer: RunObserver) -> None:
        self.work, self.schedule, self.folder, self.observer = work, schedule, folder, observer
        self.evaluations: dict[str, Any] = {}
        self.done = 0
        self._began = perf_counter()
        self._seconds_before = 0.0

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Close everything at the end, however it ends."""
        try:
            yield
        finally:
            self.observer.run_finished()
            try:
                self.work.close()
            except ExceptionGroup as group:
                # They are counted as leaked; the run is worth keeping all the same.
                reasons = "; ".join(str(error) for error in group.exceptions)
                warnings.warn(f"{len(group.exceptions)} environments failed to close: {reasons}", stacklevel=2)

    def play(self) -> bool:
        """Go on to the end; True when Ctrl-C ended it before."""
        try:
            self._restore()
            self.observer.run_started(self.folder.path, done=self.done, steps=self.schedule.steps)
            self._play_on()
        except KeyboardInterrupt:
            self._checkpoint()
            return True
        except TiltyardError:
            if not self.work.interrupts.holding:  # the weights are still those of the last finished step
                self._checkpoint()
            raise
        return False

    def close(self, *, interrupted: bool) -> dict[str, Any]:
        """Write the summary, once everything is closed."""
        best = self._best()
        summary = {
            "folder": str(self.folder.path),
            "steps": self.schedule.steps,
            "steps_done": self.done,
            "optimiser_steps": self.work.learner.step,
            "interrupted": interrupted,
            "attempts": self.folder.attempt + 1,
            "seconds": self._seconds(),
            "eval_before": self.evaluations.get(BEFORE),
            "eval_after": self.evaluations.get(AFTER),
            "evaluations": {k: v for k, v in self.evaluations.items() if k not in (BEFORE, AFTER)},
            "best": None if best is None else best.as_dict(),
            **self.work.summary(),
        }
        self._keep()
        self.folder.write_summary(summary)
        return summary

    def _play_on(self) -> None:
        schedule = self.schedule
        if schedule.evaluates and schedule.eval_before and not self.done and BEFORE not in self.evaluations:
            self._evaluate(BEFORE)
        while True:
            if schedule.due(self.done):
                self._evaluate_once(f"eval_{self.done}")
            if self.done >= schedule.steps:
                break
            self._step()
            if schedule.save_every and self.done % schedule.save_every == 0:
                self._checkpoint()
        self._checkpoint()
        if schedule.evaluates and schedule.eval_after:
            if self.evaluations.get(AFTER, {}).get("step") != self.done:
                self._evaluate(AFTER)
            self._keep_best()

    def _step(self) -> None:
        figures = self.work.step(self.done + 1)
        # From the first change of the weights to here Ctrl-C waits, so that weights, position and metrics agree.
        self.work.interrupts.hold()
        self.done += 1
        metrics = {"step": self.done, **figures}
        self.folder.write_metrics(metrics)
        self._keep()
        self.observer.step_finished(metrics)
        self.work.interrupts.release()

    def _evaluate(self, phase: str) -> None:
        """Evaluate, keep what came out under this name, and keep the weights when none were better."""
        began = perf_counter()
        result = {**self.work.evaluate(phase, self.done), "step": self.done}
        self.evaluations = self.work.comparable(
            {**self.evaluations, phase: {**result, "seconds": perf_counter() - began}}
        )
        self._keep()
        self._keep_best()
        self.observer.evaluated(phase, self.evaluations[phase])

    def _evaluate_once(self, phase: str) -> None:
        """Evaluate, unless an earlier attempt did: its result stands, and the weights are the same again."""
        if phase in self.evaluations:
            self._keep_best()
        else:
            self._evaluate(phase)

    def _keep_best(self) -> None:
        if not self.folder.writes:
            return
        best, marked = self._best(), best_checkpoint(self.folder.checkpoints)
        if best is None or (marked is not None and step_of(marked) == best.step):
            return
        with self.work.interrupts.held():
            self._checkpoint()
            mark_best(self.folder.checkpoints, best.as_dict())
            remove_old_checkpoints(self.folder.checkpoints, self.schedule.keep_checkpoints)

    def _best(self) -> Best | None:
        """The best evaluation whose weights are there still: on the disk, or those of now."""
        return best_of(self.evaluations, {*saved_steps(self.folder.checkpoints), self.done})

    def _checkpoint(self) -> None:
        """Save the last finished step, unless it is saved already or there is none."""
        if not self.folder.writes or not self.done or self.done in saved_steps(self.folder.checkpoints):
            return
        save_checkpoint(
            self.folder.checkpoints,
            self.done,
            model=self.work.model,
            learner=self.work.learner,
            position=self.work.position(),
            keep=self.schedule.keep_checkpoints,
        )

    def _restore(self) -> None:
        """Go on from the folder's newest checkpoint; without one, from the beginning with the same tasks."""
        kept = self.folder.read_state()
        self.work.load_state(kept)
        self._seconds_before = kept.get("seconds", 0.0)
        self.evaluations = dict(kept.get("evaluations", {}))
        newest, position = newest_checkpoint(self.folder.checkpoints), self.work.position()
        if newest is not None:
            checkpoint = load_checkpoint(newest, model=self.work.model, learner=self.work.learner)
            self.done, position = checkpoint.step, checkpoint.position
        self.work.go_to(position, evaluations=len(self.evaluations))
        self.work.begin(self.done)

    def _keep(self) -> None:
        """Keep what a resumed run cannot read from the checkpoint."""
        self.folder.write_state(**self.work.state(), seconds=self._seconds(), evaluations=self.evaluations)

    def _seconds(self) -> float:
        return self._seconds_before + perf_counter() - self._began
