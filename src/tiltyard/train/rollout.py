"""The training loop over rollouts: evaluate, collect, learn, checkpoint, and a summary of what came of it."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

from tiltyard.errors import TiltyardError
from tiltyard.policies.base import Sampling
from tiltyard.rollout.collector import RolloutCollector
from tiltyard.train.batch import Batch, build_batch
from tiltyard.train.checkpoint import Weights, load_checkpoint, newest_checkpoint, save_checkpoint
from tiltyard.train.evaluate import as_success, score
from tiltyard.train.learner import Learner
from tiltyard.train.metrics import step_metrics
from tiltyard.train.observer import RunObserver
from tiltyard.train.plan import RunPlan
from tiltyard.train.recorder import TRAIN, Recorder
from tiltyard.train.run_folder import RunFolder

BEFORE, AFTER = "eval_before", "eval_after"


class SamplingPolicy(Protocol):
    """What the loop needs of the policy that plays (`tiltyard.policies.hf.HFPolicy`)."""

    sampling: Sampling

    def weights_changed(self) -> None:
        """Forget what was computed with the weights before."""
        ...


class SampledModel(Weights, Protocol):
    """What the loop needs of the model that learns (`tiltyard.models.trainable`)."""

    def sampling_weights(self) -> AbstractContextManager[Any]:
        """A context in which the weights are those to sample with."""
        ...


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run is made of. The run closes the collector.

    Attributes:
        collector: Plays; its `on_finished` is the recorder.
        policy: Samples for the collector.
        model: Holds the weights that learn.
        learner: Changes them; its `before_step` is `recorder.interrupts.hold`.
        recorder: Keeps every finished episode.
    """

    collector: RolloutCollector
    policy: SamplingPolicy
    model: SampledModel
    learner: Learner
    recorder: Recorder


def train_llm_rollout(parts: RunParts, plan: RunPlan, folder: RunFolder, observer: RunObserver) -> dict[str, Any]:
    """Train from where the folder stands to the last step; returns what `summary.json` has.

    The first Ctrl-C ends the run after what cannot be left half done: the step whose weights are changing is
    finished, any other is dropped, and the last finished step is checkpointed. The summary then says `interrupted`.
    The second one ends the process at once.

    Raises:
        CheckpointError: The folder's checkpoint does not fit these parts.
        GroupMismatchError: The environment is not reproducible from its task.
        NonFiniteError: A loss or gradient was not finite.

    An error of ours leaves a checkpoint of the last finished step, where the weights are still those of it.
    """
    run = _Run(parts, plan, folder, observer)
    with parts.recorder.interrupts:
        with run.whole():
            interrupted = run.play()
        return run.close(interrupted=interrupted)


