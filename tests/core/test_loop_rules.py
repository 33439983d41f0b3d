"""The rules of the episode loop, numbered as in `tiltyard.rollout.episode`; one test or more for each."""

import asyncio

import pytest

from tiltyard.envs.base import Env
from tiltyard.envs.turns import ToolTurns
from tiltyard.errors import (
    ConfigurationError,
    EnvTimeoutError,
    PolicyError,
    PromptTooLongError,
)
from tiltyard.rollout.episode import EnvCall, episode, episode_flow
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.faulty import FaultyEnv, FaultyToolEnv
from tiltyard.testing.guess import GuessEnv, GuessToolEnv
from tiltyard.testing.scripted import ScriptedPolicy
from tiltyard.tools.base import tool
from tiltyard.tools.manager import ToolManager
from tiltyard.tools.messages import call_as_json
from tiltyard.types import Prompt, Reply, StepResult, Task, ToolCall, Turn


def play(env, script, limits=None, task=None, clock=None):
    policy = ScriptedPolicy(script)
    options = {} if clock is None else {"clock": clock}
    flow = episode(env, task or Task(seed=3), limits, **options)
    try:
        prompt = next(flow)
        while True:
            try:
                reply = policy.answer(prompt)
            except PolicyError as error:
                prompt = flow.throw(error)
            else:
                prompt = flow.send(reply)
    except StopIteration as end:
        return end.value, policy


def call(name, arguments, call_id=""):
    return ToolCall(name, arguments, call_id)


class CountingTools(Env):
    """`work()` earns 0.5; `submit()` earns 1.0 and ends the episode; both are written down."""

    def __init__(self):
        self.ran = []

    def step(self, tool_name, arguments):
        self.ran.append(tool_name)
        done = tool_name == "submit"
        return StepResult(f"{tool_name} ran", 1.0 if done else 0.5, done)

    def reset(self, trajectory=None):
        return StepResult("begin")

    def tools(self):
        return [{"type": "function", "function": {"name": name, "description": name}} for name in ("work", "submit")]


class FixedTurns:
    """A `TurnEnv` that plays a list of turns."""

    def __init__(self, *turns):
        self.turns = list(turns)

    def start(self, task):
        return Turn(({"role": "user", "content": "begin"},))

    def reply(self, reply):
        return self.turns.pop(0)

    def tools(self):
        return ()

    def close(self):
        pass


def results(trajectory):
    return {m["tool_call_id"]: m["content"] for m in trajectory.messages if m["role"] == "tool"}


def test_1_one_reply_and_at_most_one_step_a_turn():
    """Each turn is one reply of the policy and one step of the environment."""
    env = CountingTools()
    trajectory, policy = play(env, [call("work", {}), call("work", {}), "that is all"])
    assert (policy.prompts, trajectory.turns, env.ran) == (3, 3, ["work", "work"])


def test_2_done_ends_the_episode_and_the_policy_is_not_asked_again():
    """The end that a tool's result brings is seen before the policy is asked once more (case TE-01)."""
    env = CountingTools()
    both = (call("submit", {}, "a"), call("work", {}, "b"))
    trajectory, policy = play(env, [both, "extra"])
    assert policy.prompts == 1
    assert trajectory.ending is Ending.DONE
    assert env.ran == ["submit"]
    assert results(trajectory) == {"a": "submit ran", "b": "Not run: the episode was over before this call."}
    assert (trajectory.reward, trajectory.truncated) == (1.0, False)


def test_2_done_and_truncated_together_is_terminal():
    """`done` is checked before `truncated`."""
    trajectory, _ = play(FixedTurns(Turn(reward=1.0, done=True, truncated=True)), ["a"])
    assert (trajectory.ending, trajectory.truncated) == (Ending.DONE, False)


def test_2_truncated_by_the_environment_ends_the_episode_truncated():
    """The environment may cut an episode for a reason outside the task; what was scored stays."""
    trajectory, _ = play(FixedTurns(Turn(reward=0.5), Turn(reward=None, truncated=True)), ["a", "b"])
    assert (trajectory.ending, trajectory.reward, trajectory.rewards) == (Ending.ENV_TRUNCATED, 0.5, (0.5, None))


def test_2_an_answer_without_a_call_ends_a_tool_episode():
    """Where only calls act, a text is the final answer; it earns 0."""
    trajectory, _ = play(CountingTools(), [call("work", {}), "that is all"])
    assert (trajectory.ending, trajectory.rewards) == (Ending.STOP, (0.5, 0.0))


