"""Many episodes over a policy that answers messages: each on its own, so many at one time."""

import asyncio
import gc
import threading
import time

import pytest

from tiltyard.errors import ConfigurationError, PolicyError, PromptTooLongError, ToolError
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.slots import EnvSlots
from tiltyard.testing.faulty import FaultyEnv
from tiltyard.testing.guess import GuessEnv, GuessToolEnv
from tiltyard.testing.scripted import ScriptedAsyncPolicy
from tiltyard.types import Prompt, Reply, Task, ToolCall

WINS = ["4", "7"]
SEED = 0
"""Of a game that 7 wins."""


def rollout_of(script=WINS, *, limits=None, **options):
    return ConcurrentRollout(ScriptedAsyncPolicy(script), limits or Limits(), **options)


def jobs_of(envs):
    return [Job(env, Task(seed=SEED), f"e{number}") for number, env in enumerate(envs)]


def endings(trajectories):
    return [trajectory.ending.value for trajectory in trajectories]


def by_seed(lines):
    """A script with a line for each seed: every prompt names its episode's."""
    return lambda prompt, turn: lines[int(prompt.messages[0]["content"].split()[-1])]


class SeedEnv:
    """Says its seed; ends after one turn, worth the seed."""

    def reset(self, seed=None):
        self.seed = seed
        return f"seed {seed}", {}

    def step(self, action):
        return "over", float(self.seed), True, False, {}


class Hanging:
    """Hangs in its only step until the test is over."""

    let_go = threading.Event()

    def reset(self, seed=None):
        return "Begin.", {}

    def step(self, action):
        Hanging.let_go.wait()
        return "late", 1.0, True, False, {}


@pytest.fixture(autouse=True)
def _let_go():
    """Threads of steps that hang end with their test."""
    Hanging.let_go = threading.Event()
    yield
    Hanging.let_go.set()


def test_trajectories_come_in_the_order_of_the_jobs():
    """Whichever finished first."""
    jobs = [Job(SeedEnv(), Task(seed=seed), f"e{seed}") for seed in range(20)]
    found = rollout_of(["x"], concurrency=7).run(jobs)
    assert [(one.episode_id, one.reward) for one in found] == [(f"e{seed}", float(seed)) for seed in range(20)]


def test_an_episode_is_the_one_of_every_other_driver():
    """Messages, rewards and ending follow from the one loop."""
    (found,) = rollout_of().run(jobs_of([GuessEnv()]))
    assert found.ending is Ending.DONE
    assert found.rewards == (0.0, 1.0)
    assert [message["role"] for message in found.messages] == ["user", "assistant", "user", "assistant", "user"]


def test_at_most_concurrency_episodes_are_live_and_places_are_refilled():
    """Never more, and no fewer while there are jobs."""
    rollout = rollout_of(["x"], concurrency=5)
    rollout.policy.latency_s = 0.002
    rollout.run(jobs_of([FaultyEnv("raise", at=9) for _ in range(23)]))
    assert rollout.policy.most_waiting == 5


def test_without_jobs_there_is_nothing():
    """An empty batch is no error."""
    assert rollout_of().run([]) == []


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        (PolicyError("down"), "api_error"),
        (PromptTooLongError("long"), "prompt_too_long"),
        (ValueError("a bug of the policy"), "api_error"),
        (ToolError("out of place"), "api_error"),
        (StopIteration(), "api_error"),
    ],
)
def test_whatever_a_policy_raises_ends_its_episode_only(line, ending):
    """T12: one failure never loses the results of others."""
    jobs = [Job(SeedEnv(), Task(seed=seed), f"e{seed}") for seed in range(3)]
    found = rollout_of(by_seed(["x", line, "x"])).run(jobs)
    assert endings(found) == ["done", ending, "done"]


def test_a_cancellation_that_nobody_asked_for_is_the_policys_failure():
    """A client that gives its own requests up does not end the run."""

    class GivesUp(ScriptedAsyncPolicy):
        async def reply(self, prompt, *, max_tokens):
            if prompt.messages[0]["content"] == "seed 0":
                raise asyncio.CancelledError
            return await super().reply(prompt, max_tokens=max_tokens)

    jobs = [Job(SeedEnv(), Task(seed=seed), f"e{seed}") for seed in range(2)]
    found = ConcurrentRollout(GivesUp(["x"]), Limits()).run(jobs)
    assert endings(found) == ["api_error", "done"]
    assert found[0].error == "PolicyError: policy.reply raised CancelledError: "


