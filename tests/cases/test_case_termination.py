"""Case TE-01 with a served model: the end is seen before the model is asked again."""

import pytest

from tiltyard.envs.base import Env
from tiltyard.envs.tool import EnvTool
from tiltyard.errors import EpisodeOverError
from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.collector import RolloutCollector
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.tasks import TaskAssigner
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Reply, StepResult, Task, ToolCall


class Desk(Env):
    """`submit` ends the episode with reward 1; every reset takes the next row."""

    def __init__(self):
        self.ran, self.rows = [], []

    def reset(self, trajectory=None):
        self.rows.append((trajectory or {}).get("row_index"))
        return StepResult("Solve it.")

    def step(self, tool_name, arguments):
        self.ran.append(tool_name)
        return StepResult(f"ran {tool_name}", 1.0, tool_name == "submit")

    def tools(self):
        return [{"type": "function", "function": {"name": name, "description": "Do."}} for name in ("submit", "write")]


def test_a_served_model_is_not_asked_again_after_the_end():
    """TE-01: one request; the other call is answered as not run, and each call id has one result."""
    env = Desk()
    both = Reply("", (ToolCall("submit", {}, "a"), ToolCall("write", {}, "b")))
    with OpenAIServer([both, "extra"]) as server:
        [found] = ConcurrentRollout(OpenAI("m", server.base_url), Limits()).run([Job(env, Task(), "e")])
    assert (server.requests, env.ran, found.reward, found.ending) == (1, ["submit"], 1.0, Ending.DONE)
    results = {message["tool_call_id"]: message["content"] for message in found.messages if message["role"] == "tool"}
    assert results == {"a": "ran submit", "b": "Not run: the episode was over before this call."}
    assert "extra" not in str(found.messages)


@pytest.mark.parametrize("again", ["submit", "write"])
def test_a_step_by_hand_after_the_end_adds_nothing(again):
    """TE-01: it raises, whichever tool is called, before the environment is asked."""
    env = Desk()
    tools = {tool.tool_info()["function"]["name"]: tool for tool in EnvTool.from_env(env)}
    env.reset()
    tools["submit"]("submit", {})
    with pytest.raises(EpisodeOverError):
        tools[again](again, {})
    assert (env.ran, tools["write"].episode_reward) == (["submit"], 1.0)


def test_an_episode_is_one_reset_and_the_rows_move_on_by_one():
    """TE-01: the next episode begins with exactly one reset, at the next row of the shuffle."""
    made = []

    def factory():
        made.append(Desk())
        return made[-1]

    tokenizer = byte_tokenizer("chatml_tools")
    source = RolloutCollector(
        factory,
        1,
        1,
        policy=ScriptedTokens(tokenizer, ['<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>']),
        renderer=make_renderer(tokenizer, tools=True),
        limits=Limits(),
        assigner=TaskAssigner(6, 1, seed=7),
    )
    for _ in range(6):
        source.collect()
    source.close()
    [env] = made
    assert env.rows == [task.row_index for task in TaskAssigner(6, 6, seed=7).next()]
