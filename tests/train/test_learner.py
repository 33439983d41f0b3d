"""The learner: the step it takes is the step that the loss describes, and a bad one is not taken."""

import contextlib
import copy
import dataclasses
import math
import warnings

import pytest
import torch

from tiltyard.errors import CheckpointError, ConfigurationError, NonFiniteError
from tiltyard.policies.base import Sampling
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

PLAIN = GRPO(scale_rewards="none")
SETTINGS = OptimiserSettings(learning_rate=1e-3)


class _Whole:
    """A model of which everything trains, with a frozen copy as its reference."""

    def __init__(self, model=None):
        self.model = model or tiny_model()
        self._first = copy.deepcopy(self.model.state_dict())

    def parameters(self):
        return list(self.model.parameters())

    @contextlib.contextmanager
    def reference(self):
        now = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self._first)
        yield
        self.model.load_state_dict(now)


def _logprobs(model, ids):
    return torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)


def _episode(model, name, prompt, turns, rewards, *, ending=Ending.DONE, task=None):
    """An episode whose log-probabilities are those of the model."""
    transcript = Transcript()
    transcript.observe(prompt)
    for turn in turns:
        ids = [*transcript.ids, *turn]
        with torch.no_grad():
            logp = _logprobs(model, ids)
        start = len(transcript)
        transcript.sample(turn, [logp[start + i - 1, token].item() for i, token in enumerate(turn)])
        transcript.observe([3])
    return Trajectory(
        name,
        task or Task(seed=0),
        ending,
        rewards=tuple(rewards),
        error="it broke" if ending.failed else None,
        transcript=transcript,
    )


def _groups(model):
    first, second = Task(seed=0), Task(seed=1)
    return [
        Group("first", first, (
            _episode(model, "a", [5, 6, 7], [[8, 9], [10]], [1.0, 0.0]),
            _episode(model, "b", [5, 6, 7], [[8, 11]], [0.0]),
            _episode(model, "c", [5, 6, 7], [[12, 13, 14], [15, 16]], [0.5, 1.0]),
        )),
        Group("second", second, (
            _episode(model, "d", [5, 20], [[21]], [1.0], task=second),
            _episode(model, "e", [5, 20], [[22, 23, 24, 25]], [0.0], task=second),
        )),
    ]  # fmt: skip


def _gradient(algorithm, batch, **options):
    """The gradient of an update, read off plain gradient descent."""
    trainable = _Whole()
    before = torch.cat([p.detach().flatten().clone() for p in trainable.parameters()])
    learner = Learner(trainable, algorithm, OptimiserSettings(learning_rate=1.0, max_grad_norm=None), **options)
    learner._optimiser._rule = torch.optim.SGD(trainable.parameters(), lr=1.0)  # Adam hides the gradient's size
    metrics = learner.update(batch)
    after = torch.cat([p.detach().flatten() for p in trainable.parameters()])
    return metrics, before - after


def _slow_gradient(batch, weight_of):
    """The on-policy gradient, row by row and token by token."""
    model = tiny_model()
    loss = torch.zeros(())
    for row in (row for group in batch.groups for row in group):
        logp = _logprobs(model, list(row.ids))
        for t, on in enumerate(row.mask):
            if on:
                loss = loss - weight_of(row) * row.advantages[t] * logp[t - 1, row.ids[t]]
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _close(one, other):
    return (one - other).abs().max() <= 2e-4 * other.abs().max()


@pytest.mark.parametrize("pack_tokens", [1, 12, 4096])
@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant"])
def test_a_step_is_the_policy_gradient_of_the_obvious_loss_however_it_is_packed(pack_tokens, normaliser):
    """LO-01: the normaliser is over the whole optimiser window, so micro-batching changes nothing."""
    length = 8 if normaliser == "constant" else None
    algorithm = GRPO(scale_rewards="none", loss_normaliser=normaliser, constant_length=length)
    batch = build_batch(_groups(tiny_model()), algorithm)
    rows = [row for group in batch.groups for row in group]
    weight = {
        "token": lambda row: 1 / sum(r.counted for r in rows),
        "sequence": lambda row: 1 / (len(rows) * row.counted),
        "constant": lambda row: 1 / (len(rows) * 8),
    }[normaliser]
    metrics, gradient = _gradient(algorithm, batch, pack_tokens=pack_tokens)
    assert _close(gradient, _slow_gradient(batch, weight))
    slow_loss = -sum(weight(row) * sum(row.advantages) for row in rows)
    assert metrics.loss == pytest.approx(slow_loss, abs=1e-6)
    assert metrics.grad_norm == pytest.approx(gradient.norm().item(), rel=1e-3)


