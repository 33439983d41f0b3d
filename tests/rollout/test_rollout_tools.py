"""Tool-call environments through the batched driver, token for token."""

import json
import threading

import pytest

from tiltyard.envs.base import Env
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.faulty import FaultyToolEnv
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import StepResult, Task

TOKENIZER = byte_tokenizer("chatml_tools")
RENDERER = make_renderer(TOKENIZER, tools=True)


class Desk(Env):
    """`submit` ends the episode with reward 1, `write_file` does not."""

    def __init__(self):
        self.ran = []

    def step(self, tool_name, arguments):
        self.ran.append(tool_name)
        return StepResult(f"ran {tool_name}", 1.0, True) if tool_name == "submit" else StepResult("written", 0.0)

    def tools(self):
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return [
            {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": text}}
            for name in ("submit", "write_file")
        ]


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(envs, script, limits=None):
    policy = ScriptedTokens(TOKENIZER, script)
    task = Task(messages=({"role": "user", "content": "Solve it."},))
    jobs = [Job(env, task, f"e{i}") for i, env in enumerate(envs)]
    return BatchedRollout(policy, RENDERER, limits or Limits(max_tokens_per_turn=400)).run(jobs), policy


def said(transcript, mask):
    ids = [i for i, sampled in zip(transcript.ids, transcript.mask, strict=True) if sampled is mask]
    return TOKENIZER.decode(ids)


def test_an_end_within_a_message_leaves_its_other_calls_unrun():
    """Case TE-01: one model call; the result is recorded with mask 0; each call has one result."""
    env = Desk()
    answer = call("submit", text="42") + "\n" + call("write_file", text="x")
    [trajectory], policy = play([env], [answer, "extra"])
    assert (len(policy.requests), env.ran, trajectory.reward) == (1, ["submit"], 1.0)
    assert trajectory.ending is Ending.DONE
    assert said(trajectory.transcript, True) == answer + "<|im_end|>"
    assert "ran submit" in said(trajectory.transcript, False)
    results = [message for message in trajectory.messages if message["role"] == "tool"]
    assert len({result["tool_call_id"] for result in results}) == 2
    assert "Not run" in results[1]["content"]


def test_tool_results_extend_the_tokens_turn_by_turn():
    """Calls are never rendered again from their fields: the sampled ids stay."""
    odd = '<tool_call>\n{"arguments":   {"text":"a"},"name":"write_file"}\n</tool_call>'
    [trajectory], policy = play([Desk()], [odd, call("submit", text="b")])
    assert said(trajectory.transcript, True) == f"{odd}<|im_end|>{call('submit', text='b')}<|im_end|>"
    second = list(policy.requests[1][0].ids)
    assert second == trajectory.transcript.ids[: len(second)]


def test_a_message_that_was_cut_runs_none_of_its_calls():
    """Case TR-02: also the complete one in front is not run; the sampled tokens keep their mask."""
    env = Desk()
    cut = call("write_file", text="x") + '\n<tool_call>\n{"name": "write_file", "arguments": {"text": "half of the te'
    [trajectory], _ = play([env], [cut + "x" * 200], Limits(max_tokens_per_turn=len(cut)))
    assert (env.ran, trajectory.ending, trajectory.truncated) == ([], Ending.LENGTH, True)
    assert said(trajectory.transcript, True) == cut


@pytest.mark.parametrize(
    "fault", ["raise", "hang", "lost", "return_none", "reward_nan", "reward_inf", "reward_text", "done_text"]
)
def test_a_faulty_environment_fails_its_own_episode_only(fault):
    """Whatever goes wrong, the neighbour is whole, and no failure has a reward."""
    faulty = FaultyToolEnv(fault)
    limits = Limits(step_timeout_s=1.5, max_tokens_per_turn=400)
    [failed, whole], _ = play([faulty, FaultyToolEnv("raise", at=99)], [call("act")] * 2, limits)
    assert (failed.failed, failed.reward, bool(failed.error)) == (True, None, True)
    assert (whole.ending, whole.reward) == (Ending.DONE, 0.5)
    faulty.close()


def test_special_tokens_and_huge_output_are_only_text():
    """They cost nobody an episode."""
    trajectories, _ = play([FaultyToolEnv(fault) for fault in ("special_tokens", "huge")], [call("act")] * 2)
    assert [trajectory.ending for trajectory in trajectories] == [Ending.DONE] * 2
    ends = [trajectory.transcript.ids.count(TOKENIZER.eos_token_id) for trajectory in trajectories]
    assert ends[0] == ends[1]


def test_slow_tools_of_different_episodes_run_at_one_time():
    """Sixteen steps that wait for each other could not end one after the other."""
    meeting = threading.Barrier(16)

    class Meeting(Desk):
        def step(self, tool_name, arguments):
            meeting.wait(10)
            return super().step(tool_name, arguments)

    trajectories, _ = play([Meeting() for _ in range(16)], [call("submit", text="x")])
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 16
