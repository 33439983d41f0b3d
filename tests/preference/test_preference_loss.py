"""Preference losses: hand-computed values, a slow obvious version, and gradients."""

import math

import pytest
import torch

from tiltyard.errors import ConfigurationError
from tiltyard.train.preference_loss import PairLogprobs, ipo_loss, pair_losses, sigmoid_loss
from tiltyard.train.supervised_algorithms import DPO, SFT

PAIRS = PairLogprobs(
    chosen=torch.tensor([-10.0, -20.0, -8.0]),
    rejected=torch.tensor([-14.0, -18.0, -8.0]),
    reference_chosen=torch.tensor([-11.0, -19.0, -8.0]),
    reference_rejected=torch.tensor([-13.0, -19.0, -8.0]),
)
LOG_RATIOS = [2.0, -2.0, 0.0]


def test_the_log_ratio_is_how_much_more_than_the_reference_the_policy_prefers_the_chosen():
    """(-10 + 11) - (-14 + 13) = 2."""
    assert PAIRS.log_ratio().tolist() == LOG_RATIOS


def test_dpo_has_its_hand_computed_values():
    """-log sigmoid(0.1 * 2) = 0.598139, of -2 it is 0.798139, of 0 log 2."""
    assert sigmoid_loss(PAIRS.log_ratio(), 0.1).tolist() == pytest.approx([0.598139, 0.798139, 0.693147], abs=1e-6)


def test_ipo_has_its_hand_computed_values():
    """(h - 1 / (2 * 0.1))²: 3², 7² and 5²."""
    assert ipo_loss(PAIRS.log_ratio(), 0.1).tolist() == pytest.approx([9.0, 49.0, 25.0])


def test_a_smoothed_label_is_wrong_that_often():
    """0.9 * 0.598139 + 0.1 * 0.798139 = 0.618139."""
    smoothed = sigmoid_loss(PAIRS.log_ratio(), 0.1, 0.1).tolist()
    assert smoothed == pytest.approx([0.618139, 0.778139, 0.693147], abs=1e-6)


def test_the_nll_term_adds_the_chosen_answers_own_mean():
    """0.598139 + 0.5 * 10 / 5 tokens."""
    losses = pair_losses(PAIRS, torch.tensor([5, 10, 4]), DPO(nll_coef=0.5))
    assert losses.tolist() == pytest.approx([0.598139 + 1.0, 0.798139 + 1.0, 0.693147 + 1.0], abs=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    [
        DPO(),
        DPO(beta=0.5),
        DPO(label_smoothing=0.2),
        DPO(loss="ipo"),
        DPO(loss="ipo", nll_coef=0.3),
        DPO(nll_coef=1.0, label_smoothing=0.1),
    ],
)
def test_value_and_gradient_are_those_of_the_formula_written_out(algorithm):
    """One pair at a time, with `math`; the gradient by finite differences in float64."""
    tokens = torch.tensor([5, 10, 4])

    def obvious(index, chosen, rejected):
        h = chosen - PAIRS.reference_chosen[index].item() - rejected + PAIRS.reference_rejected[index].item()
        e, b = algorithm.label_smoothing, algorithm.beta
        if algorithm.loss == "ipo":
            loss = (h - 1 / (2 * b)) ** 2
        else:
            loss = (1 - e) * math.log1p(math.exp(-b * h)) + e * math.log1p(math.exp(b * h))
        return loss - algorithm.nll_coef * chosen / tokens[index].item()

    chosen, rejected = PAIRS.chosen.double().requires_grad_(), PAIRS.rejected.double().requires_grad_()
    pairs = PairLogprobs(chosen, rejected, PAIRS.reference_chosen.double(), PAIRS.reference_rejected.double())
    losses = pair_losses(pairs, tokens, algorithm)
    losses.sum().backward()
    for index in range(3):
        at, other = chosen[index].item(), rejected[index].item()
        assert losses[index].item() == pytest.approx(obvious(index, at, other), rel=1e-9)
        step = 1e-5
        slope = (obvious(index, at + step, other) - obvious(index, at - step, other)) / (2 * step)
        assert chosen.grad[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_the_gradient_of_dpo_raises_the_chosen_and_lowers_the_rejected():
    """By beta times how wrong the order still is."""
    chosen, rejected = PAIRS.chosen.clone().requires_grad_(), PAIRS.rejected.clone().requires_grad_()
    pairs = PairLogprobs(chosen, rejected, PAIRS.reference_chosen, PAIRS.reference_rejected)
    pair_losses(pairs, torch.ones(3), DPO(beta=0.1)).sum().backward()
    wrong = [1 / (1 + math.exp(0.1 * h)) for h in LOG_RATIOS]
    assert chosen.grad.tolist() == pytest.approx([-0.1 * w for w in wrong])
    assert rejected.grad.tolist() == pytest.approx([0.1 * w for w in wrong])


def test_a_huge_margin_has_a_finite_loss_and_gradient():
    """Log-probabilities of long answers are hundreds of nats apart."""
    for h in (-5000.0, 5000.0):
        log_ratio = torch.tensor([h], requires_grad=True)
        loss = sigmoid_loss(log_ratio, 0.5, 0.1)
        loss.sum().backward()
        assert loss.isfinite().all()
        assert log_ratio.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"loss": "hinge"}, "loss must be 'sigmoid' or 'ipo', got 'hinge'"),
        ({"beta": 0.0}, "beta must be > 0 and finite, got 0.0"),
        ({"label_smoothing": 0.5}, "label_smoothing must be >= 0 and < 0.5, got 0.5"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "only for loss 'sigmoid'"),
        ({"nll_coef": -1.0}, "nll_coef must be >= 0 and finite, got -1.0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(options, told):
    """Before anything is computed."""
    with pytest.raises(ConfigurationError, match=told):
        DPO(**options)


def test_a_normaliser_that_sft_does_not_have_is_refused():
    """Tokens or sequences."""
    with pytest.raises(ConfigurationError, match="loss_normaliser must be 'token' or 'sequence', got 'constant'"):
        SFT("constant")
