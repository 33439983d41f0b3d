"""Cases TK-01, TK-02, TK-05 and TK-07 through the driver, from the chat template to what trains."""

import warnings

import pytest

from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.groups import Group
from tiltyard.rollout.limits import Limits
from tiltyard.testing.tokenizer import TEMPLATES, byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import TemplateRenderer, make_renderer
from tiltyard.train.algorithms import GRPO
from tiltyard.train.batch import build_batch
from tiltyard.types import Task

USER = {"role": "user", "content": "Go."}


class Talk:
    """Answers each turn with the next text, and ends after the last one with the reward."""

    def __init__(self, reward, *texts):
        self.reward, self.texts = reward, texts

    def reset(self, seed=None):
        self.turn = 0
        return "Go.", {}

    def step(self, action):
        self.turn += 1
        over = self.turn == len(self.texts)
        return self.texts[self.turn - 1], self.reward if over else 0.0, over, False, {}


def play(renderer, tokenizer, script, rewards, texts, limits=None):
    policy = ScriptedTokens(tokenizer, script)
    jobs = [Job(Talk(reward, *texts), Task(), f"e{number}") for number, reward in enumerate(rewards)]
    return BatchedRollout(policy, renderer, limits or Limits()).run(jobs), policy


def test_thinking_stays_in_the_context_that_is_trained():
    """TK-02: one row an episode, whose ids are those that the sampler was given; one warning for the whole run."""
    tokenizer = byte_tokenizer("thinking")
    with pytest.warns(UserWarning, match="rewrites history") as caught:
        renderer = make_renderer(tokenizer)
    script = ["<think>p</think>A", "<think>q</think>B"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        members, policy = play(renderer, tokenizer, script, [1.0, 0.0], ["More.", "Over."])
    group = Group("g", Task(), tuple(members))
    batch = build_batch([group], GRPO(scale_rewards="none"))
    assert len(caught) == 1
    assert [len(rows) for rows in batch.groups] == [2]
    for row, member in zip(batch.groups[0], members, strict=True):
        assert list(row.ids) == member.transcript.ids[: len(row.ids)]
        assert set(row.advantages) <= {0.0, 0.5, -0.5}
    for request in policy.requests[1]:
        assert tokenizer.decode(request.ids).count("<think>p</think>A") == 1
        whole = members[int(request.key[1:])].transcript.ids
        assert list(request.ids) == whole[: len(request.ids)]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("thinking", "generation")])
def test_only_what_was_sampled_trains_whatever_the_template(name):
    """TK-05: added end tokens, newlines and headers are in no loss; sampled end tokens are."""
    tokenizer = byte_tokenizer(name)
    end = tokenizer.eos_token_id
    lines = [(ord("H"), end), (ord("H"),), (), (end,)]
    members, _ = play(
        make_renderer(tokenizer), tokenizer, lines, [1.0, 0.0], ["More."] * 3 + ["Over."], Limits(max_turns=4)
    )
    batch = build_batch([Group("g", Task(), tuple(members))], GRPO(scale_rewards="none"))
    for row in batch.groups[0]:
        trained = [(i, logprob) for i, logprob, on in zip(row.ids, row.logprobs, row.mask, strict=True) if on]
        assert trained == [(ord("H"), -0.25), (end, -0.375), (ord("H"), -0.25), (end, -0.25)]
        assert all(logprob is None for logprob, on in zip(row.logprobs, row.mask, strict=True) if not on)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("thinking", "generation")])
def test_a_message_without_a_content_is_an_empty_one(name):
    """TK-07: the field may be missing as well as null, beside tool calls and alone; it is never an error or "None"."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    renderer = TemplateRenderer(byte_tokenizer(name))
    for fields in ({"tool_calls": [call]}, {}):
        result = {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "4"}
        rest = [result] if fields else [USER]
        missing = renderer.opening([USER, {"role": "assistant", **fields}, *rest])
        assert missing == renderer.opening([USER, {"role": "assistant", "content": "", **fields}, *rest])
        assert "None" not in renderer.encoder.decode(missing)


@pytest.mark.parametrize("place", ["system", "user", "observation"])
def test_half_a_surrogate_pair_is_no_trouble(place):
    """TK-01: JSON may hold one, and no tokenizer takes it; it becomes the replacement character everywhere."""
    tokenizer = byte_tokenizer()
    bad = "a\udc80b"
    messages = ({"role": place, "content": bad},) if place != "observation" else ()
    env = Talk(1.0, bad if place == "observation" else "Over.")
    policy = ScriptedTokens(tokenizer, ["x"])
    [found] = BatchedRollout(policy, make_renderer(tokenizer), Limits()).run([Job(env, Task(messages=messages), "e")])
    assert found.reward == 1.0
    assert "a\ufffdb" in tokenizer.decode(found.transcript.ids)