def test_a_policy_that_gives_no_reply_fails_the_episode_by_name():
    """What came is shown."""

    class Odd(ScriptedAsyncPolicy):
        async def reply(self, prompt, *, max_tokens):
            return "text"

    (found,) = ConcurrentRollout(Odd([]), Limits()).run(jobs_of([SeedEnv()]))
    assert (found.ending, found.error) == (
        Ending.API_ERROR,
        "PolicyError: policy.reply returned 'text'; expected a Reply",
    )


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("fault", ["raise", "return_none", "reward_nan", "lost", "short_result"])
def test_whatever_an_environment_does_ends_its_episode_only(fault, at):
    """A1: the other episodes go on, and a failed one has no score."""
    found = rollout_of(["x", "x"]).run(jobs_of([FaultyEnv("raise", at=9), FaultyEnv(fault, at=at)]))
    ending = {"lost": "lost_session"}.get(fault, "env_error")
    if (fault, at) == ("reward_nan", 0):  # the reset of a text environment has no reward
        ending = "done"
    assert endings(found) == ["done", ending]
    assert found[1].reward is None or ending == "done"


def test_a_step_that_hangs_fails_its_episode_and_holds_up_no_other():
    """T14: its place goes on with the next job."""
    rollout = rollout_of(["x"], limits=Limits(step_timeout_s=1.5), concurrency=2)
    found = rollout.run(jobs_of([Hanging(), *(SeedEnv() for _ in range(9))]))
    assert endings(found) == ["env_error", *["done"] * 9]
    assert "step_timeout_s=1.5" in found[0].error
    assert rollout.abandoned == 1


def test_steps_of_different_episodes_run_at_the_same_time():
    """T14: each waits here until all have begun."""
    gate = threading.Barrier(16)

    class Meeting(SeedEnv):
        def step(self, action):
            gate.wait(10)
            return super().step(action)

    found = rollout_of(["x"], concurrency=16).run([Job(Meeting(), Task(seed=1), f"e{i}") for i in range(16)])
    assert endings(found) == ["done"] * 16


def test_steps_do_not_run_on_the_event_loops_thread():
    """A step that blocks must not hold up the replies of others."""
    seen = set()

    class Where(SeedEnv):
        def step(self, action):
            seen.add(threading.current_thread())
            return super().step(action)

    rollout_of(["x"]).run([Job(Where(), Task(seed=1), "e")])
    assert threading.main_thread() not in seen


def test_finished_trajectories_are_told_at_once_and_need_not_be_kept():
    """With keep=False a run is as large as its live episodes."""
    told = []
    kept = rollout_of(["x"]).run(jobs_of([SeedEnv() for _ in range(9)]), told.append, keep=False)
    assert (kept, {one.episode_id for one in told}) == ([], {f"e{i}" for i in range(9)})


def test_jobs_are_taken_as_places_get_free():
    """A generator of jobs may be longer than memory: no more than the live ones have been made."""
    made, finished, ahead = [], [], []

    def jobs():
        for number in range(30):
            made.append(number)
            ahead.append(len(made) - len(finished))
            yield Job(SeedEnv(), Task(seed=1), f"e{number}")

    rollout_of(["x"], concurrency=4).run(jobs(), finished.append, keep=False)
    assert (len(finished), max(ahead)) == (30, 4)


def test_ten_thousand_episodes_run_in_one_go():
    """One environment for each place, and nothing kept but the count."""
    count = 0

    def counted(trajectory):
        nonlocal count
        count += trajectory.ending is Ending.DONE

    slots = EnvSlots(SeedEnv, 200)
    jobs = (Job(slots, Task(seed=1), f"e{number}") for number in range(10_000))
    rollout_of(["x"], concurrency=200).run(jobs, counted, keep=False)
    slots.close()
    assert count == 10_000


def test_an_error_of_the_callback_ends_the_run():
    """A full disk is not an episode's failure."""

    def full(trajectory):
        raise OSError("disk full")

    rollout = rollout_of(["x"])
    with pytest.raises(OSError, match="disk full"):
        rollout.run(jobs_of([SeedEnv() for _ in range(3)]), full)
    assert rollout.policy.entered == 0


def test_a_callback_may_be_awaited():
    """And holds its place meanwhile."""
    told = []

    async def tell(trajectory):
        await asyncio.sleep(0)
        told.append(trajectory.episode_id)

    rollout_of(["x"]).run(jobs_of([SeedEnv()]), tell)
    assert told == ["e0"]


