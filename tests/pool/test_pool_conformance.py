"""What every backend of a pool does, in the same words: calls, errors, leases, lost and hanging workers."""

import os
import signal

import pytest
from pool_envs import DEADLY, CountEnv, FailsToClose

from tiltyard import (
    ConfigurationError,
    EnvError,
    EnvPool,
    EnvTimeoutError,
    EpisodeOverError,
    LostSessionError,
    ResetNeededError,
    StepResult,
    ToolError,
)


@pytest.fixture(scope="module")
def pool(backend):
    """Six slots, three on each worker."""
    with EnvPool(6, env_factory=CountEnv, num_workers=2, backend=backend) as pool:
        yield pool


@pytest.fixture
def fresh(pool):
    """The same, with an episode begun in each slot."""
    assert all(isinstance(result, StepResult) for result in pool.reset_batch(range(6)))
    return pool


def kinds(results):
    return [type(result).__name__ for result in results]


def test_results_come_in_the_order_of_the_indices(fresh):
    """Whichever worker answers first."""
    order = [5, 0, 4, 1]
    results = fresh.step_batch(order, ["add"] * 4, [{"number": 10 * index + 1} for index in order])
    assert [result.observation for result in results] == ["51", "1", "41", "11"]


def test_a_worker_owns_slots_that_are_side_by_side(fresh):
    """The first half is one process, the second half another; a call goes to the owner."""
    pids = [int(result.observation) for result in fresh.step_batch(range(6), ["pid"] * 6, [{}] * 6)]
    assert [worker.slots for worker in fresh.workers] == [range(3), range(3, 6)]
    assert pids == [worker.pid for worker in fresh.workers for _ in worker.slots]
    assert len(set(pids)) == 2


def test_an_environment_lives_on_one_thread(fresh):
    """It is made there, and every call runs there: what is bound to a thread works."""
    assert fresh.step(2, "add", {}).info == {"same_thread": True}


def test_the_first_observation_keeps_its_reward_and_done(fresh):
    """A reset may score, and its info comes along."""
    result = fresh.reset(1, {"seed": 3, "row_index": 2, "evaluation": True, "word": "hut"})
    assert (result.observation, result.reward, result.done) == (
        "task {'seed': 3, 'row_index': 2, 'evaluation': True, 'word': 'hut'}",
        0.25,
        False,
    )
    assert result.info == {"pid": fresh.workers[0].pid}


def test_one_call_that_fails_costs_no_other(fresh):
    """Each place of a batch holds its own result, or its own error."""
    tools = ["add", "raise", "mistake", "add"]
    results = fresh.step_batch([0, 1, 2, 3], tools, [{}] * 4)
    assert kinds(results) == ["StepResult", "EnvError", "ToolError", "StepResult"]
    assert str(results[1]) == "slot 1 (worker 0): CountEnv.step raised ValueError: the environment broke"
    assert str(results[2]) == "try another number"


def test_the_workers_traceback_comes_along_as_text(fresh):
    """The line that raised is in the cause of the error, and in what Python prints of it."""
    with pytest.raises(EnvError) as caught:
        fresh.step(4, "raise", {})
    assert 'raise ValueError("the environment broke")' in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("kind", "name", "text", "traced"),
    [
        ("arguments", "ToolFail", "code 3 at here", "raise ToolFail(3"),
        ("lock", "Holder", "holds a lock", "raise Holder"),
        ("local", "Local", "made in a function", "raise Local"),
        ("chain", "RuntimeError", "the second", 'KeyError("the first")'),
        ("exit", "SystemExit", "3", "raise SystemExit(3)"),
    ],
)
def test_an_exception_that_cannot_be_rebuilt_is_told_in_full(fresh, kind, name, text, traced):
    """Class, message and traceback are text; the worker serves the next episode."""
    with pytest.raises(EnvError, match=rf"slot 5 .*{name}: {text}") as caught:
        fresh.step(5, "fail", {"kind": kind})
    assert traced in str(caught.value.__cause__)
    assert fresh.reset(5).observation == "task None"


def test_after_a_failure_the_next_reset_makes_a_fresh_environment(fresh):
    """What an environment that raised has become nobody knows; until the reset it takes no step."""
    with pytest.raises(EnvError):
        fresh.step(0, "raise", {})
    with pytest.raises(EpisodeOverError, match=r"call reset\(\)"):
        fresh.step(0, "add", {})
    fresh.reset(0)
    assert fresh.step(0, "add", {}).observation == "1"


