"""The program in a worker: what the slots of a batch cost each other."""

import pickle
import threading

from tiltyard import Env, StepResult
from tiltyard.envs.pool.recipe import EnvRecipe
from tiltyard.envs.pool.slot_host import SlotHost

NAMES = ["first", "second", "third", "fourth"]


class Gate(Env):
    """A step says that it has begun, and ends when it may."""

    begun = {name: threading.Event() for name in [*NAMES, "long"]}
    may_end = threading.Event()

    def step(self, tool_name, arguments):
        self.begun[tool_name].set()
        assert self.may_end.wait(60)
        return StepResult(tool_name)


def test_a_slot_that_is_busy_holds_up_none_that_comes_after_it_in_a_batch():
    """One after the other takes its call and wakes the next: one that still plays for somebody else is passed over."""
    host = SlotHost(EnvRecipe(Gate, {}), range(4))
    host.start()
    answers = [threading.Event(), threading.Event()]
    host.begin(1, pickle.dumps([(1, "step", ("long", {}))]), lambda result: answers[0].set())
    assert Gate.begun["long"].wait(60)
    batch = [(slot, "step", (name, {})) for slot, name in enumerate(NAMES)]
    host.begin(2, pickle.dumps(batch), lambda result: answers[1].set())
    assert [Gate.begun[name].wait(60) for name in ("first", "third", "fourth")] == [True] * 3
    assert [event.is_set() for event in (Gate.begun["second"], *answers)] == [False] * 3
    Gate.may_end.set()
    assert [event.wait(60) for event in answers] == [True, True]
