"""The local policy: exact ids and log-probabilities, whatever is reused."""

import random

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from tiltyard.errors import ConfigurationError, PolicyError
from tiltyard.models.loading import load_model
from tiltyard.models.trainable import LoraSettings, make_trainable
from tiltyard.policies.base import Sampled, Sampling, TokenRequest
from tiltyard.policies.hf import HFPolicy
from tiltyard.testing.model import tiny_model

NEVER = frozenset({319})
"""A stop token that the tests' prompts and seeds do not draw."""

FAMILIES = {
    "gpt2": GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    "window": MistralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
    ),
    "eager": LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    ),
    "mamba": MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=4),
}


class ConstantHead(nn.Module):
    """A head that gives the same logits everywhere, as many rows as there are hidden states."""

    def __init__(self, logits):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.logits = torch.tensor(logits)

    def forward(self, hidden):
        return self.logits.expand(*hidden.shape[:-1], -1)


def constant_model(logits):
    """A real Llama whose next-token logits are always these; ids 0..2 first."""
    model = tiny_model(vocab_size=8, tied=False)
    model.lm_head = ConstantHead(logits + [-1e9] * 5)
    return model


def ids(count, seed=0, vocabulary=300):
    source = random.Random(seed)
    return [source.randrange(vocabulary) for _ in range(count)]


def logprobs(model, sequence, sampled, temperature=1.0):
    """Those of a plain forward pass over everything."""
    with torch.no_grad():
        logits = model(torch.tensor([[*sequence, *sampled]])).logits[0].float()
    table = (logits / temperature).log_softmax(-1)
    return [table[len(sequence) + place - 1, token].item() for place, token in enumerate(sampled)]


def play(policy, sequences, turns=3, max_tokens=6, observation=9):
    """Grow every sequence by a turn and an observation of uneven length; yields the results of each turn."""
    for turn in range(turns):
        requests = [
            TokenRequest(key, list(row), max_tokens, 100 * turn + i) for i, (key, row) in enumerate(sequences.items())
        ]
        results = policy.sample(requests)
        yield [(list(row), result) for row, result in zip(sequences.values(), results, strict=True)]
        for place, (row, result) in enumerate(zip(sequences.values(), results, strict=True)):
            row.extend(result.ids)
            row.extend(ids(1 + (5 * place + turn) % observation, seed=place + turn, vocabulary=90))


def largest_difference(model, policy, sequences, **options):
    worst = 0.0
    for turn in play(policy, sequences, **options):
        for sequence, result in turn:
            exact = logprobs(model, sequence, result.ids, policy.sampling.temperature)
            worst = max(worst, *(abs(a - b) for a, b in zip(exact, result.logprobs, strict=True)))
    return worst


def ragged():
    """Two groups that share a beginning, one loner, and a prompt of a single token."""
    start = ids(40)
    prompts = {"a": start + ids(5, 1), "b": start + ids(30, 2), "c": ids(7, 3), "d": [4]}
    return {f"{name}{i}": list(prompt) for name, prompt in prompts.items() for i in range(2)}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_full_forward_pass_over_ragged_turns(temperature):
    """Reused and repeated caches give what one pass over the whole sequence gives, within 1e-4."""
    model = tiny_model()
    policy = HFPolicy(model, stop_ids=frozenset(range(20)), sampling=Sampling(temperature=temperature))
    assert policy.path == "kept"
    assert largest_difference(model, policy, ragged()) < 1e-4