def test_a_mistake_of_the_model_does_not_end_the_episode(fresh):
    """A `ToolError` is raised as it is, and the environment goes on where it was."""
    with pytest.raises(ToolError, match=r"^try another number$"):
        fresh.step(3, "mistake", {})
    assert fresh.step(3, "add", {}).observation == "2"


def test_a_result_that_cannot_be_sent_is_an_error_of_its_slot(fresh):
    """A lock in `info` does not stop the others of the batch."""
    results = fresh.step_batch([3, 4], ["unpicklable", "add"], [{}, {}])
    assert kinds(results) == ["EnvError", "StepResult"]
    assert "cannot pickle" in str(results[0])


def test_arguments_that_cannot_be_sent_are_refused_before_anything_runs(fresh):
    """The other calls of the batch are not made either."""
    with pytest.raises(ConfigurationError, match="the arguments cannot be sent"):
        fresh.step_batch([0, 3], ["add", "add"], [{}, {"number": (one for one in [1])}])
    assert fresh.step(0, "add", {}).observation == "1"


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([1, 2, 1], "slot 1 is named twice"),
        ([6], "slot 6 is none of this pool, whose slots are 0 to 5"),
        ([-1], "slot -1 is none"),
        (["1"], "slot '1' is none"),
        ([True], "slot True is none"),
    ],
)
def test_indices_that_cannot_be_are_refused(fresh, indices, message):
    """A repeated index would run two steps of one episode at the same time."""
    with pytest.raises(ConfigurationError, match=message):
        fresh.reset_batch(indices)


@pytest.mark.parametrize("index", [6, -1, "1"])
def test_tools_of_a_slot_that_is_none_are_refused(fresh, index):
    """As its calls are."""
    with pytest.raises(ConfigurationError, match="is none of this pool, whose slots are 0 to 5"):
        fresh.tools(index)


def test_a_batch_of_other_lengths_is_refused(fresh):
    """One tool and one dict of arguments for each index."""
    with pytest.raises(ConfigurationError, match="tool_names must have one entry for each of the 2 indices, got 1"):
        fresh.step_batch([0, 1], ["add"], [{}, {}])


def test_adapters_get_slots_that_are_free(fresh):
    """Training and evaluation never share one; `close` gives it back, once, and the next holder begins anew."""
    train = fresh.get_adapters(4)
    test = fresh.get_adapters(2)
    assert [env.index for env in (*train, *test)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigurationError, match="1 adapters were asked for, and 0 of the pool's 6 slots are free"):
        fresh.get_adapters(1)
    train[1].close()
    train[1].close()
    [next_one] = fresh.get_adapters(1)
    assert next_one.index == 1
    failed = next_one.step("add", {})
    assert "reset needed: its last episode is over" in failed.info["error"]
    with pytest.raises(ConfigurationError, match="slot 1 was given back"):
        train[1].reset()
    for env in (*train, *test, next_one):
        env.close()


def test_more_adapters_than_slots_are_refused(fresh):
    """There is no seventh."""
    with pytest.raises(ConfigurationError, match="the pool has 6 slots, and 7 adapters were asked for"):
        fresh.get_adapters(7)


def test_what_an_adapter_holds_is_called_through_it(fresh):
    """By its number the slot is refused; in a batch the adapter stands for it."""
    [env] = fresh.get_adapters(1)
    with pytest.raises(ConfigurationError, match="slot 0 is held by an adapter"):
        fresh.step(0, "add", {})
    first, other = fresh.reset_batch([env, 4], [{"seed": 1}, None])
    assert (first.observation, other.observation) == ("task {'seed': 1}", "task None")
    env.close()


def test_an_adapter_forwards_tools_and_scores(fresh):
    """The model is shown the environment's own tools; finished trajectories are scored by the environment."""
    [env] = fresh.get_adapters(1)
    assert [tool["function"]["name"] for tool in env.tools()] == ["add"]
    assert env.evaluate([[1, 2], [3]], more=1) == [3.0, 2.0]
    env.close()


def test_a_step_of_an_adapter_that_fails_is_the_last_and_unscored(fresh):
    """`done`, a reward of None, the text in `info["error"]`: no other environment waits for it."""
    [env] = fresh.get_adapters(1)
    env.reset()
    result = env.step("raise", {})
    assert (result.observation, result.reward, result.done) == ("", None, True)
    assert result.info["error"] == "EnvError: slot 0 (worker 0): CountEnv.step raised ValueError: the environment broke"
    env.close()


