"""Environments as turns: what they are reset with, what the model sees, and what a turn is worth."""

import numpy as np
import pytest

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env
from tiltyard.envs.own_random import caller_of
from tiltyard.envs.tool import EnvTool
from tiltyard.envs.turns import GuardedTurns, TextTurns, ToolTurns, as_turns, refuse_shared
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError, ToolError
from tiltyard.rollout.episode import episode
from tiltyard.testing.faulty import SPECIAL_TEXT, FaultyEnv, FaultyToolEnv
from tiltyard.testing.guess import GuessEnv, GuessToolEnv
from tiltyard.tools.manager import ToolManager
from tiltyard.types import Reply, StepResult, Task, ToolCall, Turn


class Rewards(Env):
    """Every call of `give(i)` earns the i-th of some rewards."""

    def __init__(self, *rewards):
        self.rewards = rewards

    def step(self, tool_name, arguments):
        return StepResult("", self.rewards[arguments["i"]])

    def tools(self):
        parameters = {"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]}
        return [{"type": "function", "function": {"name": "give", "parameters": parameters}}]


def give(*indices):
    return Reply("", tuple(ToolCall("give", {"i": i}, f"c{i}") for i in indices))


class Recorder:
    """A text environment that keeps what reset got."""

    def __init__(self):
        self.got = None

    def reset(self, seed=None, row_index=None, evaluation=False):
        self.got = (seed, row_index, evaluation)
        return "begin", {}

    def step(self, action):
        return action, 0.0, False, False, {}


def test_as_turns_tells_the_kinds_of_environment_apart():
    """It is the only place that asks what an environment is; turns stay what they are."""
    assert isinstance(as_turns(GuessEnv()), TextTurns)
    assert isinstance(as_turns(GuessToolEnv()), ToolTurns)
    assert isinstance(as_turns(ToolManager()), ToolTurns)
    turns = TextTurns(GuessEnv())
    assert as_turns(turns) is turns


def test_as_turns_says_what_an_environment_is():
    """The class in place of an instance is named as what it is."""
    with pytest.raises(ConfigurationError, match="GuessEnv is a class"):
        as_turns(GuessEnv)
    with pytest.raises(ConfigurationError, match="is not an environment"):
        as_turns(7)


def test_a_text_environment_is_reset_with_what_it_takes():
    """An option that reset does not name is not passed; a row that it cannot take is an error."""
    recorder = Recorder()
    TextTurns(recorder).start(Task(seed=5, row_index=2, evaluation=True))
    assert recorder.got == (5, 2, True)

    class Seedless(Recorder):
        def reset(self):
            return "begin", {}

    assert TextTurns(Seedless()).start(Task(seed=5)).messages == ({"role": "user", "content": "begin"},)
    with pytest.raises(ConfigurationError, match=r"training row 2.*takes no row_index;"):
        TextTurns(GuessEnv()).start(Task(row_index=2))


def test_a_reset_takes_columns_of_any_name():
    """Those that our own calls have names for, too."""

    def reset(**columns):
        return columns

    columns = {"what": 1, "error": 2, "call": 3, "function": 4}
    assert guarded("reset", EnvError, caller_of(object()), reset, **columns) == columns


def test_held_out_rows_are_never_served_from_the_training_rows():
    """An environment with rows that cannot be told the split is an error when one is evaluated."""

    class OneSplit(Recorder):
        def reset(self, seed=None, row_index=None):
            return "begin", {}

    TextTurns(OneSplit()).start(Task(row_index=2))
    with pytest.raises(ConfigurationError, match=r"evaluation row 2.*takes no evaluation;"):
        TextTurns(OneSplit()).start(Task(row_index=2, evaluation=True))


def test_the_trajectorys_info_is_its_own():
    """An environment that writes on into one dict does not change the record of an episode that is over."""

    class OneInfo(Recorder):
        info = {}

        def step(self, action):
            self.info["word"] = action
            return action, 1.0, True, False, self.info

    env, kept = OneInfo(), []
    for word in ("first", "second"):
        flow = episode(env, Task())
        next(flow)
        with pytest.raises(StopIteration) as end:
            flow.send(Reply(word))
        kept.append(end.value.value)
    assert [trajectory.info["word"] for trajectory in kept] == ["first", "second"]


def test_a_tool_environment_is_reset_with_the_task():
    """`reset` gets the messages, the seed, the row, the split and the row's own fields."""

    class Kept(Rewards):
        def reset(self, trajectory=None):
            self.got = trajectory
            return StepResult("begin")

    env = Kept()
    opening = ({"role": "user", "content": "hello"},)
    ToolTurns(env).start(Task(seed=1, row_index=2, evaluation=True, messages=opening, data={"word": "w2"}))
    assert env.got == {"messages": [*opening], "seed": 1, "row_index": 2, "evaluation": True, "word": "w2"}


def test_members_of_a_group_start_in_the_same_state():
    """Equal tasks give equal first observations, whichever instance plays (T3)."""
    task = Task(seed=11)
    flows = [episode(GuessToolEnv(), task) for _ in range(4)]
    assert len({str(next(flow).messages) for flow in flows}) == 1


def test_the_system_prompt_leads_once_and_the_tasks_own_wins():
    """The environment's `system_prompt` is the leading message, unless the task brings a system message (A6)."""

    class Prompted(GuessEnv):
        system_prompt = "Answer with a number."

    own = {"role": "system", "content": "Be brief."}
    hello = {"role": "user", "content": "hello"}
    assert [m["role"] for m in next(episode(Prompted(), Task(messages=(hello,)))).messages] == [
        "system",
        "user",
        "user",
    ]
    messages = next(episode(Prompted(), Task(messages=(own, hello)))).messages
    assert [m["content"] for m in messages] == ["Be brief.", "hello", "Guess a number between 1 and 10."]


def test_nothing_to_answer_is_an_error():
    """An empty first observation needs a task that has messages."""
    with pytest.raises(StopIteration) as end:
        next(episode(ToolManager(), Task()))
    assert "nothing to answer" in end.value.value.error


def test_the_rewards_of_a_turns_calls_are_summed():
    """None only when calls ran and none was scored."""
    turns = ToolTurns(Rewards(0.5, None, 0.25))
    turns.start(Task())
    assert turns.reply(give(0, 1, 2)).reward == 0.75
    assert turns.reply(give(1, 1)).reward is None
    assert turns.reply(give(0)).reward == 0.5


def test_a_call_that_is_answered_with_an_error_earns_nothing():
    """It is counted in `info`, and neither scores nor unscores the turn."""
    turns = ToolTurns(Rewards(None, 0.5))
    turns.start(Task())
    bad = ToolCall("nope", {}, "x")
    turn = turns.reply(Reply("", (bad,)))
    assert (turn.reward, turn.info) == (0.0, {"tool_errors": 1})
    assert turns.reply(Reply("", (bad, *give(0).tool_calls))).reward is None
    assert turns.reply(Reply("", (bad, *give(1).tool_calls))).reward == 0.5


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (True, 1.0),
        (3, 3.0),
        (np.bool_(False), 0.0),
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.5), 0.5),
        (np.array(2), 2.0),
        (None, None),
    ],
)
def test_numbers_of_every_kind_become_floats(given, kept):
    """bool, int and numpy scalars are rewards; None stays unscored (case RW-01, T6)."""
    turns = ToolTurns(Rewards(given))
    turns.start(Task())
    reward = turns.reply(give(0)).reward
    assert reward == kept
    assert reward is None or type(reward) is float


