"""Whole episodes on workers: what comes back, and what a worker that is lost costs."""

import asyncio
import dataclasses
import itertools
import math
import os
import pickle
import signal
import threading
import time
from functools import partial

import pytest
from pool_episode_envs import DieOnce, EventEnv, GateEnv, JudgedEnv, letters_of, tools_for

from tiltyard import APIMultiTurnRollout, ConfigurationError, EnvError, OpenAI, RayOptions, Task, ToolCall, ToolManager
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import EpisodeOrder, Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.placement import Placement
from tiltyard.rollout.rollout_workers import RolloutWorkers
from tiltyard.rollout.slots import EnvSlots
from tiltyard.testing.guess import GuessToolEnv
from tiltyard.testing.scripted import ScriptedAsyncPolicy

GUESSES = [ToolCall("guess", {"number": number}) for number in (5, 3, 7, 1, 9)]
TALK = ["hello"] * 4
LIMITS = Limits(max_turns=4, step_timeout_s=30.0)


@pytest.fixture
def make_workers(backend):
    """Make workers that are closed after the test: two of them, and two places each."""
    made = []

    def make(env_factory, script=GUESSES, *, limits=LIMITS, concurrency=4, workers=2, **options):
        policy = ScriptedAsyncPolicy(script)
        placement = Placement(backend, workers)
        made.append(
            RolloutWorkers(env_factory, policy, limits, placement=placement, concurrency=concurrency, **options)
        )
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def orders(count, first=0):
    return [EpisodeOrder(Task(seed=seed), f"episode {seed}") for seed in range(first, first + count)]


def without_time(trajectories):
    return [dataclasses.replace(one, seconds=0.0) for one in trajectories]


def in_process(env_factory, count, script=GUESSES):
    slots = EnvSlots(env_factory, 4)
    jobs = [Job(slots, order.task, order.episode_id) for order in orders(count)]
    found = ConcurrentRollout(ScriptedAsyncPolicy(script), LIMITS, concurrency=4).run(jobs)
    slots.close()
    return without_time(found)


def test_episodes_on_workers_are_those_of_one_process(make_workers):
    """Seed for seed, in the order in which they were given; one run after the other."""
    workers = make_workers(GuessToolEnv)
    seen = []
    assert without_time(workers.run(orders(12), seen.append)) == in_process(GuessToolEnv, 12)
    assert sorted(one.episode_id for one in seen) == sorted(order.episode_id for order in orders(12))
    assert len(workers.run(orders(3))) == 3
    assert (workers.replaced, workers.lost) == (0, 0)


def test_an_episode_that_fails_costs_no_other(make_workers):
    """An environment that raises, hangs, exits or gives what cannot be sent fails its own episode, and is replaced."""
    workers = make_workers(EventEnv, TALK, limits=dataclasses.replace(LIMITS, step_timeout_s=1.5))
    found = workers.run(orders(5)) + workers.run(orders(4, first=10))
    expected = [Ending.DONE, *[Ending.ENV_ERROR] * 4, Ending.DONE, *[Ending.ENV_ERROR] * 3]
    assert [one.ending for one in found] == expected
    assert [one.reward for one in found] == [2.0, None, None, None, None, 2.0, None, None, None]
    said = ["ValueError: the environment broke", "within step_timeout_s=1.5", "cannot pickle", "SystemExit: 3"]
    assert [text in one.error for text, one in zip(said, found[1:5], strict=True)] == [True] * 4
    assert (workers.replaced, workers.lost) == (0, 0)


def waiting(folder, count):
    """The processes in which so many episodes wait at the gate, by seed."""
    while len(found := list(folder.glob("waits-*"))) < count:
        time.sleep(0.01)
    return {int(seed): int(pid) for seed, pid in (path.name.split("-")[1:] for path in found)}


def test_a_worker_that_is_killed_costs_its_live_episodes_only(make_workers, tmp_path):
    """They come back as failed, without a reward; the others are what they are anyway, and the worker is replaced."""
    workers = make_workers(partial(GateEnv, str(tmp_path / "gate")), TALK)
    killed = []

    def strike():
        killed.append(waiting(tmp_path, 4)[1])
        os.kill(killed[0], signal.SIGKILL)
        (tmp_path / "gate").touch()

    threading.Thread(target=strike).start()
    seeds = [1, 3, 5, 7, 2, 4, 6, 8]
    found = workers.run(EpisodeOrder(Task(seed=seed), str(seed)) for seed in seeds)
    there = waiting(tmp_path, 4)
    lost = [one for one in found if one.ending is Ending.LOST_SESSION]
    assert [one.task.seed for one in lost] == [seed for seed in seeds[:4] if there[seed] == killed[0]]
    assert len(lost) == workers.lost == 2
    assert {(one.reward, one.turns) for one in lost} == {(None, 0)}
    assert {(one.ending, one.reward) for one in found if one not in lost} == {(Ending.DONE, 1.0)}
    assert {one.ending for one in workers.run(orders(8))} == {Ending.DONE}
    assert workers.replaced == 1
    assert killed[0] not in workers.pids


