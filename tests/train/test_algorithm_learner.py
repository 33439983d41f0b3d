"""The learner with every algorithm: the step is that of the obvious loss, at any micro-batching."""

import contextlib
import copy
import dataclasses
import math
import warnings

import pytest
import torch

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.rollout.groups import Group
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.model import tiny_model
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import ALGORITHMS, GRPO, LLMPPO, LLMREINFORCE
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.types import Task

SETTINGS = OptimiserSettings(learning_rate=1e-3)


class Whole:
    """A model of which everything trains, with a given model as its reference."""

    def __init__(self, model=None, reference=None):
        self.model = model or tiny_model()
        self._reference = copy.deepcopy((reference or self.model).state_dict())

    def parameters(self):
        return list(self.model.parameters())

    @contextlib.contextmanager
    def reference(self):
        now = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self._reference)
        yield
        self.model.load_state_dict(now)


def logprobs(model, ids):
    return torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)


def episode(name, prompt, turns, rewards, *, model=None, ending=Ending.DONE, task=None):
    """An episode whose log-probabilities are those of the model."""
    model, transcript = model or tiny_model(), Transcript()
    transcript.observe(prompt)
    for turn in turns:
        ids = [*transcript.ids, *turn]
        with torch.no_grad():
            logp = logprobs(model, ids)
        start = len(transcript)
        transcript.sample(turn, [logp[start + i - 1, token].item() for i, token in enumerate(turn)])
        transcript.observe([3])
    return Trajectory(name, task or Task(seed=0), ending, rewards=tuple(rewards), transcript=transcript)


def groups(model=None):
    first, second = Task(seed=0), Task(seed=1)
    return [
        Group("first", first, (
            episode("a", [5, 6, 7], [[8, 9], [10]], [1.0, 0.0], model=model),
            episode("b", [5, 6, 7], [[8, 11]], [0.0], model=model),
            episode("c", [5, 6, 7], [[12, 13, 14], [15, 16]], [0.5, 1.0], model=model),
        )),
        Group("second", second, (
            episode("d", [5, 20], [[21]], [1.0], task=second, model=model),
            episode("e", [5, 20], [[22, 23, 24, 25]], [0.0], task=second, model=model),
        )),
    ]  # fmt: skip


def stepped(algorithm, batch, *, trainable=None, **options):
    """The figures of an update, and its gradient, read off plain gradient descent."""
    trainable = trainable or Whole()
    before = torch.cat([p.detach().flatten().clone() for p in trainable.parameters()])
    learner = Learner(trainable, algorithm, OptimiserSettings(learning_rate=1.0, max_grad_norm=None), **options)
    learner._optimiser._rule = torch.optim.SGD(trainable.parameters(), lr=1.0)  # Adam hides the gradient's size
    metrics = learner.update(batch)
    return metrics, before - torch.cat([p.detach().flatten() for p in trainable.parameters()])


def close(one, other, within=2e-4):
    return (one - other).abs().max() <= within * other.abs().max()


def hand_gradient(weight_of_token):
    """The gradient of minus the sum over sampled tokens of weight times log-probability, one row at a time."""
    model = tiny_model()
    loss = torch.zeros(())
    for group in groups():
        for member in group.members:
            logp, place = logprobs(model, member.transcript.ids), 0
            for t, on in enumerate(member.transcript.mask):
                if on:
                    weight = weight_of_token[member.episode_id][place]
                    loss = loss - weight * logp[t - 1, member.transcript.ids[t]]
                    place += 1
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