def test_2_an_environment_that_is_over_at_reset_asks_the_policy_nothing():
    """The first observation's `done` and reward are kept."""

    class Over(CountingTools):
        def reset(self, trajectory=None):
            return StepResult("nothing to do", 0.75, True)

    trajectory, policy = play(Over(), [])
    assert (policy.prompts, trajectory.ending, trajectory.reward) == (0, Ending.DONE, 0.75)


@pytest.mark.parametrize(("reason", "ending"), [("length", Ending.LENGTH), ("context", Ending.CONTEXT)])
def test_3_a_text_that_was_cut_is_not_an_action(reason, ending):
    """Half of an action is no action: the environment is not asked, the turn is not scored."""
    env = GuessEnv()
    trajectory, _ = play(env, ["1", Reply("Let me think about 1", finish_reason=reason)])
    assert (trajectory.ending, trajectory.truncated, trajectory.failed) == (ending, True, False)
    assert trajectory.rewards == (0.0, None)
    assert trajectory.messages[-1]["role"] == "assistant"


def test_3_no_call_of_a_message_that_was_cut_is_run():
    """A whole first call does not run when the second was cut (case TR-02); each has its one result."""
    env = CountingTools()
    cut = Reply("", (call("work", {}, "a"), ToolCall("", None, "b", error="cut off")), finish_reason="length")
    trajectory, policy = play(env, [cut, "extra"])
    assert (env.ran, policy.prompts, trajectory.ending) == ([], 1, Ending.LENGTH)
    assert results(trajectory) == dict.fromkeys("ab", "Not run: the message was cut off before its end.")


def test_3_a_first_turn_that_was_cut_leaves_nothing_scored():
    """Not scored is not 0: the reward of the episode is None, and it did not fail."""
    trajectory, _ = play(GuessEnv(), [Reply("1", finish_reason="length")])
    assert (trajectory.reward, trajectory.failed) == (None, False)


def test_4_calls_beyond_the_limit_are_answered_as_not_run():
    """The limit ends the episode after the turn that asked for more."""
    env = CountingTools()
    calls = tuple(call("work", {}, name) for name in "abc")
    trajectory, _ = play(env, [calls, "extra"], Limits(max_tool_calls=2))
    assert (env.ran, trajectory.ending) == (["work", "work"], Ending.MAX_TOOL_CALLS)
    assert results(trajectory)["c"].startswith("Error: not run: the limit of 2 tool calls")


def test_4_using_the_limit_up_exactly_ends_nothing():
    """The policy can still answer with what it learned."""
    calls = tuple(call("work", {}, name) for name in "ab")
    trajectory, _ = play(CountingTools(), [calls, "the answer"], Limits(max_tool_calls=2))
    assert trajectory.ending is Ending.STOP


def test_4_malformed_calls_do_not_count():
    """The limit is on calls that are run."""
    broken = ToolCall("", None, error="not JSON")
    trajectory, _ = play(CountingTools(), [broken, broken, call("submit", {})], Limits(max_tool_calls=1))
    assert trajectory.ending is Ending.DONE


def test_5_never_one_model_call_more_than_max_turns():
    """Exactly three replies at max_turns 3 (case TR-01); the last step's observation is in the record."""
    trajectory, policy = play(GuessEnv(highest=1000), ["2000"] * 9, Limits(max_turns=3))
    assert (policy.prompts, trajectory.ending, trajectory.turns) == (3, Ending.MAX_TURNS, 3)
    assert trajectory.messages[-1] == {"role": "user", "content": "Too high."}


def test_5_done_on_the_last_turn_is_done_and_not_truncated():
    """The environment's end is checked before the limit (case TR-01)."""
    env = CountingTools()
    trajectory, _ = play(env, [call("work", {}), call("submit", {})], Limits(max_turns=2))
    assert (trajectory.ending, trajectory.truncated) == (Ending.DONE, False)


def test_6_the_deadline_is_checked_before_the_policy_is_asked():
    """What ran is kept; the episode is truncated, not failed."""
    seconds = iter([0.0, 1.0, 11.0, 11.5])
    trajectory, policy = play(
        CountingTools(), [call("work", {})] * 5, Limits(max_seconds=10), clock=lambda: next(seconds)
    )
    assert (policy.prompts, trajectory.ending, trajectory.reward, trajectory.seconds) == (1, Ending.TIMEOUT, 0.5, 11.5)


def test_7_missing_and_repeated_call_ids_become_unique_and_the_same_in_every_run():
    """Ids that came unique are kept (case TP-05)."""
    script = [
        (call("work", {}), call("work", {})),
        (call("work", {}, "x"), call("work", {}, "x")),
        (call("work", {}, "x"), call("work", {}, "call_5")),
        "done",
    ]
    first, _ = play(CountingTools(), script)
    second, _ = play(CountingTools(), script)
    ids = [c["id"] for m in first.messages for c in m.get("tool_calls", ())]
    assert ids == ["call_0", "call_1", "x", "call_3", "call_4", "call_5"]
    assert list(results(first)) == ids
    assert first.messages == second.messages


