"""`check_env` finds what a run would stumble over, and says what to do."""

import random

import pytest

from tiltyard.envs.base import Env
from tiltyard.envs.check import check_env
from tiltyard.errors import ConfigurationError, EpisodeOverError
from tiltyard.testing.faulty import FaultyEnv, FaultyToolEnv
from tiltyard.testing.guess import GuessEnv, GuessToolEnv
from tiltyard.types import Reply, StepResult


class Sound:
    """A text environment of three steps; the faulty ones below change one thing."""

    def reset(self, seed=None):
        self.number = random.Random(seed).randint(100, 999)
        self.left = 3
        return f"Recall {self.number % 10}.", {}

    def step(self, action):
        if not self.left:
            raise EpisodeOverError("over")
        self.left -= 1
        return "next", 0.5, not self.left, False, {}


def found(report):
    return {(finding.check, finding.level) for finding in report.findings}


@pytest.mark.parametrize("env", [Sound, GuessEnv, GuessToolEnv, GuessToolEnv()])
def test_a_sound_environment_passes(env):
    """Classes, factories and instances of text and tool environments."""
    report = check_env(env)
    assert (report.ok, report.findings) == (True, ())
    assert str(report).endswith("is sound: 0 errors, 0 warnings")


def test_what_needs_several_instances_is_skipped_for_one():
    """The report says what was not tried, and nothing of the caller's is closed."""
    env = GuessEnv()
    assert [line.partition(" (")[0] for line in check_env(env).skipped] == [
        "close can be called twice",
        "resets at the same time do not mix",
    ]
    assert env.closed == 0


class Silent(Sound):
    def reset(self, seed=None):
        super().reset(seed)
        return "", {}

    def step(self, action):
        return None


def test_a_warning_about_the_reset_does_not_end_the_check():
    """Tasks may bring the messages; what is wrong with the steps is found all the same."""
    assert ("an episode can be played", "error") in found(check_env(Silent))


def test_what_the_check_made_it_closes():
    """Each environment of the factory is given back."""
    made = []

    def factory():
        made.append(GuessEnv())
        return made[-1]

    check_env(factory)
    assert made
    assert all(env.closed for env in made)


@pytest.mark.parametrize(
    "fault", ["raise", "hang", "lost", "return_none", "short_result", "reward_nan", "reward_text", "done_text"]
)
@pytest.mark.parametrize("kind", [FaultyEnv, FaultyToolEnv])
def test_a_step_that_breaks_is_an_error_and_the_check_ends(kind, fault):
    """A hang and a raise are contained: they become findings."""
    report = check_env(lambda: kind(fault), timeout_s=1.5)
    assert ("an episode can be played", "error") in found(report)
    assert not report.ok
    assert report.name == kind.__name__


@pytest.mark.parametrize("fault", ["raise", "hang", "return_none"])
def test_a_reset_that_breaks_ends_the_check(fault):
    """Nothing else can be tried, and the report says so."""
    report = check_env(lambda: FaultyEnv(fault, at=0), timeout_s=1.5)
    assert found(report) == {("it can be made and reset", "error")}
    assert all("cannot be opened" in line for line in report.skipped)


def test_a_seed_that_is_ignored_is_an_error():
    """Members of a group would get different tasks."""

    class Random(Sound):
        def reset(self, seed=None):
            super().reset(random.random())
            return f"Recall {self.number}.", {}

    assert ("the same seed gives the same first observation", "error") in found(check_env(Random))


def test_chance_after_the_reset_is_a_warning():
    """It may be meant; the report says what it costs."""

    class Noisy(Sound):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, random.random(), *rest

    assert found(check_env(Noisy)) == {("the same seed gives the same first observation", "warning")}


def test_a_step_after_the_end_that_is_allowed_is_a_warning():
    """The loop never asks for one, other callers may."""

    class Endless(Sound):
        def step(self, action):
            self.left -= 1
            return "next", 1.0, self.left <= 0, False, {}

    report = check_env(Endless)
    assert found(report) == {("an episode ends, and stays ended", "warning")}
    assert "EpisodeOverError" in report.warnings[0].cure


def test_an_end_that_is_not_scored_is_an_error():
    """Every episode would count as failed."""
    assert ("an episode ends, and stays ended", "error") in found(check_env(lambda: FaultyEnv("reward_none", at=2)))


def test_an_end_that_was_not_reached_is_a_warning():
    """`play` is the cure."""
    report = check_env(GuessEnv, play=lambda messages, tools: Reply("0"))
    assert found(report) == {("an episode ends, and stays ended", "warning")}


@pytest.mark.parametrize("told", ['{"board": 1, "reward": 0.5}', "reward = 0.5", "done: False"])
def test_an_observation_that_tells_the_reward_is_an_error(told):
    """The model must not see it (T7)."""

    class Telling(Sound):
        def step(self, action):
            _, *rest = super().step(action)
            return told, *rest

    assert found(check_env(Telling)) == {("observations hold neither reward nor answer", "error")}


def test_an_observation_that_holds_the_answer_is_found():
    """An error where the answer is named, a warning where only `info` hints at it."""

    class Leaking(Sound):
        def step(self, action):
            _, *rest, _ = super().step(action)
            return f"It is not {self.number}.", *rest, {"answer": self.number}

    check = "observations hold neither reward nor answer"
    assert found(check_env(Leaking)) == {(check, "warning")}
    assert found(check_env(Leaking, answer=lambda env: str(env.number))) == {(check, "error")}


def test_a_text_that_an_action_breaks_is_found_with_the_action():
    """A model in training writes anything."""

    class Strict(Sound):
        def step(self, action):
            int(action)
            return super().step(action)

    report = check_env(Strict)
    assert found(report) == {("whatever the model writes gets an answer", "error")}
    assert "invalid literal for int" in str(report)


def test_tool_schemas_that_do_not_work_are_errors():
    """Twice the same name, or parameters that are no schema."""

    class Twice(Env):
        def reset(self, trajectory=None):
            return StepResult("begin")

        def step(self, tool_name, arguments):
            return StepResult("", 0.0, True)

        def tools(self):
            return [{"type": "function", "function": {"name": "x", "description": "X."}}] * 2

    report = check_env(Twice)
    assert not report.ok
    assert "a tool named 'x' is registered already" in str(report)


def test_a_close_that_cannot_be_repeated_is_an_error():
    """It is called at teardown, and again by whoever is not sure."""

    class Once(Sound):
        gone = False

        def close(self):
            if self.gone:
                raise RuntimeError("closed already")
            self.gone = True

    assert ("close can be called twice", "error") in found(check_env(Once))


def test_state_that_instances_share_is_an_error():
    """Episodes at the same time would write into each other."""
    shared = GuessEnv()
    assert ("resets at the same time do not mix", "error") in found(check_env(lambda: shared))


@pytest.mark.parametrize("size", [0, -1, "6", True, 2.5])
def test_a_dataset_size_that_is_no_count_is_an_error(size):
    """Rows are counted with it."""

    class Rows(Sound):
        dataset_size = size

    assert found(check_env(Rows)) == {("it can be made and reset", "error")}


def test_a_dataset_needs_a_reset_that_takes_rows():
    """The cure has the signature."""

    class Rows(Sound):
        dataset_size = 6

    assert "row_index=None, evaluation=False" in str(check_env(Rows))


def test_arguments_that_cannot_work_are_refused():
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match="instances >= 2"):
        check_env(GuessEnv, instances=1)