def test_an_episode_that_was_lost_can_be_begun_again(make_workers, tmp_path):
    """As often as `retries` says, and on whichever worker is free; then it is failed."""
    workers = make_workers(partial(DieOnce, str(tmp_path / "died")), TALK, retries=1, concurrency=2)
    assert [one.ending for one in workers.run(orders(1, first=5))] == [Ending.DONE]
    assert (workers.replaced, workers.lost) == (1, 0)


def test_a_long_episode_holds_up_no_other(make_workers, tmp_path):
    """The place of one that is over is taken by the next: all short ones are over before the long one."""
    workers = make_workers(partial(GateEnv, str(tmp_path / "gate")), TALK, concurrency=2)
    seen = []

    def note(trajectory):
        seen.append(trajectory.task.seed)
        if len(seen) == 20:
            (tmp_path / "gate").touch()

    workers.run((EpisodeOrder(Task(seed=seed), str(seed)) for seed in [1, *range(2, 42, 2)]), note)
    assert (sorted(seen[:20]), seen[20:]) == (list(range(2, 42, 2)), [1])


def test_nothing_is_begun_while_nothing_is_taken(make_workers):
    """There are never more episodes under way, or finished and not taken, than places."""
    read = []

    def endless():
        for seed in itertools.count():
            read.append(seed)
            yield EpisodeOrder(Task(seed=0), str(seed))

    stream = make_workers(EventEnv, TALK).stream(endless())
    next(stream)
    assert len(read) == 4
    for _ in range(9):
        next(stream)
    assert len(read) == 13
    stream.close()


def test_a_run_that_is_left_gives_up_what_is_under_way(make_workers, tmp_path):
    """And the workers are free for another one."""
    workers = make_workers(partial(GateEnv, str(tmp_path / "gate")), TALK)
    stream = workers.stream(EpisodeOrder(Task(seed=seed), str(seed)) for seed in [2, 1, 3, 5, 7])
    assert next(stream).task.seed == 2
    stream.close()
    assert {one.ending for one in workers.run(orders(1) + orders(1, first=2))} == {Ending.DONE}
    (tmp_path / "gate").touch()


def test_what_is_no_failure_of_an_episode_ends_the_run(make_workers):
    """A task that the environment cannot be given is the caller's mistake; the worker's traceback comes along."""
    workers = make_workers(EventEnv, TALK)
    with pytest.raises(
        ConfigurationError, match=r"episode 'one' .*the task names training row 1, but EventEnv"
    ) as info:
        workers.run([EpisodeOrder(Task(row_index=1), "one")])
    assert "taken_options" in str(info.value.__cause__)
    with pytest.raises(ConfigurationError, match="two episodes have the id 'twin'"):
        workers.run([EpisodeOrder(Task(), "twin")] * 2)
    assert len(workers.run(orders(2))) == 2


def test_workers_that_cannot_be_made_are_refused(make_workers, backend):
    """Before anything is played, with the reason."""
    with pytest.raises(EnvError, match="DieOnce"):
        make_workers(DieOnce)
    with pytest.raises(ConfigurationError, match="is not an environment: subclass"):
        make_workers(dict)
    with pytest.raises(ConfigurationError, match="concurrency must be a whole number >= 1, got 0"):
        make_workers(EventEnv, concurrency=0)
    with pytest.raises(ConfigurationError, match="retries must be a whole number >= 0, got -1"):
        make_workers(EventEnv, retries=-1)
    with pytest.raises(ConfigurationError, match="silence_timeout_s must be a number > 0, or None for no bound, got 0"):
        make_workers(EventEnv, silence_timeout_s=0)
    with pytest.raises(ConfigurationError, match="start_timeout_s must be a number > 0, or None for no bound, got '9'"):
        make_workers(EventEnv, start_timeout_s="9")
    with pytest.raises(ConfigurationError, match="the environment and the policy cannot be sent to a worker"):
        make_workers(partial(DieOnce, threading.Lock()))
    del backend


