"""A second model to sample from while the first one trains."""

import pytest
import torch

from tiltyard.models.beside import BesideModel
from tiltyard.models.recompute import recompute_layers
from tiltyard.models.trainable import LoraSettings, make_trainable
from tiltyard.policies.base import TokenRequest
from tiltyard.policies.hf import HFPolicy
from tiltyard.testing.model import tiny_model

IDS = torch.tensor([[3, 1, 4, 1, 5]])
MODES = ["full", "last:1", "lora"]


def made(mode, **options):
    torch.manual_seed(1)
    first = make_trainable(tiny_model(**options), mode, lora=LoraSettings(rank=2))
    change(first)  # so that an adapter changes something
    return first


def change(trainable):
    with torch.no_grad():
        for value in trainable.parameters():
            value.add_(0.05 * torch.randn_like(value))


def logits(trainable):
    with torch.no_grad():
        return trainable.model(input_ids=IDS).logits


@pytest.mark.parametrize("mode", MODES)
def test_it_keeps_the_weights_of_the_last_refresh(mode):
    """What the first model learns since then does not reach it; the next refresh brings all of it."""
    first = made(mode)
    beside = BesideModel(first)
    beside.refresh()
    before = logits(first)
    torch.testing.assert_close(logits(beside.trainable), before)
    change(first)
    now = logits(first)
    torch.testing.assert_close(logits(beside.trainable), before)
    assert not torch.allclose(now, before)
    beside.refresh()
    torch.testing.assert_close(logits(beside.trainable), now)


@pytest.mark.parametrize("mode", MODES)
def test_a_refresh_leaves_the_first_model_as_it_is(mode):
    """To the bit: merging the adapter there touches no number here."""
    first = made(mode)
    before = {name: value.clone() for name, value in first.model.named_parameters()}
    beside = BesideModel(first)
    for _ in range(3):
        beside.refresh()
        change(beside.trainable)
    after = dict(first.model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(("mode", "copied"), [("full", 20), ("last:1", 10), ("lora", 28)])
def test_only_what_trains_is_there_twice(mode, copied):
    """What is frozen has one memory, but for the matrices that an adapter was merged into; ties stay."""
    first = made(mode)
    beside = BesideModel(first)
    shared = {value.data_ptr() for value in first.model.parameters()}
    own = [value for value in beside.trainable.model.parameters() if value.data_ptr() not in shared]
    assert len(own) == copied
    beside.refresh()
    merged = [value for value in beside.trainable.model.parameters() if value.data_ptr() not in shared]
    assert len(merged) == copied + (14 if mode == "lora" else 0)
    head, embeddings = beside.trainable.model.get_output_embeddings(), beside.trainable.model.get_input_embeddings()
    assert head.weight is embeddings.weight


def test_its_modules_are_its_own():
    """Nothing that one of the two keeps between calls is seen by the other; recomputed layers included."""
    model = tiny_model()
    recompute_layers(model)
    first = make_trainable(model, "full")
    beside = BesideModel(first)
    assert not {id(m) for m in first.model.modules()} & {id(m) for m in beside.trainable.model.modules()}
    layer = beside.trainable.model.model.layers[0]
    assert layer.forward.args[0].__self__ is layer


@pytest.mark.parametrize("mode", MODES)
def test_it_samples_what_the_first_model_would(mode):
    """Token for token, with a probability for each that is the first model's."""
    first = made(mode)
    beside = BesideModel(first)
    change(first)
    beside.refresh()
    policy = HFPolicy(beside.trainable.model, stop_ids=frozenset({319}))
    policy.version = 7
    requests = [TokenRequest(str(n), [5, 6, 7], 8, n) for n in range(3)]
    sampled = policy.sample(requests)
    with first.sampling_weights():
        expected = HFPolicy(first.model, stop_ids=frozenset({319})).sample(requests)
    assert [(one.ids, one.version) for one in sampled] == [(one.ids, 7) for one in expected]
    assert [one.logprobs for one in sampled] == [pytest.approx(one.logprobs, abs=1e-5) for one in expected]
