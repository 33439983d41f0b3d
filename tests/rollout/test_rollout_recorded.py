"""Episodes that were finished before, in a batch with some that were not."""

import pytest

from tiltyard.policies.base import Sampling
from tiltyard.policies.hf import HFPolicy
from tiltyard.rollout.batched import BatchedRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import from_record, to_record
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.model import tiny_model
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Task

RENDERER = make_renderer(byte_tokenizer())

LIMITS = Limits(max_turns=3, max_tokens_per_turn=12, length_reward=0.0)


class Talks:
    """Three turns, each with an observation of its own."""

    def __init__(self):
        self.calls = 0

    def reset(self, seed=None):
        self.calls += 1
        return f"begin {seed}", {}

    def step(self, action):
        self.calls += 1
        return f"you said {len(action)}", 1.0, False, False, {}


def play(recorded=None, finished=None):
    """Play six episodes over a real model; returns their environments and trajectories."""
    model = tiny_model(320, tied=False)
    policy = HFPolicy(model, stop_ids=frozenset(RENDERER.stop_ids), sampling=Sampling())
    envs = [Talks() for _ in range(6)]
    jobs = [Job(env, Task(seed=index), f"e{index}") for index, env in enumerate(envs)]
    rollout = BatchedRollout(policy, RENDERER, LIMITS, prompt_s=5.0)
    told = finished.append if finished is not None else None
    return envs, rollout.run(jobs, told, recorded=recorded)


def exact(trajectory):
    return trajectory.transcript.ids, trajectory.transcript.logprobs, trajectory.rewards


@pytest.fixture(scope="module")
def whole():
    """What an unbroken batch gives, as it is read back from the disk."""
    return {t.episode_id: from_record(to_record(t)) for t in play()[1]}


@pytest.mark.parametrize("done", [["e0"], ["e1", "e4"], ["e0", "e1", "e2", "e3", "e5"]])
def test_the_others_get_to_the_bit_what_they_would_have_had(whole, done):
    """CK-01: the batch has the make-up that it had, so that its samples round as they did."""
    _, trajectories = play({name: whole[name] for name in done})
    assert [exact(t) for t in trajectories] == [exact(whole[f"e{index}"]) for index in range(6)]


def test_a_finished_episode_costs_its_environment_nothing(whole):
    """What was done there is not done twice; and it is not handed over as finished again."""
    finished = []
    envs, _ = play({"e1": whole["e1"]}, finished)
    assert [env.calls > 0 for env in envs] == [True, False, True, True, True, True]
    assert sorted(t.episode_id for t in finished) == ["e0", "e2", "e3", "e4", "e5"]


def test_a_batch_that_was_finished_is_not_sampled_again(whole):
    """There is nobody whose samples depend on it."""
    envs, trajectories = play(whole)
    assert trajectories == [whole[f"e{index}"] for index in range(6)]
    assert not any(env.calls for env in envs)


def test_a_recorded_episode_without_tokens_takes_part_in_nothing():
    """It comes out as it was."""
    cut = Trajectory("e2", Task(seed=2), Ending.ENV_ERROR, error="boom")
    envs, trajectories = play({"e2": cut})
    assert trajectories[2] is cut
    assert envs[2].calls == 0
