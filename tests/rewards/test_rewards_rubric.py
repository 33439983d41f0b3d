"""Rubrics of parts: what an answer earns, and what each part says of it."""

from collections.abc import Callable

import numpy as np
import pytest

from tiltyard import ConfigurationError, EnvError, Gate, LLMJudge, OpenAI, PolicyError, Sequential, WeightedSum
from tiltyard.rewards import Answer, Rubric, Verdict, as_rubric
from tiltyard.testing.openai_server import Answer as Served
from tiltyard.testing.openai_server import OpenAIServer

ANSWER = Answer("text", {"answer": 1}, ({"role": "user", "content": "Ask."},))


def gives(value, asked=None):
    def part(completion):
        if asked is not None:
            asked.append(value)
        return value

    return part


def test_a_weighted_sum_adds_its_parts():
    """Each score is multiplied by its weight; the parts are reported without it."""
    verdict = WeightedSum({"format": gives(0.5), "right": gives(True)}, weights={"right": 2.0}).score(ANSWER)
    assert verdict.reward == 2.5
    assert verdict.parts == {"format": 0.5, "right": 1.0}


def test_a_weight_may_be_a_number_of_numpy():
    """Whatever is a real number is one."""
    verdict = WeightedSum({"right": gives(1)}, weights={"right": np.float32(0.5)}).score(ANSWER)
    assert verdict.reward == 0.5


def test_a_part_without_a_score_leaves_the_answer_unscored():
    """A sum without it could not be compared with the other answers of its group."""
    verdict = WeightedSum({"format": gives(0.5), "judge": gives(None)}).score(ANSWER)
    assert verdict.reward is None
    assert verdict.parts == {"format": 0.5}


def test_a_part_of_weight_zero_is_only_looked_at():
    """It is reported, and its None unscores nothing."""
    verdict = WeightedSum({"right": gives(1), "length": gives(None)}, weights={"length": 0}).score(ANSWER)
    assert verdict.reward == 1.0


def test_a_sequence_stops_at_the_first_part_that_does_not_pass():
    """The parts behind it are not asked; those before it have earned what they earned."""
    asked = []
    parts = {"format": gives(0.25, asked), "number": gives(0.0, asked), "right": gives(1.0, asked)}
    verdict = Sequential(parts).score(ANSWER)
    assert verdict.reward == 0.25
    assert verdict.parts == {"format": 0.25, "number": 0.0}
    assert asked == [0.25, 0.0]


def test_a_sequence_that_passes_is_the_sum_of_its_parts():
    """Each times its weight; `above` says what passes."""
    parts = {"format": gives(0.5), "right": gives(1.0)}
    assert Sequential(parts, weights={"format": 0.1}).score(ANSWER).reward == 1.05
    assert Sequential(parts, above=0.5).score(ANSWER).reward == 0.5


def test_a_gate_blocks_what_does_not_pass():
    """Then the answer earns 0, and the rest is not asked."""
    asked = []
    closed = Gate(gives(0), gives(1.0, asked)).score(ANSWER)
    assert (closed.reward, dict(closed.parts), asked) == (0.0, {"gate": 0.0}, [])
    verdict = Gate(gives(True), WeightedSum({"right": gives(1.0)})).score(ANSWER)
    assert (verdict.reward, dict(verdict.parts)) == (1.0, {"gate": 1.0, "right": 1.0})
    assert Gate(gives(None), gives(1.0)).score(ANSWER).reward is None


def test_parts_within_parts_have_both_names():
    """A rubric is a part like any function."""
    style = WeightedSum({"short": gives(1.0), "plain": gives(0.5)})
    verdict = WeightedSum({"style": style, "right": gives(0.0)}, weights={"style": 0.1}).score(ANSWER)
    assert verdict.reward == pytest.approx(0.15)
    assert verdict.parts == {"style.short": 1.0, "style.plain": 0.5, "right": 0.0}


@pytest.mark.parametrize("rubric", [
    WeightedSum({"a": gives(1e308), "b": gives(1e308)}),
    WeightedSum({"a": gives(1e300)}, weights={"a": -1e8 * 9}),
    WeightedSum({"a": gives(1e308), "b": gives(-1e308)}, weights={"a": 10, "b": 10}),
    Sequential({"a": gives(1e308), "b": gives(1e308)}),
    Gate(gives(1), WeightedSum({"a": gives(1e308), "b": gives(1e308)})),
])  # fmt: skip
def test_finite_parts_whose_sum_is_not_are_an_error(rubric):
    """An infinity or NaN is no reward, whoever made it; the parts are named."""
    with pytest.raises(EnvError, match=r"of a.* came to -?(inf|nan) from \{'a': 1e\+30"):
        rubric.score(ANSWER)


def test_every_part_is_reported_under_a_name_of_its_own():
    """Whatever parts within parts are called."""
    inner = WeightedSum({"a": WeightedSum({"b": gives(1), "a": gives(2)}), "b": gives(3)})
    assert WeightedSum({"a": inner}).score(ANSWER).parts == {"a.a.b": 1.0, "a.a.a": 2.0, "a.b": 3.0}
    gates = Gate(gives(1), Gate(gives(2), Gate(gives(3), WeightedSum({"gate": gives(4), "then": gives(5)}))))
    assert sorted(gates.score(ANSWER).parts.values()) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert gates.score(ANSWER).parts["then.gate"] == 2.0


