"""`AgentEnv` in every kind of rollout, on the scripted server: what was held is given back, and counted."""

import asyncio
import itertools
import json
import threading

import pytest

from tiltyard import AgentEnv, APIMultiTurnRollout, MultiTurnRollout, OpenAI, ToolCall
from tiltyard.cli import main
from tiltyard.leases import lost_leases
from tiltyard.rollout.collector import RolloutCollector
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.tasks import TaskAssigner
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.sandbox_server import Fault, Said, SandboxServer
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Reply, StepResult

TOKENIZER = byte_tokenizer("chatml_tools")
RENDERER = make_renderer(TOKENIZER, tools=True)
CALL = "<tool_call>\n" + json.dumps({"name": "run_command", "arguments": {"command": "hello"}}) + "\n</tool_call>"
SUBMIT = {"type": "function", "function": {"name": "submit", "description": "Hand in."}}


class Scored(AgentEnv):
    """A task: run anything, and submit."""

    def __init__(self, url):
        super().__init__("my-env", url, setup_commands=["echo Submit."])
        self.register_tool(SUBMIT, lambda env, _: StepResult("Thanks.", 1.0, True))


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def server():
    with SandboxServer({"hello": Said("hello\n"), "echo": Said("Submit.\n")}) as server:
        yield server
        assert server.sandboxes == {}


def test_groups_for_training_play_in_sandboxes_of_their_own(server):
    """A slot's environment has a sandbox for each of its episodes, one after the other."""
    source = RolloutCollector(
        lambda: Scored(server.url),
        2,
        2,
        policy=ScriptedTokens(TOKENIZER, [CALL, call("submit")]),
        renderer=RENDERER,
        limits=Limits(max_tokens_per_turn=400),
        assigner=TaskAssigner(None, 2),
    )
    with source:
        groups = source.collect() + source.collect()
    members = [member for group in groups for member in group.members]
    assert [(member.ending, member.reward) for member in members] == [(Ending.DONE, 1.0)] * 8
    assert (len(server.created), source.leaked) == (8, 0)


def test_an_episode_whose_sandbox_is_lost_leaves_its_group():
    """Its slot gets a fresh environment, and nothing is scored 0."""
    lines = itertools.count()

    def script(line):
        return Said("ready") if "Submit" in line else Said(lost=next(lines) == 1)

    with SandboxServer(script) as server:
        source = RolloutCollector(
            lambda: Scored(server.url),
            1,
            4,
            policy=ScriptedTokens(TOKENIZER, [CALL, call("submit")]),
            renderer=RENDERER,
            limits=Limits(max_tokens_per_turn=400),
            assigner=TaskAssigner(None, 1),
        )
        with source:
            (group,) = source.collect()
        endings = sorted((member.ending.value, member.reward) for member in group.members if member.reward is not None)
        assert endings == [("done", 1.0)] * 3
        assert [member.ending for member in group.members if member.reward is None] == [Ending.LOST_SESSION]
        assert (server.sandboxes, source.leaked) == ({}, 0)


def test_a_local_model_plays_in_sandboxes(server):
    """With its tokens, its mask and the reward that a function gives."""
    rollout = MultiTurnRollout(
        ScriptedTokens(TOKENIZER, [CALL, "It says hello."]),
        env_factory=lambda: AgentEnv("my-env", server.url),
        max_turns=3,
        renderer=RENDERER,
        reward_fns={"said": lambda trajectory: float("hello" in trajectory["messages"][-1]["content"])},
    )
    results = rollout([{"messages": [{"role": "user", "content": "What does it say?"}]}] * 2)
    assert [(result["stop_reason"], result["reward"]) for result in results] == [("stop", 1.0)] * 2


@pytest.mark.parametrize("kind", ["create", "write", "start"])
def test_a_run_that_is_called_off_leaves_no_sandbox(kind):
    """Case SB-04: during the making, an upload or a command, cancelled again and again, also while it is killed."""
    slow = {"create": [Fault(delay_s=0.3)] * 4, "write": [Fault(delay_s=0.3)] * 4, "start": [None]}[kind]
    name = "write_file" if kind == "write" else "run_command"
    arguments = {"path": "/a", "content": "x"} if kind == "write" else {"command": "hello"}

    async def called_off(api, server):
        rollout = APIMultiTurnRollout(
            api, env_factory=lambda: AgentEnv("my-env", server.url), concurrency=4, preflight=False
        )
        task = asyncio.create_task(rollout.run_async([{"messages": [{"role": "user", "content": "Go."}]}] * 8))
        while not (server.commands or server.created or kind == "create"):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await task

    faults = {kind: slow, "kill": [Fault(500), Fault(delay_s=0.1)]}
    server = SandboxServer({"hello": Said(hangs=True)}, faults=faults)
    with server, OpenAIServer([Reply("", (ToolCall(name, arguments),))]) as model:
        asyncio.run(called_off(OpenAI("m", model.base_url), server))
        for _ in range(400):
            if server.created and not server.sandboxes and len(server.killed) == len(server.created):
                break
            threading.Event().wait(0.01)
        threading.Event().wait(0.3)
        assert (sorted(server.killed), server.sandboxes) == (sorted(server.created), {})
        assert server.created


TASKS = """
from tiltyard import AgentEnv, StepResult

class Tasks(AgentEnv):
    max_turns = 2

    def __init__(self, url):
        super().__init__("my-env", url, start_timeout_s=2)
        submit = {"type": "function", "function": {"name": "submit", "description": "Hand in."}}
        self.register_tool(submit, lambda env, _: StepResult("Thanks.", 1.0, True))

    def reset(self, trajectory=None):
        super().reset(trajectory)
        return StepResult("Submit.", 0.0)
"""


def test_an_entrypoint_is_checked_from_the_command_line(server, tmp_path, capsys):
    """As the environment of a manifest is before a run."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "m.yaml").write_text(
        f"environment: {{env_type: rollout, entrypoint: 'tasks.py:Tasks', env_config: {{url: '{server.url}'}}}}\n"
        "model: {name: none}\n"
    )
    assert main(["check", str(tmp_path / "m.yaml")]) == 0, capsys.readouterr().out


def test_a_training_run_counts_what_its_sandboxes_left(server, manifest_in, train, tmp_path):
    """leaked=0 in its summary is counted, not assumed."""
    environment = (
        f"{{env_type: rollout, entrypoint: 'env.py:Tasks', env_config: {{url: '{server.url}'}}, max_turns: 2}}"
    )
    path = manifest_in(tmp_path, TASKS, environment=environment, training="{steps: 1, batch_size: 2}")
    summary = train(path, tmp_path / "run")
    assert summary["leaked"] == 0
    assert len(server.created) >= 8


def test_a_training_run_whose_server_does_not_kill_says_so(manifest_in, train, tmp_path):
    """The figure is not what was hoped for."""
    server = SandboxServer(faults={"kill": [Fault(500)] * 10_000})
    with server:
        environment = (
            f"{{env_type: rollout, entrypoint: 'env.py:Tasks', env_config: {{url: '{server.url}'}}, max_turns: 2}}"
        )
        path = manifest_in(tmp_path, TASKS, environment=environment, training="{steps: 1, batch_size: 2}")
        before = lost_leases()
        assert train(path, tmp_path / "run")["leaked"] - before == len(server.created) > 0
        server.forgive()
        assert lost_leases() == before