@pytest.mark.parametrize(
    "given", ["0.5", [0.5], np.array([0.5]), float("nan"), float("inf"), np.float32("nan"), {}, 1j]
)
def test_what_is_no_number_is_refused_with_its_value(given):
    """Nothing is parsed, reduced or replaced (case RW-01)."""
    turns = ToolTurns(Rewards(given))
    turns.start(Task())
    with pytest.raises(EnvError, match="gave reward"):
        turns.reply(give(0))


def test_a_tensor_of_no_axis_is_a_number():
    """A 0-d tensor is a reward like any other scalar (case RW-01)."""
    torch = pytest.importorskip("torch")
    turns = ToolTurns(Rewards(torch.tensor(0.5), torch.tensor([0.5])))
    turns.start(Task())
    assert turns.reply(give(0)).reward == 0.5
    with pytest.raises(EnvError):
        turns.reply(give(1))


def test_an_observation_beyond_the_budget_keeps_head_and_tail():
    """The cut is said in the text, and in `info` (case OB-01); 10 MB are no trouble."""
    for env, reply in (
        (FaultyEnv("huge"), Reply("a")),
        (FaultyToolEnv("huge"), Reply("", (ToolCall("act", {}, "c"),))),
    ):
        turns = as_turns(env)
        turns.start(Task())
        turn = turns.reply(reply)
        text = turn.messages[0]["content"]
        assert len(text) == 32_000
        assert text.startswith("line of a log")
        assert text.endswith("Permission denied")
        assert "of 10500017 characters cut" in text
        assert turn.info["observation_truncated"] is True


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("not_text", '{"board": [1, 2], "ok": true}'),
        ("special_tokens", SPECIAL_TEXT),
        ("unreadable", "[a result of type Unreadable that cannot be shown as text: "),
    ],
)
@pytest.mark.parametrize("kind", [FaultyEnv, FaultyToolEnv])
def test_observations_that_are_not_plain_text_become_one_text(kind, fault, text):
    """Data is JSON, template tokens stay text, what cannot be shown says so; the episode goes on (case OB-01)."""
    turns = as_turns(kind(fault))
    turns.start(Task())
    turn = turns.reply(Reply("a") if kind is FaultyEnv else Reply("", (ToolCall("act", {}, "c"),)))
    assert turn.messages[0]["content"].startswith(text)
    assert (turn.reward, turn.done) == (0.25, False)


