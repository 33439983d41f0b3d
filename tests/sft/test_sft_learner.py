"""The loss of SFT and its step: against a slow obvious version, at any micro-batching, and never on what is NaN."""

from array import array

import pytest
import torch
from torch.nn import functional

from tiltyard.errors import NonFiniteError
from tiltyard.models.trainable import make_trainable
from tiltyard.testing.model import tiny_model
from tiltyard.train import cross_entropy
from tiltyard.train.cross_entropy import PackScorer
from tiltyard.train.examples import Example
from tiltyard.train.forward import ForwardPlan
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.sft_learner import SFTLearner
from tiltyard.train.supervised_algorithms import SFT

STILL = OptimiserSettings(learning_rate=1e-12, max_grad_norm=None)


def example(name, prompt, answer, mask=None):
    ids = array("i", [*prompt, *answer])
    return Example(name, ids, bytes([0] * len(prompt)) + bytes(mask or [1] * len(answer)))


EXAMPLES = [
    example("a", [1, 2, 3, 4], [5, 6]),
    example("b", [1, 2, 3, 9], [7, 8, 9, 10, 11, 12]),
    example("c", [1, 2], [30, 31, 32, 33, 34], mask=[1, 0, 0, 1, 1]),
]


def learner(algorithm=SFT(), settings=STILL, model=None, what="full", **options):  # noqa: B008  # frozen
    return SFTLearner(make_trainable(model or tiny_model(), what), algorithm, settings, **options)


def obvious(model, examples, normaliser="token"):
    """Each example alone, all logits, `cross_entropy` where the mask is 1."""
    losses = []
    for each in examples:
        ids = torch.tensor(each.ids.tolist())
        logits = model(input_ids=ids[None]).logits[0]
        losses.append(
            functional.cross_entropy(logits[:-1], ids[1:], reduction="none")[torch.tensor([*each.mask[1:]]) == 1]
        )
    return torch.cat(losses).mean() if normaliser == "token" else torch.stack([loss.mean() for loss in losses]).mean()


def gradients(examples, algorithm=SFT(), plan=None, **options):  # noqa: B008  # frozen
    """One step over these, and the gradient as it was right before it."""
    kept = {}

    def keep():
        kept.update({name: p.grad.clone() for name, p in made.trainable.model.named_parameters() if p.grad is not None})

    made = learner(algorithm, before_step=keep, **options)
    made.plan = plan or made.plan
    return made.update(examples), kept


@pytest.mark.parametrize("normaliser", ["token", "sequence"])
@pytest.mark.parametrize("pack_tokens", [1, 12, 1000])
def test_loss_and_gradient_are_those_of_the_obvious_version_at_any_micro_batching(normaliser, pack_tokens):
    """One row a pass or all in one: the mean is over the optimiser step, never over a pass."""
    model = tiny_model()
    expected = obvious(model, EXAMPLES, normaliser)
    expected.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    step, found = gradients(EXAMPLES, SFT(normaliser), pack_tokens=pack_tokens)
    assert step.loss == pytest.approx(expected.item(), abs=1e-5)
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-4)


def test_a_token_mean_over_two_rows_of_2_and_6_tokens_is_weighted_by_tokens():
    """LO-01: with losses 1 and 3 a token it is 2.5, not the 2.0 of the rows' means."""
    made = learner()
    scores = made.score(EXAMPLES[:2])
    means = [score.nll / score.tokens for score in scores]
    assert [score.tokens for score in scores] == [2, 6]
    step = made.update(EXAMPLES[:2])
    assert step.loss == pytest.approx((2 * means[0] + 6 * means[1]) / 8, abs=1e-5)


def test_rows_in_one_pack_do_not_see_each_other():
    """A row is worth the same alone and beside others, also where they share a beginning."""
    together = learner(pack_tokens=1000).score(EXAMPLES)
    alone = [learner().score([each])[0] for each in EXAMPLES]
    assert [score.nll for score in together] == pytest.approx([score.nll for score in alone], abs=1e-4)
    assert [score.right for score in together] == [score.right for score in alone]


