"""What trains, what is sampled from, and what the reference is."""

import math

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.models.trainable import AdapterModel, LoraSettings, make_trainable
from tiltyard.testing.model import tiny_model

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def logits(trainable):
    with torch.no_grad():
        return trainable.model(input_ids=IDS).logits


def change(trainable, amount=0.05):
    with torch.no_grad():
        for value in trainable.parameters():
            value.add_(amount)


def toy(delta):
    """One layer of weight 1.0 with a rank-1 adapter that adds `delta`."""

    class Toy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 1, bias=False)
            nn.init.ones_(self.linear.weight)

        def forward(self, x):
            return self.linear(x)

    model = peft.get_peft_model(Toy(), peft.LoraConfig(r=1, lora_alpha=1, target_modules=["linear"]))
    made = AdapterModel(model)
    set_delta(made, delta)
    return made


def set_delta(made, delta):
    with torch.no_grad():
        for name, value in made.model.named_parameters():
            if "lora_A" in name:
                value.fill_(1.0)
            if "lora_B" in name:
                value.fill_(delta)


def effective(made):
    """What the sampler multiplies by."""
    with torch.no_grad(), made.sampling_weights():
        return made.model(torch.ones(1, 1)).item()


def base(made):
    with torch.no_grad(), made.reference():
        return made.model(torch.ones(1, 1)).item()


def test_a_merged_adapter_counts_once_at_every_sync_and_after_a_resume():
    """The sampler's weight is base plus adapter, however often it was merged before; adapters off is the base."""
    first = toy(0.5)
    seen = [(effective(first), base(first))]
    set_delta(first, 0.75)
    seen.append((effective(first), base(first)))
    resumed = toy(0.0)
    resumed.load_state_dict(first.state_dict())
    seen += [(effective(resumed), base(resumed)) for _ in range(2)]
    assert seen == [(1.5, 1.0), (1.75, 1.0), (1.75, 1.0), (1.75, 1.0)]


def test_sampling_weights_restore_the_base_bit_for_bit():
    """After merging, the base's tensors are what they were, not a sum minus the adapter."""
    made = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2))
    change(made)
    before = {name: value.clone() for name, value in made.model.named_parameters()}
    with made.sampling_weights():
        merged = dict(made.model.named_parameters())
        assert not all(torch.equal(before[name], merged[name]) for name in before)
    assert all(torch.equal(before[name], value) for name, value in made.model.named_parameters())


def test_sampling_weights_restore_the_base_when_sampling_fails():
    """An exception inside leaves the base unmerged."""
    made = toy(0.5)
    with pytest.raises(KeyboardInterrupt), made.sampling_weights():
        raise KeyboardInterrupt
    assert base(made) == 1.0
    assert effective(made) == 1.5


def test_sampling_weights_give_the_logits_of_the_adapter():
    """Merging changes how fast the logits come, not what they are."""
    made = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2))
    change(made)
    beside = logits(made)
    with made.sampling_weights():
        torch.testing.assert_close(logits(made), beside, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
@pytest.mark.filterwarnings("ignore:Model (with|has) `tie_word_embeddings=True`:UserWarning")  # which is what is tested
def test_an_adapter_on_one_of_two_tied_matrices_leaves_the_other_alone(target):
    """Head and embeddings are one tensor: merging into it would put the adapter into both."""
    made = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2, targets=[target, "q_proj"]))
    change(made)
    beside = logits(made)
    with made.sampling_weights():
        torch.testing.assert_close(logits(made), beside, atol=1e-4, rtol=1e-4)


def test_sampling_weights_may_be_entered_inside_themselves():
    """The inner one neither merges again nor restores early."""
    made = toy(0.5)
    with made.sampling_weights():
        inner = effective(made)
        assert (inner, made.model(torch.ones(1, 1)).item()) == (1.5, 1.5)
    assert base(made) == 1.0


def test_the_reference_of_an_adapter_is_the_base_even_while_merged():
    """Reference inside sampling weights is the base, and the merge is back behind it."""
    made = toy(0.5)
    with made.sampling_weights(), torch.no_grad():
        with made.reference():
            inside = made.model(torch.ones(1, 1)).item()
        assert (inside, made.model(torch.ones(1, 1)).item()) == (1.0, 1.5)


@pytest.mark.parametrize("what", ["full", "last:1", "lora"])
def test_the_reference_is_the_model_before_training(what):
    """Whatever trains, the reference gives the initial logits and leaving it the trained ones."""
    made = make_trainable(tiny_model(), what)
    initial = logits(made)
    with made.reference():
        pass
    change(made)
    trained = logits(made)
    with made.reference():
        torch.testing.assert_close(logits(made), initial)
    assert torch.equal(logits(made), trained)
    assert not torch.allclose(trained, initial)