def test_a_part_called_as_one_within_another_would_be_is_refused():
    """Their scores could not be told apart."""
    with pytest.raises(ConfigurationError, match=r"called 'a\.b', as one within the part 'a'"):
        WeightedSum({"a.b": gives(1), "a": WeightedSum({"b": gives(2)})})


def test_an_error_names_its_part():
    """One part that cannot be computed fails the episode, however small its weight."""
    with pytest.raises(EnvError, match="the reward 'length'"):
        WeightedSum({"right": gives(1), "length": gives(float("nan"))}, weights={"length": 0.001}).score(ANSWER)


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightedSum({}),
        lambda: WeightedSum([gives(1)]),
        lambda: WeightedSum({"a": 1}),
        lambda: WeightedSum({"a": gives(1)}, weights={"b": 1}),
        lambda: WeightedSum({"a": gives(1)}, weights={"a": float("nan")}),
        lambda: WeightedSum({"a": gives(1)}, weights={"a": True}),
        lambda: WeightedSum({1: gives(1)}),
        lambda: WeightedSum({"": gives(1)}),
        lambda: Sequential({"a": gives(1)}, above="0.5"),
        lambda: Gate(gives(1), gives(1), above=float("nan")),
    ],
)
def test_a_rubric_that_cannot_be_is_refused_when_it_is_made(make: Callable):
    """Not when the first answer is scored."""
    with pytest.raises(ConfigurationError):
        make()


def test_every_part_is_checked_against_the_columns():
    """Those behind a gate too, which no answer may have reached yet."""
    rubric = Gate(gives(1), Sequential({"a": gives(1), "b": lambda nums: 1}))
    with pytest.raises(ConfigurationError, match=r"'b' asks for 'nums'"):
        rubric.check(("answer",))


class Half(Rubric):
    """A rubric of one's own."""

    def score(self, answer):
        return Verdict(0.5, {"length": float(len(answer.completion))})


def test_a_rubric_of_ones_own_is_a_class_with_one_method():
    """It is a part like any other."""
    rubric = WeightedSum({"half": Half(), "right": gives(1)})
    rubric.check(("answer",))
    assert rubric.score(ANSWER) == Verdict(1.5, {"half.length": 4.0, "right": 1.0})


class OpenEnvLike:
    """An OpenEnv rubric: called with an action and an observation, its children keep what they said last."""

    class Child:
        last_score = None

    def __init__(self):
        self.children = {"format": self.Child(), "right": self.Child()}

    def __call__(self, action, observation):
        self.children["format"].last_score = 1.0
        self.children["right"].last_score = float(action.message == observation.answer)
        return 0.5

    def named_rubrics(self):
        return self.children.items()


def test_an_openenv_rubric_is_a_rubric_and_its_children_are_parts():
    """It needs no wrapping."""
    verdict = as_rubric(OpenEnvLike()).score(Answer("2", {"answer": "2"}))
    assert verdict.reward == 0.5
    assert verdict.parts == {"OpenEnvLike": 0.5, "OpenEnvLike.format": 1.0, "OpenEnvLike.right": 1.0}


def test_a_judge_is_a_part_that_sees_the_conversation():
    """Its number is the part's score."""
    with OpenAIServer(["It is good.\nScore: 0.75"]) as server:
        judge = LLMJudge(OpenAI("judge", base_url=server.base_url), "Is it good?")
        verdict = WeightedSum({"judge": judge, "right": gives(1)}, weights={"judge": 2}).score(ANSWER)
        asked = server.bodies[0]["messages"][0]["content"]
    assert verdict.reward == 2.5
    assert verdict.parts["judge"] == 0.75
    assert "user: Ask." in asked
    assert "assistant: text" in asked


def test_a_judge_without_a_number_leaves_the_answer_unscored():
    """An unreadable answer is not 0."""
    with OpenAIServer(["I would say Score: 1, or so."]) as server:
        judge = LLMJudge(OpenAI("judge", base_url=server.base_url))
        assert WeightedSum({"judge": judge}).score(ANSWER).reward is None


def test_a_judge_whose_server_fails_fails_the_episode():
    """The episode is unscored, not worth 0."""
    with OpenAIServer([Served(status=500)]) as server, pytest.raises(PolicyError):
        WeightedSum({"judge": LLMJudge(OpenAI("judge", base_url=server.base_url, max_retries=0))}).score(ANSWER)


def test_a_judge_can_be_told_what_is_right():
    """Columns of the row stand with its rubric."""
    with OpenAIServer(["Score: 1"]) as server:
        judge = LLMJudge(OpenAI("judge", base_url=server.base_url), "Is it right?", columns=("answer",))
        assert as_rubric(judge).score(ANSWER).reward == 1.0
        assert "Is it right?\n\nanswer: 1\n" in server.bodies[0]["messages"][0]["content"]