@pytest.mark.parametrize(
    ("family", "path"), [("gpt2", "kept"), ("eager", "kept"), ("window", "native"), ("mamba", "plain")]
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # slow implementations of state-space layers say so
def test_other_families_take_the_path_that_is_right_for_them(family, path):
    """A cache that cannot be kept is never used as if it could; the numbers are right on every path."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        implementation = {"attn_implementation": "eager"} if family == "eager" else {}
        model = AutoModelForCausalLM.from_config(FAMILIES[family], **implementation).eval()
    policy = HFPolicy(model, stop_ids=frozenset({5}))
    assert policy.path == path
    sequences = {key: [token % 90 for token in row] for key, row in ragged().items()}
    assert largest_difference(model, policy, sequences, turns=2, max_tokens=4) < 1e-4


def test_a_row_does_not_depend_on_its_batch():
    """The same request alone, in another order or in other company gives the same ids."""
    model = tiny_model()
    requests = [TokenRequest(key, row, 8, seed) for seed, (key, row) in enumerate(ragged().items())]
    together = HFPolicy(model, stop_ids=NEVER).sample(requests)
    backwards = HFPolicy(model, stop_ids=NEVER).sample(requests[::-1])[::-1]
    alone = [HFPolicy(model, stop_ids=NEVER, max_batch=1).sample([request])[0] for request in requests]
    assert [result.ids for result in together] == [result.ids for result in backwards] == [r.ids for r in alone]


def test_members_of_a_group_share_one_prefill_and_draw_their_own_tokens():
    """Equal prompts are fed once; different seeds give different answers, equal seeds equal ones."""
    policy = HFPolicy(tiny_model(), stop_ids=NEVER)
    prompt = ids(20)
    results = policy.sample([TokenRequest(str(i), prompt, 8, seed=i // 2) for i in range(8)])
    assert policy.stats.prefilled == 19
    assert policy.stats.shared == 7 * 19
    assert len({result.ids for result in results}) == 4


def test_what_prompts_begin_with_is_fed_once():
    """Different prompts with one beginning pay for it once, also when they come later."""
    policy = HFPolicy(tiny_model(), stop_ids=NEVER)
    start = ids(50)
    policy.sample([TokenRequest(str(i), [*start, i, i], 1, 0) for i in range(3)])
    assert policy.stats.prefilled == 50 + 3
    policy.sample([TokenRequest("later", [*start, 9, 9], 1, 0)])
    assert policy.stats.prefilled == 50 + 4


def test_a_next_turn_feeds_only_what_is_new():
    """The episode's cache holds all but the last sampled token; reuse is counted."""
    policy = HFPolicy(tiny_model(), stop_ids=NEVER)
    prompt = ids(20)
    first = policy.sample([TokenRequest("e", prompt, 8, 0)])[0]
    policy.sample([TokenRequest("e", [*prompt, *first.ids, 1, 2, 3], 8, 1)])
    assert (policy.stats.extended, policy.stats.forks) == (1, 0)
    assert policy.stats.reused == 20 + 7
    # The prompt and the second turn, each without the token that the first step feeds.
    assert policy.stats.prefilled == 19 + 1 + 2


def test_a_changed_history_is_noticed_counted_and_computed_anew():
    """Ids that do not extend what is kept reuse only what is equal, and the numbers stay right."""
    model = tiny_model()
    policy = HFPolicy(model, stop_ids=NEVER)
    prompt = ids(20)
    policy.sample([TokenRequest("e", prompt, 8, 0)])
    other = [*prompt[:10], *ids(12, seed=9)]
    result = policy.sample([TokenRequest("e", other, 8, 1)])[0]
    assert (policy.stats.forks, policy.stats.reused) == (1, 10)
    assert result.logprobs == pytest.approx(logprobs(model, other, result.ids), abs=1e-4)


@pytest.mark.parametrize("again", [[5, 6, 7, 8, 9], [5, 6, 7]])
def test_a_history_that_was_cut_back_sees_nothing_of_what_was_cut(again):
    """Where the kept cache has room for the whole turn, it still holds what came after the cut."""
    model = tiny_model()
    policy = HFPolicy(model, stop_ids=frozenset(range(300)))
    policy.sample([TokenRequest("a", [5, 6, 7, 8, 9], 20, 0)])
    (result,) = policy.sample([TokenRequest("a", again, 3, 1)])
    assert result.logprobs == pytest.approx(logprobs(model, again, result.ids), abs=1e-4)


def test_local_attention_that_counts_places_is_not_given_gaps():
    """GPT-Neo's windows run over places in the cache, so a gap in a row would push tokens out of sight."""
    config = GPTNeoConfig(
        vocab_size=100,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=32,
        initializer_range=0.25,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    policy = HFPolicy(model, stop_ids=NEVER)
    sequences = {"long": ids(70, 1, vocabulary=100), "short": ids(40, 2, vocabulary=100)}
    assert largest_difference(model, policy, sequences, turns=2) < 1e-4


def test_changed_weights_drop_every_cache():
    """After `weights_changed` the samples are those of the new weights."""
    model = tiny_model()
    policy = HFPolicy(model, stop_ids=NEVER)
    prompt = ids(20)
    first = policy.sample([TokenRequest(key, [*prompt, *more], 4, 0) for key, more in (("e", [1]), ("f", [2, 3, 4]))])
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.1)
    policy.weights_changed()
    longer = [*prompt, 1, *first[0].ids, 5]
    result = policy.sample([TokenRequest("e", longer, 4, 1)])[0]
    assert policy.stats.reused == 0
    assert result.logprobs == pytest.approx(logprobs(model, longer, result.ids), abs=1e-4)


def test_release_gives_the_memory_back():
    """Released episodes keep nothing, and unknown keys are ignored."""
    policy = HFPolicy(tiny_model(), stop_ids=NEVER)
    policy.sample([TokenRequest(str(i), ids(20, i), 4, 0) for i in range(8)])
    whole = policy.kept_bytes
    policy.release(["0", "1", "2", "3", "4", "unknown"])
    assert 0 < policy.kept_bytes < whole / 2
    policy.release(["5", "6", "7"])
    assert policy.kept_bytes == 0


def test_kept_caches_stay_within_their_bound():
    """The oldest episodes are dropped beyond `max_cache_bytes`, and are then computed anew."""
    model = tiny_model()
    policy = HFPolicy(model, stop_ids=NEVER, max_cache_bytes=40_000)
    sequences = {str(i): ids(20, i) for i in range(8)}
    assert largest_difference(model, policy, sequences) < 1e-4
    assert 0 < policy.kept_bytes <= 40_000


def test_kept_caches_stay_within_their_bound_during_a_call_too():
    """A call of many passes keeps no more between them than it may keep afterwards."""
    model = tiny_model()
    policy = HFPolicy(model, stop_ids=NEVER, max_batch=1, max_cache_bytes=20_000)
    kept = []
    hook = model.register_forward_pre_hook(lambda *_: kept.append(policy.kept_bytes))
    policy.sample([TokenRequest(str(i), ids(20, i), 6, i) for i in range(8)])
    hook.remove()
    assert 0 < max(kept) <= 20_000


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_short_floats_are_sampled_on_the_same_path(dtype, bound):
    """Reuse holds in half precision too; what differs from a full pass is the dtype's rounding."""
    model = tiny_model().to(dtype)
    policy = HFPolicy(model, stop_ids=NEVER)
    assert policy.path == "kept"
    assert largest_difference(model, policy, ragged()) < bound


def test_small_passes_give_what_large_ones_give():
    """Bounds on the rows and tokens of one pass change nothing but its size."""
    model = tiny_model()
    requests = [TokenRequest(key, row, 6, seed) for seed, (key, row) in enumerate(ragged().items())]
    large = HFPolicy(model, stop_ids=NEVER).sample(requests)
    small = HFPolicy(model, stop_ids=NEVER, max_batch=3, max_prefill_tokens=4).sample(requests)
    assert [result.ids for result in small] == [result.ids for result in large]


def test_a_stop_token_ends_the_turn_and_is_part_of_it():
    """The stop id is the last of the ids, with its log-probability."""
    policy = HFPolicy(constant_model([0.0, 20.0, 0.0]), stop_ids=frozenset({1}))
    assert policy.sample([TokenRequest("e", [3], 8, 0)])[0].ids == (1,)
    assert policy.sample([TokenRequest("f", [3], 8, 0)])[0].finish_reason == "stop"


def test_the_token_limit_ends_a_turn_as_length():
    """A turn of exactly `max_tokens` without a stop token is cut."""
    policy = HFPolicy(constant_model([0.0, 20.0, 0.0]), stop_ids=frozenset({0}))
    result = policy.sample([TokenRequest("e", [3], 3, 0)])[0]
    assert (result.ids, result.finish_reason) == ((1, 1, 1), "length")


def test_a_stop_token_at_the_limit_is_a_stop():
    """The model ended its turn, at the last token that it had."""
    policy = HFPolicy(constant_model([0.0, 20.0, 0.0]), stop_ids=frozenset({1}))
    assert policy.sample([TokenRequest("e", [3], 1, 0)])[0].finish_reason == "stop"


def test_the_room_in_the_context_ends_a_turn_as_context():
    """Sampling stops when the sequence is as long as the context, and gives nothing where it is full."""
    policy = HFPolicy(constant_model([0.0, 20.0, 0.0]), stop_ids=frozenset({0}), context_length=6)
    results = policy.sample([TokenRequest(str(n), [3] * n, 3, 0) for n in (3, 4, 6, 9)])
    assert [(len(result.ids), result.finish_reason) for result in results] == [
        (3, "length"),
        (2, "context"),
        (0, "context"),
        (0, "context"),
    ]


def test_the_context_length_is_the_models_own_unless_given():
    """It is read from the configuration."""
    assert HFPolicy(tiny_model(context_length=77), stop_ids=NEVER).context_length == 77


@pytest.mark.parametrize(
    ("sampling", "logprob"),
    [(Sampling(temperature=0.5), -0.142932), (Sampling(top_p=0.9), -0.313262), (Sampling(), -0.407606)],
)
def test_the_policys_logprobs_are_those_of_its_sampling(sampling, logprob):
    """What the trainer will see is the distribution that was sampled from."""
    policy = HFPolicy(constant_model([2.0, 1.0, 0.0]), stop_ids=frozenset({7}), sampling=sampling)
    result = policy.sample([TokenRequest("e", [3], 20, 0)])[0]
    assert {round(lp, 6) for token, lp in zip(result.ids, result.logprobs, strict=True) if token == 0} == {logprob}


def test_the_models_generation_config_is_not_used():
    """Eight samples at temperature 1 differ although the model's defaults would make them equal."""
    model = tiny_model()
    model.generation_config = GenerationConfig(do_sample=True, top_k=1, repetition_penalty=1.05, temperature=0.1)
    results = HFPolicy(model, stop_ids=NEVER).sample([TokenRequest(str(i), ids(9), 8, i) for i in range(8)])
    assert len({result.ids for result in results}) == 8


def test_greedy_takes_the_most_likely_token_for_every_seed():
    """Temperature 0 gives one answer."""
    policy = HFPolicy(tiny_model(), stop_ids=NEVER, sampling=Sampling(temperature=0.0))
    results = policy.sample([TokenRequest(str(i), ids(9), 8, i) for i in range(3)])
    assert len({result.ids for result in results}) == 1


def test_an_adapter_samples_the_same_merged_and_beside():
    """A peft model is sampled through its wrapper; merging changes only the speed."""
    made = make_trainable(tiny_model(), "lora", lora=LoraSettings(rank=2))
    with torch.no_grad():
        for value in made.parameters():
            value.add_(0.05)
    policy = HFPolicy(made.model, stop_ids=NEVER)
    requests = [TokenRequest("e", ids(9), 8, 0)]
    beside = policy.sample(requests)
    policy.weights_changed()
    with made.sampling_weights():
        merged = policy.sample(requests)
    assert merged[0].ids == beside[0].ids
    assert merged[0].logprobs == pytest.approx(beside[0].logprobs, abs=1e-4)


def test_sampling_leaves_the_models_mode_and_gradients_alone():
    """A model in train mode is sampled in eval mode and is in train mode afterwards."""
    model = tiny_model().train()
    HFPolicy(model, stop_ids=NEVER).sample([TokenRequest("e", ids(9), 2, 0)])
    assert model.training
    assert all(value.requires_grad and value.grad is None for value in model.parameters())


def test_no_requests_give_no_results():
    """An empty batch is not an error."""
    assert HFPolicy(tiny_model(), stop_ids=NEVER).sample([]) == []


def test_logits_that_are_not_numbers_fail_the_sample():
    """A broken model is an error with the episode's name, never a token."""
    model = constant_model([2.0, 1.0, 0.0])
    policy = HFPolicy(model, stop_ids=NEVER)
    model.lm_head.logits.fill_(float("nan"))
    with pytest.raises(PolicyError, match="'e'"):
        policy.sample([TokenRequest("e", [3], 2, 0)])


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([TokenRequest("e", [], 1, 0)], "no ids"),
        ([TokenRequest("e", [1], 0, 0)], "max_tokens"),
        ([TokenRequest("e", [320], 1, 0)], "320"),
        ([TokenRequest("e", [-1], 1, 0)], "-1"),
        ([TokenRequest("e", [1], 1, 0), TokenRequest("e", [2], 1, 0)], "'e'"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(requests, message):
    """The message says which and why."""
    with pytest.raises(ConfigurationError, match=message):
        HFPolicy(tiny_model(), stop_ids=NEVER).sample(requests)


@pytest.mark.parametrize("bound", ["max_batch", "max_prefill_tokens", "context_length"])
def test_bounds_below_one_are_refused(bound):
    """The message names the bound."""
    with pytest.raises(ConfigurationError, match=bound):
        HFPolicy(tiny_model(), stop_ids=NEVER, **{bound: 0})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "gpt2"}, r"causal language model of transformers, got a str; load_model\(...\).model is one"),
        ({"sampling": {"temperature": 0.5}}, r"sampling must be a Sampling\(...\)"),
        ({"stop_ids": 7}, "stop_ids must be a set of token ids"),
        ({"stop_ids": {"<|im_end|>"}}, "stop_ids must be a set of token ids"),
        ({"max_batch": 1.5}, "max_batch must be a whole number >= 1, got 1.5"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(options, says):
    """Before anything is sampled."""
    arguments = {"model": tiny_model(), "stop_ids": NEVER, **options}
    with pytest.raises(ConfigurationError, match=says):
        HFPolicy(**arguments)


def test_an_encoder_decoder_is_refused():
    """The policy continues sequences; a model that translates them is another thing."""
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ConfigurationError, match="decoder-only"):
        HFPolicy(T5ForConditionalGeneration(config), stop_ids=NEVER)


def test_a_result_is_a_tuple_of_ids_with_a_logprob_each():
    """What comes back fits the transcript."""
    result = HFPolicy(tiny_model(), stop_ids=NEVER).sample([TokenRequest("e", ids(4), 3, 0)])[0]
    assert isinstance(result, Sampled)
    assert len(result.ids) == len(result.logprobs) == 3


@pytest.mark.slow
def test_the_real_models_logprobs_are_those_of_a_full_forward_pass():
    """SmolLM2-135M over ragged turns in groups: within 1e-4, on the path that keeps caches."""
    loaded = load_model("smollm2-135m-instruct", device="cpu")
    policy = HFPolicy(loaded.model, stop_ids=frozenset({2}))
    assert policy.path == "kept"
    text = "<|im_start|>user\nOpen one of the boxes {}. Which one?<|im_end|>\n<|im_start|>assistant\n"
    prompts = [loaded.tokenizer(text.format(boxes)).input_ids for boxes in ("A, B and C", "D, E, F, G and H")]
    sequences = {f"{group}{member}": list(prompt) for group, prompt in enumerate(prompts) for member in range(4)}
    assert largest_difference(loaded.model, policy, sequences, max_tokens=8) < 1e-4