OPTIONS = {
    "plain": {},
    "everything": {
        "kl_coef": 0.1,
        "entropy_coef": 0.01,
        "old_logprobs": "trainer",
        "sampler_cap": 2.0,
        "epochs": 2,
        "minibatches": 2,
    },
    "reward": {"kl_coef": 0.1, "kl_in": "reward", "old_logprobs": "trainer", "epochs": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_is_the_same_at_any_micro_batching(name, options):
    """LO-01: packs of one row, of two, or of all give one gradient and one loss, over several steps as well."""
    sampler = tiny_model(seed=1)
    algorithm = ALGORITHMS[name](**{"group_size": 2, **options})
    batch = build_batch(groups(None if name == "GSPO" else sampler), algorithm)
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="sampler and trainer disagree")
        for pack_tokens in (1, 12, 4096):
            trainable = Whole(reference=sampler)
            learner = Learner(trainable, algorithm, SETTINGS, pack_tokens=pack_tokens)
            learner._optimiser._rule = torch.optim.SGD(trainable.parameters(), lr=0.05)
            metrics = learner.update(batch)
            found.append((metrics, torch.cat([p.detach().flatten() for p in trainable.parameters()])))
    start = torch.cat([p.detach().flatten() for p in tiny_model().parameters()])
    for metrics, weights in found[:2]:
        assert metrics.loss == pytest.approx(found[2][0].loss, rel=1e-3, abs=1e-5)
        assert close(weights - start, found[2][1] - start, within=2e-3)


@pytest.mark.parametrize("truncated", ["keep", "zero", "mask"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_truncated_episodes_too_an_update_is_the_same_at_any_micro_batching(name, truncated):
    """LO-01: the first member of each group was cut, and counts as `training.truncated` says, however it is packed."""
    algorithm = ALGORITHMS[name](group_size=2, **OPTIONS["everything"])
    cut = [
        dataclasses.replace(g, members=(dataclasses.replace(g.members[0], ending=Ending.MAX_TURNS), *g.members[1:]))
        for g in groups()
    ]
    batch, found = build_batch(cut, algorithm, truncated=truncated), []
    for pack_tokens in (1, 12, 4096):
        trainable = Whole()
        learner = Learner(trainable, algorithm, SETTINGS, pack_tokens=pack_tokens)
        learner._optimiser._rule = torch.optim.SGD(trainable.parameters(), lr=0.05)
        metrics = learner.update(batch)
        assert metrics.tokens_counted == (11 if truncated == "mask" else 15)
        found.append((metrics.loss, torch.cat([p.detach().flatten() for p in trainable.parameters()])))
    start = torch.cat([p.detach().flatten() for p in tiny_model().parameters()])
    for loss, weights in found[:2]:
        assert loss == pytest.approx(found[2][0], rel=1e-3, abs=1e-5)
        assert close(weights - start, found[2][1] - start, within=2e-3)


def test_reinforce_is_the_policy_gradient_of_returns_less_those_of_the_others():
    """By hand: rewards to go 1, 0 | 0 | 1.5, 1 and 1 | 0, each less the mean of the others' from the same turn."""
    algorithm = LLMREINFORCE(advantage_granularity="turn")
    weight = {
        "a": [1 - 0.75] * 2 + [0 - 1.0],
        "b": [0 - 1.25] * 2,
        "c": [1.5 - 0.5] * 3 + [1 - 0.0] * 2,
        "d": [1.0],
        "e": [-1.0] * 4,
    }
    weight = {name: [w / 15 for w in values] for name, values in weight.items()}
    metrics, gradient = stepped(algorithm, build_batch(groups(), algorithm))
    assert metrics.tokens_counted == 15
    assert close(gradient, hand_gradient(weight))


def test_ppo_from_a_value_head_of_zeros_is_the_policy_gradient_of_returns():
    """Values are 0 at first, so that with lambda 1 the advantages are the rewards to go."""
    algorithm = LLMPPO(normalise_advantages=False, gae_lambda=1.0, advantage_granularity="token")
    weight = {"a": [1.0, 1.0, 0.0], "b": [0.0] * 2, "c": [1.5] * 3 + [1.0] * 2, "d": [1.0], "e": [0.0] * 4}
    weight = {name: [w / 15 for w in values] for name, values in weight.items()}
    metrics, gradient = stepped(algorithm, build_batch(groups(), algorithm))
    assert close(gradient, hand_gradient(weight))
    targets = [1, 1, 0, 0, 0, 1.5, 1.5, 1.5, 1, 1, 1, 0, 0, 0, 0]
    assert metrics.value_loss == pytest.approx(sum(t * t for t in targets) / 2 / 15)
    assert metrics.explained_variance == pytest.approx(0.0)


def test_a_value_head_learns_to_foretell_returns():
    """On one batch again and again, with a policy that all but stands still, explained variance rises towards 1."""
    algorithm = LLMPPO(value_learning_rate=0.1, value_clip=0.0, gae_lambda=1.0)
    learner = Learner(Whole(), algorithm, OptimiserSettings(learning_rate=1e-9, max_grad_norm=None))
    first, second = Task(seed=0), Task(seed=1)
    apart = [
        Group("first", first, (episode("a", [5, 6, 7], [[8, 9]], [1.0]),)),
        Group("second", second, (episode("b", [30, 20], [[21]], [-1.0], task=second),)),
    ]
    figures = [learner.update(build_batch(apart, algorithm)) for _ in range(50)]
    assert figures[0].explained_variance == pytest.approx(0.0)
    assert figures[-1].explained_variance > 0.9
    assert figures[-1].value_loss < figures[0].value_loss / 10


@pytest.mark.parametrize("trains_model", [False, True])
def test_the_value_loss_reaches_the_model_only_where_it_is_to(trains_model):
    """With and without its coefficient: the same step of the model, or another."""
    algorithm = LLMPPO(
        normalise_advantages=False, value_trains_model=trains_model, gae_lambda=0.0, advantage_granularity="token"
    )
    batch = build_batch(groups(), algorithm)
    gradients = []
    for coefficient in (0.0, 0.5):
        again = Learner(
            Whole(), dataclasses.replace(algorithm, value_coef=coefficient), OptimiserSettings(1.0, max_grad_norm=None)
        )
        with torch.no_grad():
            again._critic.head.weight.fill_(0.1)
        again._optimiser._rule = torch.optim.SGD(again.trainable.parameters(), lr=1e-3)
        before = [p.detach().clone() for p in again.trainable.parameters()]
        again.update(batch)
        gradients.append(
            torch.cat([(b - p.detach()).flatten() for b, p in zip(before, again.trainable.parameters(), strict=True)])
        )
    assert torch.equal(gradients[0], gradients[1]) is not trains_model


def test_an_episode_that_was_cut_goes_on_from_the_value_of_its_end():
    """An episode over for a reason outside the task has a future; one that is over has none."""
    algorithm = LLMPPO(normalise_advantages=False, gae_lambda=1.0, advantage_granularity="token", value_clip=0.0)
    targets = {}
    for ending in (Ending.DONE, Ending.MAX_TURNS):
        batch = build_batch(
            [Group("g", Task(seed=0), (episode("a", [5, 6], [[8, 9]], [1.0], ending=ending),))], algorithm
        )
        learner = Learner(Whole(), algorithm, OptimiserSettings(learning_rate=1e-9))
        with torch.no_grad():
            learner._critic.head.bias.fill_(3.0)
        targets[ending] = learner.update(batch).value_loss
    assert targets[Ending.DONE] == pytest.approx((3 - 1) ** 2 / 2)
    assert targets[Ending.MAX_TURNS] == pytest.approx((3 - 4) ** 2 / 2)


def test_a_value_head_goes_on_from_its_saved_state():
    """Weights and moments of head and model: the next update of both learners is the same to the bit."""
    algorithm = LLMPPO()
    first = Learner(Whole(), algorithm, SETTINGS)
    first.update(build_batch(groups(), algorithm))
    batch = build_batch(groups(first.trainable.model), algorithm)
    second = Learner(Whole(copy.deepcopy(first.trainable.model)), algorithm, SETTINGS)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert first.update(batch) == second.update(batch)
    for one, other in zip(first._critic.head.parameters(), second._critic.head.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_with_a_value_head_too_many_or_too_few_is_refused():
    """Another algorithm's checkpoint; nothing is put in half."""
    ppo, grpo = (Learner(Whole(), algorithm, SETTINGS) for algorithm in (LLMPPO(), GRPO()))
    with pytest.raises(CheckpointError, match="the saved state has no value head"):
        ppo.load_state_dict(grpo.state_dict())
    with pytest.raises(CheckpointError, match="the saved state has a value head"):
        grpo.load_state_dict(ppo.state_dict())


def test_a_value_head_of_another_width_is_refused():
    """The message says what to resume with."""
    narrow = Learner(Whole(), LLMPPO(), SETTINGS)
    wide = Learner(Whole(tiny_model(hidden=64)), LLMPPO(), SETTINGS)
    state = {**narrow.state_dict(), "critic": wide.state_dict()["critic"]}
    with pytest.raises(CheckpointError, match="value head does not fit this model"):
        narrow.load_state_dict(state)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sampler_on_other_weights_is_corrected_for(name):
    """Off policy with the correction: each token weighs min(trainer / sampler, cap), and nothing warns."""
    sampler, cap = tiny_model(seed=1), 2.0
    algorithm = ALGORITHMS[name](group_size=2, old_logprobs="trainer", sampler_cap=cap)
    batch = build_batch(groups(sampler), algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics, _ = stepped(algorithm, batch)
    rows = [row for group in batch.groups for row in group if row.trained]
    weights = []
    for row in rows:
        with torch.no_grad():
            logp = logprobs(tiny_model(), list(row.ids))
        weights += [
            min(math.exp(logp[t - 1, row.ids[t]].item() - row.logprobs[t]), cap) for t, on in enumerate(row.mask) if on
        ]
    assert metrics.correction_mean == pytest.approx(sum(weights) / len(weights), rel=1e-4)
    assert metrics.correction_capped == pytest.approx(sum(weight == cap for weight in weights) / len(weights))
    assert metrics.ratio_mean == pytest.approx(1.0)
    assert metrics.sampler_difference_mean > 0.1


def test_the_corrected_gradient_is_that_of_the_weighed_log_probabilities():
    """By hand: advantage times min(trainer / sampler, 2), over all tokens."""
    sampler = tiny_model(seed=1)
    algorithm = GRPO(scale_rewards="none", advantage_granularity="trajectory", old_logprobs="trainer", sampler_cap=2.0)
    advantage = {"a": 1 - 2.5 / 3, "b": -2.5 / 3, "c": 1.5 - 2.5 / 3, "d": 0.5, "e": -0.5}
    weight = {}
    for group in groups(sampler):
        for member in group.members:
            with torch.no_grad():
                logp, ids = logprobs(tiny_model(), member.transcript.ids), member.transcript.ids
            weight[member.episode_id] = [
                advantage[member.episode_id]
                * min(math.exp(logp[t - 1, ids[t]].item() - member.transcript.logprobs[t]), 2.0)
                / 15
                for t, on in enumerate(member.transcript.mask)
                if on
            ]
    _, gradient = stepped(algorithm, build_batch(groups(sampler), algorithm))
    assert close(gradient, hand_gradient(weight))


def test_a_correction_needs_the_samplers_log_probabilities():
    """Refused when the batch is made, before any forward pass."""
    transcript = Transcript()
    transcript.observe([5])
    transcript.sample([6], None)
    members = tuple(
        Trajectory(name, Task(seed=0), Ending.DONE, rewards=(reward,), transcript=transcript)
        for name, reward in (("a", 1.0), ("b", 0.0))
    )
    algorithm = GRPO(old_logprobs="trainer", sampler_cap=2.0)
    with pytest.raises(ConfigurationError, match="without a sampler_cap"):
        build_batch([Group("g", Task(seed=0), members)], algorithm)


def test_a_kl_in_the_reward_moves_the_advantages():
    """By hand: each member's reward less coefficient times the sum of k1 over its tokens, then the group's baseline."""
    reference = tiny_model(seed=1)
    algorithm = GRPO(
        scale_rewards="none", advantage_granularity="trajectory", kl_coef=0.1, kl_in="reward", kl_estimator="k1"
    )
    total, taken = {}, []
    for group in groups():
        for member in group.members:
            with torch.no_grad():
                ref, ids = logprobs(reference, member.transcript.ids), member.transcript.ids
            apart = [
                member.transcript.logprobs[t] - ref[t - 1, ids[t]].item()
                for t, on in enumerate(member.transcript.mask)
                if on
            ]
            total[member.episode_id] = (member.reward - 0.1 * sum(apart), len(apart))
            taken += apart
    weight = {}
    for names in ("abc", "de"):
        mean = sum(total[name][0] for name in names) / len(names)
        weight |= {name: [(total[name][0] - mean) / 15] * total[name][1] for name in names}
    metrics, gradient = stepped(algorithm, build_batch(groups(), algorithm), trainable=Whole(reference=reference))
    assert metrics.kl == pytest.approx(sum(taken) / len(taken), rel=1e-4)
    assert close(gradient, hand_gradient(weight))


def test_an_entropy_bonus_raises_entropy():
    """With nothing else to learn the policy becomes flatter, step by step."""
    algorithm = GRPO(entropy_coef=1.0)
    equal = [Group("g", Task(seed=0), tuple(episode(name, [5, 6], [[8, 9]], [1.0]) for name in "ab"))]
    learner = Learner(Whole(), algorithm, SETTINGS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="sampler and trainer disagree")
        figures = [learner.update(build_batch(equal, algorithm)).entropy for _ in range(4)]
    assert figures == sorted(figures)
    assert figures[-1] > figures[0]


def test_clip_fractions_and_ratios_say_how_far_an_update_went():
    """Both sides of the clip add up; the smallest ratio is at most the mean, the largest at least."""
    algorithm = GRPO(scale_rewards="none", epochs=4, clip_low=0.01, clip_high=0.01)
    metrics = Learner(Whole(), algorithm, OptimiserSettings(learning_rate=1e-2)).update(
        build_batch(groups(), algorithm)
    )
    assert metrics.clip_low_fraction > 0
    assert metrics.clip_high_fraction > 0
    assert metrics.clip_fraction == pytest.approx(metrics.clip_low_fraction + metrics.clip_high_fraction)
    assert metrics.ratio_min <= metrics.ratio_mean <= metrics.ratio_max
    assert metrics.policy_kl > 0


def test_a_model_whose_head_cannot_be_asked_apart_has_a_value_head_all_the_same():
    """Where logits come with the model, hidden states are asked for as well, and the step is the same."""
    algorithm = LLMPPO(normalise_advantages=False)
    batch, found = build_batch(groups(), algorithm), []
    for decoder in (True, False):
        trainable = Whole()
        learner = Learner(trainable, algorithm, SETTINGS)
        learner._asking = dataclasses.replace(learner._asking, plan=dataclasses.replace(learner.plan, decoder=decoder))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="sampler and trainer disagree")
            found.append([learner.update(batch) for _ in range(2)][1])
    assert found[0].value_loss == pytest.approx(found[1].value_loss, rel=1e-4)
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["GRPO", "LLMPPO"])
def test_logits_in_pieces_change_neither_entropy_nor_values(name):
    """A large vocabulary is computed piece by piece and again going backward; the step is the same."""
    algorithm = ALGORITHMS[name](group_size=2, entropy_coef=0.5)
    batch, found = build_batch(groups(), algorithm), []
    for logits_at_once in (2**27, 2 * 320):
        trainable = Whole()
        learner = Learner(trainable, algorithm, SETTINGS)
        learner._optimiser._rule = torch.optim.SGD(trainable.parameters(), lr=0.05)
        plan = dataclasses.replace(learner.plan, logits_at_once=logits_at_once)
        learner._asking = dataclasses.replace(learner._asking, plan=plan)
        metrics = learner.update(batch)
        found.append((metrics.loss, torch.cat([p.detach().flatten() for p in trainable.parameters()])))
    start = torch.cat([p.detach().flatten() for p in tiny_model().parameters()])
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    assert close(found[0][1] - start, found[1][1] - start, within=2e-3)


def test_the_entropy_and_its_gradient_are_those_of_the_distribution():
    """As torch's own categorical distribution has them, at the sampling temperature."""
    algorithm = GRPO(entropy_coef=1.0, kl_coef=0.0)
    equal = [Group("g", Task(seed=0), tuple(episode(name, [5, 6], [[8, 9]], [1.0]) for name in "ab"))]
    metrics, gradient = stepped(algorithm, build_batch(equal, algorithm))
    model = tiny_model()
    logits = model(torch.tensor([[5, 6, 8, 9]])).logits[0, 1:3]
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    (-entropy).backward()
    assert metrics.entropy == pytest.approx(entropy.item(), rel=1e-5)
    assert close(gradient, torch.cat([p.grad.flatten() for p in model.parameters()]))