def test_failed_episodes_change_neither_loss_nor_gradient():
    """A batch in which one environment hangs, one raises and one returns None: the loss is that of the others."""
    model = tiny_model()
    sound = _groups(model)
    failed = (
        _episode(model, "hangs", [5, 6, 7], [[30]], [1.0], ending=Ending.ENV_ERROR),
        _episode(model, "raises", [5, 6, 7], [[31, 32]], [1.0], ending=Ending.TOOL_CRASH),
        _episode(model, "returns None", [5, 6, 7], [[33]], [None], ending=Ending.UNSCORED),
    )
    with_them = [Group("first", sound[0].task, (*failed, *sound[0].members)), sound[1]]
    batches = build_batch(with_them, PLAIN), build_batch(sound, PLAIN)
    (one, gradient), (other, gradient_without) = (_gradient(PLAIN, batch) for batch in batches)
    assert batches[0].counts.failed == 3
    assert one.loss == other.loss
    assert torch.equal(gradient, gradient_without)


def test_skipping_tokens_without_advantage_changes_neither_loss_nor_gradient():
    """RW-02: the mean still counts them, so that skipping saves time and nothing else."""
    model, task = tiny_model(), Task(seed=2)
    equal = Group("equal", task, tuple(_episode(model, n, [5, 40], [[41, 42]], [0.3], task=task) for n in "xy"))
    batch = build_batch([*_groups(model), equal], PLAIN)
    computed = dataclasses.replace(batch, groups=tuple(_all_on(group) for group in batch.groups))
    (skipped, gradient), (full, gradient_full) = _gradient(PLAIN, batch), _gradient(PLAIN, computed)
    assert skipped.tokens_computed < full.tokens_computed
    assert skipped.loss == pytest.approx(full.loss, abs=1e-7)
    assert _close(gradient, gradient_full)


def _all_on(group):
    """Rows as they would be if every scored token were computed."""
    model = tiny_model()
    rows = []
    for row in group:
        if row.trained:
            rows.append(row)
            continue
        ids = (5, 40, 41, 42)
        with torch.no_grad():
            logp = _logprobs(model, list(ids))
        old = (None, None, logp[1, 41].item(), logp[2, 42].item())
        rows.append(
            dataclasses.replace(row, ids=ids, mask=(False, False, True, True), logprobs=old, advantages=(0.0,) * 4)
        )
    return tuple(rows)


def test_a_batch_without_a_gradient_skips_the_update():
    """LO-02 b, RW-02: nothing changes, no metric is NaN, and the step says that it was skipped."""
    model = tiny_model()
    trainable = _Whole()
    before = copy.deepcopy(trainable.model.state_dict())
    learner = Learner(trainable, PLAIN, SETTINGS)
    task = Task(seed=0)
    group = Group("g", task, tuple(_episode(model, name, [5, 6], [[7]], [1.0]) for name in "ab"))
    metrics = learner.update(build_batch([group], PLAIN))
    assert (metrics.skipped, metrics.step, metrics.loss, metrics.tokens_counted) == (True, 0, None, 2)
    assert all(torch.equal(value, before[name]) for name, value in trainable.model.state_dict().items())


def test_learning_raises_the_probability_of_what_did_better():
    """Some steps on one batch move the policy the right way."""
    model = tiny_model()
    trainable = _Whole()
    learner = Learner(trainable, PLAIN, SETTINGS)
    for _ in range(5):
        learner.update(build_batch(_groups(trainable.model), PLAIN))
    with torch.no_grad():
        better = [_logprobs(m, [5, 20, 21])[1, 21].item() for m in (model, trainable.model)]
    assert better[1] > better[0]


def test_on_policy_the_ratio_is_one_and_sampler_and_trainer_agree():
    """The ledger's figure: equal weights, equal temperature, no difference."""
    metrics = Learner(_Whole(), PLAIN, SETTINGS).update(build_batch(_groups(tiny_model()), PLAIN))
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert metrics.sampler_difference_max < 1e-4
    assert metrics.clip_fraction == 0.0
    assert metrics.kl is None


def test_a_sampler_at_another_temperature_is_noticed_once():
    """LO-05: the ratio then does not start at 1; one warning, not one per step."""
    learner = Learner(_Whole(), PLAIN, SETTINGS, sampling=Sampling(temperature=0.5))
    batch = build_batch(_groups(tiny_model()), PLAIN)
    with pytest.warns(UserWarning, match="sampler and trainer disagree by .* nats"):
        assert learner.update(batch).sampler_difference_mean > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.update(batch)


def test_every_epoch_and_minibatch_is_an_optimiser_step_against_the_old_policy():
    """The ratio leaves 1 after the first step, and old log-probabilities stay those before it."""
    for old in ("sampler", "trainer"):
        algorithm = GRPO(scale_rewards="none", epochs=2, minibatches=2, old_logprobs=old)
        metrics = Learner(_Whole(), algorithm, SETTINGS).update(build_batch(_groups(tiny_model()), algorithm))
        assert metrics.step == 4
        assert metrics.ratio_max > 1.001
        assert metrics.sampler_difference_max < 1e-4


