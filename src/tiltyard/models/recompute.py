"""Activation checkpointing: a layer keeps only its input, and computes the rest again going backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tiltyard.errors import ConfigurationError
from tiltyard.models.trainable import decoder_layers


def recompute_layers(model: Any) -> None:
    """Let each layer keep only its input wherever gradients are on; sampling goes on as before.

    transformers has a switch of its own that works in train mode alone, and the trainer's model is in eval mode:
    dropout would make the ratio to the sampler's log-probabilities noise.

    Raises:
        ConfigurationError: The model has its layers in no list.
    """
    layers = decoder_layers(model)
    if layers is None:
        raise ConfigurationError(
            f"{type(model).__name__} has no list of layers to compute again; leave gradient_checkpointing out"
        )
    for layer in layers:
        if not (isinstance(layer.forward, partial) and layer.forward.func is _forward):
            layer.forward = partial(_forward, layer.forward)


def _forward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # The layers draw no random numbers in eval mode, so none need to be drawn again.
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
