"""Cases TR-01 and TR-02 with a served model: what a server says of a cut is checked, and nothing cut is run."""

import pytest

from tiltyard.envs.base import Env
from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.testing.served_tokens import prompt_text, sampled_text, to_ids
from tiltyard.types import Reply, StepResult, Task, ToolCall

STUMP = '{"path":"a.txt","text":"half of the te'
SOUND = '{"path":"a.txt","text":"all"}'


class Files(Env):
    """`write` is written down; nothing ends the episode."""

    def __init__(self):
        self.written = []

    def reset(self, trajectory=None):
        return StepResult("Write a file.")

    def step(self, tool_name, arguments):
        self.written.append(arguments["text"])
        return StepResult("written")

    def tools(self):
        text = {"type": "string"}
        parameters = {"type": "object", "properties": {"path": text, "text": text}, "required": ["path", "text"]}
        return [{"type": "function", "function": {"name": "write", "description": "W.", "parameters": parameters}}]


def play(script, limits=None, **options):
    env = Files()
    with OpenAIServer(script, **options) as server:
        api = OpenAI("m", server.base_url, max_retries=0)
        [found] = ConcurrentRollout(api, limits or Limits(max_turns=3)).run([Job(env, Task(), "e")])
    return found, env, server


def wire_calls(*arguments):
    return {
        "tool_calls": [
            {"id": f"c{number}", "type": "function", "function": {"name": "write", "arguments": text}}
            for number, text in enumerate(arguments)
        ]
    }


@pytest.mark.parametrize("calls", [(STUMP,), (SOUND, STUMP), (SOUND,)])
def test_with_finish_reason_length_no_call_of_the_message_runs(calls):
    """TR-02: neither the stump nor the whole call before it, nor one whose braces close by chance; it ends there."""
    line = Answer(fields=wire_calls(*calls), finish_reason="length")
    found, env, server = play([line, "extra"], Limits(max_turns=3, max_tokens_per_turn=1))
    assert (env.written, server.requests) == ([], 1)
    assert (found.ending, found.truncated, found.failed) == (Ending.LENGTH, True, False)
    results = [message["tool_call_id"] for message in found.messages if message["role"] == "tool"]
    assert results == [f"c{number}" for number in range(len(calls))]


@pytest.mark.parametrize("finish_reason", ["tool_calls", "stop"])
def test_a_stump_never_runs_whatever_the_finish_reason_says(finish_reason):
    """TR-02: some routers report tool_calls in place of length; the model is told, and the whole call runs."""
    line = Answer(fields=wire_calls(SOUND, STUMP), finish_reason=finish_reason)
    found, env, _ = play([line, "extra"])
    assert env.written == ["all"]
    results = [message["content"] for message in found.messages if message["role"] == "tool"]
    assert results[0] == "written"
    assert results[1].startswith("Error: the arguments of 'write' are not valid JSON")


def test_a_model_that_is_cut_again_and_again_ends_with_its_turns():
    """TR-02: going on with an error result is bounded by max_turns."""
    line = Answer(fields=wire_calls(STUMP), finish_reason="tool_calls")
    found, env, server = play([line] * 9)
    assert (env.written, server.requests, found.ending) == ([], 3, Ending.MAX_TURNS)


@pytest.mark.parametrize(
    ("status", "error", "ending"),
    [
        (400, "This model's maximum context length is 64 tokens", Ending.PROMPT_TOO_LONG),
        (400, "context_length_exceeded", Ending.PROMPT_TOO_LONG),
        (400, "temperature must be a number", Ending.API_ERROR),
        (422, "the field `tools` is not known", Ending.API_ERROR),
    ],
)
def test_a_400_about_the_context_is_a_prompt_too_long_and_any_other_an_error(status, error, ending):
    """TR-01: the first is truncated and keeps what was earned; the second failed, with the server's words."""
    work = Reply("", (ToolCall("write", {"path": "a", "text": "b"}),))
    found, env, _ = play([work, Answer(status=status, error=error)])
    assert (found.ending, env.written) == (ending, ["b"])
    assert (found.truncated, found.failed) == (ending is Ending.PROMPT_TOO_LONG, ending is Ending.API_ERROR)
    assert found.reward == (0.0 if found.truncated else None)
    assert (error in (found.error or "")) is found.failed


@pytest.mark.parametrize(("room", "requests", "ending"), [(9, 2, Ending.CONTEXT), (0, 1, Ending.PROMPT_TOO_LONG)])
def test_a_server_is_asked_for_what_is_left_of_the_context_and_never_for_nothing(room, requests, ending):
    """TR-01: max_tokens is min(per turn, room left) by the server's count; without room no request is made."""
    work = Reply("", (ToolCall("write", {"path": "a", "text": "b"}),))
    script = [work, Answer("y" * room, finish_reason="length")]
    _, _, alone = play(script, Limits(max_turns=1))
    used = len(to_ids(prompt_text(alone.bodies[0]))) + len(to_ids(sampled_text(work)))
    found, _, server = play(script, Limits(max_turns=3, max_tokens_per_turn=100, max_context=used + room))
    assert [body["max_tokens"] for body in server.bodies] == [100, room][:requests]
    assert (found.ending, found.truncated) == (ending, True)


def test_terminated_and_truncated_are_never_both_true():
    """TR-01: one cause, one flag, for every way in which an episode ends."""
    assert [ending for ending in Ending if ending.truncated and (ending.failed or ending is Ending.DONE)] == []
