"""Several processes take the step that one would take."""

import copy
import dataclasses
import threading

import pytest
import torch
from test_algorithm_learner import OPTIONS, Whole, groups

from tiltyard.errors import ConfigurationError, EnvError, NonFiniteError
from tiltyard.testing.model import tiny_model
from tiltyard.testing.processes import run_together
from tiltyard.train.algorithms import ALGORITHMS, GRPO
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.processes import ALONE, agreed, share, share_of

SETTINGS = OptimiserSettings(learning_rate=1e-3, weight_decay=0.1)
MODEL = tiny_model()  # made once: what seeds the process's generator is not for threads
GROUPS = groups()


def updated(algorithm, processes=ALONE, *, updates=1, settings=SETTINGS):
    """The figures of some updates, and the weights after them."""
    trainable = Whole(copy.deepcopy(MODEL))
    learner = Learner(trainable, algorithm, settings, processes=processes)
    figures = [learner.update(build_batch(GROUPS, algorithm)) for _ in range(updates)]
    return figures, torch.cat([p.detach().flatten() for p in trainable.parameters()])


def comparable(figures):
    """What does not depend on who computed it: what rows share from the start is computed once in each process."""
    return {k: v for k, v in dataclasses.asdict(figures).items() if v is not None and k != "tokens_computed"}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_or_three_processes_take_the_steps_of_one(name, options, count):
    """The same weights, and the same figures."""
    known = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    algorithm = ALGORITHMS[name](**{key: value for key, value in options.items() if key in known})
    figures, weights = updated(algorithm)
    for others, theirs in run_together(count, lambda processes: updated(algorithm, processes)):
        assert (weights - theirs).abs().max() < 1e-5
        for one, other in zip(figures, others, strict=True):
            assert comparable(other) == pytest.approx(comparable(one), rel=1e-3, abs=1e-5)


def test_a_process_without_a_row_takes_the_step_too():
    """Four processes, two groups: two have nothing to compute, and the same weights afterwards."""
    results = run_together(4, lambda processes: updated(GRPO(), processes)[1])
    assert all(torch.equal(results[0], weights) for weights in results)
    assert (results[0] - updated(GRPO())[1]).abs().max() < 1e-5


def test_a_loss_that_is_not_finite_in_one_process_stops_all():
    """None takes the step, and none waits for ever."""

    def run(processes):
        trainable = Whole(copy.deepcopy(MODEL))
        if processes.rank == 1:
            trainable.model.lm_head.weight.data[0, 0] = torch.nan
        before = copy.deepcopy(trainable.model.state_dict())
        with pytest.raises(NonFiniteError, match="the step was not taken"):
            Learner(trainable, GRPO(), SETTINGS, processes=processes).update(build_batch(GROUPS, GRPO()))
        after = trainable.model.state_dict()
        return all(torch.equal(value.nan_to_num(), after[name].nan_to_num()) for name, value in before.items())

    assert run_together(2, run) == [True, True]


def test_an_error_of_one_process_is_raised_in_all():
    """The process that had it raises its own; the others raise it too."""

    def run(processes):
        with pytest.raises(EnvError, match="rank 1"):
            agreed(EnvError("rank 1 failed") if processes.rank == 1 else None, processes)
        return True

    assert run_together(3, run) == [True] * 3


def test_work_is_dealt_out_one_by_one():
    """Every item to one process."""
    dealt = run_together(3, lambda processes: list(share(range(8), processes)))
    assert dealt == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_number_that_does_not_divide_is_refused():
    """Each process has as many groups."""
    with pytest.raises(ConfigurationError, match=r"training\.batch_size must be a multiple of the 2 processes, got 3"):
        run_together(2, lambda processes: share_of(3, "training.batch_size", processes))


def test_one_process_needs_no_others():
    """Nothing is exchanged, and the tensors stay as they are."""
    tensor = torch.ones(2)
    ALONE.add([tensor])
    assert ALONE.gather("x") == ["x"]
    assert tensor.tolist() == [1.0, 1.0]


def test_threads_that_play_processes_stop_when_one_fails():
    """A test with a mistake in it ends with the mistake."""

    def run(processes):
        if processes.rank == 0:
            raise KeyError("mistake")
        return processes.gather(threading.get_ident())

    with pytest.raises(KeyError, match="mistake"):
        run_together(2, run, timeout_s=10.0)
