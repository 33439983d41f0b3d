"""What is drawn from logits, and the log-probability that comes with it."""

import math

import pytest
import torch

from tiltyard.errors import ConfigurationError
from tiltyard.policies.base import Sampling
from tiltyard.policies.picking import pick, restrict, uniforms

LOGITS = torch.tensor([[2.0, 1.0, 0.0]])


def draw(uniform, sampling, logits=LOGITS):
    picked = pick(logits, torch.tensor([uniform]), sampling)
    return picked.ids[0], round(picked.logprobs[0], 6)


@pytest.mark.parametrize(
    ("sampling", "logprob"),
    [
        (Sampling(), -0.407606),
        (Sampling(temperature=0.5), -0.142932),
        (Sampling(top_p=0.9), -0.313262),
        (Sampling(top_k=2), -0.313262),
        (Sampling(top_k=1), 0.0),
        (Sampling(temperature=0.0), -0.407606),
    ],
)
def test_the_logprob_is_that_of_the_distribution_drawn_from(sampling, logprob):
    """Temperature and truncation are in the log-probability; greedy is scored at temperature 1."""
    assert draw(0.0, sampling) == (0, logprob)


def test_the_uniform_is_inverted_through_the_distribution():
    """Token i is drawn where the uniform falls into its share."""
    first, second = LOGITS.softmax(-1)[0, :2].double().tolist()
    cuts = [0.0, first - 1e-6, first + 1e-6, first + second - 1e-6, first + second + 1e-6, 1 - 2**-53]
    assert [draw(cut, Sampling())[0] for cut in cuts] == [0, 0, 1, 1, 2, 2]


def test_greedy_ignores_the_uniform_and_the_truncation():
    """Temperature 0 is the most likely token, whatever else is set."""
    assert {draw(u, Sampling(temperature=0.0, top_p=0.1, top_k=2)) for u in (0.0, 0.5, 0.999)} == {(0, -0.407606)}


def test_what_truncation_cuts_is_never_drawn():
    """Outside top_p and top_k the probability is exactly zero."""
    assert draw(1 - 2**-53, Sampling(top_p=0.9))[0] == 1
    assert draw(1 - 2**-53, Sampling(top_k=1))[0] == 0


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    """A token stays while those before it have not reached top_p; the first always stays."""
    even = torch.zeros(1, 4)
    kept = [int(restrict(even, Sampling(top_p=p)).isfinite().sum()) for p in (0.01, 0.25, 0.26, 0.75, 0.76, 1.0)]
    assert kept == [1, 1, 2, 3, 4, 4]


def test_equal_logits_are_cut_by_id():
    """Ties do not make top_k keep more than it says."""
    assert restrict(torch.zeros(1, 4), Sampling(top_k=2)).isfinite().tolist() == [[True, True, False, False]]


def test_a_wide_vocabulary_is_drawn_as_the_slow_way_draws():
    """Over many blocks of the vocabulary the drawn ids are those of one sum in float64."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(200, 3001, generator=generator)
    draws = torch.rand(200, generator=generator, dtype=torch.float64)
    picked = pick(logits, draws, Sampling())
    slow = torch.searchsorted(logits.double().softmax(-1).cumsum(-1), draws[:, None], right=True).squeeze(1)
    assert picked.ids == slow.tolist()
    exact = logits.double().log_softmax(-1).gather(1, slow[:, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor(picked.logprobs, dtype=torch.float64), exact, atol=1e-5, rtol=0)


def test_impossible_tokens_at_the_ends_are_never_drawn():
    """A uniform of 0 and one next to 1 both fall on tokens with probability."""
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]])
    assert [draw(u, Sampling(), logits)[0] for u in (0.0, 1 - 2**-53)] == [1, 2]


def test_draws_follow_the_distribution():
    """Frequencies over many seeds are the probabilities, within four standard errors."""
    count = 4000
    draws = torch.tensor([uniforms(seed, 7, 1)[0] for seed in range(count)])
    ids = torch.tensor(pick(LOGITS.expand(count, -1), draws, Sampling()).ids)
    for token, share in enumerate(LOGITS.softmax(-1)[0].tolist()):
        assert abs(float((ids == token).float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_a_uniform_depends_on_its_seed_and_position_alone():
    """Starting later gives the same numbers for the same positions; another seed gives others."""
    assert uniforms(3, 10, 6)[2:].tolist() == uniforms(3, 12, 4).tolist()
    assert uniforms(3, 10, 6).tolist() != uniforms(4, 10, 6).tolist()


def test_any_integer_is_a_seed():
    """Negative and very large seeds are taken as they are, modulo 2**64."""
    assert all(0 <= uniforms(seed, 0, 1)[0] < 1 for seed in (-1, 0, 2**64 + 5))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": None},
        {"top_k": -1},
        {"top_k": 1.5},
    ],
)
def test_impossible_sampling_settings_are_refused(settings):
    """The message names the setting."""
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        Sampling(**settings)