def test_sampler_and_trainer_are_compared_before_the_first_step_only():
    """Later minibatches meet changed weights; their tokens are not counted as compared either."""
    algorithm = GRPO(scale_rewards="none", epochs=2, minibatches=2)
    metrics = Learner(_Whole(), algorithm, SETTINGS).update(build_batch(_groups(tiny_model()), algorithm))
    first = sum(row.trained for row in build_batch(_groups(tiny_model())[:1], algorithm).groups[0])
    assert (metrics.tokens_compared, metrics.tokens_trained > first) == (first, True)


def test_the_kl_to_the_reference_starts_at_zero_and_grows_with_the_steps():
    """The reference is the model before training."""
    algorithm = GRPO(scale_rewards="none", kl_coef=0.1)
    learner = Learner(_Whole(), algorithm, SETTINGS)
    first, second = (learner.update(build_batch(_groups(learner.trainable.model), algorithm)) for _ in range(2))
    assert first.kl == pytest.approx(0.0, abs=1e-6)
    assert second.kl > 1e-5


def test_a_log_probability_that_is_not_a_number_refuses_the_step_and_names_the_row():
    """LO-02 d: parameters are untouched."""
    trainable = _Whole()
    learner = Learner(trainable, PLAIN, SETTINGS)
    batch = build_batch(_groups(tiny_model()), PLAIN)
    before = copy.deepcopy(trainable.model.state_dict())
    row = batch.groups[1][0]
    object.__setattr__(row, "logprobs", (None, None, math.nan))
    with pytest.raises(NonFiniteError, match="in the rows of d; the step was not taken"):
        learner.update(batch)
    assert learner.step == 0
    assert all(torch.equal(value, before[name]) for name, value in trainable.model.state_dict().items())


def test_a_gradient_that_is_not_finite_refuses_the_step():
    """A finite loss can have an infinite gradient; the weights are worth more than the step."""
    trainable = _Whole()
    learner = Learner(trainable, PLAIN, SETTINGS)
    weight = trainable.model.model.norm.weight
    weight.register_hook(lambda gradient: gradient * math.inf)
    before = weight.detach().clone()
    with pytest.raises(NonFiniteError, match="gradient's norm is"):
        learner.update(build_batch(_groups(tiny_model()), PLAIN))
    assert torch.equal(weight, before)


def test_a_long_gradient_is_scaled_down_and_its_own_norm_is_reported():
    """Clipping: grad_norm is the norm before it."""
    batch = build_batch(_groups(tiny_model()), PLAIN)
    trainable = _Whole()
    learner = Learner(trainable, PLAIN, OptimiserSettings(learning_rate=1.0, max_grad_norm=0.5))
    learner._optimiser._rule = torch.optim.SGD(trainable.parameters(), lr=1.0)  # Adam hides the gradient's size
    before = torch.cat([p.detach().flatten().clone() for p in trainable.parameters()])
    metrics = learner.update(batch)
    moved = before - torch.cat([p.detach().flatten() for p in trainable.parameters()])
    assert metrics.grad_norm > 0.5
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_the_learning_rate_warms_up_linearly():
    """Steps count from 1: a quarter, a half, three quarters, all of it."""
    settings = OptimiserSettings(learning_rate=1e-3, warmup_steps=4)
    assert [settings.learning_rate_at(step) for step in (1, 2, 4, 9)] == [2.5e-4, 5e-4, 1e-3, 1e-3]


def test_a_learner_goes_on_from_its_saved_state_as_if_it_had_not_stopped():
    """Optimiser moments and step are the learner's; weights are the model's."""
    first = Learner(_Whole(), PLAIN, SETTINGS)
    first.update(build_batch(_groups(first.trainable.model), PLAIN))
    batch = build_batch(_groups(first.trainable.model), PLAIN)
    second = Learner(_Whole(copy.deepcopy(first.trainable.model)), PLAIN, SETTINGS)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for learner in (first, second):
        learner.update(batch)
    assert (first.step, second.step) == (2, 2)
    for one, other in zip(first.trainable.parameters(), second.trainable.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_state_of_other_parameters_is_refused():
    """The message says what to resume with."""
    full = Learner(_Whole(), PLAIN, SETTINGS)
    part = _Whole()
    part.parameters = lambda: list(part.model.parameters())[:2]
    with pytest.raises(CheckpointError, match="does not fit this model's trained parameters"):
        Learner(part, PLAIN, SETTINGS).load_state_dict(full.state_dict())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be > 0 and finite, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be"),
        ({"weight_decay": -1.0}, "weight_decay must be >= 0"),
        ({"warmup_steps": -1}, "warmup_steps must be >= 0, got -1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be > 0 or None, got 0.0"),
    ],
)
def test_optimiser_settings_that_cannot_work_are_refused(fields, says):
    """At construction, with the value."""
    with pytest.raises(ConfigurationError, match=says):
        dataclasses.replace(SETTINGS, **fields)


def test_a_sampling_that_the_trainer_cannot_mirror_is_refused():
    """LO-05: before anything is sampled."""
    with pytest.raises(ConfigurationError, match="top_p"):
        Learner(_Whole(), PLAIN, SETTINGS, sampling=Sampling(top_p=0.9))
