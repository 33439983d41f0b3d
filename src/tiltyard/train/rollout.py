"""Training over rollouts: a step is a batch of groups collected, learned from, and published to the sampler."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from torch import Tensor

from tiltyard.models.beside import BesideModel
from tiltyard.policies.base import Sampling
from tiltyard.rollout.collector import RolloutCollector
from tiltyard.rollout.groups import Group
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.batch import Batch, build_batch
from tiltyard.train.checkpoint import Weights
from tiltyard.train.earlier import Earlier, read_earlier
from tiltyard.train.evaluate import as_success, score
from tiltyard.train.exchange import all_groups, all_trajectories
from tiltyard.train.interrupt import Interrupts
from tiltyard.train.learner import Learner
from tiltyard.train.loop import Counting, run
from tiltyard.train.metrics import learned_figures, step_metrics
from tiltyard.train.observer import RunObserver
from tiltyard.train.plan import RunPlan
from tiltyard.train.processes import ALONE, Processes, in_all
from tiltyard.train.recorder import TRAIN, Recorder
from tiltyard.train.resampling import filled, shortage
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.staleness import fresh_enough, staleness
from tiltyard.train.update_metrics import UpdateMetrics


class SamplingPolicy(Protocol):
    """What the loop needs of the policy that plays (`tiltyard.policies.hf.HFPolicy`)."""

    sampling: Sampling
    version: int | None

    def weights_changed(self) -> None:
        """Forget what was computed before."""
        ...

    def interrupt(self) -> None:
        """From another thread: end the call that goes on, and each later one."""
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
        processes: Those that train together: each collects its share of a batch, and learns from all of it.
        beside: Holds the weights to sample with, in an asynchronous run; None samples with the model that learns.
    """

    collector: RolloutCollector
    policy: SamplingPolicy
    model: SampledModel
    learner: Learner
    recorder: Recorder
    processes: Processes = ALONE
    beside: BesideModel | None = None

    @property
    def sampled(self) -> SampledModel:
        """The model that the policy samples from."""
        return self.model if self.beside is None else self.beside.trainable


@dataclass(frozen=True, slots=True)
class Collected:
    """A batch that was played.

    Attributes:
        groups: Its groups.
        position: Where the tasks stood after it.
        seconds: How long it took.
    """

    groups: list[Group]
    position: dict[str, Any]
    seconds: float


def run_rollouts(parts: RunParts, plan: RunPlan, folder: RunFolder, observer: RunObserver) -> dict[str, Any]:
    """Train from where the folder stands to the last step; returns what `summary.json` has. See `loop.run`.

    Raises:
        CheckpointError: The folder's checkpoint does not fit these parts.
        GroupMismatchError: The environment is not reproducible from its task.
        NonFiniteError: A loss or gradient was not finite.
    """
    return run(RolloutWork(parts, plan, folder), plan.schedule, folder, observer)


