"""The batched driver over a real, tiny model."""

import pytest
from rollout_envs import GuessEnv

torch = pytest.importorskip("torch")

from tiltyard.policies.base import Sampling  # noqa: E402  # after the skip where torch is not installed
from tiltyard.policies.hf import HFPolicy  # noqa: E402
from tiltyard.rollout.batched import BatchedRollout, Job  # noqa: E402
from tiltyard.rollout.limits import Limits  # noqa: E402
from tiltyard.rollout.slots import EnvSlots  # noqa: E402
from tiltyard.testing.model import tiny_model  # noqa: E402
from tiltyard.testing.tokenizer import byte_tokenizer  # noqa: E402
from tiltyard.tokens.renderer import make_renderer  # noqa: E402
from tiltyard.types import Task  # noqa: E402

TOKENIZER = byte_tokenizer()
RENDERER = make_renderer(TOKENIZER)


@pytest.fixture(scope="module")
def model():
    return tiny_model(len(TOKENIZER))


def play(model, **options):
    # Bytes are sampled almost evenly, so an end token is rare: any byte of a small set ends a turn.
    policy = HFPolicy(model, stop_ids=frozenset(range(0, 260, 5)), sampling=Sampling())
    slots = EnvSlots(GuessEnv, 6)
    jobs = [Job(slots, Task(seed=i // 3), f"e{i}") for i in range(12)]
    rollout = BatchedRollout(policy, RENDERER, Limits(max_tokens_per_turn=24), **options)
    trajectories = rollout.run(jobs)
    slots.close()
    return trajectories


def test_the_same_seed_samples_the_same_episodes_however_they_are_batched(model):
    """Refilling, and the number that run at one time, change nothing that was sampled."""
    base = [t.transcript.ids for t in play(model)]
    assert [t.transcript.ids for t in play(model)] == base
    assert [t.transcript.ids for t in play(model, max_live=2)] == base
    assert [t.transcript.ids for t in play(model, seed=1)] != base


def test_the_log_probabilities_are_those_of_a_full_forward_pass(model):
    """With caches kept across turns and rows coming and going."""
    for trajectory in play(model, max_live=4):
        transcript = trajectory.transcript
        with torch.no_grad():
            logits = model(torch.tensor([transcript.ids])).logits[0].float()
        logprobs = logits.log_softmax(-1)
        for position, (index, sampled) in enumerate(zip(transcript.ids, transcript.mask, strict=True)):
            if sampled:
                assert transcript.logprobs[position] == pytest.approx(float(logprobs[position - 1, index]), abs=1e-4)
