"""Packed rows, plain rows and the model's own logits give one set of log-probabilities."""

import math
import types

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, GPTNeoConfig, GPTNeoForCausalLM, LlamaForCausalLM, LlamaModel

from tiltyard.errors import ConfigurationError
from tiltyard.policies.base import Sampling
from tiltyard.testing.model import tiny_model
from tiltyard.train.batch import TrainRow
from tiltyard.train.forward import ForwardPlan, check_packing, check_sampling, pack_logprobs, token_logprobs
from tiltyard.train.packing import padded_packs, tree_packs

PACKED = ForwardPlan()
PLAIN = ForwardPlan(packed=False, decoder=False)


def _row(name, ids, mask):
    mask = tuple(bool(on) for on in mask)
    return TrainRow(name, tuple(ids), mask, (None,) * len(ids), (0.0,) * len(ids), sum(mask))


def _multi_turn_rows():
    """Two groups of multi-turn rows; members share a prompt and some of them a first turn."""
    return [
        _row("a", [5, 6, 7, 8, 9, 20, 21, 22], [0, 0, 0, 1, 1, 0, 1, 1]),
        _row("b", [5, 6, 7, 8, 9, 20, 21, 23, 24], [0, 0, 0, 1, 1, 0, 1, 1, 1]),
        _row("c", [5, 6, 7, 11, 20, 12], [0, 0, 0, 1, 0, 1]),
        _row("nothing", [5, 6, 7], [0, 0, 0]),
        _row("same as c", [5, 6, 7, 11, 20, 12], [0, 0, 0, 1, 0, 1]),
        _row("d", [5, 40, 41, 42], [0, 0, 1, 1]),
    ]


def _slow(model, row, temperature=1.0):
    """One row alone, all logits, one log-softmax."""
    logp = torch.log_softmax(model(torch.tensor([row.ids])).logits[0].double() / temperature, -1)
    return torch.stack([logp[t - 1, row.ids[t]] for t, on in enumerate(row.mask) if on])


@pytest.mark.parametrize("plan", [PACKED, PLAIN, ForwardPlan(packed=False), ForwardPlan(decoder=False)])
@pytest.mark.parametrize("max_tokens", [1, 12, 4096])
def test_every_layout_gives_the_log_probabilities_of_a_row_alone(plan, max_tokens):
    """The token at t is predicted from t - 1, in whatever company."""
    model, rows = tiny_model(), _multi_turn_rows()
    found = token_logprobs(model, rows, Sampling(temperature=0.7), plan, max_tokens=max_tokens)
    for row, logp in zip(rows, found, strict=True):
        assert len(logp) == row.trained
        if row.trained:
            assert logp.tolist() == pytest.approx(_slow(model, row, 0.7).tolist(), abs=1e-5)


def test_packed_and_plain_rows_give_equal_gradients():
    """A shared prefix collects the gradient of all rows behind it."""
    rows = _multi_turn_rows()
    gradients = []
    for plan in (PACKED, PLAIN):
        model = tiny_model()
        torch.cat(token_logprobs(model, rows, Sampling(), plan)).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    packed, plain = gradients
    assert (packed - plain).abs().max() <= 1e-5 * plain.abs().max()


def test_a_shared_prefix_is_computed_once():
    """The tree holds each distinct prefix once: 3 of prompt, 4 + 1 + 2 + 3 behind it, and 3 of the row apart."""
    (pack,) = tree_packs(_multi_turn_rows(), 4096)
    assert pack.ids.numel() == 3 + 4 + 1 + 2 + 3 + 3


def test_a_row_alone_needs_no_mask_of_ours():
    """A mask over all pairs of a long episode's tokens would be the largest tensor of the step."""
    long, short = _row("long", range(1, 60), [0] * 20 + [1] * 39), _row("short", [1, 2, 9], [0, 0, 1])
    assert [pack.attention.shape for pack in tree_packs([long, long], 100)] == [(1, 59)]
    assert [pack.attention.shape for pack in tree_packs([long, short], 100)] == [(1, 1, 60, 60)]
    model = tiny_model()
    for found in token_logprobs(model, [long, long], Sampling(), PACKED):
        assert found.tolist() == pytest.approx(_slow(model, long).tolist(), abs=1e-5)


