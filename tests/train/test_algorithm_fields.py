"""Every field of every algorithm does something: another value of it makes another update."""

import dataclasses
import warnings

import pytest
import torch

from tiltyard.models.trainable import make_trainable
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.model import tiny_model
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import ALGORITHMS
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task

SHARED = {
    "kl_coef": 0.1,
    "old_logprobs": "trainer",
    "sampler_cap": 5.0,
    "epochs": 2,
    "loss_normaliser": "constant",
    "constant_length": 10,
    "entropy_coef": 0.01,
    "overlong_penalty": 0.5,
    "overlong_from": 1,
    "overlong_until": 6,
    "group_size": 2,
    "advantage_granularity": "turn",
}
"""Options that let every other one have a say."""

OTHER = {
    "kl_coef": 0.2,
    "kl_estimator": "k2",
    "kl_in": "reward",
    "constant_length": 20,
    "epochs": 3,
    "minibatches": 2,
    "sampler_cap": 1.0,
    "entropy_coef": 0.02,
    "overlong_penalty": 1.0,
    "overlong_from": 2,
    "overlong_until": 7,
    "turn_discount": 0.5,
    "scale_rewards": "none",
    "discount": 0.5,
    "gae_lambda": 0.5,
    "value_coef": 2.0,
    "value_clip": 0.0001,
    "value_learning_rate": 0.5,
    "value_trains_model": True,
    "baseline": "none",
    "ratio_cap": 1.01,
}
TOGETHER = {
    "loss_normaliser": {"loss_normaliser": "token", "constant_length": None},
    "old_logprobs": {"old_logprobs": "sampler", "sampler_cap": None},
    "zero_variance": {"loss_normaliser": "token", "constant_length": None, "kl_coef": 0.0, "entropy_coef": 0.0},
}


def episode(name, turns, rewards, task):
    """Sampled by some other model: -9 nats a token."""
    transcript = Transcript()
    transcript.observe([5, 6 + task.seed])
    for turn in turns:
        transcript.sample(turn, [-9.0] * len(turn))
        transcript.observe([3])
    return Trajectory(name, task, Ending.DONE, rewards=tuple(rewards), transcript=transcript)


def groups():
    first, second, flat = Task(seed=0), Task(seed=1), Task(seed=2)
    return [
        Group("first", first, (
            episode("a", [[8, 9], [10, 11]], [1.0, 0.0], first),
            episode("b", [[8, 11], [14]], [0.0, 2.0], first),
            episode("c", [[12, 13, 14], [15, 16, 17]], [0.5, 1.0], first),
        )),
        Group("second", second, (
            episode("d", [[21], [20]], [1.0, 0.25], second),
            episode("e", [[22, 23], [24, 25]], [0.0, 0.0], second),
        )),
        Group("flat", flat, (episode("f", [[30]], [1.0], flat), episode("g", [[31]], [1.0], flat))),
    ]  # fmt: skip


def update(algorithm):
    """The weights, those of the value head included, after one update."""
    learner = Learner(
        make_trainable(tiny_model(), "full"), algorithm, OptimiserSettings(learning_rate=1e-3, max_grad_norm=None)
    )
    if learner._critic is not None:
        with torch.no_grad():
            learner._critic.head.weight.fill_(0.05)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="sampler and trainer disagree")
        learner.update(build_batch(groups(), algorithm))
    head = [] if learner._critic is None else list(learner._critic.head.parameters())
    return torch.cat([p.detach().flatten() for p in (*learner.trainable.parameters(), *head)])


def pair(name, key):
    """Two settings that differ in this field and what it needs."""
    if key == "zero_variance":
        given = SHARED | TOGETHER[key] | {"overlong_penalty": 0.0, "overlong_from": None, "overlong_until": None}
        return given, given | {"zero_variance": "drop"}
    if key == "advantage_granularity":
        if name in ("LLMPPO", "LLMREINFORCE"):
            given = SHARED | {"discount": 0.5}  # without it tokens of a turn have one return
            return given, given | {key: "token"}
        return SHARED, SHARED | {key: "trajectory"}
    if key == "normalise_advantages":
        return SHARED, SHARED | {key: not ALGORITHMS[name]().normalise_advantages}
    if key in ("clip_low", "clip_high"):
        given = SHARED | {"clip_low": 0.5, "clip_high": 0.5}
        return given, given | {key: 0.0001}
    if key == "value_coef":
        given = SHARED | {"value_trains_model": True}  # a head that learns alone has AdamW take its loss's scale away
        return given, given | {key: OTHER[key]}
    return SHARED, SHARED | TOGETHER.get(key, {key: OTHER.get(key)})


ROUNDING = 1e-6

FIELDS = [
    (name, field.name)
    for name, algorithm in ALGORITHMS.items()
    for field in dataclasses.fields(algorithm)
    if field.name not in ("group_size", "resample_rounds")  # say what is played
]


@pytest.mark.parametrize(("name", "key"), FIELDS)
def test_every_field_reaches_the_update(name, key):
    """A new field must be added here, with a value that shows."""
    given, changed = pair(name, key)
    one, other = (update(ALGORITHMS[name](**fields)) for fields in (given, changed))
    assert (one - other).abs().max() > ROUNDING
