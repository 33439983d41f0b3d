"""The learner: one batch in, one or more optimiser steps, and the figures that describe them."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from tiltyard.errors import CheckpointError, ConfigurationError, NonFiniteError
from tiltyard.policies.base import Sampling
from tiltyard.train.algorithms import LLMPPO, Algorithm
from tiltyard.train.batch import Batch, TrainRow
from tiltyard.train.critic import Critic
from tiltyard.train.forward import ForwardPlan, PackOutput, check_packing, check_sampling, device_of, unwrapped
from tiltyard.train.known import Asking, Known, find_out
from tiltyard.train.loss import TokenBatch, TokenTerms, ValueTerms, token_weights, value_terms, weighted_sum
from tiltyard.train.optimiser import Optimiser, OptimiserSettings
from tiltyard.train.packing import Pack
from tiltyard.train.processes import ALONE, Processes, in_all, share
from tiltyard.train.update_metrics import Tally, UpdateMetrics

MIN_PACK_TOKENS = 512
"""The smallest default for a pack: below it the matrix products get small."""

SAMPLER_DIFFERENCE_NATS = {torch.float32: 0.01}
"""Mean difference between sampler and trainer beyond which a warning is due; 0.05 for shorter floats."""

ROWS_NAMED = 5


class Trainable(Protocol):
    """What the learner needs of a model under training (`tiltyard.models.trainable`)."""

    @property
    def model(self) -> nn.Module:
        """What forward passes are made on."""
        ...

    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters that train."""
        ...

    def reference(self) -> AbstractContextManager[Any]:
        """A context in which the model is what it was before training."""
        ...


