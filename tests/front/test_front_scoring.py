"""What a finished trajectory is worth: the environment, its `evaluate`, reward functions, a judge, a success."""

import asyncio
import math
import threading

import numpy
import pytest
from front_scripts import ASK, BOTH, SUBMIT, Lab, call, rows

from tiltyard.envs.base import Env
from tiltyard.envs.tool import EnvTool
from tiltyard.errors import ConfigurationError, EnvError, PolicyError
from tiltyard.rollout.judge import LLMJudge, read_score
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.scoring import score_batch
from tiltyard.rollout.trace import read_traces
from tiltyard.tools.manager import ToolManager
from tiltyard.types import Reply, StepResult


class Silent(Lab):
    """Gives no reward of its own."""

    def step(self, tool_name, arguments):
        result = super().step(tool_name, arguments)
        return StepResult(result.observation, None, result.done)


class Late(Silent):
    """Scores at the end, from its own state and from the trajectory."""

    def __init__(self, value=None):
        super().__init__()
        self.value = value

    def evaluate(self, trajectories, **kwargs):
        [trajectory] = trajectories
        if isinstance(self.value, Exception):
            raise self.value
        return [len(self.ran) + trajectory["answer"] if self.value is None else self.value]


TWO = [call("add", a=1, b=2), SUBMIT]


def fate(result):
    return result["stop_reason"], result["reward"], result["rewards"]


@pytest.mark.parametrize("make", BOTH)
def test_the_reward_is_the_environments_unless_something_else_is_asked_for(make):
    """One reward a turn, and their sum; an end without one is unscored, which is not 0 (rows T6, A23)."""
    assert fate(make(TWO, env_factory=Lab)(rows(1))[0]) == ("done", 1.25, [0.25, 1.0])
    assert fate(make(TWO, env_factory=Silent)(rows(1))[0]) == ("unscored", None, [None, None])


@pytest.mark.parametrize("make", BOTH)
def test_evaluate_scores_each_trajectory_in_its_own_environment(make):
    """It sees the environment's state; what the loop had left unscored is done with it."""
    rollout = make(TWO, env_factory=Late, score="evaluate", preflight=False)
    assert [fate(r) for r in rollout([*rows(1, answer=0.5), *rows(1, answer=7)])] == [
        ("done", 2.5, [0.0, 2.5]),
        ("done", 9.0, [0.0, 9.0]),
    ]


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        ("0.5", "'0.5'"),
        (ZeroDivisionError("boom"), "Late.evaluate raised ZeroDivisionError: boom"),
    ],
)
def test_evaluate_that_gives_no_number_leaves_its_trajectory_unscored(make, value, error):
    """The others keep their scores."""

    def manager(row):
        return ToolManager(EnvTool.from_env(Late(row["value"])))

    rollout = make([SUBMIT], tool_manager=manager, score="evaluate", preflight=False)
    first, second = rollout([*rows(1, value=value), *rows(1, value=0.25)])
    assert (first["stop_reason"], first["reward"]) == ("unscored", None)
    assert error in first["error"]
    assert fate(second) == ("done", 0.25, [0.25])


@pytest.mark.parametrize("make", BOTH)
def test_evaluate_needs_an_environment(make):
    """Tools alone have none: the run is refused, not scored with zeros."""
    with pytest.raises(ConfigurationError, match="score='evaluate' needs one environment"):
        make(["Hello."], score="evaluate")(rows(1))


def length(trajectory):
    return len(trajectory["messages"]) / 10


async def letters(trajectory):
    return trajectory["letters"]


@pytest.mark.parametrize("make", BOTH)
def test_reward_functions_replace_the_environments_reward(make):
    """The weighted sum of the components, paid at the last turn; each component is told (row A22: async ones too)."""
    rollout = make(TWO, env_factory=Lab, reward_fns=[length, letters], reward_weights={"letters": 0.5})
    [result] = rollout(rows(1, letters=4))
    assert fate(result) == ("done", 2.6, [0.0, 2.6])
    assert result["reward_components"] == {"env": 1.25, "length": 0.6, "letters": 4.0}


