"""What the learners of supervised data share: the optimiser, the forward plan, and a step that refuses what is NaN."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from tiltyard.errors import ConfigurationError, NonFiniteError
from tiltyard.train.cross_entropy import PackScorer
from tiltyard.train.forward import ForwardPlan, check_packing, device_of, unwrapped
from tiltyard.train.learner import MIN_PACK_TOKENS, Trainable
from tiltyard.train.optimiser import Optimiser, OptimiserSettings
from tiltyard.train.packing import Pack
from tiltyard.train.processes import ALONE, Processes, in_all
from tiltyard.train.supervised_algorithms import DPO, SFT

T = TypeVar("T")
A = TypeVar("A", SFT, DPO)

ROWS_NAMED = 5


class RowLearner(Generic[A]):
    """Takes optimiser steps, with gradients accumulated over packs of rows.

    The model is put in eval mode, so that dropout is off. Its forward plan is checked once, at construction.

    Attributes:
        trainable: The model, and which of its parameters train.
        algorithm: What is learned from rows.
        plan: How rows are laid out for it.
        step: How many optimiser steps were taken.
        pack_tokens: The most tokens in one forward pass.
        processes: Those that learn together.
    """

    def __init__(
        self,
        trainable: Trainable,
        algorithm: A,
        settings: OptimiserSettings,
        *,
        pack_tokens: int | None = None,
        before_step: Callable[[], None] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Set the learner up.

        Args:
            trainable: The model, and which of its parameters train.
            algorithm: What is learned from rows.
            settings: Of the optimiser.
            pack_tokens: The most tokens in one forward pass; None takes the model's hidden size, at least 512, where
                attention over a packed sequence is still cheap against the rest. A longer row stands alone.
            before_step: Called when the gradient is complete, right before the weights change.
            processes: Those that learn together: each is given all rows of a step and works on its share of them.

        Raises:
            ConfigurationError: The model has no parameter to train.
        """
        parameters = trainable.parameters()
        if not parameters:
            raise ConfigurationError("the model has no parameter to train; pick 'full', 'last:K' or 'lora'")
        self.trainable = trainable
        self.algorithm = algorithm
        self.step = 0
        trainable.model.eval()
        self.plan: ForwardPlan = check_packing(trainable.model)
        config = unwrapped(trainable.model).config.get_text_config()
        self.pack_tokens = pack_tokens or max(MIN_PACK_TOKENS, config.hidden_size)
        self._optimiser = Optimiser(parameters, settings)
        self._before_step = before_step or (lambda: None)
        self.processes = processes

    @property
    def context_length(self) -> int | None:
        """The most tokens of a row that the model takes; None when it does not say."""
        return getattr(unwrapped(self.trainable.model).config.get_text_config(), "max_position_embeddings", None)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the step; the weights are the trainable model's to save."""
        return {"step": self.step, "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            CheckpointError: It belongs to other parameters.
        """
        self._optimiser.load_state_dict(state["optimiser"])
        self.step = int(state["step"])

    def scorer(self, pack: Pack) -> PackScorer:
        """One forward pass over a pack, which is on the model's device."""
        return PackScorer(self.trainable.model, pack, self.plan)

    def on_device(self, pack: Pack) -> Pack:
        """The pack where the model's inputs belong."""
        return pack.to(device_of(self.trainable.model))

    def refuse_non_finite(self, values: Tensor, row: Tensor, names: Sequence[str]) -> None:
        """Refuse a step of which a value is NaN or inf; `row` has the index into `names` of each.

        Raises:
            NonFiniteError: One is; the rows are named, and the gradient is dropped.
        """
        bad = ~values.isfinite()
        if bad.any():
            self._optimiser.clear()
            wrong = {*row[bad].tolist()}
            raise NonFiniteError(
                f"the loss is NaN or inf in {_named([name for at, name in enumerate(names) if at in wrong])}; the step "
                "was not taken. Look at the row, lower the learning rate, or train in float32"
            )

    def together(self, work: Callable[[], T]) -> list[T]:
        """Let each process add its part of the gradient; returns what came of each, and the gradient is that of all.

        Raises:
            NonFiniteError: One refused its part; no process takes the step.
        """
        found = in_all(work, self.processes)
        self._optimiser.add_up(self.processes)
        return self.processes.gather(found)

    def take_step(self, names: Sequence[str]) -> float:
        """Clip the gradient and take the step; returns the norm before clipping.

        Raises:
            NonFiniteError: The norm is NaN or inf; the step was not taken.
        """
        norm = self._optimiser.norm()
        if not math.isfinite(norm):
            self._optimiser.clear()
            raise NonFiniteError(
                f"the gradient's norm is {norm!r} in a step over {_named(names)}; the step was not taken. "
                "Lower the learning rate, or train in float32"
            )
        self._before_step()
        self.step += 1
        self._optimiser.take(self.step, norm)
        return norm


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - ROWS_NAMED} more" if len(names) > ROWS_NAMED else ""
    return ", ".join(names[:ROWS_NAMED]) + more
