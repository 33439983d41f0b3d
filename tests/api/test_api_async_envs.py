"""Environments and tools that are coroutine functions are awaited, by every driver."""

import asyncio
import gc

import pytest

from tiltyard.envs.base import Env
from tiltyard.errors import ToolError
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.episode import episode
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.testing.scripted import ScriptedAsyncPolicy
from tiltyard.tools.base import tool
from tiltyard.tools.manager import ToolManager
from tiltyard.types import Reply, StepResult, Task, ToolCall


class AsyncText:
    """Counts on one event loop over all of its steps."""

    async def reset(self, seed=None):
        self.loop = asyncio.get_running_loop()
        return "Begin.", {}

    async def step(self, action):
        await asyncio.sleep(0)
        same = asyncio.get_running_loop() is self.loop
        return "Over.", float(same), True, False, {}


class AsyncTools(Env):
    """One async tool."""

    async def reset(self, trajectory=None):
        await asyncio.sleep(0)
        return StepResult("Begin.")

    async def step(self, tool_name, arguments):
        await asyncio.sleep(0)
        return StepResult("ran", 1.0, True)

    def tools(self):
        return [{"type": "function", "function": {"name": "act", "description": "Act."}}]


@tool
async def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    await asyncio.sleep(0)
    if number < 0:
        raise ToolError("no negative numbers")
    return 2 * number


def run(env, script, **options):
    rollout = ConcurrentRollout(ScriptedAsyncPolicy(script), Limits(**options))
    return rollout.run([Job(env, Task(messages=({"role": "user", "content": "Hi"},)), "e")])[0]


def test_an_async_text_environment_is_played():
    """All of its steps on one loop."""
    assert run(AsyncText(), ["x"]).reward == 1.0


def test_an_async_tool_environment_is_played():
    """Reset and step."""
    assert run(AsyncTools(), [ToolCall("act", {})]).reward == 1.0


def test_it_is_played_in_line_too():
    """The loop of the caller has no part in it."""
    flow = episode(AsyncText(), Task())
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send(Reply("x"))
    assert end.value.value.reward == 1.0


@pytest.mark.parametrize(("number", "text"), [(4, "8"), (-1, "Error: no negative numbers")])
def test_an_async_tool_gives_its_result(number, text):
    """And its error, as any other tool."""
    found = run(ToolManager([double]), [ToolCall("double", {"number": number}), "Done."])
    assert found.messages[-2]["content"] == text


def test_async_steps_of_many_episodes_wait_at_the_same_time():
    """All of them meet in one step."""

    class Meeting(AsyncText):
        arrived = 0

        async def step(self, action):
            Meeting.arrived += 1
            while Meeting.arrived < 20:
                await asyncio.sleep(0.001)
            return "Over.", 1.0, True, False, {}

    rollout = ConcurrentRollout(ScriptedAsyncPolicy(["x"]), Limits())
    found = rollout.run([Job(Meeting(), Task(), f"e{number}") for number in range(20)])
    assert [one.reward for one in found] == [1.0] * 20


def test_a_coroutine_that_nothing_can_wait_for_is_an_error():
    """An async step that calls another one without awaiting it would wait for itself."""

    class Nested(AsyncText):
        async def step(self, action):
            return ToolManager([double])(ToolCall("double", {"number": 1})), 1.0, True, False, {}

    found = run(Nested(), ["x"])
    gc.collect()
    assert "await it where it is made" in found.error


def test_an_async_step_that_hangs_fails_its_episode():
    """The deadline is the same."""

    class Hanging(AsyncText):
        async def step(self, action):
            await asyncio.sleep(60)

    assert run(Hanging(), ["x"], step_timeout_s=0.1).ending.value == "env_error"