def test_a_token_sees_itself_and_its_ancestors_only():
    """The attention mask of two answers to one prompt."""
    rows = [_row("a", [5, 6, 7], [0, 1, 1]), _row("b", [5, 8], [0, 1])]
    (pack,) = tree_packs(rows, 4096)
    assert pack.positions.tolist() == [[0, 1, 2, 1]]
    assert pack.attention[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize("packs", [tree_packs, padded_packs])
def test_packs_keep_to_their_size_and_their_order(packs):
    """A row longer than the size stands alone; none is lost."""
    found = list(packs(_multi_turn_rows(), 10))
    assert [row.episode_id for pack in found for row in pack.rows] == ["a", "b", "c", "same as c", "d"]
    assert all(pack.ids.numel() <= 10 or len(pack.rows) == 1 for pack in found)


def test_the_entropy_is_that_of_the_distribution_a_token_was_drawn_from():
    """-sum p log p under the sampling temperature."""
    model, (row, *_) = tiny_model(), _multi_turn_rows()
    (pack,) = tree_packs([row], 4096)
    found = pack_logprobs(model, pack, Sampling(temperature=2.0), PACKED).entropy
    p = torch.softmax(model(torch.tensor([row.ids])).logits[0].double() / 2.0, -1)
    slow = -(p * p.log()).sum(-1)
    assert found.tolist() == pytest.approx([slow[t - 1].item() for t, on in enumerate(row.mask) if on], abs=1e-4)


def test_logits_in_pieces_give_the_same_values_and_gradients():
    """Memory is bounded by computing the vocabulary projection piece by piece."""
    results = []
    for at_once in (2**27, 320 * 3):
        model = tiny_model()
        plan = ForwardPlan(logits_at_once=at_once)
        logp = torch.cat(token_logprobs(model, _multi_turn_rows(), Sampling(), plan))
        logp.sum().backward()
        results.append((logp.detach(), model.get_input_embeddings().weight.grad))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


class _Shifted(nn.Module):
    """A stub whose log-probability for the target id t is -t / 100, with the rest of the mass on id 0."""

    dtype = torch.float32

    def __init__(self, scores):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))
        text = types.SimpleNamespace(vocab_size=len(scores), hidden_size=1, sliding_window=None)
        self.config = types.SimpleNamespace(get_text_config=lambda: text, _attn_implementation="sdpa")

    def forward(self, input_ids, **_):
        return types.SimpleNamespace(logits=self.scores.expand(*input_ids.shape, -1))


def test_the_summed_log_probability_is_that_of_the_trained_targets():
    """LO-07, shift probe: the last prompt token is not trained, the final end token is."""
    scores = [-t / 100 for t in range(50)]
    offset = math.log(sum(math.exp(score) for score in scores))
    row = _row("probe", [30, 31, 12, 7, 49], [0, 0, 1, 1, 1])
    (found,) = token_logprobs(_Shifted(scores), [row], Sampling(), PLAIN)
    assert found.sum().item() == pytest.approx(-(12 + 7 + 49) / 100 - 3 * offset, abs=1e-5)


def test_the_trainer_mirrors_the_sampling_temperature():
    """LO-05: logits 2, 1, 0 at temperature 0.5 give -0.142932, not -0.407606."""
    row = _row("x", [1, 0], [0, 1])
    (found,) = token_logprobs(_Shifted([2.0, 1.0, 0.0]), [row], Sampling(temperature=0.5), PLAIN)
    assert found.item() == pytest.approx(-0.142932, abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(top_p=0.9), "top_p to 1"),
        (Sampling(top_k=1), "top_k to 0"),
        (Sampling(temperature=0), "teaches nothing"),
    ],
)
def test_a_sampling_distribution_that_cannot_be_mirrored_is_refused(sampling, says):
    """LO-05: a ratio over another support is not the policy's."""
    with pytest.raises(ConfigurationError, match=says):
        check_sampling(sampling)


def test_a_model_that_takes_our_mask_trains_packed():
    """The check at start finds nothing wrong with a plain Llama."""
    assert check_packing(tiny_model()) == ForwardPlan(packed=True, decoder=True)


