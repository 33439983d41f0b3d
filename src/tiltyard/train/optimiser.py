"""The optimiser: AdamW with a learning-rate schedule and gradient clipping, in float32 whatever the model's dtype."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.train.processes import Processes

LONG = (torch.float32, torch.float64)
"""The dtypes that parameters may step in."""


Decay = Literal["constant", "linear", "cosine"]
"""How the learning rate falls after warm-up: not at all, along a line, or along half a cosine (arXiv:1608.03983)."""


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """How the optimiser (AdamW) steps.

    Attributes:
        learning_rate: After warm-up.
        weight_decay: Decoupled from the gradient; norms and biases do not decay.
        warmup_steps: Optimiser steps over which the learning rate rises linearly from nearly 0.
        max_grad_norm: A longer gradient is scaled down to this norm; None leaves it.
        schedule: How the learning rate falls from there to the last step.
        total_steps: All optimiser steps, those of the warm-up included; needed where it falls.
        end_share: The share of the learning rate that is left at the last step and after it, where it falls.
    """

    learning_rate: float
    weight_decay: float = 0.0
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    schedule: Decay = "constant"
    total_steps: int | None = None
    end_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ConfigurationError(f"learning_rate must be > 0 and finite, got {self.learning_rate!r}")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigurationError(f"weight_decay must be >= 0 and finite, got {self.weight_decay!r}")
        if self.warmup_steps < 0:
            raise ConfigurationError(f"warmup_steps must be >= 0, got {self.warmup_steps!r}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigurationError(f"max_grad_norm must be > 0 or None, got {self.max_grad_norm!r}")
        if self.schedule not in get_args(Decay):
            raise ConfigurationError(f"schedule must be one of {', '.join(get_args(Decay))}, got {self.schedule!r}")
        if not 0 <= self.end_share <= 1:
            raise ConfigurationError(f"end_share must be between 0 and 1, got {self.end_share!r}")
        if self.schedule != "constant" and (self.total_steps is None or self.total_steps <= self.warmup_steps):
            raise ConfigurationError(
                f"the schedule {self.schedule!r} falls from the end of the warm-up to the last step: total_steps must "
                f"be > warmup_steps ({self.warmup_steps}), got {self.total_steps!r}"
            )

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.schedule == "constant" or self.total_steps is None:
            return self.learning_rate
        gone = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        left = 1 - gone if self.schedule == "linear" else (1 + math.cos(math.pi * gone)) / 2
        return self.learning_rate * (self.end_share + (1 - self.end_share) * left)


class Optimiser:
    """Steps parameters along their gradients.

    In a shorter float than float32 a usual step is smaller than the weight's rounding, and Adam's second moment
    underflows. Such parameters have a float32 copy here, which is what steps; the model gets it rounded.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], settings: OptimiserSettings) -> None:
        self.settings = settings
        self._parameters = list(parameters)
        self._exact = [p if p.dtype in LONG else nn.Parameter(p.detach().float()) for p in self._parameters]
        self._rule: torch.optim.Optimizer = torch.optim.AdamW(
            _by_decay(self._exact, settings.weight_decay),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=self._exact[0].device.type in ("cpu", "cuda"),
        )

    @property
    def learning_rate(self) -> float:
        """That of the last step."""
        return self._rule.param_groups[0]["lr"]

    def clear(self) -> None:
        """Drop every gradient."""
        for parameter in (*self._parameters, *self._exact):
            parameter.grad = None

    def collect(self) -> None:
        """Add up the gradients of one backward pass in float32; to be called after each."""
        for parameter, exact in self._copied():
            if parameter.grad is None:
                continue
            if exact.grad is None:
                exact.grad = parameter.grad.float()
            else:
                exact.grad.add_(parameter.grad)
            parameter.grad = None

    def add_up(self, processes: Processes) -> None:
        """Make the gradient the sum over all processes; one that none of them has stays away, so that it decays not."""
        if processes.count == 1:
            return
        there = torch.tensor([float(exact.grad is not None) for exact in self._exact], device=self._exact[0].device)
        processes.add([there])
        present = [exact for exact, found in zip(self._exact, there.tolist(), strict=True) if found]
        for exact in present:
            exact.grad = torch.zeros_like(exact) if exact.grad is None else exact.grad
        processes.add(self._gradients())

    def norm(self) -> float:
        """The norm of the whole gradient."""
        return torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in self._gradients()])
        ).item()

    def take(self, step: int, norm: float) -> None:
        """Take a step, counted from 1, along the gradient, whose norm is known; then drop the gradient."""
        longest = self.settings.max_grad_norm
        if longest is not None and norm > longest:
            for gradient in self._gradients():
                gradient.mul_(longest / norm)
        for group in self._rule.param_groups:
            group["lr"] = self.settings.learning_rate_at(step)
        with torch.no_grad():
            for parameter, exact in self._copied():
                # What was put into the model since the last step counts, not the copy of what was there before.
                exact.copy_(torch.where(exact.to(parameter.dtype) == parameter, exact, parameter.float()))
            self._rule.step()
            for parameter, exact in self._copied():
                parameter.copy_(exact)
        self.clear()

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state, and the float32 copies where the model's dtype is shorter."""
        return {"adamw": self._rule.state_dict(), "exact": [exact.detach() for _, exact in self._copied()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            CheckpointError: It belongs to other parameters.
        """
        copies = [exact for _, exact in self._copied()]
        try:
            saved: list[Tensor] = state["exact"]
            if [exact.shape for exact in saved] != [exact.shape for exact in copies]:
                raise ValueError(f"{len(saved)} float32 copies of weights were saved, and {len(copies)} are in use")
            self._rule.load_state_dict(state["adamw"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"the optimiser's state does not fit this model's trained parameters ({error}); "
                "resume with the model, the dtype and the `train` setting of the run that saved it"
            ) from error
        with torch.no_grad():
            for exact, value in zip(copies, saved, strict=True):
                exact.copy_(value)

    def _copied(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """The parameters that have a float32 copy, with it."""
        return ((p, exact) for p, exact in zip(self._parameters, self._exact, strict=True) if exact is not p)

    def _gradients(self) -> list[Tensor]:
        return [exact.grad for exact in self._exact if exact.grad is not None]


def _by_decay(parameters: Sequence[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Matrices decay; norms and biases, which are vectors, do not."""
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