def test_7_no_call_has_the_id_of_one_in_the_conversation_that_was_given():
    """A task may open with calls of an earlier conversation; theirs are ids of this one too."""
    earlier = call_as_json(call("work", {}, "call_0"))
    history = (
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": [earlier]},
        {"role": "tool", "content": "7", "tool_call_id": "call_0"},
    )
    script = ["of the history", (call("work", {}), call("work", {}, "call_0")), "done"]
    trajectory, _ = play(CountingTools(), script, task=Task(messages=history))
    ids = [c["id"] for m in trajectory.messages for c in m.get("tool_calls", ())]
    assert ids == ["call_0", "call_1", "call_2"]


def test_7_where_no_tools_are_shown_a_call_is_text():
    """A text environment without tools gets the text, and no result of a call is made up."""
    trajectory, _ = play(GuessEnv(), [call("guess", {"number": 4})], Limits(max_turns=1))
    assert trajectory.messages[1] == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "guess", "arguments": {"number": 4}}\n</tool_call>',
    }
    assert trajectory.messages[2]["role"] == "user"


def test_8_an_end_without_a_reward_is_not_scored_and_fails():
    """None is never 0: the episode teaches nothing and says why."""
    trajectory, _ = play(FaultyEnv("reward_none", at=2, steps=2), ["a", "b"])
    assert (trajectory.ending, trajectory.failed, trajectory.reward) == (Ending.UNSCORED, True, None)
    assert "reward None" in trajectory.error


def test_8_a_turn_in_between_may_be_unscored():
    """The reward is the sum of what was scored."""
    trajectory, _ = play(FaultyEnv("reward_none", at=1, steps=2), ["a", "b"])
    assert (trajectory.ending, trajectory.rewards, trajectory.reward) == (Ending.DONE, (None, 0.25), 0.25)


@pytest.mark.parametrize(
    "fault",
    ["raise", "return_none", "short_result", "reward_nan", "reward_inf", "reward_text", "reward_list", "done_text"],
)
@pytest.mark.parametrize("kind", [FaultyEnv, FaultyToolEnv])
def test_9_a_broken_environment_fails_its_episode_and_keeps_what_was_before(kind, fault):
    """The failure is data: the turns before it stay, the reward is None, the error has the environment's name."""
    reply = "a" if kind is FaultyEnv else call("act", {})
    trajectory, _ = play(kind(fault, at=2, steps=3), [reply] * 3)
    assert (trajectory.ending, trajectory.rewards, trajectory.reward) == (Ending.ENV_ERROR, (0.25, None), None)
    assert kind.__name__ in trajectory.error


def test_9_a_reset_that_raises_fails_the_episode():
    """There is no turn, no observation, and a reason with the exception's type."""
    trajectory, policy = play(FaultyEnv("raise", at=0), [])
    assert (policy.prompts, trajectory.first_observation, trajectory.ending) == (0, None, Ending.ENV_ERROR)
    assert trajectory.error == "EnvError: FaultyEnv.reset raised ZeroDivisionError: the environment broke"


def test_9_a_lost_session_has_an_ending_of_its_own():
    """An environment says with LostSessionError that what held the episode is gone."""
    trajectory, _ = play(FaultyEnv("lost"), ["a"])
    assert trajectory.ending is Ending.LOST_SESSION


def test_9_a_tool_that_crashes_fails_the_episode():
    """A crash is not the model's mistake, so it is no observation."""

    def divide(by: int) -> str:
        """Divide 1.

        Args:
            by: By this.
        """
        return str(1 / by)

    task = Task(messages=({"role": "user", "content": "go"},))
    trajectory, _ = play(ToolTurns(ToolManager([tool(divide)])), [call("divide", {"by": 0})], task=task)
    assert (trajectory.ending, trajectory.reward) == (Ending.TOOL_CRASH, None)
    assert "ZeroDivisionError" in trajectory.error


def test_9_a_policy_that_fails_ends_its_episode():
    """The reply that did not come is no turn."""
    trajectory, _ = play(CountingTools(), [call("work", {}), PolicyError("503 from the server")])
    assert (trajectory.ending, trajectory.turns, trajectory.reward) == (Ending.API_ERROR, 1, None)


def test_9_a_prompt_that_does_not_fit_truncates():
    """A prompt without room for an answer is a limit, not a failure (case TR-01)."""
    trajectory, _ = play(CountingTools(), [call("work", {}), PromptTooLongError("70 tokens, 64 fit")])
    assert (trajectory.ending, trajectory.error, trajectory.reward) == (Ending.PROMPT_TOO_LONG, None, 0.5)