def test_a_stream_plays_no_more_than_are_taken():
    """Whoever writes slowly is not run over."""
    made = []

    def jobs():
        for number in range(50):
            made.append(number)
            yield Job(SeedEnv(), Task(seed=1), f"e{number}")

    async def take():
        taken = []
        async for trajectory in rollout_of(["x"], concurrency=4).stream_async(jobs()):
            if not taken:
                await asyncio.sleep(0.05)
                assert len(made) <= 10
            taken.append(trajectory.episode_id)
        return taken

    assert len(set(asyncio.run(take()))) == 50


def test_a_stream_that_is_closed_stops_the_run():
    """Nothing goes on behind the caller's back."""
    rollout = rollout_of(["x"])

    async def take_one():
        stream = rollout.stream_async(jobs_of([SeedEnv() for _ in range(50)]))
        first = await anext(stream)
        await stream.aclose()
        return first.episode_id, rollout.policy.entered, len(asyncio.all_tasks())

    assert asyncio.run(take_one()) == ("e0", 0, 1)


def test_a_stream_ends_with_the_error_that_ended_its_run():
    """After what was finished before it."""

    async def take():
        return [one async for one in rollout_of(["x"]).stream_async([*jobs_of([SeedEnv()]), *jobs_of([SeedEnv()])])]

    with pytest.raises(ConfigurationError, match="two jobs have the episode id 'e0'"):
        asyncio.run(take())


def test_slots_are_made_off_the_loop_and_reused():
    """A factory that takes its time holds up only the episode that waits for it."""
    made = []

    def factory():
        made.append(threading.current_thread())
        return SeedEnv()

    slots = EnvSlots(factory, 3)
    found = rollout_of(["x"], concurrency=8).run([Job(slots, Task(seed=1), f"e{i}") for i in range(20)])
    slots.close()
    assert endings(found) == ["done"] * 20
    assert len(made) == 3
    assert threading.main_thread() not in made


def test_a_factory_that_fails_fails_one_episode():
    """The slot is free again for the next."""
    lines = iter([OSError("no display"), None, None])

    def factory():
        if (error := next(lines)) is not None:
            raise error
        return SeedEnv()

    slots = EnvSlots(factory, 1)
    found = rollout_of(["x"]).run([Job(slots, Task(seed=1), f"e{i}") for i in range(3)])
    slots.close()
    assert endings(found) == ["env_error", "done", "done"]
    assert "no display" in found[0].error


def test_a_factory_that_hangs_fails_one_episode_and_its_late_environment_is_closed_or_used():
    """The slot is free again at the deadline."""
    first = threading.Event()

    def factory():
        if not first.is_set():
            first.set()
            Hanging.let_go.wait()
        return SeedEnv()

    slots = EnvSlots(factory, 1)
    found = rollout_of(["x"], limits=Limits(step_timeout_s=1.5)).run(
        [Job(slots, Task(seed=1), f"e{i}") for i in range(3)]
    )
    Hanging.let_go.set()
    slots.close()
    assert endings(found) == ["env_error", "done", "done"]


def test_a_broken_environment_leaves_its_slot():
    """The next episode gets a fresh one."""
    envs = iter([FaultyEnv("raise"), FaultyEnv("raise", at=9)])
    slots = EnvSlots(lambda: next(envs), 1)
    found = rollout_of(["x", "x"]).run([Job(slots, Task(seed=1), f"e{i}") for i in range(2)])
    slots.close()
    assert (endings(found), slots.replaced) == (["env_error", "done"], 1)


def test_one_environment_for_two_episodes_is_refused():
    """CO-01, T13: it would mix them up."""
    env = GuessEnv()
    with pytest.raises(ConfigurationError, match=r"share one GuessEnv; give each its own"):
        rollout_of().run(jobs_of([env, env]))
    with pytest.raises(ConfigurationError, match=r"share one GuessEnv; give each its own"):
        rollout_of().run(iter(jobs_of([env, env])))


def test_one_environment_for_episodes_one_after_the_other_is_fine():
    """Where they cannot meet."""
    env = GuessEnv()
    assert endings(rollout_of(concurrency=1).run(iter(jobs_of([env, env])))) == ["done", "done"]


def test_parallel_calls_of_a_turn_are_all_answered():
    """Each has its one result, in order."""
    calls = (ToolCall("guess", {"number": 1}), ToolCall("guess", {"number": 2}))
    (found,) = rollout_of([calls, "I stop"]).run(jobs_of([GuessToolEnv()]))
    asked = [call["id"] for message in found.messages for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in found.messages if message["role"] == "tool"]
    assert (len(asked), asked) == (2, answered)


