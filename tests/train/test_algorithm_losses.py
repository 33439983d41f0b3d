"""The losses of the catalogue: by hand, against a slow obvious version, and their gradients."""

import math

import pytest
import torch

from tiltyard.errors import ConfigurationError
from tiltyard.train.algorithms import ALGORITHMS, CISPO, GRPO, GSPO, LLMPPO, LLMREINFORCE
from tiltyard.train.loss import (
    TokenBatch,
    clipped_terms,
    select,
    sequence_clipped_terms,
    token_weights,
    value_terms,
    weighted_sum,
    weighted_terms,
    with_entropy,
    with_kl,
    with_sampler_correction,
)


def tokens(logp, old, advantages, **others):
    """A batch of tokens in float64; `others` are lists as well."""
    leaf = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    row = torch.tensor(others.pop("row", [0] * len(logp)))
    unit = torch.tensor(others.pop("unit")) if "unit" in others else None
    more = {name: torch.tensor(values, dtype=torch.float64) for name, values in others.items()}
    return TokenBatch(
        leaf,
        torch.tensor(old, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        row,
        unit=unit,
        **more,
    )


def drawn(count=24, rows=6, spread=0.3, seed=0):
    """Random tokens: `rows` sequences of different length, each with one advantage; some ratios leave every bound."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(rows, (count,), generator=generator).sort().values
    old = -torch.rand(count, generator=generator, dtype=torch.float64) * 3
    apart = torch.randn(count, generator=generator, dtype=torch.float64) * spread
    by_row = torch.randn(rows, generator=generator, dtype=torch.float64)
    logp = (old + apart).requires_grad_()
    reference = old + torch.randn(count, generator=generator, dtype=torch.float64)
    return TokenBatch(
        logp, old, by_row[row], row, reference=reference, unit=row, sampler=old + apart.flip(0), entropy=-logp * 2
    )


def gradient(loss, batch):
    return torch.autograd.grad(loss.sum(), batch.logp)[0]


def test_a_gspo_ratio_is_the_geometric_mean_over_its_sequence():
    """Two tokens with ratios 2 and 1/2 have ratio 1; one with 1.1 alone is clipped at 1 + 4e-4."""
    batch = tokens([math.log(2), math.log(0.5), math.log(1.1)], [0.0] * 3, [1.0, 1.0, 2.0], unit=[0, 0, 1])
    terms = sequence_clipped_terms(batch, clip_low=3e-4, clip_high=4e-4)
    assert terms.ratio.tolist() == pytest.approx([1.0, 1.0, 1.1])
    assert terms.loss.tolist() == pytest.approx([-1.0, -1.0, -2.0008])
    assert terms.clipped.tolist() == [False, False, True]
    assert gradient(terms.loss, batch).tolist() == pytest.approx([-1.0, -1.0, 0.0])


def test_a_cispo_weight_is_bounded_and_never_takes_the_gradient():
    """Ratios 8, 1.5 and 0.25 weigh 5, 1.5 and 0.25; the gradient is weight times advantage."""
    batch = tokens([math.log(8), math.log(1.5), math.log(0.25)], [0.0] * 3, [1.0, -2.0, 3.0])
    terms = CISPO().policy_terms(batch)
    assert gradient(terms.loss, batch).tolist() == pytest.approx([-5.0, 3.0, -0.75])
    assert terms.loss.tolist() == pytest.approx([-5 * math.log(8), 3 * math.log(1.5), -0.75 * math.log(0.25)])
    assert terms.clipped.tolist() == [True, False, False]


def test_reinforce_on_policy_is_minus_advantage_times_logp():
    """Off policy the ratio weighs it, at most `ratio_cap`."""
    batch = tokens([-1.0, -2.0], [-1.0, -2.0 - math.log(3)], [0.5, 1.0])
    terms = LLMREINFORCE(ratio_cap=2.0).policy_terms(batch)
    assert terms.loss.tolist() == pytest.approx([0.5, 4.0])
    assert gradient(terms.loss, batch).tolist() == pytest.approx([-0.5, -2.0])


def test_the_sampler_correction_weighs_with_old_over_sampler_up_to_its_cap():
    """exp(old - sampler) of 1.5 stays, 5 becomes the cap 2, 0.5 stays: token by token, without gradient."""
    old = [-1.0, -1.0, -1.0]
    sampler = [-1 - math.log(1.5), -1 - math.log(5), -1 - math.log(0.5)]
    batch = tokens(old, old, [1.0, 1.0, 1.0], sampler=sampler)
    terms = with_sampler_correction(clipped_terms(batch, clip_low=0.2, clip_high=0.2), batch, cap=2.0)
    assert terms.correction.tolist() == pytest.approx([1.5, 2.0, 0.5])
    assert terms.capped.tolist() == [False, True, False]
    assert gradient(terms.loss, batch).tolist() == pytest.approx([-1.5, -2.0, -0.5])


def test_the_entropy_bonus_is_taken_off_the_loss():
    """loss - coefficient * entropy."""
    batch = tokens([-1.0], [-1.0], [1.0], entropy=[3.0])
    terms = with_entropy(clipped_terms(batch, clip_low=0.2, clip_high=0.2), batch, coefficient=0.1)
    assert terms.loss.item() == pytest.approx(-1.3)


@pytest.mark.parametrize(
    ("value", "loss", "clipped"),
    [
        (1.5, 0.32, True),  # bounded at 1.2, whose error is the larger one
        (1.1, 0.405, False),
        (0.5, 1.125, False),  # away from the target: its own error is the larger one
    ],
)
def test_a_value_beyond_its_bound_has_the_worse_of_two_errors(value, loss, clipped):
    """Before 1, target 2, bound 0.2."""
    found = value_terms(torch.tensor([value]), torch.tensor([1.0]), torch.tensor([2.0]), clip=0.2)
    assert found.loss.item() == pytest.approx(loss)
    assert found.clipped.item() is clipped


def test_a_value_bound_of_0_is_none():
    """Half the squared error."""
    found = value_terms(torch.tensor([5.0]), torch.tensor([1.0]), torch.tensor([2.0]), clip=0.0)
    assert (found.loss.item(), found.clipped.item()) == (4.5, False)


def _slow_ratio(batch, index, algorithm):
    """New probability over old, of the token or of its sequence."""
    if not isinstance(algorithm, GSPO):
        return math.exp((batch.logp[index] - batch.old[index]).item())
    inside = [i for i in range(len(batch.logp)) if batch.unit[i] == batch.unit[index]]
    return math.exp(sum((batch.logp[i] - batch.old[i]).item() for i in inside) / len(inside))


def _slow_token(batch, index, algorithm):
    """Value and gradient of one token's surrogate, case by case; with GSPO the gradient of its whole share."""
    ratio, advantage = _slow_ratio(batch, index, algorithm), batch.advantages[index].item()
    if isinstance(algorithm, CISPO | LLMREINFORCE):
        low, high = (1 - algorithm.clip_low, 1 + algorithm.clip_high) if isinstance(algorithm, CISPO) else (0, 2.0)
        weight = min(max(ratio, low), high)
        return -weight * advantage * batch.logp[index].item(), -weight * advantage
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    if advantage > 0 and ratio > high:
        return -high * advantage, 0.0
    if advantage < 0 and ratio < low:
        return -low * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_surrogate_is_its_slow_and_obvious_version(name, seed):
    """Value and gradient of random tokens, in and out of every bound."""
    algorithm, batch = ALGORITHMS[name](), drawn(seed=seed, spread=0.001 if name == "GSPO" else 0.8)
    terms = algorithm.policy_terms(batch)
    expected = [_slow_token(batch, index, algorithm) for index in range(len(batch.logp))]
    assert terms.loss.tolist() == pytest.approx([value for value, _ in expected])
    assert gradient(terms.loss, batch).tolist() == pytest.approx([slope for _, slope in expected])


@pytest.mark.parametrize("name", ["GRPO", "GSPO", "LLMPPO"])
def test_gradients_are_those_of_finite_differences(name):
    """Where the ratio has a gradient, the loss with KL term, entropy bonus and correction is what it is checked as."""
    batch = drawn(spread=0.05)
    algorithm = ALGORITHMS[name](
        clip_low=0.2,
        clip_high=0.2,
        kl_coef=0.3,
        entropy_coef=0.1,
        old_logprobs="trainer",
        sampler_cap=2.0,
    )

    weights = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)

    def weighted(logp):
        moved = TokenBatch(
            logp, batch.old, batch.advantages, batch.row, batch.reference, batch.unit, batch.sampler, logp * -2
        )
        return weighted_sum(algorithm.token_terms(moved), moved, weights)

    assert torch.autograd.gradcheck(weighted, batch.logp)


