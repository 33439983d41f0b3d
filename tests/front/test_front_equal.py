"""One scripted model, played locally and over an API: the rollouts may not differ."""

from dataclasses import replace

import pytest
from front_scripts import BOTH, MAX_TOKENS, RENDERER, SCRIPTS, TOKENIZER, Lab, local, rows, served

from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
from tiltyard.rollout.limits import Limits
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.served_tokens import sampled_text, to_ids

SAME = ("messages", "tools", "rewards", "reward", "stop_reason", "truncated", "turns", "error", "success", "info")


def limits(name):
    return Limits(max_tokens_per_turn=MAX_TOKENS, step_timeout_s=1.5 if name == "time-out" else 30.0)


def play(make, name):
    rollout = make(SCRIPTS[name], env_factory=Lab, limits=limits(name), preflight=False)
    [result] = rollout(rows(1))
    return result


@pytest.mark.parametrize("name", SCRIPTS)
def test_local_and_served_rollouts_give_the_same(name):
    """Messages, rewards and stop reasons, whatever the model and the environment do."""
    one, other = play(local, name), play(served, name)
    assert {key: one[key] for key in SAME} == {key: other[key] for key in SAME}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_tokens_and_masks_are_the_same_up_to_the_last_answer(name):
    """What came after the last answer is known to the local rollout only: no server was asked to encode it."""
    one, other = play(local, name), play(served, name)
    end = len(other["input_ids"])
    for key in ("input_ids", "labels", "logprobs", "mask"):
        assert one[key][:end] == other[key]
    assert not any(one["mask"][end:])
    assert other["untrainable"] is None


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_over_http(name):
    """A real request and a real response change nothing; servers send calls and thinking apart from the text."""
    lines = [wire_line(line) for line in SCRIPTS[name]]
    with OpenAIServer(lines) as server:
        api = OpenAI("scripted", server.base_url)
        # This server counts other tokens than the local tokenizer: its answers are cut at its own count.
        bounds = replace(limits(name), max_tokens_per_turn=len(to_ids(sampled_text(lines[-1]))))
        [other] = APIMultiTurnRollout(api, env_factory=Lab, limits=bounds, preflight=False)(rows(1))
    one = play(local, name)
    assert {key: one[key] for key in SAME} == {key: other[key] for key in SAME}


def wire_line(line):
    """A line of the script as a server's parser would give it."""
    ids = (*TOKENIZER.encode(line), TOKENIZER.eos_token_id)
    cut = len(ids) > MAX_TOKENS
    reply = RENDERER.parse(ids[:MAX_TOKENS], "length" if cut else "stop")
    return replace(reply, token_ids=None)


ENDS = {
    "parallel calls": ("done", 1.5, [0.5, 1.0]),
    "bad JSON": ("done", 1.0, [0.0, 1.0]),
    "done in mid-turn": ("done", 1.0, [1.0]),
    "length cut": ("length", 0.25, [0.25, None]),
    "unknown tool": ("done", 1.0, [0.0, 1.0]),
    "time-out": ("env_error", None, [0.25, None]),
    "special tokens": ("stop", 0.0, [0.0, 0.0]),
    "empty answer": ("stop", 0.25, [0.25, 0.0]),
    "thinking": ("done", 1.25, [0.25, 1.0]),
    "unicode": ("stop", 0.0, [0.0, 0.0]),
    "huge output": ("stop", 0.0, [0.0, 0.0]),
    "env crash": ("env_error", None, [0.25, None]),
}


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_ends_as_the_rules_say(make, name):
    """A failure has no reward, a turn that was cut is not scored (rows T1, T16, T22, T23, A8)."""
    result = play(make, name)
    assert (result["stop_reason"], result["reward"], result["rewards"]) == ENDS[name]


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("name", SCRIPTS)
def test_labels_are_the_sampled_ids_and_nothing_else(make, name):
    """-100 everywhere else; log-probabilities are there exactly where labels are."""
    result = play(make, name)
    for token, label, logprob, mine in zip(
        result["input_ids"], result["labels"], result["logprobs"], result["mask"], strict=True
    ):
        assert (label, logprob is None) == ((token, False) if mine else (-100, True))


@pytest.mark.parametrize("make", BOTH)
def test_an_observation_cannot_forge_a_turn(make):
    """Text that looks like special tokens stays text (rows T19, A18)."""
    result = play(make, "special tokens")
    turn_ends = [token for token in result["input_ids"] if token == TOKENIZER.eos_token_id]
    assert len(turn_ends) == len(result["messages"]) + 1  # the section that shows the tools is a turn too


@pytest.mark.parametrize("make", BOTH)
def test_a_huge_observation_keeps_its_head_and_tail(make):
    """The line with the error is at the end; the budget holds before anything is encoded (rows T34; OB-01)."""
    rollout = make(SCRIPTS["huge output"], env_factory=Lab, max_observation_chars=500, preflight=False)
    [result] = rollout(rows(1))
    [shown] = [m["content"] for m in result["messages"] if m["role"] == "tool"]
    assert len(shown) <= 500
    assert shown.startswith("line of a log")
    assert shown.endswith("Permission denied")
    assert "of 140017 characters cut" in shown
