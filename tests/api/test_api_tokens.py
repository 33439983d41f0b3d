"""Episodes over a server that gives token ids are trainable; the others say why they are not."""

import pytest

from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import from_record, to_record
from tiltyard.testing.guess import GuessEnv, GuessToolEnv
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.testing.served_tokens import END, prompt_text, to_ids
from tiltyard.types import Reply, Task, ToolCall

SEED = 0
"""Of a game that 7 wins."""

SERVERS = pytest.mark.parametrize("server_kind", ["vllm", "llama.cpp"])


def play(script, *, env=None, serves="vllm", asks="vllm", limits=None, **options):
    """One episode; the rollout, for its ledger, and the trajectory."""
    with OpenAIServer(script, tokens=serves, **options) as server:
        rollout = ConcurrentRollout(OpenAI("m", server.base_url, token_ids=asks), limits or Limits())
        (found,) = rollout.run([Job(env or GuessEnv(), Task(seed=SEED), "e")])
        return rollout, found, server


def text(ids):
    return bytes(ids).decode()


@SERVERS
def test_the_transcript_is_what_the_server_saw_and_sampled(server_kind):
    """Prompt ids, sampled ids and the log-probability of each sampled one, in the order in which they came."""
    rollout, found, server = play(["4", "7"], serves=server_kind, asks=server_kind)
    transcript = found.transcript
    sampled = [one for one, was_sampled in zip(transcript.ids, transcript.mask, strict=True) if was_sampled]
    assert text(sampled) == f"4{END}7{END}"
    assert text(transcript.ids) == prompt_text(server.bodies[1]) + f"7{END}"
    logprobs = [value for value in transcript.logprobs if value is not None]
    assert logprobs == [-1.0, -1.0 - 1 / 1024] * 2
    assert (transcript.turns, found.untrainable) == (2, None)
    assert (rollout.ledger.extended, rollout.ledger.forks, rollout.ledger.ok) == (1, 0, True)


@SERVERS
def test_tool_calls_are_trainable_too(server_kind):
    """The ids hold the markup that the server took out of the text."""
    script = [ToolCall("guess", {"number": 3}, "c1"), ToolCall("guess", {"number": 7}, "c2"), "Done."]
    _, found, _ = play(script, env=GuessToolEnv(), serves=server_kind, asks=server_kind)
    assert found.untrainable is None
    assert found.transcript.turns == found.turns


def test_a_server_that_gives_no_ids_makes_episodes_that_say_so():
    """They are scored, and not trained on."""
    _, found, _ = play(["4", "7"], serves=None, asks=None)
    assert (found.ending, found.reward, found.transcript) == (Ending.DONE, 1.0, None)
    assert "gave no token ids" in found.untrainable


def test_ids_without_log_probabilities_say_so_and_are_kept():
    """Supervised training can use them."""
    _, found, _ = play(["4", "7"], asks=None, serves="vllm")
    assert found.transcript is None
    script = [Answer("4", fields={}), "7"]
    with OpenAIServer(script, tokens="vllm") as server:
        api = OpenAI("m", server.base_url, extra_body={"return_token_ids": True})
        (found,) = ConcurrentRollout(api, Limits()).run([Job(GuessEnv(), Task(seed=SEED), "e")])
    assert "no log-probability" in found.untrainable
    assert found.transcript.logprobs.count(None) == len(found.transcript)


def test_a_template_that_rewrites_history_is_a_fork():
    """The reasoning was sampled and is not shown again: what comes later was not seen by the sampled turn."""
    rollout, found, _ = play([Reply("4", reasoning="half of 8"), "7"])
    assert (found.ending, found.reward, found.transcript) == (Ending.DONE, 1.0, None)
    assert "the prompt of turn 1 does not begin with the tokens before it" in found.untrainable
    assert "inside an answer of an earlier turn" in found.untrainable
    assert (rollout.ledger.forks, rollout.ledger.ok) == (1, False)


def test_reasoning_in_the_last_turn_is_no_fork():
    """Nothing was rendered after it."""
    _, found, _ = play(["4", Reply("7", reasoning="it must be")])
    assert found.untrainable is None


def test_arguments_that_go_back_mended_are_a_fork():
    """The server saw its own broken text inside an object: that is not what it sampled."""
    broken = ToolCall("guess", None, "c1", "not JSON", '{"number": ')
    _, found, _ = play([broken, ToolCall("guess", {"number": 7}, "c2"), "Done."], env=GuessToolEnv())
    assert found.turns > 1
    assert "rewrites history" in found.untrainable


def test_a_cut_turn_keeps_its_tokens():
    """Without an end, as they were sampled."""
    _, found, _ = play([Reply("4 and", finish_reason="length")])
    sampled = [one for one, was_sampled in zip(found.transcript.ids, found.transcript.mask, strict=True) if was_sampled]
    assert (found.ending, text(sampled)) == (Ending.CONTEXT, "4 and")


def test_an_episode_that_fails_keeps_the_turns_before():
    """What the server gave until then."""
    _, found, _ = play(["4", Answer(status=400, error="no")])
    assert (found.ending, found.turns, found.transcript.turns) == (Ending.API_ERROR, 1, 1)


def test_an_episode_that_fails_before_its_first_turn_has_no_transcript():
    """There is nothing in it."""
    _, found, _ = play([Answer(status=400, error="no")])
    assert (found.ending, found.transcript) == (Ending.API_ERROR, None)


def test_a_prompt_that_llama_cpp_counted_otherwise_is_not_used():
    """The ids of the prompt are asked for apart; where their number differs they are not those of the request."""
    raw = b'{"choices": [{"message": {"content": "4"}, "logprobs": {"content": [{"id": 52, "logprob": -1.0}]}}], '
    raw += b'"usage": {"prompt_tokens": 3, "completion_tokens": 1}}'
    _, found, _ = play([Answer(raw=raw), "7"], serves="llama.cpp", asks="llama.cpp")
    assert "not those of its prompt" in found.untrainable


def test_a_server_that_is_not_llama_cpps_is_told_so():
    """The two further paths are missing."""
    _, found, _ = play(["4"], serves=None, asks="llama.cpp")
    assert found.ending is Ending.API_ERROR
    assert "/apply-template answered 404" in found.error


def test_the_record_says_why_an_episode_is_not_trainable():
    """And reads it back."""
    _, found, _ = play(["4", "7"], serves=None, asks=None)
    assert from_record(to_record(found)) == found


def test_ids_stay_in_step_with_the_bytes_of_any_text():
    """Unicode, and what looks like the end of a turn."""
    _, found, _ = play(["é😀 <|im_end|> 4", "7"])
    assert found.untrainable is None
    sampled = [one for one, turn in zip(found.transcript.ids, found.transcript.turn, strict=True) if turn == 0]
    assert sampled == to_ids(f"é😀 <|im_end|> 4{END}")