def test_a_tool_error_of_a_text_environment_is_its_observation():
    """The model's mistake is what the model sees next, and earns nothing."""
    turns = TextTurns(FaultyEnv("tool_error"))
    turns.start(Task())
    turn = turns.reply(Reply("a"))
    assert turn.messages == ({"role": "user", "content": "Error: try something else"},)
    assert (turn.reward, turn.done) == (0.0, False)


def test_a_text_environment_with_tools_gets_the_calls_in_one_form():
    """The action holds each call as `<tool_call>`, and each call id has one result."""

    class Shop(Recorder):
        tools = [{"type": "function", "function": {"name": "buy"}}]

    turns = TextTurns(Shop())
    turns.start(Task())
    calls = (ToolCall("buy", {"item": "é"}, "a"), ToolCall("", None, "b", error="not JSON", raw='{"name": '))
    turn = turns.reply(Reply("I buy.", calls))
    blocks = ['{"name": "buy", "arguments": {"item": "é"}}', '{"name": ']
    action = "\n".join(["I buy.", *(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)])
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in turn.messages] == [
        ("tool", "a", action),
        ("tool", "b", "Answered with the call above."),
    ]
    assert [schema["function"]["name"] for schema in turns.tools()] == ["buy"]


def test_the_tools_are_those_of_the_episode():
    """An environment may offer other tools for the next task (A7)."""

    class Changing(Rewards):
        def reset(self, trajectory=None):
            self.name = trajectory["tool"]
            return StepResult("begin")

        def tools(self):
            return [{"type": "function", "function": {"name": self.name}}]

    turns = ToolTurns(Changing())
    names = []
    for name in ("read", "write", "write"):
        turns.start(Task(data={"tool": name}))
        names += [schema["function"]["name"] for schema in turns.tools()]
    assert names == ["read", "write", "write"]


