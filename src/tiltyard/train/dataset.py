"""Training on rows: SFT and preference losses in the loop of every run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from time import perf_counter
from typing import Any, Protocol, TypeVar

from tiltyard.errors import ConfigurationError
from tiltyard.rollout.tasks import TaskAssigner
from tiltyard.train.checkpoint import Weights
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.examples import Example, Pair
from tiltyard.train.interrupt import Interrupts
from tiltyard.train.learner import Trainable
from tiltyard.train.loop import run
from tiltyard.train.observer import RunObserver, SilentObserver
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.plan import Schedule
from tiltyard.train.preference_learner import PreferenceLearner
from tiltyard.train.processes import ALONE, Processes
from tiltyard.train.reference_cache import ReferenceCache
from tiltyard.train.row_learner import RowLearner
from tiltyard.train.row_scores import pair_means, preference_evaluation, sft_evaluation
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.sft_learner import SFTLearner
from tiltyard.train.supervised_algorithms import DPO, SFT


class TrainedModel(Trainable, Weights, Protocol):
    """What the run needs of the model that learns (`tiltyard.models.trainable`)."""


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """How a run over rows goes on.

    Attributes:
        schedule: How long, when it evaluates, and what it keeps.
        optimiser: How the optimiser steps.
        batch_size: Rows (pairs) of one optimiser step, whatever the number of forward passes that they need.
        eval_rows: How many held-out rows an evaluation has; None takes all.
        pack_tokens: The most tokens of one forward pass; None as in `RowLearner`.
        seed: What the order of the rows derives from.
        processes: Those that train together, each on its share of every step's rows.
    """

    schedule: Schedule
    optimiser: OptimiserSettings
    batch_size: int = 8
    eval_rows: int | None = None
    pack_tokens: int | None = None
    seed: int = 0
    processes: Processes = ALONE


def steps_of(epochs: float, rows: int, batch_size: int) -> int:
    """The optimiser steps that go through so many rows so often; a last batch is filled up from the next epoch."""
    return max(1, ceil(epochs * rows / batch_size))


def run_dataset(
    env: DatasetEnv,
    trainable: TrainedModel,
    algorithm: SFT | DPO,
    plan: DatasetPlan,
    folder: RunFolder,
    observer: RunObserver | None = None,
) -> dict[str, Any]:
    """Train on rows from where the folder stands to the last step; returns what `summary.json` has.

    Every row comes once an epoch, in an order that derives from the seed and the epoch. Ctrl-C, checkpoints,
    evaluations and resuming are those of `tiltyard.train.loop.run`.

    Raises:
        ConfigurationError: The algorithm is not for these rows, or a row is longer than the model's context.
        CheckpointError: The folder's checkpoint is of other rows, or does not fit the model.
        NonFiniteError: A loss or gradient was not finite.
    """
    if isinstance(algorithm, DPO) != (env.objective == "preference"):
        raise ConfigurationError(
            f"{type(algorithm).__name__} does not learn from rows for {env.objective!r}: SFT is for 'sft', DPO for "
            "'preference'"
        )
    if not env.held_out or plan.eval_rows == 0:
        plan = replace(plan, schedule=replace(plan.schedule, evaluates=False))
    interrupts = Interrupts()
    work: RowsWork = (
        PreferenceWork(env, trainable, algorithm, plan, interrupts, folder)
        if isinstance(algorithm, DPO)
        else SFTWork(env, trainable, algorithm, plan, interrupts)
    )
    return run(work, plan.schedule, folder, observer or SilentObserver())


class RowsWork:
    """What runs over rows have in common: which rows are next, and what the loop asks of its work.

    Attributes:
        learner: Changes the weights.
        model: Holds them.
        interrupts: Hold Ctrl-C while they change.
    """

    learner: RowLearner

    def __init__(self, env: DatasetEnv, model: TrainedModel, plan: DatasetPlan, interrupts: Interrupts) -> None:
        self.env, self.model, self.plan, self.interrupts = env, model, plan, interrupts
        self._assigner = TaskAssigner(
            len(env.train), plan.batch_size, seed=plan.seed, name=f"{env.name} {env.fingerprint}"
        )
        self._position = self._assigner.state_dict()
        rows = len(env.held_out) if plan.eval_rows is None else plan.eval_rows
        if rows > len(env.held_out):
            raise ConfigurationError(f"{rows} rows are to be evaluated, but {len(env.held_out)} are held out")
        self._held_out = range(rows)

    def step(self, number: int) -> dict[str, Any]:
        """Learn the next batch of rows."""
        del number
        began, epoch = perf_counter(), self._assigner.epoch
        indices = [task.row_index for task in self._assigner.next() if task.row_index is not None]
        figures = self.learn(indices)
        self._position = self._assigner.state_dict()
        seconds = perf_counter() - began
        return {
            "objective": self.env.objective,
            **figures,
            "epoch": epoch,
            "tokens_per_s": figures["tokens"] / seconds if seconds > 0 else None,
            "seconds": {"step": seconds},
        }

    def learn(self, indices: Sequence[int]) -> dict[str, Any]:
        """Take one optimiser step over these training rows; returns its figures, `tokens` among them."""
        raise NotImplementedError

    def evaluate(self, phase: str, step: int) -> dict[str, Any]:
        """Score the held-out rows."""
        raise NotImplementedError

    def comparable(self, evaluations: Mapping[str, Any]) -> dict[str, Any]:
        """All evaluations are of one metric."""
        return dict(evaluations)

    def position(self) -> dict[str, Any]:
        """Where the rows stand after the last finished step."""
        return self._position

    def go_to(self, position: Mapping[str, Any], *, evaluations: int) -> None:
        """Stand there.

        Raises:
            CheckpointError: It is the position in other rows.
        """
        del evaluations  # every evaluation scores the same rows
        self._assigner.load_state_dict(position)
        self._position = dict(position)

    def state(self) -> dict[str, Any]:
        """Nothing is counted beside what the loop counts."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing is counted."""

    def begin(self, step: int) -> None:
        """Nothing has to be known before the first step; all processes have read the folder before one writes."""
        self.plan.processes.gather(None)

    def summary(self) -> dict[str, Any]:
        """What was learned from."""
        return {"objective": self.env.objective, "dataset": self.env.as_dict()}

    def close(self) -> None:
        """Nothing is held."""

    def _check_lengths(self) -> None:
        longest, context = self.env.longest(), self.learner.context_length
        if context is not None and longest > context:
            raise ConfigurationError(
                f"a row of {self.env.name} has {longest} tokens, but the model takes {context}; set max_length to "
                f"{context} or less, and too_long to 'drop' or 'cut'"
            )


