"""What a run relies on is tried out first; what cannot work is refused with its cure."""

import pytest
from front_scripts import BOTH, RENDERER, SUBMIT, TOKENIZER, Lab, rows, schema

from tiltyard.errors import ConfigurationError, TemplateError
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.multi_turn import MultiTurnRollout
from tiltyard.rollout.preflight import preflight
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tools.base import tool
from tiltyard.tools.manager import ToolManager

SCHEMAS = Lab().tools()


def test_a_report_says_what_was_tried():
    """For a person, before a long run."""
    report = preflight(tokenizer=TOKENIZER, tools=SCHEMAS[:2])
    assert report.tools == ("add", "submit")
    assert report.passed == (
        "tool schemas are valid, and their names unique",
        "what follows a sampled turn is what the chat template writes there",
        "a turn ends with '<|im_end|>'",
        "text that looks like a special token stays text",
        "the tools are in the prompt",
        "a call of 'add' is read as the chat template writes it",
        "a call of 'submit' is read as the chat template writes it",
    )
    assert str(report).endswith("ready, 2 tools: add, submit")


@pytest.mark.parametrize("template", ["chatml", "chatml_tools", "no_system", "alternating", "default_system", "inst"])
def test_every_kind_of_template_takes_tools_or_says_so(template):
    """A template without a tools branch shows them even so, and their calls are read (row T27)."""
    report = preflight(tokenizer=byte_tokenizer(template), tools=SCHEMAS)
    assert "the tools are in the prompt" in report.passed
    assert "a call of 'add' is read as the chat template writes it" in report.passed


def test_a_template_that_opens_the_thinking_is_tried_with_its_family():
    """Its history lacks what the prompt opens, so that it does not write a call as the model does."""
    with pytest.warns(UserWarning, match="rewrites history"):
        report = preflight(tokenizer=byte_tokenizer("generation"), tools=SCHEMAS[:1])
    [said] = [line for line in report.passed if "'add'" in line]
    assert said.startswith("a call of 'add' is read as its family writes it")


def test_calls_of_another_family_than_the_template_writes_are_refused():
    """Rows A17 and T20: a run of which no call is read would be a silent run with zero calls."""
    with pytest.raises(TemplateError, match="the parser of the model's own"):
        preflight(tokenizer=TOKENIZER, tools=SCHEMAS, parser="mistral")


def test_a_family_that_does_not_exist_is_refused():
    """With those that do."""
    with pytest.raises(ConfigurationError, match="hermes"):
        preflight(tokenizer=TOKENIZER, tools=SCHEMAS, parser="qwne")


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([schema("add"), schema("add")], "two tools are named 'add'"),
        ([{"name": "add"}], "a tool schema must be"),
        ([schema("add", a={"type": "number?"})], "not a JSON schema"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(tools, problem):
    """The names in the prompt are the names that are called (row T2)."""
    with pytest.raises(ConfigurationError, match=problem):
        preflight(RENDERER, tools)


class Closing(Lab):
    """Written down: what is made, reset and closed."""

    log: list[str] = []

    def __init__(self):
        super().__init__()
        self.log.append("made")

    def reset(self, trajectory=None):
        self.log.append("reset")
        return super().reset(trajectory)

    def close(self):
        self.log.append("closed")
        super().close()


@pytest.mark.parametrize("make", BOTH)
def test_one_environment_is_made_reset_and_closed_before_the_first_call(make):
    """Once for a rollout, with the first trajectory's task."""
    Closing.log = []
    rollout = make([SUBMIT], env_factory=Closing)
    rollout(rows(1))
    rollout(rows(1))
    assert Closing.log == ["made", "reset", "closed"] * 3


@pytest.mark.parametrize("make", BOTH)
def test_an_environment_that_cannot_be_reset_is_refused_once_and_not_in_every_episode(make):
    """The cause is in the message, and what to do."""

    class Broken(Lab):
        def reset(self, trajectory=None):
            raise OSError("no such image")

    with pytest.raises(ConfigurationError, match=r"no such image.*check_env"):
        make([SUBMIT], env_factory=Broken)(rows(2))


@pytest.mark.parametrize("make", BOTH)
def test_an_environment_that_hangs_in_its_reset_is_refused_within_its_time(make):
    """A run would wait for it in every episode."""
    hanging = Lab()

    class Hanging(Lab):
        def reset(self, trajectory=None):
            hanging.let_go.wait()

    with pytest.raises(ConfigurationError, match=r"step_timeout_s=0\.2"):
        make([SUBMIT], env_factory=Hanging, limits=Limits(step_timeout_s=0.2))(rows(2))
    hanging.close()


@pytest.mark.parametrize("make", BOTH)
def test_an_environment_that_does_not_close_is_refused(make):
    """It would leak one for each episode."""

    class Leaking(Lab):
        def close(self):
            raise OSError("still busy")

    with pytest.raises(ConfigurationError, match=r"could not be closed.*still busy"):
        make([SUBMIT], env_factory=Leaking)(rows(2))


@pytest.mark.parametrize("make", BOTH)
def test_it_can_be_asked_for_and_left_out(make):
    """`rollout.preflight()` gives the report; `preflight=False` trusts."""
    report = make([SUBMIT], env_factory=Lab).preflight()
    assert "add" in report.tools
    assert "an environment is made, reset and closed" in report.passed

    Closing.log = []
    make([SUBMIT], env_factory=Closing, preflight=False)(rows(1))
    assert Closing.log == ["made", "reset", "closed"]


def test_a_template_that_cannot_be_used_is_refused_by_the_first_call():
    """Before anything is sampled."""

    @tool
    def look() -> str:
        """Look."""
        return "a wall"

    policy = ScriptedTokens(TOKENIZER, ["x"])
    rollout = MultiTurnRollout(policy, ToolManager([look]), tokenizer=byte_tokenizer(None))
    with pytest.raises(TemplateError, match="no chat template"):
        rollout(rows(1))
    assert policy.requests == []