def test_a_step_after_the_end_is_refused():
    """Nothing is run and nothing is earned; a reset begins the next episode (case TE-01)."""
    env = GuessToolEnv(highest=1)
    (guess, give_up) = EnvTool.from_env(env)
    env.reset()
    assert guess("guess", {"number": 1}) == "Correct!"
    with pytest.raises(EpisodeOverError):
        give_up("give_up", {})
    assert give_up.episode_reward == 1.0
    env.reset()
    assert (guess.done, guess.last_result) == (False, None)
    turns = TextTurns(FaultyEnv("raise", at=9, steps=1))
    turns.start(Task())
    turns.reply(Reply("a"))
    with pytest.raises(EpisodeOverError):
        turns.reply(Reply("b"))


def test_all_tools_of_an_environment_share_its_episode():
    """Any of them reports the same end and the same reward, whichever was called (T4, T5)."""
    env = GuessToolEnv(highest=1)
    guess, give_up = EnvTool.from_env(env)
    by_hand = EnvTool(env, "guess")
    env.reset()
    guess("guess", {"number": 1})
    assert [(t.done, t.episode_reward, t.last_result.reward) for t in (guess, give_up, by_hand)] == [
        (True, 1.0, 1.0)
    ] * 3


def test_the_environments_own_sum_is_the_episodes_reward():
    """`info["episode_reward"]` where it is given, else the sum; a step answered with an error changes neither."""

    class Summing(Rewards):
        def step(self, tool_name, arguments):
            if arguments["i"] == 9:
                raise ToolError("no")
            return StepResult("", 1.0, info={"episode_reward": 7.0} if arguments["i"] else {})

    env = Summing()
    (give_tool,) = EnvTool.from_env(env)
    manager = ToolManager([give_tool])
    for i, expected in ((0, 1.0), (0, 2.0), (9, 2.0), (1, 7.0)):
        manager.step(ToolCall("give", {"i": i}))
        assert give_tool.episode_reward == expected


def test_an_environment_without_tools_has_one_that_takes_any_object():
    """`from_env` falls back to `env_action`."""

    class Bare(Env):
        def step(self, tool_name, arguments):
            return StepResult(f"{tool_name} {arguments}")

    (only,) = EnvTool.from_env(Bare())
    assert ToolManager([only])({"function": {"name": "env_action", "arguments": '{"a": 1}'}}) == "env_action {'a': 1}"


@pytest.mark.parametrize("env", [GuessEnv(), GuessToolEnv, None], ids=["text", "class", "none"])
def test_only_a_tool_call_environment_has_tools(env):
    """The error says what was given, before anything is asked of it."""
    for make in (EnvTool.from_env, EnvTool):
        with pytest.raises(ConfigurationError, match=r"has no tool calls: .* an instance of a subclass of"):
            make(env)


@pytest.mark.parametrize("env", [GuessEnv(), GuessToolEnv()])
def test_close_reaches_the_environment_once(env):
    """`close` of the turns can be called again without harm."""
    turns = as_turns(env)
    turns.close()
    turns.close()
    assert env.closed == 1


def test_one_environment_for_several_episodes_at_once_is_refused():
    """The message asks for a factory (case CO-01 b, T13)."""
    shared = GuessEnv()
    with pytest.raises(ConfigurationError, match="give a factory"):
        refuse_shared([shared, TextTurns(shared)])
    tools = EnvTool.from_env(GuessToolEnv())
    with pytest.raises(ConfigurationError, match="one GuessToolEnv"):
        refuse_shared([ToolManager(tools), ToolManager(tools)])
    refuse_shared([GuessEnv(), GuessEnv(), GuessToolEnv()])


def test_a_turn_env_is_asked_for_its_tools_once_an_episode():
    """The loop may ask for them where it must not block."""

    class Own:
        asked = 0

        def start(self, task):
            return Turn(({"role": "user", "content": "begin"},))

        def reply(self, reply):
            raise NotImplementedError

        def tools(self):
            self.asked += 1
            return [{"type": "function", "function": {"name": "x"}}]

        def close(self):
            pass

    own = Own()
    turns = GuardedTurns(own)
    turns.start(Task())
    assert [turns.tools() for _ in range(3)] == [tuple(Own().tools())] * 3
    assert own.asked == 1
