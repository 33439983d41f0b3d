"""Cases LO-01, LO-02 and LO-05 through the learner, from what was sampled to the step that is taken."""

import dataclasses
import itertools
import json
import math

import pytest
import torch

from tiltyard.errors import ConfigurationError
from tiltyard.models.trainable import make_trainable
from tiltyard.policies.base import Sampling, TokenRequest
from tiltyard.policies.hf import HFPolicy
from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.groups import Group
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.guess import GuessEnv
from tiltyard.testing.model import tiny_model
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner, OptimiserSettings
from tiltyard.types import Task

PLAIN = GRPO(scale_rewards="none")
STILL = OptimiserSettings(learning_rate=1e-12)
"""Steps so small that every window is computed with the first weights."""


def learner(algorithm=PLAIN, settings=STILL, **options):
    return Learner(make_trainable(tiny_model(), "full"), algorithm, settings, **options)


def sampled_groups(lengths, sampling=Sampling()):  # noqa: B008  # frozen
    """One group of two for each pair of lengths, sampled from the model; the first member earned 1."""
    policy = HFPolicy(tiny_model(), stop_ids=frozenset({319}), sampling=sampling)
    groups = []
    for number, pair in enumerate(lengths):
        members = []
        for index, length in enumerate(pair):
            prompt = [5, 6, 7 + number]
            [found] = policy.sample([TokenRequest("e", prompt, length, 10 * number + index)])
            policy.release(["e"])
            transcript = Transcript()
            transcript.observe(prompt)
            transcript.sample(found.ids, found.logprobs)
            members.append(
                Trajectory(
                    f"{number}-{index}",
                    Task(seed=number),
                    Ending.DONE,
                    rewards=(1.0 - index,),
                    transcript=transcript,
                )
            )
        groups.append(Group(str(number), Task(seed=number), tuple(members)))
    return groups


@pytest.mark.parametrize(("minibatches", "pack_tokens"), [(1, 1), (1, 4096), (3, 1), (3, 4096), (2, 1)])
def test_each_optimiser_step_is_normalised_by_what_its_own_window_holds(minibatches, pack_tokens):
    """LO-01: windows of unequal size, the last one shorter; the logged loss is that of the gradients used."""
    batch = build_batch(sampled_groups([(2, 6), (9, 3), (4, 1)]), PLAIN)
    runs = len(batch.groups)
    cuts = [index * runs // minibatches for index in range(minibatches + 1)]
    losses = []
    for start, end in itertools.pairwise(cuts):
        rows = [row for group in batch.groups[start:end] for row in group]
        losses.append(-sum(sum(row.advantages) for row in rows) / sum(row.trained for row in rows))
    algorithm = dataclasses.replace(PLAIN, minibatches=minibatches)
    metrics = learner(algorithm, pack_tokens=pack_tokens).update(batch)
    assert metrics.step == minibatches
    assert metrics.loss == pytest.approx(math.fsum(losses) / minibatches, abs=1e-5)


def _held(row, value):
    """The row with this at the positions that do not train."""
    logprobs = tuple(logprob if on else value for logprob, on in zip(row.logprobs, row.mask, strict=True))
    return dataclasses.replace(row, logprobs=logprobs)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_that_stands_at_a_masked_position_reaches_the_step(poison):
    """LO-02 a: the step is to the bit that of rows that hold nothing there."""
    batch, steps = build_batch(sampled_groups([(3, 5)]), PLAIN), []
    for value in (None, poison):
        groups = tuple(tuple(_held(row, value) for row in group) for group in batch.groups)
        trained = learner(settings=OptimiserSettings(learning_rate=1e-2))
        metrics = trained.update(dataclasses.replace(batch, groups=groups))
        steps.append((metrics, [parameter.clone() for parameter in trained.trainable.parameters()]))
    assert steps[0][0] == steps[1][0]
    assert all(torch.equal(one, other) for one, other in zip(steps[0][1], steps[1][1], strict=True))


def test_no_figure_of_a_step_without_a_gradient_is_nan():
    """LO-02 b: KL and clip fraction are absent, not NaN, and the line is plain JSON."""
    groups = sampled_groups([(2, 2)])
    equal = dataclasses.replace(
        groups[0], members=tuple(dataclasses.replace(m, rewards=(1.0,)) for m in groups[0].members)
    )
    metrics = learner().update(build_batch([equal], PLAIN))
    figures = json.loads(json.dumps(dataclasses.asdict(metrics), allow_nan=False))
    assert (figures["skipped"], figures["kl"], figures["clip_fraction"], figures["step"]) == (True, None, None, 0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_sampler_and_trainer_mean_the_same_distribution(temperature):
    """LO-05: at every temperature the ratio begins at 1."""
    sampling = Sampling(temperature=temperature)
    batch = build_batch(sampled_groups([(8, 8), (5, 7)], sampling), PLAIN)
    metrics = learner(sampling=sampling).update(batch)
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-4)
    assert metrics.sampler_difference_max < 1e-4


def served(tokens):
    with OpenAIServer(["5"], tokens=tokens) as server:
        api = OpenAI("m", server.base_url, token_ids=tokens)
        [found] = ConcurrentRollout(api, Limits(max_turns=1)).run([Job(GuessEnv(), Task(seed=1), "e")])
    return found


@pytest.mark.parametrize("tokens", ["vllm", "llama.cpp"])
def test_a_served_log_probability_is_that_of_the_sampled_token(tokens):
    """LO-05: the likelier token that stands first in `top_logprobs` is not taken in its place."""
    transcript = served(tokens).transcript
    known = [logprob for logprob, on in zip(transcript.logprobs, transcript.mask, strict=True) if on]
    assert known == [-1.0, -1.0 - 1 / 1024]


def test_an_answer_without_log_probabilities_is_never_trained_on_as_0():
    """LO-05: it has no transcript, says why, and is refused by name."""
    found = served(None)
    assert (found.transcript, found.reward) == (None, 0.0)
    group = Group("g", found.task, (found, dataclasses.replace(found, episode_id="f", rewards=(1.0,))))
    with pytest.raises(ConfigurationError, match=r"episode e has no token ids .*gave no token ids"):
        build_batch([group], PLAIN)