def test_what_rows_share_from_the_start_is_computed_once():
    """The figure says how many tokens went through the model."""
    step = learner(pack_tokens=1000).update(EXAMPLES)
    assert step.tokens == 6 + 10 + 7
    # all three begin with 1 2, two with 1 2 3; the last learned token of a row is only ever predicted
    assert step.computed_tokens == step.tokens - (2 * 2 + 1)


def test_logits_in_pieces_give_the_same_step():
    """However few logits are held at once, loss and gradient are those of all of them."""
    made = learner(pack_tokens=1000)
    model = made.trainable.model
    [pack] = made.plan.packs([each.row() for each in EXAMPLES], 1000)
    weights = torch.linspace(0.1, 1.0, len(pack.targets))
    grads = []
    for at_once in (cross_entropy.LOGITS_AT_ONCE, 3 * 320, 320):
        model.zero_grad()
        scored = PackScorer(model, pack, made.plan, logits_at_once=at_once).backward(weights)
        grads.append((scored.logp, {name: p.grad.clone() for name, p in model.named_parameters()}))
    for logp, found in grads[1:]:
        torch.testing.assert_close(logp, grads[0][0])
        for name, grad in found.items():
            torch.testing.assert_close(grad, grads[0][1][name], atol=1e-5, rtol=1e-4)


def test_weights_that_depend_on_all_log_probabilities_are_the_same_in_pieces():
    """What goes backward may be known only after the last piece."""
    made = learner(pack_tokens=1000)
    model = made.trainable.model
    [pack] = made.plan.packs([each.row() for each in EXAMPLES], 1000)
    grads = []
    for at_once in (cross_entropy.LOGITS_AT_ONCE, 320):
        model.zero_grad()
        PackScorer(model, pack, made.plan, logits_at_once=at_once).backward_from(
            lambda logp: logp.exp() / logp.exp().sum()
        )
        grads.append(model.model.layers[0].mlp.up_proj.weight.grad.clone())
    torch.testing.assert_close(grads[1], grads[0], atol=1e-6, rtol=1e-4)


def test_a_model_that_cannot_be_packed_learns_the_same():
    """Rows side by side, padded, with the model's own logits."""
    one, grad = gradients(EXAMPLES, pack_tokens=1000)
    other, same = gradients(EXAMPLES, plan=ForwardPlan(packed=False, decoder=False), pack_tokens=1000)
    assert other.loss == pytest.approx(one.loss, abs=1e-5)
    for name in grad:
        torch.testing.assert_close(same[name], grad[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("what", ["last:1", "lora"])
def test_what_does_not_train_does_not_change(what):
    """A frozen head and frozen layers stay, and the others learn."""
    model = tiny_model()
    before = {name: p.clone() for name, p in model.named_parameters()}
    made = learner(settings=OptimiserSettings(1e-2), model=model, what=what)
    losses = [made.update(EXAMPLES).loss for _ in range(12)]
    assert losses[-1] < losses[0]
    frozen = {name for name, p in made.trainable.model.named_parameters() if not p.requires_grad}
    for name, value in made.trainable.model.named_parameters():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if name in frozen:
            assert torch.equal(value, before[plain])


def test_learning_lowers_the_loss_and_gets_the_tokens_right():
    """Thirty steps on three rows learn them by heart."""
    made = learner(settings=OptimiserSettings(1e-2))
    for _ in range(30):
        step = made.update(EXAMPLES)
    assert step.token_accuracy == 1.0
    assert [score.right for score in made.score(EXAMPLES)] == [2, 6, 3]


def test_a_loss_that_is_not_a_number_refuses_the_step_and_names_the_row():
    """The weights stay as they were."""
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[31] = float("nan")
    made = learner(model=model, settings=OptimiserSettings(1.0))
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(NonFiniteError, match="NaN or inf in a, b, c; the step was not taken"):
        made.update(EXAMPLES)
    assert made.step == 0
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, before[name], equal_nan=True)
