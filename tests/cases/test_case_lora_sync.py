"""Case LW-01: one sampler over many steps, and names that the server does not know."""

import pytest

from tiltyard.models.trainable import LoraSettings, make_trainable
from tiltyard.policies.base import TokenRequest
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
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import build_batch
from tiltyard.train.learner import Learner, OptimiserSettings
from tiltyard.types import Task

PROMPT = [5, 6, 7, 8]


def group_of(policy, keys, step):
    """A group of which every member continues what it said before, so that caches of an earlier step are at hand."""
    task, members = Task(seed=step), []
    requests = [TokenRequest(key, ids, 6, 10 * step + n) for n, (key, ids) in enumerate(keys.items())]
    for number, (request, sampled) in enumerate(zip(requests, policy.sample(requests), strict=True)):
        transcript = Transcript()
        transcript.observe(request.ids)
        transcript.sample(sampled.ids, sampled.logprobs)
        keys[request.key] = transcript.ids
        members.append(
            Trajectory(f"{step}-{number}", task, Ending.DONE, rewards=(float(number),), transcript=transcript)
        )
    return Group(str(step), task, tuple(members))


def difference_after_steps(what, *, told):
    """How far the sampler is from the trainer at the third step, when it was told of each change or of none."""
    model = make_trainable(tiny_model(), what, lora=LoraSettings(rank=2))
    learner = Learner(model, GRPO(group_size=3), OptimiserSettings(learning_rate=3e-2))
    policy = HFPolicy(model.model, stop_ids=frozenset({319}))
    keys = {key: list(PROMPT) for key in "abc"}
    for step in range(3):
        with model.sampling_weights():
            group = group_of(policy, keys, step)
        metrics = learner.update(build_batch([group], learner.algorithm))
        if told:
            policy.weights_changed()
    return metrics.sampler_difference_max


@pytest.mark.parametrize("what", ["full", "lora"])
def test_a_sampler_that_lives_on_has_the_weights_of_every_step(what):
    """LW-01: its caches go with the weights that they were made with."""
    assert difference_after_steps(what, told=True) < 1e-4


def test_stale_weights_are_noticed():
    """LW-01: a sampler that goes on with caches of the step before is no silent fall-back: the run says so."""
    with pytest.warns(UserWarning, match="Is the sampler on the current weights"):
        assert difference_after_steps("full", told=False) > 0.01


def test_a_model_that_the_server_does_not_know_is_an_error():
    """LW-01: the name goes with every request, and its refusal fails the episode with the server's words."""
    refusal = Answer(status=404, error="The model `adapter-7` does not exist.")
    with OpenAIServer([refusal]) as server:
        api = OpenAI("adapter-7", server.base_url)
        [found] = ConcurrentRollout(api, Limits()).run([Job(GuessEnv(), Task(seed=1), "e")])
    assert [body["model"] for body in server.bodies] == ["adapter-7"]
    assert (found.ending, found.reward) == (Ending.API_ERROR, None)
    assert "The model `adapter-7` does not exist." in found.error