@pytest.mark.parametrize("name", ["CISPO", "LLMREINFORCE"])
def test_the_gradient_of_a_weighted_loss_is_that_with_its_weights_held(name):
    """Finite differences with the ratio frozen where it is: it is a weight, not part of what is differentiated."""
    batch = drawn(spread=0.8)
    terms = ALGORITHMS[name]().policy_terms(batch)
    weights = (terms.loss / (-batch.advantages * batch.logp)).detach()

    def held(logp):
        return (-weights * batch.advantages * logp).sum()

    assert torch.autograd.gradcheck(held, batch.logp)
    assert torch.allclose(gradient(terms.loss, batch), torch.autograd.grad(held(batch.logp), batch.logp)[0])


def test_the_gradient_of_a_value_is_that_of_finite_differences():
    """Inside and outside the bound."""
    before, targets = torch.zeros(4, dtype=torch.float64), torch.tensor([1.0, -1.0, 0.05, 2.0], dtype=torch.float64)
    values = torch.tensor([0.5, 0.1, -0.7, -0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: value_terms(v, before, targets, clip=0.2).loss.sum(), values)


@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_of_whole_sequences_sum_to_the_whole(name, normaliser):
    """One sequence at a time, two, or all: loss and gradient are the same, GSPO's ratios included."""
    length = 9 if normaliser == "constant" else None
    algorithm = ALGORITHMS[name](group_size=2, loss_normaliser=normaliser, constant_length=length)
    batch = drawn(spread=0.05)
    counts = batch.row.bincount(minlength=6).tolist()
    weights = torch.tensor(token_weights(counts, normaliser, length), dtype=torch.float64)
    found = []
    for size in (1, 2, 6):
        total, slopes = 0.0, torch.zeros_like(batch.logp)
        for first in range(0, 6, size):
            part = select(batch, (batch.row >= first) & (batch.row < first + size))
            loss = weighted_sum(algorithm.policy_terms(part), part, weights)
            total += loss.item()
            slopes += torch.autograd.grad(loss, batch.logp)[0]
        found.append((total, slopes))
    for total, slopes in found[:2]:
        assert total == pytest.approx(found[2][0])
        assert torch.allclose(slopes, found[2][1])


def test_gspo_with_the_sequence_normaliser_is_the_papers_loss():
    """Equation 5: the mean over sequences of min(s A, clip(s) A)."""
    batch = drawn(spread=0.001)
    algorithm = GSPO()
    counts = batch.row.bincount(minlength=6).tolist()
    weights = torch.tensor(token_weights(counts, "sequence"), dtype=torch.float64)
    paper = []
    for row in range(6):
        inside = [i for i in range(len(batch.logp)) if batch.row[i] == row]
        if inside:
            s, a = _slow_ratio(batch, inside[0], algorithm), batch.advantages[inside[0]].item()
            paper.append(min(s * a, min(max(s, 1 - 3e-4), 1 + 4e-4) * a))
    loss = weighted_sum(algorithm.policy_terms(batch), batch, weights)
    assert loss.item() == pytest.approx(-sum(paper) / len(paper))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_not_selected_reaches_no_loss(name, poison):
    """LO-02: every column of a masked token may hold anything."""
    algorithm = ALGORITHMS[name](group_size=2, kl_coef=0.1, entropy_coef=0.1, old_logprobs="trainer", sampler_cap=2.0)
    columns = {"reference": [-1.5, poison], "sampler": [-1.0, poison], "entropy": [1.0, poison], "unit": [0, 0]}
    batch = tokens([-1.0, poison], [-1.0, poison], [1.0, poison], **columns)
    terms = algorithm.token_terms(select(batch, torch.tensor([True, False])))
    slopes = gradient(terms.loss, batch)
    assert terms.loss.isfinite().all()
    assert slopes[0].isfinite()
    assert slopes[1].item() == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_ratio_overflows(name, advantage):
    """exp(200) is inf; value and gradient stay finite."""
    batch = tokens([0.0, -200.0], [-200.0, 0.0], [advantage] * 2, unit=[0, 1])
    terms = ALGORITHMS[name]().policy_terms(batch)
    assert terms.loss.isfinite().all()
    assert gradient(terms.loss, batch).isfinite().all()


def test_a_kl_term_is_not_weighed_with_the_sampler_correction():
    """The correction is of the policy gradient's samples; the pull to the reference is added whole."""
    batch = tokens([-1.0], [-1.0], [1.0], sampler=[-1 - math.log(0.5)], reference=[-2.0])
    terms = GRPO(kl_coef=0.1, kl_estimator="k1", old_logprobs="trainer", sampler_cap=2.0).token_terms(batch)
    assert terms.loss.item() == pytest.approx(-0.5 + 0.1 * 1.0)
    assert with_kl(terms, batch, coefficient=0.0, estimator="k2").kl.item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("algorithm", "fields", "says"),
    [
        (GSPO, {"group_size": 1}, "group_size must be an integer >= 2, got 1"),
        (CISPO, {"advantage_granularity": "token"}, "'token' does not exist for CISPO"),
        (LLMPPO, {"advantage_granularity": "trajectory"}, "must be one of auto, turn, token, got 'trajectory'"),
        (LLMPPO, {"value_learning_rate": 0.0}, "value_learning_rate must be > 0 and finite, got 0.0"),
        (LLMPPO, {"gae_lambda": 1.5}, "gae_lambda must be between 0 and 1"),
        (LLMREINFORCE, {"group_size": 1}, "group_size (for baseline 'leave_one_out') must be an integer >= 2, got 1"),
        (LLMREINFORCE, {"baseline": "mean"}, "baseline must be one of leave_one_out, batch, none, got 'mean'"),
        (GRPO, {"sampler_cap": 2.0}, "sampler_cap needs old_logprobs 'trainer', got 'sampler'"),
        (GRPO, {"kl_in": "advantage"}, "kl_in must be one of loss, reward"),
        (
            GRPO,
            {"overlong_penalty": 1.0, "overlong_from": 4},
            "overlong_penalty needs overlong_from and overlong_until",
        ),
        (GRPO, {"overlong_from": 4}, "only for an overlong_penalty above 0"),
        (
            GRPO,
            {"overlong_penalty": 1.0, "overlong_from": 4, "overlong_until": 4},
            "overlong_until (above overlong_from) must be an integer >= 5, got 4",
        ),
    ],
)
def test_fields_that_do_not_work_are_refused(algorithm, fields, says):
    """At construction, with the field, the value and what may stand there."""
    with pytest.raises(ConfigurationError) as raised:
        algorithm(**fields)
    assert says in str(raised.value)


def test_weights_of_one_are_the_surrogate_itself():
    """A ratio of exactly 1 is not clipped by any algorithm, and its loss is -A or -A logp."""
    for algorithm in (GRPO(), GSPO(), LLMPPO()):
        batch = tokens([-1.0], [-1.0], [2.0], unit=[0])
        assert algorithm.policy_terms(batch).loss.tolist() == [-2.0]
    batch = tokens([-1.0], [-1.0], [2.0])
    assert weighted_terms(batch, low=0.0, high=2.0).loss.tolist() == [2.0]