class _Run:
    """The state of one run while it goes on."""

    def __init__(self, parts: RunParts, plan: RunPlan, folder: RunFolder, observer: RunObserver) -> None:
        self.parts, self.plan, self.folder, self.observer = parts, plan, folder, observer
        self.recorder = parts.recorder
        self.evaluations: dict[str, Any] = {}
        self.done = self.saved = 0
        self._began = perf_counter()
        self._seconds_before = 0.0
        self._position = parts.collector.state_dict()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Close the environments at the end, however it ends."""
        try:
            yield
        finally:
            self.observer.run_finished()
            try:
                self.parts.collector.close()
            except ExceptionGroup as group:
                # They are counted as leaked; the run is worth keeping all the same.
                reasons = "; ".join(str(error) for error in group.exceptions)
                warnings.warn(f"{len(group.exceptions)} environments failed to close: {reasons}", stacklevel=2)

    def play(self) -> bool:
        """Go on to the end; True when Ctrl-C ended it before."""
        try:
            self._restore()
            self.observer.run_started(self.folder.path, done=self.done, steps=self.plan.steps)
            self._play_on()
        except KeyboardInterrupt:
            self._checkpoint()
            return True
        except TiltyardError:
            if not self.recorder.interrupts.holding:  # the weights are still those of the last finished step
                self._checkpoint()
            raise
        return False

    def close(self, *, interrupted: bool) -> dict[str, Any]:
        """Write the summary, once the environments are closed."""
        recorder, collector = self.recorder, self.parts.collector
        summary = {
            "folder": str(self.folder.path),
            "steps": self.plan.steps,
            "steps_done": self.done,
            "optimiser_steps": self.parts.learner.step,
            "interrupted": interrupted,
            "attempts": self.folder.attempt + 1,
            "seconds": self._seconds(),
            "eval_before": self.evaluations.get(BEFORE),
            "eval_after": self.evaluations.get(AFTER),
            "evaluations": {k: v for k, v in self.evaluations.items() if k not in (BEFORE, AFTER)},
            **asdict(recorder.totals),
            "replaced_environments": collector.replaced,
            "leaked": collector.leaked,
            "ledger": recorder.ledger.as_dict(),
        }
        self._keep()
        self.folder.write_summary(summary)
        return summary

    def evaluate(self, phase: str) -> None:
        """Play the held-out tasks and keep what they amount to under this name."""
        plan, parts = self.plan.evaluation, self.parts
        self.recorder.begin(phase, self.done, len(plan.tasks))
        began = perf_counter()
        with parts.model.sampling_weights(), _sampling(parts.policy, plan.sampling):
            trajectories = parts.collector.evaluate(plan.tasks)
        known = self.recorder.success_known
        played = score(trajectories, self.plan.max_reward, success_known=known).as_dict()
        result = {**played, "step": self.done, "temperature": plan.sampling.temperature}
        self.evaluations[phase] = {**result, "seconds": perf_counter() - began}
        if known:
            self.evaluations = {name: as_success(result) for name, result in self.evaluations.items()}
        self._position = parts.collector.state_dict()
        self._keep()
        self.observer.evaluated(phase, self.evaluations[phase])

    def _play_on(self) -> None:
        plan = self.plan
        evaluation = plan.evaluation
        if evaluation.tasks and evaluation.before and not self.done and BEFORE not in self.evaluations:
            self.evaluate(BEFORE)
        while True:
            if evaluation.due(self.done, plan.steps) and f"eval_{self.done}" not in self.evaluations:
                self.evaluate(f"eval_{self.done}")
            if self.done >= plan.steps:
                break
            self._step()
            if plan.save_every and self.done % plan.save_every == 0:
                self._checkpoint()
        self._checkpoint()
        if evaluation.tasks and evaluation.after and self.evaluations.get(AFTER, {}).get("step") != self.done:
            self.evaluate(AFTER)

    def _step(self) -> None:
        parts, began = self.parts, perf_counter()
        size = parts.collector.batch_size * parts.collector.group_size
        self.recorder.begin(TRAIN, self.done + 1, size)
        with parts.model.sampling_weights():
            groups = parts.collector.collect()
        played = perf_counter()
        batch = build_batch(groups, parts.learner.algorithm, truncated=self.plan.truncated)
        update = parts.learner.update(batch)
        # From the first change of the weights to here Ctrl-C waits, so that weights, position and metrics agree.
        parts.recorder.interrupts.hold()
        parts.policy.weights_changed()
        self.recorder.compare(update)
        now = perf_counter()
        seconds = {"rollout": played - began, "update": now - played, "step": now - began}
        self.done += 1
        self._position = parts.collector.state_dict()
        episodes = step_metrics(
            [member for group in groups for member in group.members],
            max_reward=self.plan.max_reward,
            seconds=seconds,
            success_known=self.recorder.success_known,
        )
        metrics = _line(self.done, episodes, batch, asdict(update))
        self.folder.write_metrics(metrics)
        self._keep()
        self.observer.step_finished(metrics)
        parts.recorder.interrupts.release()

    def _checkpoint(self) -> None:
        """Save the last finished step, unless it is saved already or there is none."""
        if self.done == self.saved:
            return
        save_checkpoint(
            self.folder.checkpoints,
            self.done,
            model=self.parts.model,
            learner=self.parts.learner,
            position=self._position,
            keep=self.plan.keep_checkpoints,
        )
        self.saved = self.done

    def _restore(self) -> None:
        """Go on from the folder's newest checkpoint; without one, from the beginning with the same tasks."""
        kept = self.folder.read_state()
        self.recorder.load_state(kept)
        self._seconds_before = kept.get("seconds", 0.0)
        self.evaluations = dict(kept.get("evaluations", {}))
        newest = newest_checkpoint(self.folder.checkpoints)
        if newest is not None:
            checkpoint = load_checkpoint(newest, model=self.parts.model, learner=self.parts.learner)
            self.done = self.saved = checkpoint.step
            self._position = checkpoint.position
            self.parts.policy.weights_changed()
        # An evaluation since then is kept and not played again: the next one is another, with samples of its own.
        evaluations = max(self._position["evaluations"], len(self.evaluations))
        self._position = {**self._position, "evaluations": evaluations}
        self.parts.collector.load_state_dict(self._position)

    def _keep(self) -> None:
        """Keep what a resumed run cannot read from the checkpoint."""
        self.folder.write_state(**self.recorder.state(), seconds=self._seconds(), evaluations=self.evaluations)

    def _seconds(self) -> float:
        return self._seconds_before + perf_counter() - self._began


def _line(step: int, episodes: Mapping[str, Any], batch: Batch, update: dict[str, Any]) -> dict[str, Any]:
    """One line of `metrics.jsonl`."""
    counts = batch.counts
    return {
        "step": step,
        "optimiser_step": update.pop("step"),
        **episodes,
        "groups": counts.groups,
        "zero_variance_groups": counts.zero_variance_groups,
        "small_groups": counts.small_groups,
        "unscored_turns": counts.unscored_turns,
        "unscored_episodes": counts.unscored,
        "truncated_policy": counts.truncated_policy,
        "granularity": batch.granularity,
        **update,
    }


@contextmanager
def _sampling(policy: SamplingPolicy, sampling: Sampling) -> Iterator[None]:
    """Let the policy sample from another distribution for a while."""
    before = policy.sampling
    policy.sampling = sampling
    try:
        yield
    finally:
        policy.sampling = before
