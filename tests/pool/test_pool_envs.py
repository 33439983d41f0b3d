"""Every kind of environment in a pool, and rollouts over its slots."""

import dataclasses

import pytest
from pool_envs import CountEnv, FlakyEnv, NotPooled, SeedEnv, TalkEnv, WordEnv

from tiltyard import (
    ConfigurationError,
    Env,
    EnvTool,
    LostSessionError,
    ResetNeededError,
    StepResult,
    Task,
    ToolCall,
    ToolError,
    ToolManager,
    as_turns,
    check_env,
)
from tiltyard.rollout.batched import Job
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.slots import EnvSlots
from tiltyard.testing.guess import GuessEnv, GuessToolEnv
from tiltyard.testing.scripted import ScriptedAsyncPolicy
from tiltyard.types import Reply


def test_a_text_environment_is_one_in_the_pool_too(make_pool):
    """Its adapter is reset with seed, row and split, and says what the environment says about itself."""
    [env] = make_pool(1, env_factory=WordEnv).get_adapters(1)
    assert env.reset(seed=5, row_index=2, evaluation=True) == ("held out 2 5", {})
    assert env.step("held out 2 5") == ("you said held out 2 5", 1.0, True, False, {})
    assert (env.dataset_size, env.system_prompt, list(env.tools)) == (4, "Say the word.", [])
    assert not hasattr(env, "max_turns")


def test_a_text_environment_is_stepped_by_its_index_with_a_message(make_pool):
    """The action is `arguments["message"]`."""
    pool = make_pool(2, env_factory=WordEnv, num_workers=1)
    first, _ = pool.reset_batch([0, 1], [{"seed": 1, "row_index": 3}, None])
    assert (first.observation, first.reward) == ("row 3 1", None)
    assert pool.step(0, "say", {"message": "row 3 1"}).reward == 1.0
    with pytest.raises(ToolError, match="the action of WordEnv is a text, given as message; got"):
        pool.step(1, "say", {"text": "row"})


def test_a_row_that_an_environment_does_not_take_is_refused(make_pool):
    """The seed alone is taken."""
    [env] = make_pool(1, env_factory=SeedEnv).get_adapters(1)
    assert env.reset(seed=2) == ("seed 2", {"first": True})
    with pytest.raises(
        ConfigurationError, match=r"the task names training row 1, but SeedEnv\.reset takes no row_index"
    ):
        env.reset(seed=2, row_index=1)


def test_tools_are_those_of_the_last_reset(make_pool):
    """An environment may show others in each episode."""
    [env] = make_pool(1, env_factory=SeedEnv).get_adapters(1)
    names = []
    for seed in (1, 2):
        env.reset(seed=seed)
        names.append([tool["function"]["name"] for tool in env.tools])
    assert names == [["tool_1"], ["tool_2"]]


def test_a_turn_env_is_one_in_the_pool_too(make_pool):
    """It is started with a task and answers replies; by its index it is not stepped."""
    pool = make_pool(1, env_factory=TalkEnv)
    with pytest.raises(ConfigurationError, match=r"TalkEnv is a turn environment and has no reset; use .*get_adapters"):
        pool.reset(0)
    [env] = pool.get_adapters(1)
    assert env.start(Task(seed=4)).messages == ({"role": "user", "content": "seed 4"},)
    turn = env.reply(Reply("hello"))
    assert (turn.messages[0]["content"], turn.reward, turn.done) == ("HELLO", 1.0, True)


def test_what_a_factory_makes_is_looked_at_in_the_worker(make_pool):
    """A class that says why it is not pooled is refused wherever it shows."""
    with pytest.raises(ConfigurationError, match="NotPooled cannot be pooled: it is kept elsewhere"):
        make_pool(2, env_factory=NotPooled.made)
    with pytest.raises(ConfigurationError, match="is not an environment: subclass"):
        make_pool(1, env_factory=dict)


def test_a_failed_step_fails_its_episode_in_every_loop(make_pool):
    """The adapter returns it; tools and rollouts take it for the failure that it is, not for an end without a score."""
    [env] = make_pool(1, env_factory=CountEnv).get_adapters(1)
    turns = as_turns(env)
    turns.start(Task())
    with pytest.raises(ResetNeededError):
        ToolManager([EnvTool(env)]).step(ToolCall("env_action", {}, "1")) if env.step("die", {}).done else None
    env.reset()
    tools = EnvTool.from_env(env)
    assert tools[0]("add", {}) == "1"
    with pytest.raises(LostSessionError):
        EnvTool(env, "die")("die", {})


@pytest.mark.parametrize("kind", [GuessEnv, GuessToolEnv])
def test_adapters_pass_the_check_up_of_environments(make_pool, kind):
    """`check_env` finds nothing that it would not find without the pool."""
    pool = make_pool(24, env_factory=kind, num_workers=2)
    report = check_env(pool.adapter)
    assert (report.ok, report.findings) == (True, ())


LINES = [ToolCall("guess", {"number": number}) for number in (5, 3, 7, 1, 9)]


def played(env, episodes=6):
    jobs = [Job(env, Task(seed=seed), f"episode {seed}") for seed in range(episodes)]
    rollout = ConcurrentRollout(ScriptedAsyncPolicy(LINES), Limits(max_turns=4, step_timeout_s=30.0), concurrency=4)
    return [dataclasses.replace(one, seconds=0.0) for one in rollout.run(jobs)]


def test_a_rollout_over_a_pool_gives_the_trajectories_of_one_in_process(make_pool):
    """Messages, rewards and endings, seed for seed; slots are taken, given back and taken again."""
    pool = make_pool(4, env_factory=GuessToolEnv, num_workers=2)
    over_pool, in_process = EnvSlots(pool.adapter, 4), EnvSlots(GuessToolEnv, 4)
    assert played(over_pool) == played(in_process)
    over_pool.close()
    in_process.close()
    assert len(pool.get_adapters(4)) == 4


def test_an_episode_whose_worker_dies_fails_and_the_others_go_on(make_pool):
    """It is lost, unscored and told; the next episode in its slot begins on a fresh environment."""
    pool = make_pool(4, env_factory=FlakyEnv, num_workers=4)
    slots = EnvSlots(pool.adapter, 4)
    found = played(slots)
    slots.close()
    assert [one.ending for one in found if one.task.seed != 3] == [Ending.MAX_TURNS] * 5
    lost = found[3]
    assert (lost.ending, lost.reward) == (Ending.LOST_SESSION, None)
    assert "reset needed: process" in lost.error


def test_an_adapter_is_an_environment(make_pool):
    """It is an `Env`, closes as a context manager, and gives its slot back."""
    pool = make_pool(1, env_factory=CountEnv)
    with pool.get_adapters(1)[0] as env:
        assert isinstance(env, Env)
        assert isinstance(env.reset({"seed": 1}), StepResult)
    assert pool.get_adapters(1)[0].index == 0
