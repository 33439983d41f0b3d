"""Environment slots that live on workers: their deadlines, what is refused there, and what they are made by."""

import pickle
from functools import partial

import pytest
from pool_envs import LoneEnv, NotPooled, WordEnv
from pool_episode_envs import EventEnv

from tiltyard import ConfigurationError, EnvTimeoutError, LostSessionError, RolloutHarness, Task
from tiltyard.build import turns_factory
from tiltyard.envs.text_turns import TextTurns
from tiltyard.manifest import load_manifest
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.placed_slots import PlacedSlots, env_slots
from tiltyard.rollout.placement import Placement, TurnsMaker
from tiltyard.rollout.slots import EnvSlots
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.types import Reply

SAY = Reply("hello")


@pytest.fixture
def make_slots(backend):
    """Make slots that are closed after the test."""
    made = []

    def make(factory, size, workers=None, timeout_s=30.0):
        made.append(PlacedSlots(factory, size, Placement(backend, workers), timeout_s=timeout_s))
        return made[-1]

    yield make
    for slots in made:
        slots.close()


def test_a_call_that_hangs_is_ended_with_its_worker(make_slots):
    """Its episode failed, and so did the others there; the slots get fresh environments on another worker."""
    slots = make_slots(EventEnv, 2, workers=1, timeout_s=0.5)
    hangs, other = slots.take(), slots.take()
    for slot, seed in ((hangs, 2), (other, 0)):
        slot.turns.start(Task(seed=seed))
        slot.turns.reply(SAY)
    with pytest.raises(EnvTimeoutError, match="reply did not return within step_timeout_s"):
        hangs.turns.reply(SAY)
    with pytest.raises(LostSessionError, match="reset needed"):
        other.turns.reply(SAY)
    for slot in (hangs, other):
        slots.give_back(slot, broken=True)
    again = slots.take()
    assert again.turns.start(Task(seed=10)).messages[0]["content"] == "seed 10"
    assert (slots.replaced, again.turns.reply(SAY).reward) == (2, 1.0)


def test_there_are_no_more_workers_than_slots(make_slots):
    """A small evaluation needs few; an environment that asks for a process of its own has one."""
    assert make_slots(EventEnv, 2, workers=5).pool.num_workers == 2
    assert make_slots(LoneEnv, 2).pool.num_workers == 2


def test_closed_slots_have_no_workers(make_slots):
    """Environments are closed, workers ended, and nothing is left."""
    slots = make_slots(EventEnv, 2)
    slots.take()
    slots.close()
    assert (slots.leaked, slots.pool.report().leaked) == (0, 0)


def test_what_a_pool_refuses_is_refused_here(backend):
    """An environment that lives elsewhere already, also behind turns; what is none."""
    for factory, message in (
        (partial(NotPooled.made), "NotPooled cannot be pooled: it is kept elsewhere"),
        (partial(dict), "is not an environment"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            PlacedSlots(factory, 1, Placement(backend, 1), timeout_s=None)


def test_without_workers_the_slots_are_those_of_this_process():
    """Then the driver keeps the deadlines, which else are the workers'."""
    here, limits = env_slots(EventEnv, 1, Placement(), timeout_s=1.0), Limits(step_timeout_s=1.0)
    assert type(here) is EnvSlots
    assert Placement().limits(limits) == limits
    assert Placement("process").limits(limits).step_timeout_s is None


def test_a_harness_in_a_worker_is_the_turns_of_it():
    """A factory may make a harness there too."""
    harness = RolloutHarness.local(EventEnv(), byte_tokenizer())
    assert TurnsMaker(lambda: harness)() is harness.turns


def test_the_environment_of_a_manifest_is_sent_as_what_to_load(write_manifest):
    """Not as what was loaded; the worker loads it, once, with the manifest's bound on observations."""
    factory = turns_factory(load_manifest(write_manifest(rollout="{max_observation_chars: 70}")))
    sent = pickle.dumps(factory)
    assert len(sent) < 3000
    there = pickle.loads(sent)
    turns = there()
    assert isinstance(turns, TextTurns)
    assert (turns._max_chars, type(turns._env).__name__, there.own_process) == (70, "Env", False)
    assert there._loaded[0] is not None
    assert type(there()._env) is type(turns._env)


def test_rows_of_a_text_environment_are_played_where_it_lives(make_slots):
    """Row, seed and split go with the task."""
    slots = make_slots(WordEnv, 1)
    turns = slots.take().turns
    assert turns.start(Task(seed=5, row_index=2, evaluation=True)).messages[1]["content"] == "held out 2 5"
    assert turns.reply(Reply("held out 2 5")).reward == 1.0
