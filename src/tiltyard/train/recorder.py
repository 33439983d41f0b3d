"""Keeps every finished episode of a run the moment it is finished, and watches the tokens on their way."""

from __future__ import annotations  # the update's figures are named without importing torch

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.errors import CheckpointError
from tiltyard.policies.base import Sampled, TokenPolicy, TokenRequest
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.train.interrupt import Interrupts
from tiltyard.train.metrics import Totals
from tiltyard.train.observer import RunObserver
from tiltyard.train.run_folder import RunFolder

if TYPE_CHECKING:
    from tiltyard.train.update_metrics import UpdateMetrics

TRAIN = "train"
"""The phase of the episodes that are trained on."""


class Recorder:
    """Called with each finished episode: writes it down, counts it, and tells the observer.

    Episodes are played for one thing at a time (`begin`), on whatever thread; another may ask what was counted.

    Attributes:
        phase: What the episodes are played for: "train" or the name of an evaluation.
        step: The step that they are played for, from 1; in an evaluation, how many steps were done before it.
        totals: What was counted so far.
        ledger: What the tokens of all episodes say.
        success_known: The environment spoke of success in some episode, of training or evaluation.
        interrupts: Keep Ctrl-C from losing an episode that is finished and not yet written.
    """

    def __init__(self, folder: RunFolder, observer: RunObserver, interrupts: Interrupts) -> None:
        self.phase = TRAIN
        self.step = 0
        self.totals = Totals()
        self.ledger = Ledger()
        self.success_known = False
        self.interrupts = interrupts
        self._folder = folder
        self._observer = observer
        self._counting = threading.RLock()  # what is counted is what is written, whichever thread looks

    def begin(self, phase: str, step: int, episodes: int, *, finished: int = 0) -> None:
        """Say what the episodes that follow are played for, how many there will be, and how many are there already."""
        self.phase, self.step = phase, step
        self._observer.phase_started(phase, episodes)
        for _ in range(finished):
            self._observer.episode_finished()

    def __call__(self, trajectory: Trajectory) -> None:
        """Keep one finished episode; where another process writes the folder, leave it to that one."""
        if not self._folder.writes:
            return
        with self.interrupts.held(), self._counting:
            # An episode's id is its group's key and its place in the group (`RolloutCollector.collect`).
            group = trajectory.episode_id.rpartition("-")[0] if self.phase == TRAIN else None
            self._folder.write_trajectory(trajectory, phase=self.phase, step=self.step, group=group)
            self.count(trajectory)
        self._observer.episode_finished()

    def count(self, trajectory: Trajectory) -> None:
        """Count one finished episode that is written down."""
        self.totals.add(trajectory)
        self.success_known |= trajectory.success is not None
        if trajectory.transcript is not None:
            self.ledger.observe(trajectory.transcript)

    def watched(self, counted: Ledger) -> None:
        """Count what a `WatchedPolicy` saw."""
        with self._counting:
            self.ledger += counted

    def hand_over(self) -> Ledger:
        """What a `WatchedPolicy` counted here since the last time, for the process that writes; nothing of its own."""
        if self._folder.writes:
            return Ledger()
        watched, self.ledger = self.ledger, Ledger()
        return watched

    def take_over(self, trajectories: Sequence[Trajectory], watched: Ledger) -> None:
        """Keep what another process played and counted, where this one writes."""
        if self._folder.writes:
            self.ledger += watched
            for trajectory in trajectories:
                self(trajectory)

    def compare(self, update: UpdateMetrics) -> None:
        """Count how far sampler and trainer were apart in one update: the same in every process, so counted in one."""
        if not self._folder.writes:
            return
        mean, most = update.sampler_difference_mean, update.sampler_difference_max
        if mean is not None and most is not None:
            count = update.tokens_compared
            with self._counting:
                self.ledger += Ledger(compared=count, difference_sum=mean * count, difference_max=most)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run counts on from."""
        with self._counting:
            return {"totals": asdict(self.totals), "ledger": asdict(self.ledger), "success_known": self.success_known}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Count on from there; an empty state is that of a new run.

        Raises:
            CheckpointError: It is not such a state.
        """
        try:
            self.totals = Totals(**state.get("totals", {}))
            self.success_known = state.get("success_known", False)
            # JSON has no infinity, which is how far apart a missing number is.
            kept: dict[str, Any] = {k: math.inf if v is None else v for k, v in state.get("ledger", {}).items()}
            self.ledger = Ledger(**kept)
        except (TypeError, AttributeError) as error:
            raise CheckpointError(
                f"run.json is not that of a run of this version ({error}); delete it to go on from the last checkpoint "
                "without what it counted"
            ) from error


class Watches(Protocol):
    """Is told what a `WatchedPolicy` saw."""

    def watched(self, counted: Ledger) -> None:
        """Count it."""
        ...


class WatchedPolicy:
    """A policy whose prompts are compared with what was seen and sampled before, for the ledger."""

    def __init__(self, policy: TokenPolicy, watching: Watches) -> None:
        self._policy = policy
        self._watching = watching
        self._seen: dict[str, list[int]] = {}

    @property
    def context_length(self) -> int | None:
        """That of the policy."""
        return self._policy.context_length

    def sample(self, requests: Sequence[TokenRequest]) -> list[Sampled]:
        """Continue each sequence."""
        samples = self._policy.sample(requests)
        counted = Ledger()
        for request, sampled in zip(requests, samples, strict=True):
            if request.replay:
                continue
            if (seen := self._seen.get(request.key)) is not None:
                counted.prompted(seen, request.ids)
            self._seen[request.key] = [*request.ids, *sampled.ids]
        self._watching.watched(counted)
        return samples

    def release(self, keys: Sequence[str]) -> None:
        """Forget these episodes."""
        for key in keys:
            self._seen.pop(key, None)
        self._policy.release(keys)