class SFTWork(RowsWork):
    """Supervised fine-tuning."""

    def __init__(
        self, env: DatasetEnv, model: TrainedModel, algorithm: SFT, plan: DatasetPlan, interrupts: Interrupts
    ) -> None:
        super().__init__(env, model, plan, interrupts)
        self._learner = SFTLearner(
            model,
            algorithm,
            plan.optimiser,
            pack_tokens=plan.pack_tokens,
            before_step=interrupts.hold,
            processes=plan.processes,
        )
        self.learner = self._learner
        self._check_lengths()

    def learn(self, indices: Sequence[int]) -> dict[str, Any]:
        """See `RowsWork`."""
        return asdict(self._learner.update(_of_kind(Example, self.env.train, indices)))

    def evaluate(self, phase: str, step: int) -> dict[str, Any]:
        """See `RowsWork`."""
        del phase, step
        return sft_evaluation(self._learner.score(_of_kind(Example, self.env.held_out, self._held_out)))


class PreferenceWork(RowsWork):
    """Learning from preferences; the reference's log-probabilities are in `reference.json` of the run folder."""

    def __init__(
        self,
        env: DatasetEnv,
        model: TrainedModel,
        algorithm: DPO,
        plan: DatasetPlan,
        interrupts: Interrupts,
        folder: RunFolder,
    ) -> None:
        super().__init__(env, model, plan, interrupts)
        self._learner = PreferenceLearner(
            model,
            algorithm,
            plan.optimiser,
            pack_tokens=plan.pack_tokens,
            before_step=interrupts.hold,
            processes=plan.processes,
        )
        self.learner = self._learner
        self._check_lengths()
        self._reference = ReferenceCache(folder.path / "reference.json", env, self._learner)

    def begin(self, step: int) -> None:
        """Have what the reference says of every pair that the run will come to."""
        super().begin(step)
        if self.plan.schedule.evaluates:
            self._reference.fill("held_out", self._held_out)
        ahead = TaskAssigner(len(self.env.train), self.plan.batch_size, seed=self.plan.seed)
        epoch = ceil(len(self.env.train) / self.plan.batch_size)
        if step < self.plan.schedule.steps:
            steps = range(min(self.plan.schedule.steps, epoch))
            drawn = {task.row_index for _ in steps for task in ahead.next() if task.row_index is not None}
            self._reference.fill("train", drawn)

    def learn(self, indices: Sequence[int]) -> dict[str, Any]:
        """See `RowsWork`."""
        pairs = _of_kind(Pair, self.env.train, indices)
        done = self._learner.update(pairs, self._reference.of("train", indices))
        scores = done.scores
        return {
            "loss": sum(score.loss for score in scores) / len(scores),
            "accuracy": sum(score.accuracy for score in scores) / len(scores),
            "margin": sum(score.margin for score in scores) / len(scores),
            **pair_means(scores),
            "rows": len(pairs),
            "tokens": done.tokens,
            "computed_tokens": done.computed_tokens,
            "learning_rate": done.learning_rate,
            "grad_norm": done.grad_norm,
        }

    def evaluate(self, phase: str, step: int) -> dict[str, Any]:
        """See `RowsWork`."""
        del phase, step
        pairs = _of_kind(Pair, self.env.held_out, self._held_out)
        return preference_evaluation(self._learner.score(pairs, self._reference.of("held_out", self._held_out)))


_Kind = TypeVar("_Kind", Example, Pair)


def _of_kind(kind: type[_Kind], examples: Sequence[Example | Pair], indices: Iterable[int]) -> list[_Kind]:
    found = [examples[index] for index in indices]
    return [each for each in found if isinstance(each, kind)]
