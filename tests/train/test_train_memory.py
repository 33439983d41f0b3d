"""What an update keeps for the way back is that of one pass, however many groups the batch has."""

import torch

from tiltyard.models.trainable import make_trainable
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.model import tiny_model
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task


class Kept:
    """Counts the bytes that autograd keeps, and the most of them at one time."""

    def __init__(self):
        self.now = self.peak = 0

    def keep(self, tensor):
        return _Held(self, tensor)

    @staticmethod
    def give(held):
        return held.tensor


class _Held:
    def __init__(self, kept, tensor):
        self.kept, self.tensor, self.size = kept, tensor, tensor.nbytes
        kept.now += self.size
        kept.peak = max(kept.peak, kept.now)

    def __del__(self):
        self.kept.now -= self.size


def group(number, length):
    """Four episodes of one task whose answers are so long."""
    task, members = Task(seed=number), []
    for index in range(4):
        transcript = Transcript()
        transcript.observe([1, 2, number + 3])
        transcript.sample([(7 * index + 3 * step + number) % 300 for step in range(length)], None)
        members.append(
            Trajectory(f"{number}-{index}", task, Ending.DONE, rewards=(float(index),), transcript=transcript)
        )
    return Group(str(number), task, tuple(members))


def peak(groups, pack_tokens):
    """The most bytes that an update keeps at one time."""
    learner = Learner(
        make_trainable(tiny_model()),
        GRPO(group_size=4, old_logprobs="trainer"),
        OptimiserSettings(learning_rate=1e-3),
        pack_tokens=pack_tokens,
    )
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, kept.give):
        learner.update(build_batch([group(number, length) for number, length in enumerate(groups)], learner.algorithm))
    return kept.peak


def test_more_groups_need_no_more_memory():
    """The gradients of one pass are added up before the next begins."""
    assert peak([40] * 8, pack_tokens=160) <= 1.05 * peak([40] * 2, pack_tokens=160)


def test_smaller_packs_need_less_memory():
    """`training.pack_tokens` is how much is kept at one time."""
    assert peak([40] * 8, pack_tokens=160) < 0.5 * peak([40] * 8, pack_tokens=2000)