class RolloutWork:
    """What a run over rollouts repeats (`loop.Work`).

    Attributes:
        parts: What the run is made of.
        plan: What it does beside its steps.
        interrupts: Those of the recorder.
    """

    def __init__(self, parts: RunParts, plan: RunPlan, folder: RunFolder) -> None:
        self.parts = parts
        self.plan = plan
        self.interrupts: Interrupts = parts.recorder.interrupts
        self._folder = folder
        self._earlier = Earlier()
        self._evaluated: set[str] = set()
        self._told_short = False
        self._position = parts.collector.state_dict()

    @property
    def model(self) -> SampledModel:
        """What holds the weights that learn."""
        return self.parts.model

    @property
    def learner(self) -> Counting:
        """What changes them."""
        return self.parts.learner

    def step(self, number: int) -> dict[str, Any]:
        """Collect a batch, learn from it, and let the sampler have the weights."""
        began = perf_counter()
        collected = self.collect(number)
        played = perf_counter()
        members = [member for group in collected.groups for member in group.members]
        aged = staleness(members, number - 1)
        batch, update = self.learn(collected.groups)
        self.interrupts.hold()
        self._tell_short(number, batch)
        if not aged.max:  # otherwise it was sampled with other weights, and how far they are apart is no fault
            self.parts.recorder.compare(update)
        now = perf_counter()
        self._position = {**collected.position, "evaluations": self.parts.collector.evaluations}
        episodes = step_metrics(
            members,
            max_reward=self.plan.max_reward,
            seconds={"rollout": collected.seconds, "update": now - played, "step": now - began},
            success_known=self.parts.recorder.success_known,
        )
        resampled = len(collected.groups) - self._wanted
        return learned_figures(episodes, aged, batch, resampled, asdict(update))

    def collect(self, number: int) -> Collected:
        """Play the groups of a step, with the weights of now."""
        recorded = self.prepare(number)
        self.publish(number - 1)
        return self.play(recorded)

    def prepare(self, number: int) -> Mapping[str, Trajectory]:
        """Say that a step is played next; returns what an earlier attempt finished of it."""
        recorded = fresh_enough(self._earlier.take(TRAIN, number), number - 1)
        self._say_played(number, self._wanted, recorded)
        return recorded

    def play(self, recorded: Mapping[str, Trajectory]) -> Collected:
        """Play the groups that come next, but for the episodes that are recorded."""
        began, parts = perf_counter(), self.parts
        with parts.sampled.sampling_weights():
            groups = self._play_groups(recorded)
            more = partial(self._play_more, recorded)
            groups = filled(groups, more, parts.learner.algorithm, truncated=self.plan.truncated)
        return Collected(groups, parts.collector.state_dict(), perf_counter() - began)

    def learn(self, groups: Sequence[Group]) -> tuple[Batch, UpdateMetrics]:
        """Change the weights by what the groups teach; from the first change on, Ctrl-C waits."""
        learner = self.parts.learner
        batch = build_batch(groups, learner.algorithm, truncated=self.plan.truncated)
        return batch, learner.update(batch)

    def publish(self, trained: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Let the sampler have the weights of now, or these, which have learned from so many steps; nothing plays."""
        if self.parts.beside is not None:
            self.parts.beside.refresh(weights)
        self.parts.policy.version = trained
        self.parts.policy.weights_changed()  # nor may what an evaluation left change how a batch is computed

    def evaluate(self, phase: str, step: int) -> dict[str, Any]:
        """Play the held-out tasks."""
        plan, parts = self.plan, self.parts
        recorded = self._earlier.take(phase, step)
        parts.recorder.begin(phase, step, len(plan.tasks), finished=len(recorded))
        self.publish(step)
        with parts.sampled.sampling_weights(), _sampling(parts.policy, plan.eval_sampling):
            trajectories = in_all(lambda: parts.collector.evaluate(plan.tasks, recorded), parts.processes)
        if parts.processes.count > 1:
            trajectories = all_trajectories(trajectories, parts.recorder, parts.processes)
        self._position = {**self._position, "evaluations": parts.collector.evaluations}
        played = score(trajectories, plan.max_reward, success_known=parts.recorder.success_known)
        return {**played.as_dict(), "temperature": plan.eval_sampling.temperature}

    def comparable(self, evaluations: Mapping[str, Any]) -> dict[str, Any]:
        """Once the environment has spoken of success, an evaluation that saw none of it had no success."""
        if not self.parts.recorder.success_known:
            return dict(evaluations)
        return {name: as_success(result) for name, result in evaluations.items()}

    def position(self) -> dict[str, Any]:
        """Where the tasks stood after the last step or evaluation that was finished."""
        return self._position

    def go_to(self, position: Mapping[str, Any], *, evaluations: int) -> None:
        """Stand there. The next evaluation has samples of its own, also where the position is older than the last."""
        self._position = {**position, "evaluations": max(position["evaluations"], evaluations)}
        self.parts.collector.load_state_dict(self._position)

    def state(self) -> dict[str, Any]:
        """What was counted."""
        return self.parts.recorder.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        self.parts.recorder.load_state(state)
        self._evaluated = set(state.get("evaluations", {}))

    def begin(self, step: int) -> None:
        """Take over what earlier attempts played for the steps after this one."""
        self._earlier = read_earlier(self._folder, self.parts.recorder, done=step, evaluated=self._evaluated)
        self.parts.processes.gather(None)  # all have read the folder before one writes to it

    def summary(self) -> dict[str, Any]:
        """What was counted, and what became of the environments."""
        recorder, (replaced, leaked) = self.parts.recorder, self._leases()
        return {
            **asdict(recorder.totals),
            "replaced_environments": replaced,
            "leaked": leaked,
            "ledger": recorder.ledger.as_dict(),
        }

    def close(self) -> None:
        """Close the environments.

        Raises:
            ExceptionGroup: Some raised; the others are closed all the same.
        """
        self.parts.collector.close()

    @property
    def _wanted(self) -> int:
        """The groups of a batch, those of all processes together."""
        return self.parts.collector.batch_size * self.parts.processes.count

    def _say_played(self, number: int, groups: int, recorded: Mapping[str, Trajectory]) -> None:
        """Say that so many groups are played next for a step."""
        collector = self.parts.collector
        episodes = groups * collector.group_size
        self.parts.recorder.begin(TRAIN, number, episodes, finished=collector.of_next(recorded))

    def _play_groups(self, recorded: Mapping[str, Trajectory], count: int | None = None) -> list[Group]:
        """Play so many groups, those of all processes together; None plays a whole batch."""
        parts = self.parts
        groups = in_all(lambda: parts.collector.collect(recorded, groups=count), parts.processes)
        return groups if parts.processes.count == 1 else all_groups(groups, parts.recorder, parts.processes)

    def _play_more(self, recorded: Mapping[str, Trajectory], count: int) -> list[Group]:
        """Play so many further groups for the step that is being played."""
        self._say_played(self.parts.recorder.step, count, recorded)
        return self._play_groups(recorded, count)

    def _tell_short(self, number: int, batch: Batch) -> None:
        """Say once that a batch is not full although other groups were sampled."""
        text = shortage(batch, self._wanted, self.parts.learner.algorithm)
        if text and not self._told_short and self._folder.writes:
            self._told_short = True
            warnings.warn(f"step {number} {text}", stacklevel=2)

    def _leases(self) -> tuple[int, int]:
        """How many environments were replaced, and how many leaked, in all processes; in this one after Ctrl-C."""
        mine = (self.parts.collector.replaced, self.parts.collector.leaked)
        if self.parts.processes.count == 1 or self.interrupts.seen:  # the others may have stopped elsewhere
            return mine
        replaced, leaked = zip(*self.parts.processes.gather(mine), strict=True)
        return sum(replaced), sum(leaked)


@contextmanager
def _sampling(policy: SamplingPolicy, sampling: Sampling) -> Iterator[None]:
    """Let the policy sample from another distribution for a while."""
    before = policy.sampling
    policy.sampling = sampling
    try:
        yield
    finally:
        policy.sampling = before
