"""The value head: what a hidden state of the model says of the rewards to come, learned beside the model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tiltyard.errors import CheckpointError
from tiltyard.train.optimiser import Optimiser, OptimiserSettings
from tiltyard.train.processes import Processes


class Critic:
    """A linear layer on the model's last hidden states, in float32, with an optimiser of its own.

    It begins at 0, so that the first advantages are the returns. With `trains_model` the error of its values goes on
    into the model; otherwise it stops here.
    """

    def __init__(self, width: int, device: torch.device, settings: OptimiserSettings, *, trains_model: bool) -> None:
        self.head = nn.Linear(width, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._trains_model = trains_model
        self._optimiser = Optimiser(list(self.head.parameters()), settings)

    def values(self, hidden: Tensor) -> Tensor:
        """The value of each state, [U], of hidden states [U, D]."""
        states = hidden if self._trains_model else hidden.detach()
        return self.head(states.float()).squeeze(-1)

    def clear(self) -> None:
        """Drop the gradient."""
        self._optimiser.clear()

    def add_up(self, processes: Processes) -> None:
        """Make the gradient the sum over all processes."""
        self._optimiser.add_up(processes)

    def norm(self) -> float:
        """The norm of the head's gradient."""
        return self._optimiser.norm()

    def take(self, step: int, norm: float) -> None:
        """Take a step, counted from 1, along the gradient, whose norm is known; then drop the gradient."""
        self._optimiser.take(step, norm)

    def state_dict(self) -> dict[str, Any]:
        """The head's weights and its optimiser's state."""
        weights = {name: value.detach().clone() for name, value in self.head.state_dict().items()}
        return {"head": weights, "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            CheckpointError: It is that of a model of another width.
        """
        try:
            self.head.load_state_dict(state["head"])
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"the saved value head does not fit this model ({error}); resume with the model that it was saved with"
            ) from error
        self._optimiser.load_state_dict(state["optimiser"])
