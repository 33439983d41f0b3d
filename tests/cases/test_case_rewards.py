"""Cases RW-01, RW-02 and RW-04: what is no reward poisons nothing, and what is equal is equal."""

import dataclasses
import json

import numpy as np
import pytest
from odd_values import ODD

from tiltyard.envs.base import Env
from tiltyard.errors import EnvError
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import to_record
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.train.advantage import Score, assign, group_advantages
from tiltyard.types import StepResult, Task, Turn

TOKENIZER = byte_tokenizer("chatml_tools")
RENDERER = make_renderer(TOKENIZER, tools=True)
CALL = '<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call>'
SCALES = ["group", "none", "batch"]


class Text:
    """A text environment that gives `value` in one place of its protocol, and a sound one without it."""

    def __init__(self, place="", value=None):
        self.place, self.value = place, value
        if place in ("system_prompt", "tools"):
            setattr(self, place, value)

    def put(self, **fields):
        return {name: self.value if name == self.place else sound for name, sound in fields.items()}

    def reset(self, seed=None):
        given = self.put(opening="Go.", opening_info={})
        return self.value if self.place == "reset" else (given["opening"], given["opening_info"])

    def step(self, action):
        given = self.put(observation="Over.", reward=1.0, terminated=True, truncated=False, info={})
        for word in ("success", "valid"):
            if self.place == word:
                given["info"] = {word: self.value}
        return self.value if self.place == "step" else tuple(given.values())


class Tools(Env):
    """The same for a tool-call environment."""

    def __init__(self, place="", value=None):
        self.place, self.value = place, value
        if place in ("system_prompt", "examples"):
            setattr(self, place, value)

    put = Text.put

    def reset(self, trajectory=None):
        given = self.put(opening="Go.", start_reward=0.0)
        return self.value if self.place == "reset" else StepResult(given["opening"], given["start_reward"])

    def step(self, tool_name, arguments):
        given = self.put(observation="Over.", reward=1.0, done=True, info={}, truncated=False)
        return self.value if self.place == "step" else StepResult(**given)

    def tools(self):
        function = {"name": "act", "description": "Act.", **self.put(parameters={"type": "object"})}
        return self.value if self.place == "tools" else [{"type": "function", "function": function}]


class Own:
    """The same for a `TurnEnv`."""

    def __init__(self, place="", value=None):
        self.place, self.value = place, value

    put = Text.put

    def start(self, task):
        content = self.put(content="Go.")["content"]
        given = self.put(opening=({"role": "user", "content": content},))
        return self.value if self.place == "start" else Turn(given["opening"])

    def reply(self, reply):
        given = self.put(messages=(), reward=1.0, done=True, truncated=False, stopped=False, info={})
        return self.value if self.place == "reply" else Turn(**given)

    def tools(self):
        return self.value if self.place == "tools" else ()

    def close(self):
        pass


PLACES = {
    Text: "reset opening opening_info step observation reward terminated truncated info success valid "
    "system_prompt tools",
    Tools: "reset opening start_reward step observation reward done info truncated tools parameters system_prompt "
    "examples",
    Own: "start opening content reply messages reward done truncated stopped info tools",
}


@pytest.mark.parametrize(
    ("kind", "place"), [(kind, place) for kind, places in PLACES.items() for place in places.split()]
)
def test_whatever_an_environment_returns_costs_its_own_episode_and_no_other(kind, place):
    """RW-01: odd values in any place of a protocol give a reward that is finite or None, and a line of plain JSON."""
    line = "x" if kind is Text else CALL
    envs = [kind(place, value) for value in ODD.values()] + [kind()]
    jobs = [Job(env, Task(), f"e{number}") for number, env in enumerate(envs)]
    found = BatchedRollout(ScriptedTokens(TOKENIZER, [line]), RENDERER, Limits(max_turns=1)).run(jobs)
    assert (found[-1].ending, found[-1].reward) == (Ending.DONE, 1.0)
    for trajectory in found:
        json.dumps(to_record(trajectory), allow_nan=False)
        assert trajectory.reward in (None, 0.0, 1.0)
        assert not trajectory.failed or trajectory.error


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "0.5", [0.5]])
def test_a_turn_env_of_ones_own_is_held_to_the_same_rewards(reward):
    """RW-01: inf, NaN, text and lists are refused with the environment's name and the value."""
    [trajectory] = BatchedRollout(ScriptedTokens(TOKENIZER, ["x"]), RENDERER, Limits()).run(
        [Job(Own("reward", reward), Task(), "e")]
    )
    assert (trajectory.ending, trajectory.reward) == (Ending.ENV_ERROR, None)
    assert f"Own.reply gave reward {reward!r}" in trajectory.error