def test_a_worker_that_dies_costs_its_own_slots_only(fresh):
    """They say that a reset is needed, until it came; the worker is replaced meanwhile."""
    before = fresh.workers
    results = fresh.step_batch(range(6), ["add", "die", "add", "add", "add", "add"], [{}] * 6)
    assert kinds(results) == ["ResetNeededError"] * 3 + ["StepResult"] * 3
    assert "reset needed" in str(results[0])
    with pytest.raises(ResetNeededError):
        fresh.step(2, "add", {})
    assert fresh.reset(2).observation == "task None"
    assert fresh.step(2, "add", {}).observation == "1"
    with pytest.raises(ResetNeededError):
        fresh.step(1, "add", {})
    assert fresh.step(3, "add", {}).observation == "2"
    after = fresh.workers
    assert (after[0].generation, after[1]) == (before[0].generation + 1, before[1])


def test_a_worker_that_is_killed_while_nobody_calls_it_is_replaced(fresh):
    """The next step says that a reset is needed, and never runs on an environment that was not reset."""
    os.kill(fresh.workers[1].pid, signal.SIGKILL)
    failed = None
    while not isinstance(failed, LostSessionError):
        [failed] = fresh.step_batch([4], ["add"], [{}])
    assert isinstance(failed, ResetNeededError)
    assert kinds(fresh.reset_batch([3, 4, 5])) == ["StepResult"] * 3


def test_a_reset_just_after_its_worker_was_killed_is_done_by_the_next(fresh):
    """Whether the death is known yet or not: nothing of an episode can be lost by then."""
    for _ in range(2):
        os.kill(fresh.workers[0].pid, signal.SIGKILL)
        assert kinds(fresh.reset_batch(range(6))) == ["StepResult"] * 6


def test_a_reset_that_kills_its_worker_twice_says_so(fresh):
    """It is tried on the next worker, once; the other slots play on."""
    results = fresh.reset_batch(range(4), [{"text": "a"}, DEADLY, {"text": "c"}, {"text": "d"}])
    assert kinds(results) == ["ResetNeededError"] * 3 + ["StepResult"]
    assert kinds(fresh.reset_batch(range(3))) == ["StepResult"] * 3


def test_every_environment_is_closed_even_when_one_cannot_be(backend, tmp_path):
    """All that went wrong is raised together; a second close does nothing."""
    log = tmp_path / "closed"
    pool = EnvPool(4, env_factory=FailsToClose, env_kwargs={"log": str(log)}, num_workers=2, backend=backend)
    with pytest.raises(ExceptionGroup, match="closing the environments of the pool failed") as caught:
        pool.close()
    assert [str(error) for error in caught.value.exceptions] == [
        f"slot {slot} (worker {slot // 2}): FailsToClose.close raised OSError: it does not close" for slot in range(4)
    ]
    assert log.read_text() == "closed\n" * 4
    pool.close()
    with pytest.raises(ConfigurationError, match="the pool is closed"):
        pool.reset(0)
    assert (pool.report().acquired, pool.report().leaked) == (2, 0)


def test_what_hangs_is_ended_at_the_deadline(backend, make_pool):
    """One slot that hangs: the others of its batch have their results, and the worker is replaced. A worker that hangs
    as a whole: none of its slots has one."""
    pool = make_pool(4, env_factory=CountEnv, num_workers=2, backend=backend, step_timeout_s=1.5)
    pool.reset_batch(range(4))
    results = pool.step_batch(range(4), ["sleep", "add", "add", "add"], [{"seconds": 60}, {}, {}, {}])
    assert kinds(results) == ["EnvTimeoutError", "StepResult", "StepResult", "StepResult"]
    assert isinstance(results[0], EnvTimeoutError)
    assert "own_process = True" in str(results[0])
    with pytest.raises(ResetNeededError, match=r"passed step_timeout_s and was killed"):
        pool.step(1, "add", {})
    hanging = pool.workers[1].pid
    results = pool.step_batch([2, 3], ["add", "stop"], [{}, {}])
    assert kinds(results) == ["ResetNeededError", "ResetNeededError"]
    assert kinds(pool.reset_batch(range(4))) == ["StepResult"] * 4
    assert pool.workers[1].pid != hanging