@pytest.mark.parametrize("make", BOTH)
def test_the_environments_reward_counts_beside_functions_where_it_has_a_weight(make):
    """By name: `env`."""
    rollout = make(TWO, env_factory=Lab, reward_fns={"letters": letters}, reward_weights={"env": 2.0})
    assert rollout(rows(1, letters=1))[0]["reward"] == 3.5


@pytest.mark.parametrize("make", BOTH)
def test_a_component_that_is_none_leaves_the_trajectory_unscored(make):
    """Case RW-01: a sum without it could not be compared with the others of its group; None is never 0."""
    rollout = make([SUBMIT], env_factory=Lab, reward_fns=[length, letters])
    first, second = rollout([*rows(1, letters=None), *rows(1, letters=0)])
    assert fate(first) == ("unscored", None, [1.0])
    assert first["error"] == "the reward 'letters' gave None: the episode was not scored"
    assert fate(second) == ("done", 0.4, [0.4])


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", [0.5], {"score": 1}])
def test_what_is_no_number_fails_its_trajectory_and_names_the_component(make, value):
    """Case RW-01: nothing is parsed, reduced or replaced."""
    rollout = make([SUBMIT], env_factory=Lab, reward_fns=[letters])
    first, second = rollout([*rows(1, letters=value), *rows(1, letters=True)])
    assert (first["stop_reason"], first["reward"]) == ("unscored", None)
    assert first["error"].startswith("EnvError: reward 'letters' gave reward")
    assert second["reward"] == 1.0


@pytest.mark.parametrize("make", BOTH)
def test_numpy_rewards_are_numbers(make):
    """Case RW-01: scalars become Python floats."""
    rollout = make([SUBMIT], env_factory=Lab, reward_fns=[letters])
    results = rollout([*rows(1, letters=numpy.float32(0.1)), *rows(1, letters=numpy.bool_(False))])
    assert [(type(r["reward"]), r["reward"]) for r in results] == [(float, 0.10000000149011612), (float, 0.0)]


@pytest.mark.parametrize("make", BOTH)
def test_a_function_that_raises_or_hangs_fails_its_own_trajectory(make):
    """The others are scored; a thread that hangs is left behind."""
    let_go = threading.Event()

    def fickle(trajectory):
        if trajectory["how"] == "raise":
            raise KeyError("answer")
        if trajectory["how"] == "hang":
            let_go.wait()
        return 1.0

    rollout = make([SUBMIT], env_factory=Lab, reward_fns=[fickle], limits=Limits(step_timeout_s=1.5))
    results = rollout([*rows(1, how="raise"), *rows(1, how="hang"), *rows(1, how="score")])
    let_go.set()
    assert [result["reward"] for result in results] == [None, None, 1.0]
    assert "raised KeyError: 'answer'" in results[0]["error"]
    assert "did not return within 1.5 s" in results[1]["error"]


async def gives_up(result):
    raise asyncio.CancelledError


def gives_up_at_once(result):
    raise asyncio.CancelledError


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("reward", [gives_up, gives_up_at_once])
def test_a_cancellation_that_nobody_asked_for_fails_its_own_trajectory(make, reward):
    """It is one of the function's own, and must not pass for that of the run."""
    results = make(["3"], reward_fns={"mine": reward})(rows(2))
    assert [result["stop_reason"] for result in results] == ["unscored"] * 2
    assert results[0]["error"] == "EnvError: reward 'mine' raised CancelledError: "