@pytest.mark.parametrize("word", ["success", "valid"])
@pytest.mark.parametrize(
    ("value", "failed"),
    [(True, False), (np.bool_(False), False), (1, False), (None, False), ("False", True), (3, True)],
)
def test_what_evaluation_counts_is_true_or_false(word, value, failed):
    """RW-01: the text "False" would count as a success, and 3 as one valid turn."""
    [trajectory] = BatchedRollout(ScriptedTokens(TOKENIZER, ["x"]), RENDERER, Limits()).run(
        [Job(Text(word, value), Task(), "e")]
    )
    assert trajectory.failed is failed
    assert not failed or f"info['{word}']={value!r}" in trajectory.error


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [float, np.float32, np.float16])
def test_equal_rewards_are_equal_in_every_type_of_number(dtype, scale):
    """RW-02: seven times 0.9 has a deviation of 6e-8 in float32, and none here."""
    assert group_advantages([float(dtype(0.9))] * 7, scale) == [0.0] * 7


def episode(*rewards):
    return Trajectory("e", Task(), Ending.DONE, rewards=rewards)


def credits_of(groups, granularity, scale, discount=0.0):
    scores = [[Score(t.reward, t.rewards) for t in group] for group in groups]
    return assign(scores, granularity, scale, discount)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "members",
    [
        [(0.1, 0.2), (0.3, 0.0), (0.2, 0.1)],
        [(0.1, 0.2, -0.3), (0.0, 0.0, 0.0)],
        [(0.1,) * 10, (1.0,)],
        [(1e6, 0.1, -1e6), (0.1,)],
    ],
)
def test_sums_that_only_rounding_tells_apart_are_equal(members, scale):
    """RW-02: 0.1 + 0.2 is 4e-17 more than 0.3; over a deviation of 4e-17 that would be an advantage of 0.7."""
    other = [episode(1.0), episode(0.0)]
    found = credits_of([[episode(*rewards) for rewards in members], other], "trajectory", scale)
    assert [set(credit) for credit in found.by_group[0]] == [{0.0}] * len(members)
    assert found.zero_variance == 1


def test_returns_that_only_rounding_tells_apart_are_equal():
    """RW-02, for turns: what is left to earn at the first turn is 0.3 either way."""
    found = credits_of([[episode(0.1, 0.2), episode(0.3, 0.0)]], "turn", "group", discount=1.0)
    assert [credit[0] for credit in found.by_group[0]] == [0.0, 0.0]


def test_a_small_difference_is_one_all_the_same():
    """RW-02: 1e-7 on 0.5 is no rounding error of float64."""
    assert [round(a, 6) for a in group_advantages([0.5, 0.5000001])] == [-0.707107, 0.707107]


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_too_large_to_add_up_teach_nothing(scale):
    """RW-01: neither NaN nor an error of arithmetic reaches the batch."""
    assert group_advantages([1e308, 1e308, -1e308, 0.0], scale) == [0.0] * 4


def test_the_trajectory_of_a_group_that_teaches_nothing_is_still_whole():
    """RW-02: a single member is logged and evaluated, with its reward."""
    record = to_record(dataclasses.replace(episode(1.0), success=True))
    assert (record["reward"], record["success"], record["failed"]) == (1.0, True, False)


def test_a_number_that_no_float_holds_is_refused_as_infinite():
    """RW-01: 10 ** 400 has no float; the error names the environment, and not the arithmetic."""
    env = Text("reward", 10**400)
    [trajectory] = BatchedRollout(ScriptedTokens(TOKENIZER, ["x"]), RENDERER, Limits()).run([Job(env, Task(), "e")])
    assert trajectory.error.startswith(f"{EnvError.__name__}: Text.step gave reward 1000")


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_exception_that_has_no_text_is_a_failure_like_any_other():
    """RW-01: what is wrong with the environment is said although its exception cannot say it."""

    class Raising(Text):
        def step(self, action):
            raise Silent

    [trajectory] = BatchedRollout(ScriptedTokens(TOKENIZER, ["x"]), RENDERER, Limits()).run(
        [Job(Raising(), Task(), "e")]
    )
    assert trajectory.error == (
        "EnvError: Raising.step raised Silent: a Silent whose text cannot be had (RuntimeError)"
    )
