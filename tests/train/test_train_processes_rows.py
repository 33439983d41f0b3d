"""Several processes learn rows as one does."""

import copy
from array import array

import pytest
import torch

from tiltyard.errors import NonFiniteError
from tiltyard.models.trainable import make_trainable
from tiltyard.testing.model import tiny_model
from tiltyard.testing.processes import run_together
from tiltyard.train.examples import Example, Pair
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.preference_learner import Logprobs, PreferenceLearner
from tiltyard.train.processes import ALONE, share, woven
from tiltyard.train.sft_learner import SFTLearner
from tiltyard.train.supervised_algorithms import DPO, SFT

REFERENCE = Logprobs(-5.0, -5.0)
SETTINGS = OptimiserSettings(learning_rate=1e-3, weight_decay=0.1)
MODEL = tiny_model()  # made once: what seeds the process's generator is not for threads


def example(name, prompt, answer):
    return Example(name, array("i", [*prompt, *answer]), bytes(len(prompt)) + bytes([1] * len(answer)))


EXAMPLES = [example(str(n), [1, 2, n], list(range(5, 7 + n))) for n in range(5)]
PAIRS = [
    Pair(str(n), example(str(n), [1, 2, n], [*range(5, 7 + n)]), example(str(n), [1, 2, n], [9, n])) for n in range(5)
]


def learned(kind, algorithm, processes):
    """Two steps and the scores after them: what they came to, and the weights."""
    trainable = make_trainable(copy.deepcopy(MODEL), "full", keep_reference=True)
    learner = kind(trainable, algorithm, SETTINGS, processes=processes)
    if kind is SFTLearner:
        figures = [learner.update(EXAMPLES) for _ in range(2)]
        told = [(step.loss, step.token_accuracy, step.grad_norm) for step in figures]
        told += [(score.nll, score.right, 0.0) for score in learner.score(EXAMPLES)]
    else:
        references = learner.reference_logprobs(PAIRS)
        scores = [score for _ in range(2) for score in learner.update(PAIRS, references).scores]
        scores += learner.score(PAIRS, references)
        told = [(score.loss, score.margin, score.policy.chosen) for score in scores]
    return torch.tensor(told), torch.cat([p.detach().flatten() for p in trainable.parameters()])


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize(("kind", "algorithm"), [(SFTLearner, SFT()), (PreferenceLearner, DPO(nll_coef=0.1))])
def test_processes_take_the_steps_of_one_and_score_in_its_order(kind, algorithm, count):
    """Also where some of them have no row."""
    told, weights = learned(kind, algorithm, ALONE)
    for theirs, after in run_together(count, lambda processes: learned(kind, algorithm, processes)):
        assert (told - theirs).abs().max() < 1e-3
        assert (weights - after).abs().max() < 1e-4


@pytest.mark.parametrize(("kind", "rows"), [(SFTLearner, (EXAMPLES,)), (PreferenceLearner, (PAIRS, None))])
def test_what_is_not_finite_in_one_process_stops_all(kind, rows):
    """None takes the step, and none waits for ever."""

    def run(processes):
        model = copy.deepcopy(MODEL)
        if processes.rank == 1:
            model.lm_head.weight.data[0, 0] = torch.nan
        algorithm = SFT() if kind is SFTLearner else DPO()
        learner = kind(make_trainable(model, "full", keep_reference=True), algorithm, SETTINGS, processes=processes)
        given = rows if rows[-1] is not None else (PAIRS, [REFERENCE] * len(PAIRS))
        with pytest.raises(NonFiniteError):
            learner.update(*given)
        return learner.step

    assert run_together(2, run) == [0, 0]


def test_what_was_dealt_out_is_put_together_in_its_order():
    """`woven` undoes `share`."""
    assert run_together(3, lambda processes: woven(processes.gather(list(share(range(8), processes)))))[0] == [
        *range(8)
    ]
    assert woven([[], []]) == []