@pytest.mark.parametrize("make", BOTH)
def test_a_sum_that_is_not_finite_is_no_reward(make):
    """Each part is a number and their weighted sum is none: the rule holds for it too."""
    rollout = make(["3"], reward_fns={"huge": lambda result: 1e308}, reward_weights={"huge": 10.0})
    [result] = rollout(rows(1))
    assert (result["stop_reason"], result["reward"]) == ("unscored", None)
    assert "the weighted sum of the rewards gave reward inf" in result["error"]


@pytest.mark.parametrize("make", BOTH)
def test_a_failed_episode_is_not_scored(make):
    """A crash of the environment stays what it is, whatever a function would say."""
    asked = []
    rollout = make([call("crash")], env_factory=Lab, reward_fns=[asked.append])
    assert fate(rollout(rows(1))[0])[:2] == ("env_error", None)
    assert asked == []


@pytest.mark.parametrize("make", BOTH)
def test_a_truncated_episode_keeps_its_ending_without_a_score(make):
    """Truncated says enough: it is not failed."""
    rollout = make(["x" * 400], env_factory=Lab, reward_fns=[letters], limits=Limits(max_tokens_per_turn=20))
    assert fate(rollout(rows(1, letters=None))[0]) == ("length", None, [None])
    assert fate(rollout(rows(1, letters=0.5))[0]) == ("length", 0.5, [0.5])


@pytest.mark.parametrize("make", BOTH)
def test_what_is_traced_is_what_was_scored(make, tmp_path):
    """The record has the components, the result and the trace agree."""
    rollout = make([SUBMIT], env_factory=Lab, reward_fns=[letters], trace_dir=tmp_path)
    [result] = rollout(rows(1, letters=0.5))
    [record] = read_traces(rollout.traces.path)
    assert (record["reward"], record["info"]["reward_components"]) == (0.5, {"env": 1.0, "letters": 0.5})
    assert result["reward"] == 0.5


@pytest.mark.parametrize("make", BOTH)
def test_success_is_decided_by_a_callable(make):
    """It sees the scored trajectory; without it the environment's own word counts."""
    assert make([SUBMIT], env_factory=Lab)(rows(1))[0]["success"] is True
    rollout = make([SUBMIT], env_factory=Lab, success_callback=lambda trajectory: trajectory["reward"] > 5)
    assert rollout(rows(1))[0]["success"] is False
    rollout = make([SUBMIT], env_factory=Lab, success_callback=lambda trajectory: trajectory["missing"])
    [result] = rollout(rows(1))
    assert (result["stop_reason"], result["success"]) == ("unscored", True)
    assert "success_callback raised KeyError" in result["error"]


class Judge:
    """A served model that judges: it says its lines in order."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.prompts = []

    async def reply(self, prompt, *, max_tokens):
        self.prompts.append(prompt.messages[0]["content"])
        line = self.lines[(len(self.prompts) - 1) % len(self.lines)]
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, Reply) else Reply(line)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        return None


@pytest.mark.parametrize("make", BOTH)
def test_a_judge_reads_the_conversation_and_gives_the_reward(make):
    """Its thinking may come first; the number is on the last line."""
    api = Judge("The answer is right.\nScore: 0.75")
    rollout = make(["It is 3."], reward_fns=[LLMJudge(api, "3 is right.")])
    [result] = rollout(rows(1))
    assert (result["reward"], result["reward_components"]["judge"]) == (0.75, 0.75)
    assert "user: Go.\n\nassistant: It is 3." in api.prompts[0]
    assert "3 is right." in api.prompts[0]


@pytest.mark.parametrize("make", BOTH)
def test_a_judge_that_cannot_be_read_leaves_the_trajectory_unscored(make):
    """Never 0: that would teach the policy to avoid what the judge could not write about."""
    [result] = make(["It is 3."], reward_fns=[LLMJudge(Judge("I would say eight of ten."))])(rows(1))
    assert (result["stop_reason"], result["reward"]) == ("unscored", None)


@pytest.mark.parametrize("make", BOTH)
def test_a_judge_whose_server_fails_fails_its_trajectory(make):
    """The reason is the server's."""
    [result] = make(["It is 3."], reward_fns=[LLMJudge(Judge(PolicyError("503 from the server")))])(rows(1))
    assert (result["stop_reason"], result["error"]) == ("unscored", "PolicyError: 503 from the server")


