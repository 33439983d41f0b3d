"""What is found out before an update and stays fixed during it: old and reference log-probabilities, values, credit."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from tiltyard.policies.base import Sampling
from tiltyard.train.algorithms import Algorithm
from tiltyard.train.batch import Batch, TrainRow
from tiltyard.train.credit import Seen, late_credit
from tiltyard.train.critic import Critic
from tiltyard.train.forward import ForwardPlan, PackOutput, device_of, pack_logprobs, token_logprobs
from tiltyard.train.loss import kl_to_reference
from tiltyard.train.packing import Pack
from tiltyard.train.processes import ALONE, Processes, share
from tiltyard.train.returns import ActionCredit, explained_variance

T = TypeVar("T")


class Referenced(Protocol):
    """A model under training that can be what it was before (`tiltyard.models.trainable`)."""

    @property
    def model(self) -> Any:
        """What forward passes are made on."""
        ...

    def reference(self) -> Any:
        """A context in which the model is what it was before training."""
        ...


@dataclass(frozen=True, slots=True)
class Asking:
    """How the model is asked about rows.

    Attributes:
        trainable: The model.
        plan: How rows are laid out for it.
        sampling: What the tokens were drawn from.
        pack_tokens: The most tokens in one forward pass.
        critic: The value head; None without one.
        processes: Those that share the work; each asks about its own part of the rows.
    """

    trainable: Referenced
    plan: ForwardPlan
    sampling: Sampling
    pack_tokens: int
    critic: Critic | None = None
    processes: Processes = ALONE

    def packs(self, rows: Sequence[TrainRow]) -> Iterator[Pack]:
        """The rows that train, laid out and on the model's device."""
        device = device_of(self.trainable.model)
        return (pack.to(device) for pack in self.plan.packs(rows, self.pack_tokens))

    def output(self, pack: Pack, *, entropy_gradient: bool = False) -> PackOutput:
        """One forward pass, with the hidden states where there is a value head."""
        return pack_logprobs(
            self.trainable.model,
            pack,
            self.sampling,
            self.plan,
            entropy_gradient=entropy_gradient,
            with_hidden=self.critic is not None,
        )

    def logprobs(self, rows: Sequence[TrainRow]) -> dict[int, Tensor]:
        """The log-probabilities of each row's trained tokens."""
        mine = share(rows, self.processes)
        found = token_logprobs(self.trainable.model, mine, self.sampling, self.plan, max_tokens=self.pack_tokens)
        return self.exchange(rows, dict(zip(map(id, mine), found, strict=True)))

    def exchange(self, rows: Sequence[TrainRow], found: dict[int, T]) -> dict[int, T]:
        """What was found of all rows, by their ids, from what each process found of its own part."""
        if self.processes.count == 1:
            return found
        number_of = {id(row): number for number, row in enumerate(rows)}
        everything = self.processes.gather({number_of[key]: _to(value, "cpu") for key, value in found.items()})
        device = device_of(self.trainable.model)
        return {id(rows[number]): _to(value, device) for part in everything for number, value in part.items()}


@dataclass(slots=True)
class Known:
    """What stays fixed during an update, for the trained tokens of each row, by the row's id; empty where not needed.

    Attributes:
        old: The trainer's log-probabilities before the first step.
        reference: The reference model's.
        values: The value head's estimates before the first step.
        finals: Its estimate of what follows each row's last token.
        advantages: Those that were not known before a forward pass.
        targets: What the values should have been; NaN where no action begins.
        kl: The mean of the divergence that was taken off the rewards; None where none was.
        explained_variance: Of the targets by the values; None without a value head.
    """

    old: dict[int, Tensor] = field(default_factory=dict)
    reference: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    finals: dict[int, float] = field(default_factory=dict)
    advantages: dict[int, Tensor] = field(default_factory=dict)
    targets: dict[int, Tensor] = field(default_factory=dict)
    kl: float | None = None
    explained_variance: float | None = None