def test_seeds_differ_by_episode_and_turn_and_repeat_with_the_run():
    """Members of a group are not copies of each other; the same run asks with the same seeds."""

    def seeds(seed):
        seen = []

        def note(prompt, turn):
            seen.append((prompt.messages[0]["content"], turn, prompt.seed))
            return WINS[turn]

        rollout_of(note, seed=seed).run(jobs_of([GuessEnv() for _ in range(3)]))
        return sorted(seen)

    assert seeds(5) == seeds(5)
    assert len({seed for _, _, seed in seeds(5)}) == 6
    assert {seed for _, _, seed in seeds(None)} == {None}


def test_max_context_is_kept_by_the_servers_count():
    """The last turn gets the room that is left, and with none left no request is made."""
    asked = []

    class Counting(ScriptedAsyncPolicy):
        async def reply(self, prompt, *, max_tokens):
            asked.append(max_tokens)
            return Reply("1", context_tokens=40 * len(asked))

    limits = Limits(max_context=100, max_tokens_per_turn=30, max_turns=9)
    (found,) = ConcurrentRollout(Counting([]), limits).run(jobs_of([GuessEnv()]))
    assert (asked, found.ending) == ([30, 30, 20], Ending.PROMPT_TOO_LONG)


def test_a_turn_cut_by_the_room_that_is_left_filled_the_context():
    """Not the limit of a turn."""
    asked = []

    class Counting(ScriptedAsyncPolicy):
        async def reply(self, prompt, *, max_tokens):
            asked.append(max_tokens)
            return Reply("1", finish_reason="stop" if len(asked) == 1 else "length", context_tokens=80)

    limits = Limits(max_context=100, max_tokens_per_turn=30)
    (found,) = ConcurrentRollout(Counting([]), limits).run(jobs_of([GuessEnv()]))
    assert (asked, found.ending) == ([30, 20], Ending.CONTEXT)


def test_a_run_inside_a_running_loop_works():
    """A notebook has one."""

    async def cell():
        return rollout_of(["x"]).run([Job(SeedEnv(), Task(seed=2), "e")])

    assert [one.reward for one in asyncio.run(cell())] == [2.0]


def test_a_cancelled_run_leaves_nothing_behind():
    """No task, no policy entered, and the environment of a running step is not used again."""
    slots = EnvSlots(Hanging, 2)
    rollout = rollout_of(["x"])

    async def cancel():
        run = asyncio.create_task(rollout.run_async([Job(slots, Task(), f"e{i}") for i in range(2)]))
        while rollout.policy.prompts < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        run.cancel()
        await asyncio.wait([run])
        return run.cancelled(), len(asyncio.all_tasks())

    assert asyncio.run(cancel()) == (True, 1)
    assert (rollout.policy.entered, slots.replaced) == (0, 2)


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_below_one_is_refused(concurrency):
    """At construction."""
    with pytest.raises(ConfigurationError, match="concurrency must be a whole number >= 1"):
        rollout_of(concurrency=concurrency)


def test_the_episode_deadline_ends_it_between_two_turns():
    """`max_seconds` is checked before the policy is asked."""

    class Slow(SeedEnv):
        def step(self, action):
            time.sleep(0.02)
            return "more", 0.0, False, False, {}

    (found,) = rollout_of(["x"] * 9, limits=Limits(max_seconds=0.01)).run([Job(Slow(), Task(), "e")])
    assert (found.ending, found.turns) == (Ending.TIMEOUT, 1)


def test_the_garbage_collector_is_calmed_for_a_run_and_as_before_after_it():
    """Also where runs overlap, and one of them is cancelled or fails."""
    before, seen = gc.get_threshold(), []

    def see(trajectory):
        seen.append(gc.get_threshold()[0])
        if trajectory.episode_id == "e1":
            raise OSError

    async def overlap():
        runs = (
            rollout_of(["x"], concurrency=size).run_async(jobs_of([SeedEnv() for _ in range(3)]), see)
            for size in (200, 99)
        )
        return await asyncio.gather(*runs, return_exceptions=True)

    assert [type(error) for error in asyncio.run(overlap())] == [OSError, OSError]
    assert (set(seen), gc.get_threshold()) == ({4000}, before)


def test_a_prompt_has_a_memo_that_lasts_for_its_episode():
    """What a policy keeps there is neither lost nor shared."""
    memos = {}

    def note(prompt, turn):
        assert isinstance(prompt, Prompt)
        memos.setdefault(id(prompt.memo), []).append(turn)
        prompt.memo["kept"] = prompt.memo
        return WINS[turn]

    rollout_of(note).run(jobs_of([GuessEnv(), GuessEnv()]))
    assert list(memos.values()) == [[0, 1], [0, 1]]