@pytest.mark.parametrize("what", ["full", "last:1", "lora"])
def test_a_resumed_model_samples_as_saved_and_refers_to_the_initial_one(what):
    """Loading trained parameters changes the model and not its reference."""
    made, resumed = (make_trainable(tiny_model(), what) for _ in range(2))
    initial = logits(resumed)
    change(made)
    resumed.load_state_dict(made.state_dict())
    with resumed.sampling_weights():
        torch.testing.assert_close(logits(resumed), logits(made), atol=1e-4, rtol=1e-4)
    with resumed.reference():
        torch.testing.assert_close(logits(resumed), initial)


def test_a_reference_asked_for_too_late_is_an_error():
    """A copy of weights that an optimiser has changed is not the initial policy."""
    made = make_trainable(tiny_model(), "last:1")
    optimiser = torch.optim.AdamW(made.parameters(), lr=0.1, fused=True)
    made.model(input_ids=IDS, labels=IDS).loss.backward()
    optimiser.step()
    with pytest.raises(ConfigurationError, match="before the first optimiser step"), made.reference():
        pass


def test_last_layers_train_with_the_norm_behind_them_and_nothing_else():
    """Embeddings, head and lower layers stay frozen."""
    made = make_trainable(tiny_model(layers=3), "last:1")
    assert {name.rpartition(".layers.")[2].split(".")[0] for name in made.state_dict()} == {"2", "model"}
    assert {name for name in made.state_dict() if ".layers." not in name} == {"model.norm.weight"}


def test_full_training_counts_a_tied_head_once():
    """The head and the embeddings are one parameter."""
    made = make_trainable(tiny_model(), "full")
    assert "lm_head.weight" not in made.state_dict()
    assert len(made.parameters()) == len(made.state_dict())


def test_an_adapter_is_all_that_is_saved_of_it():
    """The state holds the adapter's matrices and nothing of the base."""
    made = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2, targets=["q_proj"]))
    assert {name.split(".")[-3] for name in made.state_dict()} == {"lora_A", "lora_B"}


def test_weights_of_another_model_are_refused_and_change_nothing():
    """A checkpoint names what does not fit, before anything is overwritten."""
    made = make_trainable(tiny_model(), "last:1")
    before = logits(made)
    with pytest.raises(CheckpointError, match="do not fit"):
        made.load_state_dict({**make_trainable(tiny_model(seed=1), "last:2").state_dict()})
    assert torch.equal(logits(made), before)


@pytest.mark.parametrize("what", ["last", "last:0", "last:9", "some", "lora:3"])
def test_what_trains_must_exist(what):
    """Unknown words and more layers than there are name what is wrong."""
    with pytest.raises(ConfigurationError, match="last"):
        make_trainable(tiny_model(), what)


def test_an_adapter_on_modules_that_do_not_exist_is_an_error():
    """The message names the targets."""
    with pytest.raises(ConfigurationError, match="nothing_here"):
        make_trainable(tiny_model(), "lora", lora=LoraSettings(targets=["nothing_here"]))


def test_an_exported_model_is_a_plain_transformers_folder(tmp_path):
    """Trained layers are in the folder that transformers loads."""

    made = make_trainable(tiny_model(), "last:1")
    change(made)
    made.export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(input_ids=IDS).logits.detach(), logits(made))


def test_an_exported_adapter_loads_onto_its_base(tmp_path):
    """The folder holds the adapter that peft puts back."""
    made = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2))
    change(made)
    made.export(tmp_path)
    base_model = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2)).model
    base_model.load_adapter(tmp_path, "loaded")
    base_model.set_adapter("loaded")
    loaded = base_model
    torch.testing.assert_close(loaded(input_ids=IDS).logits.detach(), logits(made))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's, as of now
@pytest.mark.parametrize("what", ["full", "last:1", "lora"])
def test_a_model_with_an_adapter_of_its_own_is_refused(what):
    """What trains would be another one, and what is exported would lose weights."""
    wrapped = peft.get_peft_model(tiny_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ConfigurationError, match=r"has an adapter already.*merge_and_unload"):
        make_trainable(wrapped, what)
    assert make_trainable(wrapped.merge_and_unload(), what).parameters()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("what", ["full", "last:1", "lora"])
def test_the_adapter_of_an_earlier_run_is_taken_out(what):
    """A second run in the same process begins with the model as it was given, and so does one that goes on."""
    model = tiny_model()
    plain, names = model(IDS).logits.detach(), list(model.state_dict())
    for _ in range(2):
        change(make_trainable(model, "lora", lora=LoraSettings(rank=2)))
    made = make_trainable(model, what, lora=LoraSettings(rank=2))
    assert torch.equal(logits(made), plain)
    if what != "lora":
        assert list(model.state_dict()) == names


@pytest.mark.parametrize("wrong", [{"rank": 1.5}, {"rank": True}, {"alpha": math.inf}, {"targets": None}])
def test_an_adapter_that_cannot_be_is_refused_by_its_setting(wrong):
    """Before peft says it in other words."""
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"{name} must be"):
        LoraSettings(**wrong)
