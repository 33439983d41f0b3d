"""Activation checkpointing: less is kept for the way back, and nothing else changes."""

import pytest
import torch
from torch import nn

from tiltyard.errors import ConfigurationError
from tiltyard.models.recompute import recompute_layers
from tiltyard.models.trainable import LoraSettings, decoder_layers, make_trainable
from tiltyard.testing.model import tiny_model

IDS = torch.arange(64)[None] % 300


def gradients(model):
    """The gradients of one pass, and the bytes that were kept for it."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(IDS, labels=IDS).loss
    size = sum(kept.values())
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, size


@pytest.mark.parametrize("mode", ["full", "last:1", "lora"])
def test_gradients_are_the_same_and_less_is_kept(mode):
    """In eval mode, where transformers' own switch does nothing."""
    plain, frugal = tiny_model(layers=4), tiny_model(layers=4)
    recompute_layers(frugal)
    torch.manual_seed(0)
    expected, much = gradients(make_trainable(plain, mode, lora=LoraSettings(rank=2)).model)
    torch.manual_seed(0)
    found, little = gradients(make_trainable(frugal, mode, lora=LoraSettings(rank=2)).model)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)
    assert little < (0.7 if mode != "last:1" else 1.0) * much


def test_without_gradients_a_layer_runs_as_ever():
    """Sampling pays nothing."""
    plain, frugal = tiny_model(), tiny_model()
    recompute_layers(frugal)
    with torch.no_grad():
        assert torch.equal(plain(IDS).logits, frugal(IDS).logits)


def test_a_model_without_a_list_of_layers_is_refused():
    """It is said, and not silently left out."""
    model = tiny_model()
    model.model.layers = nn.ModuleDict({str(i): layer for i, layer in enumerate(model.model.layers)})
    assert decoder_layers(model) is None
    with pytest.raises(ConfigurationError, match="has no list of layers to compute again"):
        recompute_layers(model)
