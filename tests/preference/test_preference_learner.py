"""The learner of preferences: against a slow obvious version, at any micro-batching, each prompt computed once."""

from array import array

import pytest
import torch

from tiltyard.errors import NonFiniteError
from tiltyard.models.trainable import make_trainable
from tiltyard.testing.model import tiny_model
from tiltyard.train.examples import Example, Pair
from tiltyard.train.forward import ForwardPlan
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.preference_learner import NO_REFERENCE, Logprobs, PreferenceLearner
from tiltyard.train.preference_loss import PairLogprobs, pair_losses
from tiltyard.train.supervised_algorithms import DPO

STILL = OptimiserSettings(learning_rate=1e-12, max_grad_norm=None)


def pair(name, prompt, chosen, rejected):
    both = [
        Example(name, array("i", [*prompt, *answer]), bytes(len(prompt)) + bytes([1] * len(answer)))
        for answer in (chosen, rejected)
    ]
    return Pair(name, *both)


PAIRS = [
    pair("a", [1, 2, 3, 4], [5, 6], [7]),
    pair("b", [1, 2, 9], [7, 8, 9, 10], [7, 8, 11]),
    pair("c", [40, 41], [30, 31, 32, 33, 34], [35]),
]
REFERENCES = [Logprobs(-10.0, -7.0), Logprobs(-20.0, -15.0), Logprobs(-30.0, -6.0)]


def learner(algorithm=DPO(), settings=STILL, model=None, what="full", **options):  # noqa: B008  # frozen
    return PreferenceLearner(make_trainable(model or tiny_model(), what), algorithm, settings, **options)


def logprob(model, example):
    """The log-probability of an answer, alone, from all logits."""
    ids = torch.tensor(example.ids.tolist())
    logp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    return logp[torch.tensor([*example.mask[1:]]) == 1].sum()


def obvious(model, algorithm):
    """Each of the six sequences alone; the mean of the pairs' losses."""
    chosen, rejected = (
        torch.stack([logprob(model, getattr(p, side)) for p in PAIRS]) for side in ("chosen", "rejected")
    )
    reference = torch.tensor([[r.chosen, r.rejected] for r in REFERENCES])
    pairs = PairLogprobs(chosen, rejected, reference[:, 0], reference[:, 1])
    return pair_losses(pairs, torch.tensor([2, 4, 5]), algorithm).mean()


def gradients(algorithm, plan=None, **options):
    """One step over the pairs, and the gradient as it was right before it."""
    kept = {}

    def keep():
        kept.update({name: p.grad.clone() for name, p in made.trainable.model.named_parameters() if p.grad is not None})

    made = learner(algorithm, before_step=keep, **options)
    made.plan = plan or made.plan
    return made.update(PAIRS, REFERENCES), kept


@pytest.mark.parametrize("algorithm", [DPO(), DPO(loss="ipo", beta=0.5), DPO(nll_coef=0.5, label_smoothing=0.1)])
@pytest.mark.parametrize("pack_tokens", [1, 14, 1000])
def test_loss_and_gradient_are_those_of_the_obvious_version_at_any_micro_batching(algorithm, pack_tokens):
    """One pair a pass or all in one: the mean is over the pairs of the optimiser step."""
    model = tiny_model()
    expected = obvious(model, algorithm)
    expected.backward()
    step, found = gradients(algorithm, pack_tokens=pack_tokens)
    assert sum(score.loss for score in step.scores) / 3 == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-3)


def test_a_model_that_cannot_be_packed_learns_the_same():
    """The two sequences side by side, with the model's own logits."""
    one, grad = gradients(DPO())
    other, same = gradients(DPO(), plan=ForwardPlan(packed=False, decoder=False))
    assert [s.loss for s in other.scores] == pytest.approx([s.loss for s in one.scores], abs=1e-5)
    for name in grad:
        torch.testing.assert_close(same[name], grad[name], atol=1e-5, rtol=1e-3)


def test_the_prompt_of_a_pair_is_computed_once():
    """Both answers stand behind it, and do not see each other."""
    step = learner(pack_tokens=1).update(PAIRS[:1], REFERENCES[:1])
    assert step.tokens == 6 + 5
    # four of the prompt, and five of the chosen answer but its last, which is only predicted; none of [7]'s
    assert step.computed_tokens <= 4 + 2 + 1
    scores = learner(pack_tokens=1000).score(PAIRS, REFERENCES)
    model = tiny_model()
    with torch.no_grad():
        alone = [(logprob(model, p.chosen).item(), logprob(model, p.rejected).item()) for p in PAIRS]
    for score, (chosen, rejected) in zip(scores, alone, strict=True):
        assert (score.policy.chosen, score.policy.rejected) == pytest.approx((chosen, rejected), abs=1e-4)


def test_rewards_margins_and_accuracy_are_those_of_the_log_probabilities():
    """beta * (policy - reference), chosen minus rejected, and which one is higher."""
    for score in learner(DPO(beta=0.2)).score(PAIRS, REFERENCES):
        assert score.chosen_reward == pytest.approx(0.2 * (score.policy.chosen - score.reference.chosen))
        assert score.margin == pytest.approx(score.chosen_reward - score.rejected_reward)
        assert score.accuracy == (score.margin > 0)


@pytest.mark.parametrize("what", ["full", "last:1", "lora"])
def test_the_reference_is_the_model_before_training_also_afterwards(what):
    """Before the first step nothing tells policy and reference apart: every pair is half right, at log 2."""
    made = learner(settings=OptimiserSettings(1e-2), what=what)
    references = made.reference_logprobs(PAIRS)
    first = made.score(PAIRS, references)
    assert [score.accuracy for score in first] == [0.5] * 3
    assert [score.loss for score in first] == pytest.approx([0.693147] * 3, abs=1e-4)
    for _ in range(3):
        made.update(PAIRS, references)
    again = made.reference_logprobs(PAIRS)
    for one, other in zip(references, again, strict=True):
        assert (other.chosen, other.rejected) == pytest.approx((one.chosen, one.rejected), abs=1e-4)


def test_learning_gets_the_pairs_right():
    """Twenty steps raise every margin."""
    made = learner(settings=OptimiserSettings(3e-3))
    references = made.reference_logprobs(PAIRS)
    for _ in range(20):
        made.update(PAIRS, references)
    scores = made.score(PAIRS, references)
    assert [score.accuracy for score in scores] == [1.0] * 3
    assert min(score.margin for score in scores) > 0.5


def test_without_a_reference_the_policy_stands_alone():
    """The reward is then beta times the log-probability."""
    [score] = learner(DPO(reference_free=True)).score(PAIRS[:1], [NO_REFERENCE])
    assert score.chosen_reward == pytest.approx(0.1 * score.policy.chosen)


def test_a_loss_that_is_not_a_number_refuses_the_step_and_names_the_pair():
    """The weights stay as they were."""
    made = learner(settings=OptimiserSettings(1.0))
    references = [REFERENCES[0], Logprobs(float("nan"), -1.0), REFERENCES[2]]
    before = {name: p.clone() for name, p in made.trainable.model.named_parameters()}
    with pytest.raises(NonFiniteError, match="NaN or inf in b; the step was not taken"):
        made.update(PAIRS, references)
    assert made.step == 0
    for name, value in made.trainable.model.named_parameters():
        assert torch.equal(value, before[name])
