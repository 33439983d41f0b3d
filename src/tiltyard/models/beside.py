"""A second model to sample from while the first one trains: what trains is there twice, and nothing else."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from tiltyard.models.trainable import AdapterModel, TrainableModel


class BesideModel:
    """Holds the weights that another model had at the last `refresh`, whatever became of it since.

    It has its own copy of the parameters that train, and shares the memory of all others. An adapter is merged here, so
    that sampling is as fast as without one: the matrices that it changes are then there a second time.

    Attributes:
        trainable: The copy. Its modules are its own, so that both models may be called at the same time.
    """

    def __init__(self, first: TrainableModel) -> None:
        """Copy a model whose adapter, if it has one, is not merged."""
        self._first = first
        self._merged = ExitStack()
        model = _second(first.model)
        adapter = isinstance(first, AdapterModel)
        self.trainable = AdapterModel(model) if adapter else TrainableModel(model, keep_reference=False)

    def refresh(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Take over the first model's weights of now, or these of an earlier time; neither of the two may be at work.

        Raises:
            CheckpointError: The names or shapes are not those of what trains.
        """
        self._merged.close()
        self.trainable.load_state_dict(self._first.state_dict() if weights is None else weights)
        self._merged.enter_context(self.trainable.sampling_weights())


def _second(model: nn.Module) -> Any:
    memo: dict[int, Any] = {}
    for value in model.parameters():
        if not value.is_floating_point():
            memo[id(value)] = value  # quantised: it neither trains nor takes a merged adapter
            continue
        own = value.detach().clone() if value.requires_grad else value.detach()
        # A parameter object of its own in any case: merging an adapter exchanges the memory behind it.
        memo[id(value)] = nn.Parameter(own, requires_grad=value.requires_grad)
    return copy.deepcopy(model, memo)