def test_a_bound_that_no_clock_counts_to_is_none(make_workers):
    """An infinite one too: it is not met, and nothing fails of it."""
    workers = make_workers(EventEnv, TALK, start_timeout_s=1e12, silence_timeout_s=math.inf)
    assert [one.ending for one in workers.run(orders(1))] == [Ending.DONE]


def test_closed_workers_play_nothing(make_workers):
    """They closed their environments and ended; a second close does nothing."""
    workers = make_workers(EventEnv, TALK)
    workers.run(orders(2))
    workers.close()
    workers.close()
    assert (workers.leaked, workers.report().leaked) == (0, 0)
    with pytest.raises(ConfigurationError, match="the workers were closed; make others"):
        workers.run(orders(1))


def test_a_worker_that_says_nothing_is_killed(make_workers, backend):
    """One that is stopped hears nothing; another takes its place, and the other worker's episodes go on."""
    if backend == "ray":
        pytest.skip("noticed in the same way; over processes it is quick")
    workers = make_workers(EventEnv, TALK, silence_timeout_s=1.0, concurrency=2)
    found = workers.run([*orders(1, first=6), *orders(1), *orders(1, first=10)])
    assert [one.ending for one in found] == [Ending.LOST_SESSION, Ending.DONE, Ending.DONE]
    assert "said nothing within silence_timeout_s=1 and was killed" in found[0].error
    assert (workers.replaced, workers.lost) == (1, 1)


def results(tool_manager=None, *, env_factory=None, placement, **options):
    """What `APIMultiTurnRollout` gives for six trajectories, without what the clock says."""
    policy = ScriptedAsyncPolicy(GUESSES)
    rollout = APIMultiTurnRollout(
        policy, tool_manager, env_factory=env_factory, max_turns=4, concurrency=4, placement=placement, **options
    )
    found = rollout([{"messages": [], "seed": seed, "id": str(seed)} for seed in range(6)])
    return [{key: value for key, value in one.items() if key != "seconds"} for one in found]


@pytest.mark.parametrize("options", [{}, {"reward_fns": {"letters": letters_of}}, {"score": "evaluate"}])
def test_an_api_rollout_over_workers_gives_the_results_of_one_in_process(backend, options):
    """Scores of functions here, and those of the environment's `evaluate`, which is asked where it lives."""
    there = Placement(backend, 2)
    here = results(env_factory=JudgedEnv, placement=Placement(), **options)
    assert results(env_factory=JudgedEnv, placement=there, **options) == here
    assert {one["error"] for one in here} == {None}


def test_a_function_that_makes_tools_makes_them_on_the_worker(backend):
    """A list with one set for each trajectory is of this process, and refused."""
    with_tools = partial(results, placement=Placement(backend, 1))
    assert with_tools(tools_for) == results(tools_for, placement=Placement())
    with pytest.raises(ConfigurationError, match="a list of ToolManagers, one for each trajectory, is of this process"):
        with_tools([ToolManager() for _ in range(6)])


def test_a_placement_says_what_does_not_go_together():
    """Workers need a backend that has them, an address a cluster."""
    for arguments, message in (
        (("thread",), "backend must be 'local', 'process' or 'ray', got 'thread'"),
        (("local", 2), "workers must be None with backend='local', which has no workers, got 2"),
        (("process", 0), "workers must be >= 1 or None, got 0"),
        (("process", 1, RayOptions()), "ray= says which cluster to use; it is for backend='ray', got 'process'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Placement(*arguments)
    with pytest.raises(ConfigurationError, match="backend='local' has no workers"):
        RolloutWorkers(EventEnv, ScriptedAsyncPolicy(TALK), LIMITS, placement=Placement())


def test_an_interrupt_gives_up_what_is_under_way(make_workers, tmp_path):
    """It is not swallowed, waits for no environment, and the workers still close theirs."""
    workers = make_workers(partial(GateEnv, str(tmp_path / "gate")), TALK)

    def press(trajectory):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.run((EpisodeOrder(Task(seed=seed), str(seed)) for seed in (1, 3, 5, 2)), press)
    workers.close()
    assert (workers.leaked, workers.report().leaked) == (0, 0)


def test_a_served_model_that_is_in_use_here_can_be_sent():
    """Its address and its fields go, and none of the connections of this process."""

    async def sent():
        async with OpenAI("m", "http://localhost:1/v1", "key", sampling={"temperature": 0.5}) as api:
            return pickle.loads(pickle.dumps(api))

    assert repr(asyncio.run(sent())) == "OpenAI(model='m', base_url='http://localhost:1/v1')"
