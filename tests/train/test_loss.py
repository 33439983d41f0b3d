"""Losses: hand-computed values, gradients, and numbers that must not spread."""

import math

import pytest
import torch

from tiltyard.errors import ConfigurationError
from tiltyard.train.algorithms import GRPO
from tiltyard.train.loss import (
    TokenBatch,
    TokenTerms,
    clipped_terms,
    kl_to_reference,
    select,
    token_weights,
    weighted_sum,
    with_kl,
)

NAN = float("nan")


def _tokens(logp, old, advantages=None, row=None, reference=None):
    logp = torch.tensor(logp, requires_grad=True)
    advantages = torch.ones(len(logp)) if advantages is None else torch.tensor(advantages)
    row = torch.zeros(len(logp), dtype=torch.long) if row is None else torch.tensor(row)
    return TokenBatch(logp, torch.tensor(old), advantages, row, None if reference is None else torch.tensor(reference))


def test_an_unchanged_policy_has_ratio_one_and_the_gradient_of_minus_advantage_times_logp():
    """The surrogate's gradient on policy is the policy gradient."""
    tokens = _tokens([-1.0, -2.0], [-1.0, -2.0], [0.5, -2.0])
    terms = clipped_terms(tokens, clip_low=0.2, clip_high=0.2)
    terms.loss.sum().backward()
    assert terms.ratio.tolist() == [1.0, 1.0]
    assert tokens.logp.grad.tolist() == [-0.5, 2.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 1.0, -1.28, 0.0),  # above the upper bound, and better: clipped
        (1.1, 1.0, -1.1, -1.1),
        (0.5, 1.0, -0.5, -0.5),  # below the lower bound, and better: the min keeps it
        (0.5, -1.0, 0.8, 0.0),  # below the lower bound, and worse: clipped
        (1.5, -1.0, 1.5, 1.5),  # above the upper bound, and worse: the min keeps it
    ],
)
def test_the_clip_takes_the_gradient_only_where_the_policy_went_too_far_already(ratio, advantage, loss, gradient):
    """PPO eq. 7 with bounds 0.8 and 1.28."""
    tokens = _tokens([math.log(ratio)], [0.0], [advantage])
    terms = clipped_terms(tokens, clip_low=0.2, clip_high=0.28)
    terms.loss.sum().backward()
    assert terms.loss.item() == pytest.approx(loss, rel=1e-6)
    assert tokens.logp.grad.item() == pytest.approx(gradient, rel=1e-6)
    assert terms.clipped.item() is (gradient == 0.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_that_would_overflow_leaves_value_and_gradient_finite(advantage):
    """exp(200) is inf, and inf * 0 is NaN in the gradient."""
    tokens = _tokens([0.0, -200.0], [-200.0, 0.0], [advantage, advantage])
    loss = clipped_terms(tokens, clip_low=0.2, clip_high=0.2).loss
    loss.sum().backward()
    assert loss.isfinite().all()
    assert tokens.logp.grad.isfinite().all()


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        ("k1", [0.0, -1.0, 1.0], [1.0, 1.0, 1.0]),
        ("k2", [0.0, 0.5, 0.5], [0.0, -1.0, 1.0]),
        ("k3", [0.0, 0.718282, 0.367879], [0.0, -1.718282, 0.632121]),
    ],
)
def test_the_kl_estimators_have_their_value_sign_and_gradient(estimator, values, gradients):
    """LO-03: at r = reference - logp of 0, 1 and -1."""
    logp = torch.tensor([0.0, -1.0, 1.0], requires_grad=True)
    kl = kl_to_reference(logp, torch.zeros(3), estimator)
    kl.sum().backward()
    assert kl.tolist() == pytest.approx(values, abs=1e-6)
    assert logp.grad.tolist() == pytest.approx(gradients, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("r", [0.0, 1.0, -1.0, 20.0, 120.0, -120.0])
def test_value_and_gradient_of_the_kl_are_finite_in_every_dtype(estimator, dtype, r):
    """LO-03: clamping the result alone would leave a NaN gradient."""
    logp = torch.tensor([-r], dtype=dtype, requires_grad=True)
    kl = kl_to_reference(logp, torch.zeros(1, dtype=dtype), estimator)
    kl.sum().backward()
    assert kl.to(dtype).isfinite().all()
    assert logp.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("r", [0.5, 5.0, 20.0, 120.0])
def test_a_policy_below_its_reference_is_pulled_up_again(estimator, r):
    """LO-03: a step against the gradient raises logp, however far it has fallen."""
    logp = torch.tensor([-r], requires_grad=True)
    kl_to_reference(logp, torch.zeros(1), estimator).sum().backward()
    assert logp.grad.item() < 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_step_with_a_huge_kl_leaves_all_parameters_finite(dtype):
    """LO-03: at r = 120."""
    parameter = torch.nn.Parameter(torch.tensor([-120.0], dtype=dtype))
    optimiser = torch.optim.SGD([parameter], lr=1e-3)
    kl_to_reference(parameter, torch.zeros(1, dtype=dtype), "k3").sum().backward()
    optimiser.step()
    assert parameter.isfinite().all()


def _window_loss(values, counts_of, normaliser, constant=None):
    """The loss of a window given as micro-batches of rows, each a list of per-token losses."""
    weights = token_weights([len(row) for batch in values for row in batch], normaliser, constant)
    leaf = torch.tensor([v for batch in values for row in batch for v in row], requires_grad=True)
    total, at, row_index = 0.0, 0, 0
    for batch in values:
        for row in batch:
            part = leaf[at : at + len(row)]
            terms = TokenTerms(part, part.detach(), part.detach() > 0)
            tokens = TokenBatch(part, part, part, torch.full((len(row),), row_index))
            loss = weighted_sum(terms, tokens, torch.tensor(weights))
            loss.backward(retain_graph=True)
            total, at, row_index = total + loss.item(), at + len(row), row_index + 1
    return total, leaf.grad.tolist()


ONE, TWO = [1.0] * 2, [3.0] * 6


@pytest.mark.parametrize(
    ("normaliser", "constant", "expected"), [("token", None, 2.5), ("sequence", None, 2.0), ("constant", 8, 1.25)]
)
def test_micro_batches_sum_to_the_loss_and_gradient_of_the_whole_window(normaliser, constant, expected):
    """LO-01: 2 tokens of loss 1 and 6 of loss 3, in one batch or in two."""
    together = _window_loss([[ONE, TWO]], 2, normaliser, constant)
    apart = _window_loss([[ONE], [TWO]], 2, normaliser, constant)
    assert together[0] == pytest.approx(expected)
    assert apart == (pytest.approx(together[0]), pytest.approx(together[1]))


def test_a_short_last_window_is_normalised_by_what_it_holds():
    """LO-01: one micro-batch alone has mean loss 3."""
    assert _window_loss([[TWO]], 1, "token")[0] == pytest.approx(3.0)


@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant"])
def test_a_row_without_trained_tokens_is_in_no_mean(normaliser):
    """LO-02 c: it counts neither as tokens nor as a sequence."""
    assert token_weights([2, 0], normaliser, 8) == [*token_weights([2], normaliser, 8), 0.0]


@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant"])
def test_a_window_without_trained_tokens_has_loss_zero_that_goes_backward(normaliser):
    """LO-02 b: no division by zero, and a zero gradient."""
    tokens = select(_tokens([-1.0, NAN], [-1.0, NAN]), torch.tensor([False, False]))
    terms = clipped_terms(tokens, clip_low=0.2, clip_high=0.2)
    loss = weighted_sum(terms, tokens, torch.tensor(token_weights([0], normaliser, 8)))
    loss.backward()
    assert loss.item() == 0.0


@pytest.mark.parametrize("poison", [NAN, float("inf"), float("-inf")])
def test_what_masked_positions_hold_reaches_neither_value_nor_gradient(poison):
    """LO-02 a, e: NaN and inf in old, reference and logp of a masked token."""
    tokens = _tokens([-1.0, poison], [-1.0, poison], reference=[-1.5, poison])
    kept = select(tokens, torch.tensor([True, False]))
    terms = with_kl(clipped_terms(kept, clip_low=0.2, clip_high=0.2), kept, coefficient=0.1, estimator="k3")
    terms.loss.sum().backward()
    assert terms.loss.isfinite().all()
    assert tokens.logp.grad[0].isfinite()
    assert tokens.logp.grad[1].item() == 0.0


def test_the_kl_term_is_added_with_its_coefficient():
    """loss = surrogate + coefficient * k3."""
    tokens = _tokens([-2.0], [-2.0], [1.0], reference=[-1.0])
    terms = GRPO(kl_coef=0.5).token_terms(tokens)
    assert terms.kl.item() == pytest.approx(0.718282, abs=1e-6)
    assert terms.loss.item() == pytest.approx(-1.0 + 0.5 * 0.718282, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"group_size": 1}, "group_size must be an integer >= 2, got 1"),
        ({"advantage_granularity": "token"}, "'token' does not exist for GRPO"),
        ({"advantage_granularity": "step"}, "must be one of auto, trajectory, turn, got 'step'"),
        ({"scale_rewards": "std"}, "must be one of group, none, batch, got 'std'"),
        ({"clip_low": 1.5}, "clip_low must be between 0 and 1"),
        ({"kl_coef": float("nan")}, "kl_coef must be"),
        ({"loss_normaliser": "constant"}, "constant_length"),
        ({"constant_length": 8}, "constant_length is only for"),
        ({"epochs": 0}, "epochs must be an integer >= 1, got 0"),
    ],
)
def test_a_field_that_cannot_work_is_refused_at_construction(fields, says):
    """The message names the field, the value and what may stand there."""
    with pytest.raises(ConfigurationError, match=says.replace("(", r"\(")):
        GRPO(**fields)