class _Deaf(LlamaModel):
    """A decoder that cannot take an attention mask of ours."""

    def forward(self, attention_mask=None, **inputs):
        return super().forward(attention_mask=attention_mask if attention_mask.ndim == 2 else None, **inputs)


def test_a_model_that_ignores_the_mask_trains_on_plain_rows():
    """The check at start compares with plain rows; a wrong log-probability is never used."""
    model = tiny_model()
    model.model = _Deaf(model.config)
    plan = check_packing(model)
    assert (plan.packed, plan.decoder) == (False, True)
    assert plan.reason.startswith("packing: log-probabilities differ by")


def test_a_model_whose_attention_takes_no_mask_of_ours_is_not_tried():
    """Flash attention; the stub has no decoder to call apart either."""
    stub = _Shifted([2.0, 1.0, 0.0])
    stub.config._attn_implementation = "flash_attention_2"
    plan = check_packing(stub)
    assert (plan.packed, plan.decoder) == (False, False)
    assert "flash_attention_2" in plan.reason


def test_local_attention_that_counts_places_is_not_packed():
    """GPT-Neo's windows run over the places in the pack, which are not the positions in a row."""
    config = GPTNeoConfig(vocab_size=320, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["local"], 2]])
    plan = check_packing(GPTNeoForCausalLM(config).eval())
    assert (plan.packed, plan.decoder) == (False, True)


class _Positionless(LlamaForCausalLM):
    """A model that counts its positions itself."""

    def forward(self, input_ids, attention_mask, use_cache):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache)


def test_a_model_that_takes_no_positions_trains_on_plain_rows():
    """A tree needs positions of its own; rows side by side do not."""
    model = _Positionless(tiny_model().config).eval()
    model.get_decoder = lambda: None
    plan = check_packing(model)
    assert (plan.packed, plan.decoder) == (False, False)
    assert "position_ids" in plan.reason


class _Scaled(LlamaForCausalLM):
    """A model that scales its logits behind the projection."""

    def forward(self, **inputs):
        output = super().forward(**inputs)
        output.logits = output.logits / 2
        return output


def test_logits_that_are_more_than_a_projection_are_taken_from_the_model():
    """A scale or a soft cap behind the head is noticed, and packing works all the same."""
    model = _Scaled(tiny_model().config).eval()
    plan = check_packing(model)
    assert (plan.packed, plan.decoder) == (True, False)


def test_logits_of_a_tree_exist_only_where_they_are_needed_whoever_computes_them():
    """A model whose logits are more than a projection (Gemma 2 caps them) is told the places."""
    config = Gemma2Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.25,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(config).eval()
    assert not check_packing(model).decoder
    shapes = []
    model.lm_head.register_forward_hook(lambda _, __, logits: shapes.append(tuple(logits.shape)))
    rows, plan = _multi_turn_rows(), ForwardPlan(decoder=False)
    found = token_logprobs(model, rows, Sampling(), plan)
    (pack,) = plan.packs(rows, 4096)
    assert shapes == [(1, len(pack.places), 320)]
    for row, logp in zip(rows, found, strict=True):
        if row.trained:
            assert logp.tolist() == pytest.approx(_slow(model, row).tolist(), abs=1e-5)


def test_rows_longer_than_the_models_window_are_not_packed():
    """Our mask would replace the sliding window's."""
    plan = ForwardPlan(window=8)
    assert [pack.attention.ndim for pack in plan.packs(_multi_turn_rows()[2:], 4096)] == [4]
    assert [pack.attention.ndim for pack in plan.packs(_multi_turn_rows(), 4096)] == [2]


def test_frozen_lower_layers_keep_nothing_for_the_backward_pass():
    """Last-k training pays memory for the last k layers only."""

    def saved(model):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            token_logprobs(model, _multi_turn_rows(), Sampling(), PACKED)
        return sum(sizes)

    def last_layer_of(layers):
        model = tiny_model(layers=layers).requires_grad_(False)
        model.get_decoder().layers[-1].requires_grad_(True)
        return model

    assert saved(last_layer_of(4)) == saved(last_layer_of(2))