def test_9_a_step_that_passes_its_deadline_fails_the_episode():
    """The driver, who has the clock and the thread, throws the time-out in."""
    flow = episode_flow(GuessEnv(), Task(seed=1), Limits(step_timeout_s=5), "e1")
    request = next(flow)
    assert isinstance(request, EnvCall)
    assert (request.what, request.timeout_s) == ("reset", 5)
    with pytest.raises(StopIteration) as end:
        flow.throw(EnvTimeoutError("reset did not return within 5 s"))
    assert end.value.value.ending is Ending.ENV_ERROR


def test_9_anything_else_escapes():
    """A bug of the loop or of its driver is not an episode's failure."""
    flow = episode(GuessEnv(), Task(seed=1))
    next(flow)
    with pytest.raises(TypeError, match="answered with a Reply"):
        flow.send("7")


@pytest.mark.parametrize("escape", [KeyboardInterrupt, SystemExit, MemoryError])
def test_9_an_interrupt_inside_the_environment_escapes(escape):
    """Ctrl-C is not the environment's failure."""

    class Interrupted(GuessEnv):
        def step(self, action):
            raise escape

    flow = episode(Interrupted(), Task(seed=1))
    next(flow)
    with pytest.raises(escape):
        flow.send(Reply("1"))


def test_9_a_cancellation_inside_the_environment_is_its_own():
    """A step awaits nothing of ours: what was cancelled is something on an event loop of the environment."""

    class Cancelled(GuessEnv):
        def step(self, action):
            raise asyncio.CancelledError

    trajectory, _ = play(Cancelled(), ["1"], task=Task(seed=1))
    assert (trajectory.ending, trajectory.reward) == (Ending.ENV_ERROR, None)
    assert trajectory.error == "EnvError: Cancelled.step raised CancelledError: "


def test_9_a_task_that_the_environment_cannot_be_reset_to_escapes():
    """A configuration that cannot work ends the run, not one episode after the other."""
    with pytest.raises(ConfigurationError, match="takes no row_index"):
        play(GuessEnv(), ["1"], task=Task(seed=1, row_index=4))


def test_the_prompt_has_what_is_new_and_a_live_view_of_all():
    """`new` is what came since the last reply: what a token driver bridges."""
    flow = episode(GuessEnv(), Task(seed=1))
    first = next(flow)
    assert list(first.new) == [{"role": "user", "content": "Guess a number between 1 and 10."}]
    second = flow.send(Reply("99"))
    assert isinstance(second, Prompt)
    assert list(second.new) == [{"role": "user", "content": "Too high."}]
    assert second.messages is first.messages
    assert len(second.messages) == 3


def test_a_turn_env_of_ones_own_is_guarded():
    """What a foreign TurnEnv raises fails its episode, and what is not a Turn is named."""
    trajectory, _ = play(FixedTurns("no turn"), ["a"])
    assert trajectory.error == "EnvError: FixedTurns.reply returned a str; expected a Turn"
    trajectory, _ = play(FixedTurns(), ["a"])
    assert "IndexError" in trajectory.error


def test_the_reasoning_is_in_the_record_and_nowhere_else():
    """A reply's thinking is kept under `reasoning_content`, only where there was some."""
    trajectory, _ = play(GuessEnv(), [Reply("99", reasoning="big"), "98"], Limits(max_turns=2))
    assert trajectory.messages[1] == {"role": "assistant", "content": "99", "reasoning_content": "big"}
    assert "reasoning_content" not in trajectory.messages[3]


def test_success_is_the_environments_own_word():
    """`info["success"]` of the last turn, None where there is none."""
    won, _ = play(GuessToolEnv(highest=1), [call("guess", {"number": 1})])
    silent, _ = play(CountingTools(), [call("submit", {})])
    assert (won.success, silent.success) == (True, None)


class Beginning:
    """Opens with a question and the beginning of its answer."""

    def start(self, task):
        return Turn(({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "It is "}), None)

    def reply(self, reply):
        return Turn(({"role": "user", "content": "Sure?"},), float(reply.text == "It is 2"))

    def tools(self):
        return []

    def close(self):
        pass


def test_10_an_answer_that_was_begun_is_one_message():
    """The first reply has its beginning and takes its place; later replies are messages of their own."""
    trajectory, _ = play(Beginning(), lambda prompt, turn: "It is 2" if len(prompt.messages) == 2 else "Yes", Limits(2))
    assert [message["content"] for message in trajectory.messages] == ["1+1?", "It is 2", "Sure?", "Yes", "Sure?"]
    assert trajectory.rewards == (1.0, 0.0)
