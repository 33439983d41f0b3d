"""Training, checkpoint and resume together, for every way in which a model can train."""

import pytest
import torch

from tiltyard.errors import CheckpointError
from tiltyard.models.trainable import LoraSettings, make_trainable
from tiltyard.policies.base import Sampling, TokenRequest
from tiltyard.policies.hf import HFPolicy
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.model import tiny_model
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import GRPO, LLMPPO
from tiltyard.train.batch import build_batch
from tiltyard.train.checkpoint import load_checkpoint, save_checkpoint
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task

MODES = ["full", "last:1", "lora"]
PROMPT = [5, 6, 7]


def _run(mode, algorithm=GRPO):
    torch.manual_seed(3)
    model = make_trainable(tiny_model(), mode, lora=LoraSettings(rank=2))
    return model, Learner(model, algorithm(group_size=4), OptimiserSettings(learning_rate=1e-2))


def _sampled(model, step):
    policy = HFPolicy(model.model, stop_ids=frozenset({0}), sampling=Sampling())
    with model.sampling_weights():
        return policy.sample([TokenRequest(str(i), PROMPT, 6, 100 * step + i) for i in range(4)])


def _step(model, learner, step):
    """Sample a group with the current weights and learn from it: the more large ids, the better."""
    task, members = Task(seed=step), []
    for index, sampled in enumerate(_sampled(model, step)):
        transcript = Transcript()
        transcript.observe(PROMPT)
        transcript.sample(sampled.ids, sampled.logprobs)
        reward = sum(sampled.ids) / len(sampled.ids)
        members.append(Trajectory(f"{step}-{index}", task, Ending.DONE, rewards=(reward,), transcript=transcript))
    return learner.update(build_batch([Group(str(step), task, tuple(members))], learner.algorithm))


def _weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("mode", MODES)
def test_sampler_and_trainer_agree_on_every_step(mode):
    """LW-01: the sampler always has the trainer's weights, adapter included."""
    model, learner = _run(mode)
    for step in range(3):
        metrics = _step(model, learner, step)
        assert metrics.sampler_difference_max < 1e-4
        assert metrics.grad_norm > 0


def _head(learner):
    return [] if learner._critic is None else [value.tolist() for value in learner._critic.head.parameters()]


@pytest.mark.parametrize("algorithm", [GRPO, LLMPPO])
@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_takes_the_steps_that_an_unbroken_one_takes(tmp_path, mode, algorithm):
    """Weights, a value head, optimiser moments and step all come back, to the bit."""
    model, learner = _run(mode, algorithm)
    for step in range(2):
        _step(model, learner, step)
    path = save_checkpoint(tmp_path, 2, model=model, learner=learner, position={})
    _step(model, learner, 2)

    resumed, resumed_learner = _run(mode, algorithm)
    load_checkpoint(path, model=resumed, learner=resumed_learner)
    _step(resumed, resumed_learner, 2)
    assert resumed_learner.step == 3
    assert _head(resumed_learner) == _head(learner)
    for name, value in _weights(model).items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def _effective(model):
    """A layer's weight as the sampler sees it."""
    with model.sampling_weights():
        layer = model.model.base_model.model.model.layers[0].self_attn.q_proj
        return layer.get_base_layer().weight.detach().clone()


def test_the_adapter_counts_once_before_and_after_a_resume(tmp_path):
    """LW-01: base plus delta at every sync, the second after a resume included; base alone with the adapter off."""
    model, learner = _run("lora")
    base = _effective(model)
    _step(model, learner, 0)
    stepped = _effective(model)
    assert not torch.equal(stepped, base)
    path = save_checkpoint(tmp_path, 1, model=model, learner=learner, position={})

    resumed, resumed_learner = _run("lora")
    load_checkpoint(path, model=resumed, learner=resumed_learner)
    assert [torch.equal(_effective(resumed), stepped) for _ in range(2)] == [True, True]
    with torch.no_grad(), resumed.reference():
        off = resumed.model(torch.tensor([PROMPT])).logits
    assert torch.equal(off, tiny_model()(torch.tensor([PROMPT])).logits)


def test_a_rollout_right_after_a_resume_uses_the_adapter(tmp_path):
    """LW-01: it samples what the run before the break would have sampled, not what the base would."""
    model, learner = _run("lora")
    base = _sampled(model, 9)
    for step in range(3):
        _step(model, learner, step)
    path = save_checkpoint(tmp_path, 3, model=model, learner=learner, position={})
    resumed, resumed_learner = _run("lora")
    load_checkpoint(path, model=resumed, learner=resumed_learner)
    assert _sampled(resumed, 9) == _sampled(model, 9)
    assert _sampled(resumed, 9) != base


def test_a_checkpoint_of_another_mode_is_refused_and_changes_nothing(tmp_path):
    """Full weights do not fit an adapter."""
    full, full_learner = _run("full")
    path = save_checkpoint(tmp_path, 1, model=full, learner=full_learner, position={})
    model, learner = _run("lora")
    before = _weights(model)
    with pytest.raises(CheckpointError, match="is of another model"):
        load_checkpoint(path, model=model, learner=learner)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize("mode", MODES)
def test_a_kl_term_pulls_towards_the_model_before_training(mode):
    """The reference is a copy, or the adapter switched off; its KL is 0 at first."""
    torch.manual_seed(3)
    model = make_trainable(tiny_model(), mode, lora=LoraSettings(rank=2))
    learner = Learner(model, GRPO(group_size=4, kl_coef=0.1), OptimiserSettings(learning_rate=1e-2))
    kls = [_step(model, learner, step).kl for step in range(3)]
    assert kls[0] == pytest.approx(0.0, abs=1e-5)
    assert kls[-1] > 1e-4