def find_out(asking: Asking, batch: Batch, algorithm: Algorithm) -> Known:
    """Everything that an update needs to know before its first step, with as few forward passes as there can be."""
    rows = [row for group in batch.groups for row in group if row.trained]
    known = Known()
    with torch.no_grad():
        if algorithm.kl_coef > 0:
            with asking.trainable.reference():
                known.reference = asking.logprobs(rows)
        if asking.critic is not None:
            _ask_critic(asking, asking.critic, rows, known)
        elif algorithm.old_logprobs == "trainer" and (algorithm.kl_in_reward or _steps(algorithm) > 1):
            known.old = asking.logprobs(rows)
        if algorithm.credits_late:
            _credit(batch, rows, known, algorithm)
    if not (algorithm.old_logprobs == "trainer" and _steps(algorithm) > 1):
        known.old = {}  # the first pass of the only step has them, and with exactly the rounding of its own
    return known


def _to(value: T, device: Any) -> T:
    return value.to(device) if isinstance(value, Tensor) else value  # pyright: ignore[reportReturnType]  # T is Tensor


def _steps(algorithm: Algorithm) -> int:
    return algorithm.epochs * algorithm.minibatches


def _ask_critic(asking: Asking, critic: Critic, rows: Sequence[TrainRow], known: Known) -> None:
    for pack in asking.packs(share(rows, asking.processes)):
        output = asking.output(pack)
        assert output.hidden is not None
        values = critic.values(output.hidden)
        sizes = [row.trained for row in pack.rows]
        pieces = zip(pack.rows, output.logp.split(sizes), values[pack.source].split(sizes), strict=True)
        for row, logp, value in pieces:
            known.old[id(row)], known.values[id(row)] = logp, value
        for index, final in zip(pack.end_row.tolist(), values[pack.ends].tolist(), strict=True):
            known.finals[id(pack.rows[index])] = final
    known.old, known.values = asking.exchange(rows, known.old), asking.exchange(rows, known.values)
    known.finals = asking.exchange(rows, known.finals)


def _credit(batch: Batch, rows: Sequence[TrainRow], known: Known, algorithm: Algorithm) -> None:
    penalties = {id(row): _penalties(row, known, algorithm) for row in rows}
    seen = {
        id(row): Seen(
            penalties=tuple(penalties[id(row)]),
            values=tuple(known.values[id(row)].tolist()) if known.values else (),
            final=known.finals.get(id(row), 0.0),
        )
        for row in rows
    }
    credits_by_row = late_credit(batch, seen, algorithm)
    for row in rows:
        credit = credits_by_row[id(row)]
        device = (known.reference or known.values)[id(row)].device
        known.advantages[id(row)] = torch.tensor(credit.advantages, dtype=torch.float32, device=device)
        if known.values:
            targets = [math.nan if target is None else target for target in credit.targets]
            known.targets[id(row)] = torch.tensor(targets, dtype=torch.float32, device=device)
    if algorithm.kl_in_reward:
        taken = [penalty for row in rows for penalty in penalties[id(row)]]
        known.kl = math.fsum(taken) / len(taken) / algorithm.kl_coef
    if known.values:
        known.explained_variance = _explained([credits_by_row[id(row)] for row in rows], rows, known)


def _penalties(row: TrainRow, known: Known, algorithm: Algorithm) -> list[float]:
    """What the divergence takes off the reward of each trained token."""
    if not algorithm.kl_in_reward:
        return []
    reference = known.reference[id(row)]
    if algorithm.old_logprobs == "trainer":
        old = known.old[id(row)]
    else:
        sampled = [logprob for logprob, on in zip(row.logprobs, row.mask, strict=True) if on]
        old = torch.tensor([math.nan if value is None else value for value in sampled], device=reference.device)
    return (algorithm.kl_coef * kl_to_reference(old, reference, algorithm.kl_estimator)).tolist()


def _explained(credit: Sequence[ActionCredit], rows: Sequence[TrainRow], known: Known) -> float | None:
    pairs = [
        (value, target)
        for found, row in zip(credit, rows, strict=True)
        for value, target in zip(known.values[id(row)].tolist(), found.targets, strict=True)
        if target is not None
    ]
    return explained_variance([value for value, _ in pairs], [target for _, target in pairs])
