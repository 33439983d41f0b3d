"""A run in one thread that another thread ends."""

import threading

import pytest
from rollout_envs import Recorder, going, over

from tiltyard.policies.base import TokenRequest
from tiltyard.policies.hf import HFPolicy
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.slots import EnvSlots
from tiltyard.rollout.workers import EnvWorkers
from tiltyard.testing.model import tiny_model
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Task

TOKENIZER = byte_tokenizer()


class Hangs:
    """An environment whose step does not return before it is let go."""

    def __init__(self):
        self.stepping, self.let_go = threading.Event(), threading.Event()

    def reset(self, seed=None):
        return "go", {}

    def step(self, action):
        self.stepping.set()
        self.let_go.wait(20)
        return "", 1.0, True, False, {}


def test_a_run_that_waits_for_an_environment_is_ended():
    """At once, as by Ctrl-C in its own thread; the environment is not waited for, and its slot gets a fresh one."""
    envs = []

    def make():
        envs.append(Hangs())
        return envs[-1]

    slots = EnvSlots(make, 1, eager=True)
    rollout = BatchedRollout(ScriptedTokens(TOKENIZER, ["hi"]), make_renderer(TOKENIZER), Limits())
    raised = []

    def run():
        with pytest.raises(KeyboardInterrupt) as error:
            rollout.run([Job(slots, Task(), "e")])
        raised.append(error.value)

    thread = threading.Thread(target=run)
    thread.start()
    assert envs[0].stepping.wait(20)
    rollout.interrupt()
    thread.join(20)
    envs[0].let_go.set()
    assert len(raised) == 1
    assert (slots.replaced, slots.free) == (1, True)
    slots.close()


def test_a_run_that_is_ended_before_it_begins_calls_no_environment():
    """Nothing is reset."""
    env = Recorder(going("a"), over("b"))
    rollout = BatchedRollout(ScriptedTokens(TOKENIZER, ["hi", "ho"]), make_renderer(TOKENIZER), Limits())
    rollout.interrupt()
    with pytest.raises(KeyboardInterrupt):
        rollout.run([Job(env, Task(), "e")])
    assert env.resets == 0


def test_a_model_that_is_sampled_from_is_ended_at_its_next_token():
    """Long turns are not waited for, and no later call begins."""
    policy = HFPolicy(tiny_model(), stop_ids=frozenset({319}))
    steps = policy.stats.steps
    policy.interrupt()
    with pytest.raises(KeyboardInterrupt):
        policy.sample([TokenRequest("a", [5, 6], 50, 0)])
    assert policy.stats.steps == steps


def test_workers_that_are_waited_for_can_be_woken():
    """`collect` returns with nothing, and the call comes later."""
    workers, gate = EnvWorkers(None), threading.Event()
    workers.submit("call", lambda: gate.wait(20))
    workers.wake()
    assert workers.collect(None) == []
    gate.set()
    assert [work.tag for work in workers.collect(None)] == ["call"]
    workers.stop()