class Learner:
    """Takes optimiser steps on batches, with gradients accumulated over packs of rows.

    The model is put in eval mode: dropout would make the ratio to the sampler's log-probabilities noise.
    Its forward plan is checked once, at construction (`check_packing`).

    Args:
        trainable: The model and which of its parameters train.
        algorithm: The loss.
        settings: Of the optimiser.
        sampling: What the batches were sampled with.
        pack_tokens: The most tokens in one forward pass; None takes the model's hidden size, at least 512,
            where attention over a packed sequence is still cheap against the rest.
        before_step: Called when the gradient of an optimiser step is complete, right before the weights change.
        processes: Those that learn together. Each is given the whole batch, works on its part of every optimiser
            step's groups, and takes the step with the sum of all gradients: the same step that one process takes.
    """

    def __init__(
        self,
        trainable: Trainable,
        algorithm: Algorithm,
        settings: OptimiserSettings,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008  # frozen
        pack_tokens: int | None = None,
        before_step: Callable[[], None] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        check_sampling(sampling)
        self.trainable = trainable
        self.algorithm = algorithm
        self.settings = settings
        self.sampling = sampling
        self.step = 0
        parameters = trainable.parameters()
        if not parameters:
            raise ConfigurationError("the model has no parameter to train; pick 'full', 'last:K' or 'lora'")
        trainable.model.eval()
        self.plan: ForwardPlan = check_packing(trainable.model)
        config = unwrapped(trainable.model).config.get_text_config()
        self._optimiser = Optimiser(parameters, settings)
        self._critic = _critic(trainable.model, config.hidden_size, algorithm, settings)
        pack_tokens = pack_tokens or max(MIN_PACK_TOKENS, config.hidden_size)
        self._asking = Asking(trainable, self.plan, sampling, pack_tokens, self._critic, processes)
        self._processes = processes
        self._before_step = before_step or (lambda: None)
        self._warned = False

    def update(self, batch: Batch) -> UpdateMetrics:
        """Learn from one batch; a batch without a gradient changes nothing and says so.

        Raises:
            NonFiniteError: A loss or a gradient is NaN or inf. The step was not taken; the rows are named.
        """
        if batch.empty:
            return UpdateMetrics(step=self.step, skipped=True, tokens_counted=batch.counts.counted_tokens)
        known = find_out(self._asking, batch, self.algorithm)
        tally = Tally()
        for _ in range(self.algorithm.epochs):
            for window in _windows([rows for rows in batch.groups if rows], self.algorithm.minibatches):
                self._optimiser_step(window, batch, known, tally)
        tally.add_up(self._processes)
        self._warn_of_difference(tally)
        return tally.metrics(self.step, self._optimiser.learning_rate, batch, known)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, the value head's and the step; the weights are the trainable model's to save."""
        state = {"step": self.step, "optimiser": self._optimiser.state_dict()}
        return state if self._critic is None else {**state, "critic": self._critic.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            CheckpointError: It belongs to other parameters, or has no value head where one is needed.
        """
        if (self._critic is None) != ("critic" not in state):
            has = "no value head" if self._critic is not None else "a value head"
            raise CheckpointError(
                f"the saved state has {has}, and {type(self.algorithm).__name__} wants it otherwise; resume with the "
                "algorithm of the run that saved it"
            )
        self._optimiser.load_state_dict(state["optimiser"])
        if self._critic is not None:
            self._critic.load_state_dict(state["critic"])
        self.step = int(state["step"])

    def _optimiser_step(self, window: Sequence[Sequence[TrainRow]], batch: Batch, known: Known, tally: Tally) -> None:
        rows = [row for group in window for row in group]
        if not any(row.trained for row in rows):
            return
        algorithm = self.algorithm
        weights = token_weights([row.counted for row in rows], algorithm.loss_normaliser, algorithm.constant_length)
        weight_of = dict(zip(map(id, rows), weights, strict=True))
        targets = sum(int((~known.targets[id(row)].isnan()).sum()) for row in rows if id(row) in known.targets)
        self._clear()
        mine = [row for group in share(window, self._processes) for row in group]
        packs = self._asking.packs(mine)
        losses = in_all(
            lambda: [self._backward(pack, batch, known, weight_of, max(1, targets), tally) for pack in packs],
            self._processes,
        )
        self._optimiser.add_up(self._processes)
        if self._critic is not None:
            self._critic.add_up(self._processes)
        tally.losses.append(math.fsum(loss for part in self._processes.gather(losses) for loss in part))
        tally.norms.append(self._apply(rows))

    def _backward(
        self, pack: Pack, batch: Batch, known: Known, weight_of: Mapping[int, float], targets: int, tally: Tally
    ) -> float:
        """Add the gradient of one pack; returns its part of the loss. `targets` is the values' number in the step."""
        algorithm = self.algorithm
        output = self._asking.output(pack, entropy_gradient=algorithm.entropy_coef > 0)
        tokens = self._tokens(pack, output, batch, known)
        terms = algorithm.token_terms(tokens)
        self._refuse_non_finite(terms, tokens, pack)
        weight = torch.tensor([weight_of[id(row)] for row in pack.rows], device=output.logp.device)
        loss = weighted_sum(terms, tokens, weight)
        if (value := self._value_terms(pack, output, known)) is not None:
            assert isinstance(algorithm, LLMPPO)
            loss = loss + algorithm.value_coef * value.loss.sum() / targets
        loss.backward()
        self._optimiser.collect()
        tally.add(pack, output, tokens, terms, value)
        return loss.item()

    def _value_terms(self, pack: Pack, output: PackOutput, known: Known) -> ValueTerms | None:
        """The loss of the values at which an action begins; None without a value head."""
        if self._critic is None or not isinstance(self.algorithm, LLMPPO):
            return None
        assert output.hidden is not None
        before = torch.cat([known.values[id(row)] for row in pack.rows])
        targets = torch.cat([known.targets[id(row)] for row in pack.rows])
        begins = ~targets.isnan()
        values = self._critic.values(output.hidden)[pack.source][begins]
        return value_terms(values, before[begins], targets[begins], clip=self.algorithm.value_clip)

    def _clear(self) -> None:
        self._optimiser.clear()
        if self._critic is not None:
            self._critic.clear()

    def _tokens(self, pack: Pack, output: PackOutput, batch: Batch, known: Known) -> TokenBatch:
        if known.old:
            old = torch.cat([known.old[id(row)] for row in pack.rows])
        elif self.algorithm.old_logprobs == "trainer":
            old = output.logp.detach()
        else:
            old = pack.sampler
        in_loss = self.algorithm.kl_in_loss
        advantages = torch.cat([known.advantages[id(r)] for r in pack.rows]) if known.advantages else pack.advantages
        return TokenBatch(
            output.logp,
            old,
            advantages,
            pack.row,
            reference=torch.cat([known.reference[id(row)] for row in pack.rows]) if in_loss else None,
            unit=pack.row if batch.granularity == "trajectory" else pack.row * (int(pack.turn.max()) + 1) + pack.turn,
            sampler=pack.sampler if self.algorithm.sampler_cap is not None else None,
            entropy=output.entropy if self.algorithm.entropy_coef else None,
        )

    def _refuse_non_finite(self, terms: TokenTerms, tokens: TokenBatch, pack: Pack) -> None:
        bad = ~(terms.loss.isfinite() & tokens.logp.isfinite() & tokens.old.isfinite())
        if bad.any():
            self._clear()
            names = [pack.rows[index].episode_id for index in tokens.row[bad].unique().tolist()]
            raise NonFiniteError(
                f"the loss is NaN or inf in the rows of {_named(names)}; the step was not taken. "
                "Look at their log-probabilities, or lower the learning rate"
            )

    def _apply(self, rows: Sequence[TrainRow]) -> float:
        """Clip the gradient and take the step; returns the norm before clipping."""
        norm = self._optimiser.norm()
        of_values = 0.0 if self._critic is None else self._critic.norm()
        if not (math.isfinite(norm) and math.isfinite(of_values)):
            self._clear()
            bad = norm if not math.isfinite(norm) else of_values
            raise NonFiniteError(
                f"the gradient's norm is {bad!r} in a step over {_named([r.episode_id for r in rows if r.trained])}; "
                "the step was not taken. Lower the learning rate, or train in float32"
            )
        self._before_step()
        self.step += 1
        self._optimiser.take(self.step, norm)
        if self._critic is not None:
            self._critic.take(self.step, of_values)
        return norm

    def _warn_of_difference(self, tally: Tally) -> None:
        if self.algorithm.sampler_cap is not None:
            return  # the difference is what the correction is there for
        limit = SAMPLER_DIFFERENCE_NATS.get(unwrapped(self.trainable.model).dtype, 0.05)
        if not self._warned and tally.differences and tally.difference_mean > limit:
            self._warned = True
            warnings.warn(
                f"sampler and trainer disagree by {tally.difference_mean:.3g} nats on average (limit {limit}): "
                "the ratio does not start at 1. Is the sampler on the current weights and the same temperature?",
                stacklevel=3,
            )


def _critic(model: nn.Module, width: int, algorithm: Algorithm, settings: OptimiserSettings) -> Critic | None:
    """The value head of an algorithm that has one; its gradient is clipped like the model's."""
    if not isinstance(algorithm, LLMPPO):
        return None
    own = OptimiserSettings(algorithm.value_learning_rate, max_grad_norm=settings.max_grad_norm)
    return Critic(width, device_of(model), own, trains_model=algorithm.value_trains_model)


def _windows(groups: Sequence[Sequence[TrainRow]], count: int) -> Iterator[Sequence[Sequence[TrainRow]]]:
    """The groups in `count` runs of nearly equal length; an empty one is left out."""
    for index in range(count):
        window = groups[index * len(groups) // count : (index + 1) * len(groups) // count]
        if window:
            yield window


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - ROWS_NAMED} more" if len(names) > ROWS_NAMED else ""
    return ", ".join(names[:ROWS_NAMED]) + more