@pytest.mark.parametrize("make", BOTH)
def test_a_judge_that_was_cut_off_gives_no_number(make):
    """Half an answer could end with half a number."""
    cut = Reply("Score: 0.1", finish_reason="length")
    assert make(["It is 3."], reward_fns=[LLMJudge(Judge(cut))])(rows(1))[0]["reward"] is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 0.5", 0.5),
        ("Good.\n\nScore: 1\n", 1.0),
        ("Score: .25", 0.25),
        ("Score: 1.5", None),
        ("Score: -0.1", None),
        ("Score: 0.5/1", None),
        ("Score: 0.5 or so", None),
        ("**Score: 0.5**", None),
        ("Score: 0.5\nThat is all.", None),
        ("Score: nan", None),
        ("0.5", None),
        ("", None),
    ],
)
def test_a_judges_number_is_read_strictly(text, score):
    """The last line is `Score: <number>` in range, or there is no score."""
    assert read_score(text) == score


def test_a_judge_is_refused_that_could_not_judge():
    """An empty range, a prompt without the conversation, or one that cannot be filled in."""
    for options in ({"low": 1.0, "high": 1.0}, {"prompt": "Well?"}, {"prompt": "{conversation} {answer}"}):
        with pytest.raises(ConfigurationError):
            LLMJudge(Judge("Score: 1"), **options)
    with pytest.raises(ConfigurationError, match="must answer messages, as OpenAI"):
        LLMJudge("gpt")


class Batch(Env):
    """Scores the best of a batch with 1."""

    def __init__(self, give=None):
        self.give = give

    def step(self, tool_name, arguments):
        return StepResult()

    def evaluate(self, trajectories, best=None):
        return self.give if self.give is not None else [float(t["answer"] == best) for t in trajectories]


@pytest.mark.parametrize("make", BOTH)
def test_a_batch_is_scored_with_one_call(make):
    """After the rollout, in their order; failed ones are left out and stay as they were."""
    rollout = make([SUBMIT], env_factory=Silent, preflight=False)
    results = rollout([*rows(1, answer=1), *rows(1, answer=2, tools=["fly"]), *rows(1, answer=3)])
    scored = score_batch(Batch(), results, best=3)
    assert [(r["stop_reason"], r["reward"]) for r in scored] == [("done", 0.0), ("env_error", None), ("done", 1.0)]
    assert [r["stop_reason"] for r in results] == ["unscored", "env_error", "unscored"]


@pytest.mark.parametrize("give", [[1.0], [1.0, "a"], 3.0, [1.0, math.nan]])
def test_a_batch_whose_scores_do_not_fit_is_refused(give):
    """Never broadcast, never cut (case RW-01)."""
    done = {"messages": [ASK], "stop_reason": "done", "rewards": [0.0], "reward": 0.0, "truncated": False}
    with pytest.raises(EnvError, match=r"Batch\.evaluate"):
        score_batch(Batch(give), [done, done])


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"reward_fns": [length, length]}, "two reward functions are named 'length'"),
        ({"reward_fns": {"env": length}}, "'env' is the environment's own"),
        ({"reward_fns": {"a": 3}}, "must be callable"),
        ({"reward_fns": [length], "reward_weights": {"lenght": 1.0}}, "a weight is given for 'lenght'"),
        ({"reward_fns": [length], "reward_weights": {"length": math.inf}}, "must be a finite number"),
    ],
)
def test_rewards_that_cannot_be_summed_are_refused(make, options, problem):
    """By the constructor."""
    with pytest.raises(ConfigurationError, match=problem):
        make([SUBMIT], **options)
