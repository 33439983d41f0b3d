"""Episodes that run at the same time keep to themselves (case CO-01)."""

import os
import threading

import pytest

from tiltyard.envs.base import Env
from tiltyard.rollout.episode import episode
from tiltyard.testing.scripted import ScriptedPolicy
from tiltyard.types import StepResult, Task, ToolCall


class WhoAmI(Env):
    """Stores the row's word; `whoami` waits until every episode has stored its own, and gives it back."""

    def __init__(self, gate):
        self.gate = gate

    def reset(self, trajectory=None):
        self.word = trajectory["word"]
        return StepResult("Who are you?")

    def step(self, tool_name, arguments):
        self.gate.wait()
        return StepResult(self.word, 1.0, True)

    def tools(self):
        return [{"type": "function", "function": {"name": "whoami", "description": "Tell."}}]


def play(env, task, policy, out):
    flow = episode(env, task)
    try:
        flow.send(policy.answer(next(flow)))
    except StopIteration as end:
        out[task.data["word"]] = end.value


@pytest.mark.parametrize("repeat", range(50))
def test_episodes_on_threads_see_only_their_own_task(repeat):
    """Eight at once, an environment each and one policy: every word is its own, os.environ is not written."""
    gate, out, environ = threading.Barrier(8), {}, dict(os.environ)
    policy = ScriptedPolicy([ToolCall("whoami", {})])
    tasks = [Task(data={"word": f"w{i}"}) for i in range(8)]
    threads = [threading.Thread(target=play, args=(WhoAmI(gate), task, policy, out)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {word: trajectory.messages[-1]["content"] for word, trajectory in out.items()} == {
        f"w{i}": f"w{i}" for i in range(8)
    }
    assert dict(os.environ) == environ
