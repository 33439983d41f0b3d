"""Asynchronous training: the next batch is sampled on a thread of its own while the last one is learned from."""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor

from tiltyard._boundary import reason
from tiltyard.models.beside import BesideModel
from tiltyard.train.loop import Counting, run
from tiltyard.train.observer import RunObserver
from tiltyard.train.plan import RunPlan
from tiltyard.train.rollout import Collected, RolloutWork, RunParts
from tiltyard.train.run_folder import RunFolder

STOP_S = 30.0
"""How long the end of a run waits for the batch ahead, which stops after the pass of the model that it is in."""


def run_ahead(parts: RunParts, plan: RunPlan, folder: RunFolder, observer: RunObserver) -> dict[str, Any]:
    """Train as `run_rollouts` does, with the sampling of each batch beside the training on the one before it.

    Raises:
        TiltyardError: As `run_rollouts`.
    """
    return run(AheadWork(parts, plan, folder), plan.schedule, folder, observer)


class BatchAhead:
    """One batch that is collected on a thread of its own.

    Attributes:
        number: The step that it is for.
        error: What the collection raised, until `wait` has raised it; None otherwise.
    """

    def __init__(self, number: int, collect: Callable[[], Collected]) -> None:
        """Begin to collect."""
        self.number = number
        self.error: BaseException | None = None
        self._collected: Collected | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(collect,), name=f"tiltyard-step-{number}", daemon=True).start()

    def ended_within(self, seconds: float | None) -> bool:
        """Wait for the end, at most so long; Ctrl-C interrupts it."""
        return self._ended.wait(seconds)

    def wait(self) -> Collected:
        """What was collected, once it is; Ctrl-C interrupts the waiting and not the collection.

        Raises:
            BaseException: Whatever the collection raised.
        """
        self.ended_within(None)
        error, self.error = self.error, None
        if error is not None:
            raise error
        assert self._collected is not None, f"the batch of step {self.number} was waited for after its error"
        return self._collected

    def _run(self, collect: Callable[[], Collected]) -> None:
        try:
            self._collected = collect()
        except BaseException as error:  # noqa: BLE001  # carried to the thread that waits
            self.error = error
        finally:
            self._ended.set()


@dataclass(frozen=True, slots=True)
class Older:
    """Weights that are sampled with, and the number of steps that they have learned from."""

    version: int
    weights: Mapping[str, Tensor]


class LearnerWithSampler:
    """A learner whose state has the older weights, too, with which the batch after it is sampled.

    What is missing of that batch after an interrupt is then sampled with the same weights as the rest of it.

    Attributes:
        trained: How many steps the weights have learned from.
    """

    def __init__(self, parts: RunParts, beside: BesideModel) -> None:
        self.trained = 0
        self._parts = parts
        self._beside = beside
        self._older: Older | None = None

    @property
    def step(self) -> int:
        """Optimiser steps so far."""
        return self._parts.learner.step

    def take(self) -> Older | None:
        """The older weights of the state that was loaded, once; None where there are none."""
        older, self._older = self._older, None
        return older

    def state_dict(self) -> dict[str, Any]:
        """The learner's state, and the weights to sample with where those are one step older."""
        state = self._parts.learner.state_dict()
        if self._parts.policy.version != self.trained - 1:
            return state
        return {**state, "sampler": {"version": self.trained - 1, "weights": self._beside.trainable.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state.

        Raises:
            CheckpointError: It belongs to other parameters.
        """
        self._parts.learner.load_state_dict(state)
        self._older = Older(**state["sampler"]) if "sampler" in state else None


class AheadWork(RolloutWork):
    """What an asynchronous run repeats.

    While step n is learned from, the batch of step n + 1 is sampled with the weights that step n began with: those of a
    model beside the one that learns (`RunParts.beside`), which change between two batches and never under an episode.
    So a batch is one step old when it is trained on, but for the first one of a run. One collection goes on at a time,
    so that environments, sampler and recorder serve one step, as they do in other runs; evaluations wait for it, and
    have the weights of now.
    """

    def __init__(self, parts: RunParts, plan: RunPlan, folder: RunFolder) -> None:
        super().__init__(parts, plan, folder)
        assert parts.beside is not None, "an asynchronous run samples from a model of its own"
        self._ahead: BatchAhead | None = None
        self._with_sampler = LearnerWithSampler(parts, parts.beside)

    @property
    def learner(self) -> Counting:
        """What changes the weights; its state has those to go on sampling with."""
        return self._with_sampler

    def step(self, number: int) -> dict[str, Any]:
        """Learn from a batch while the next one is sampled; `seconds` has how long this one was waited for, too."""
        began = perf_counter()
        ahead = self._ahead or self._begin(number, number - 1)
        ahead.wait()
        waited = perf_counter() - began
        figures = super().step(number)
        self._with_sampler.trained = number
        return {**figures, "seconds": {**figures["seconds"], "wait": waited, "step": perf_counter() - began}}

    def collect(self, number: int) -> Collected:
        """The batch of a step, which is there; the next one is begun."""
        assert self._ahead is not None
        assert self._ahead.number == number, f"step {number} follows, and a batch of step {self._ahead.number} is there"
        collected = self._ahead.wait()
        self._ahead = None
        if number < self.plan.schedule.steps:
            self._begin(number + 1, number - 1)
        else:
            self.publish(
                number - 1
            )  # for a run that is given more steps, to go on as if it had had them from the start
        return collected

    def evaluate(self, phase: str, step: int) -> dict[str, Any]:
        """Play the held-out tasks with the weights of now, once the batch ahead is sampled; it is kept."""
        if self._ahead is not None:
            self._ahead.wait()
        return super().evaluate(phase, step)

    def begin(self, step: int) -> None:
        """Go on after so many steps."""
        self._with_sampler.trained = step
        super().begin(step)

    def close(self) -> None:
        """Stop the batch ahead, whose finished episodes are on the disk, and close the environments.

        Raises:
            ExceptionGroup: Some raised; the others are closed all the same.
        """
        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None:
                self._stop(ahead)
        finally:
            super().close()

    def _begin(self, number: int, trained: int) -> BatchAhead:
        recorded = self.prepare(number)
        if (older := self._with_sampler.take()) is None:
            self.publish(trained)
        else:
            self.publish(older.version, older.weights)
        self._ahead = BatchAhead(number, partial(self.play, recorded))
        return self._ahead

    def _stop(self, ahead: BatchAhead) -> None:
        self.parts.policy.interrupt()
        self.parts.collector.interrupt()
        if not ahead.ended_within(STOP_S):
            warnings.warn(f"the sampling for step {ahead.number} did not stop within {STOP_S:g} s", stacklevel=2)
        elif ahead.error is not None and not isinstance(ahead.error, KeyboardInterrupt):
            # The run ends for another reason, and would have ended for this one.
            warnings.warn(f"the sampling for step {ahead.number} failed: {reason(ahead.error)}", stacklevel=2)
