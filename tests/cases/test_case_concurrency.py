"""Cases CO-01 and CO-02: episodes keep to themselves, and a run that is called off lets go of everything once."""

import asyncio
import os
import threading

import pytest

from tiltyard.envs.base import Env
from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.slots import EnvSlots
from tiltyard.testing.openai_server import OpenAIServer
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Reply, StepResult, Task, ToolCall

TOKENIZER = byte_tokenizer("chatml_tools")
RENDERER = make_renderer(TOKENIZER, tools=True)
WHO = [{"type": "function", "function": {"name": "whoami", "description": "Tell."}}]


class WhoAmI(Env):
    """Stores the row's word; `whoami` waits until all eight episodes are there."""

    def __init__(self, gate):
        self.gate = gate

    def reset(self, trajectory=None):
        self.word = trajectory["word"]
        return StepResult("Who are you?")

    def step(self, tool_name, arguments):
        self.gate.wait(20)
        return StepResult(self.word, 1.0, True)

    def tools(self):
        return WHO


@pytest.mark.parametrize("size", [8, 16])
def test_a_factory_keeps_episodes_apart_in_the_batched_driver(size):
    """CO-01 a, c: fifty repeats on threads, in slots that are reused; nothing is written to os.environ."""
    gate, before = threading.Barrier(8), dict(os.environ)
    slots = EnvSlots(lambda: WhoAmI(gate), size)
    call = '<tool_call>\n{"name": "whoami", "arguments": {}}\n</tool_call>'
    for repeat in range(50):
        jobs = [Job(slots, Task(data={"word": f"w{i}"}), f"{repeat}-{i}") for i in range(8)]
        found = BatchedRollout(ScriptedTokens(TOKENIZER, [call]), RENDERER, Limits()).run(jobs)
        assert [t.messages[-1]["content"] for t in found] == [f"w{i}" for i in range(8)]
    slots.close()
    assert dict(os.environ) == before


class Hanging(Env):
    """Hangs in its step until it is let go, and takes its time to close; both are written down."""

    def __init__(self, log, gate):
        self.log, self.gate = log, gate

    def step(self, tool_name, arguments):
        self.log.append("step")
        self.gate.wait(30)
        return StepResult("late", 1.0, True)

    def tools(self):
        return WHO

    def close(self):
        self.log.append("close")
        threading.Event().wait(0.2)
        self.log.append("closed")


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_served_run_that_is_called_off_closes_each_environment_once_and_to_the_end(times):
    """CO-02: cancelling the caller again and again stops no close half way, and no further step begins."""
    log, gate = [], threading.Event()

    async def called_off(api):
        rollout = APIMultiTurnRollout(api, env_factory=lambda: Hanging(log, gate), concurrency=4, preflight=False)
        task = asyncio.create_task(rollout.run_async([{"messages": [{"role": "user", "content": "Go."}]}] * 8))
        while log.count("step") < 4:
            await asyncio.sleep(0.005)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        while log.count("closed") < 4:
            await asyncio.sleep(0.005)

    with OpenAIServer([Reply("", (ToolCall("whoami", {}),))]) as server:
        asyncio.run(called_off(OpenAI("m", server.base_url)))
    gate.set()
    assert [log.count(what) for what in ("step", "close", "closed")] == [4, 4, 4]
