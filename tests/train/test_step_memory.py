"""What a step keeps for its backward pass: as much as its longest episode wants, however many there are."""

import random

import pytest

from tiltyard.models.trainable import make_trainable
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.memory import SavedBytes
from tiltyard.testing.model import tiny_model
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import ALGORITHMS
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task


def groups(count, answer):
    draw = random.Random(0)
    found = []
    for number in range(count):
        prompt, members = [draw.randrange(300) for _ in range(8)], []
        for index in range(3):
            transcript = Transcript()
            transcript.observe(prompt)
            transcript.sample([draw.randrange(300) for _ in range(answer)], [-5.0] * answer)
            members.append(
                Trajectory(
                    f"{number}-{index}", Task(seed=number), Ending.DONE, rewards=(float(index),), transcript=transcript
                )
            )
        found.append(Group(str(number), Task(seed=number), tuple(members)))
    return found


def peak(name, count, answer):
    algorithm = ALGORITHMS[name](group_size=3, old_logprobs="trainer", sampler_cap=2.0)
    trainable = make_trainable(tiny_model(), "full")
    learner = Learner(trainable, algorithm, OptimiserSettings(learning_rate=1e-9), pack_tokens=64)
    saved = SavedBytes(trainable.model.parameters())
    with saved.watch():
        learner.update(build_batch(groups(count, answer), algorithm))
    return saved.peak


@pytest.mark.parametrize("name", ALGORITHMS)
def test_memory_of_a_step_is_that_of_its_longest_episode_not_of_its_batch(name):
    """Four times the groups: the same bytes. Twice the length: at most little more than twice."""
    small = peak(name, 2, 56)
    assert peak(name, 8, 56) <= 1.02 * small
    assert 1.5 * small < peak(name, 2, 120) < 2.2 * small


def test_what_is_saved_is_counted_until_it_is_let_go():
    """Two numbers of four bytes for a product, once; parameters do not count."""
    import torch  # noqa: PLC0415 - the only use of it here

    weight, saved = torch.ones(1000, requires_grad=True), SavedBytes()
    without = SavedBytes([weight])
    with saved.watch():
        (weight * weight).sum().backward()
    with without.watch():
        (weight * weight).sum().backward()
    assert (saved.peak, without.peak) == (4000, 0)
    with saved.watch():
        (weight[:10] * 2).exp().sum().backward()
    assert saved.peak == 4000
