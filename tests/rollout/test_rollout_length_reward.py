"""What a turn earns that reached its token limit."""

import math

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.rollout.episode import episode
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.guess import GuessEnv
from tiltyard.types import Reply, Task


def rewards_of_a_cut(limits, reason):
    flow = episode(GuessEnv(), Task(seed=0), limits)
    next(flow)
    try:
        flow.send(Reply("1 is my guess, bec", finish_reason=reason))
    except StopIteration as end:
        return end.value.ending, end.value.rewards
    raise AssertionError("the episode went on after a cut")


def test_a_turn_at_its_token_limit_is_not_scored_by_itself():
    """A cut answer is nobody's answer, unless the limits say what it is worth."""
    assert rewards_of_a_cut(Limits(), "length") == (Ending.LENGTH, (None,))


def test_a_turn_at_its_token_limit_earns_what_the_limits_say():
    """Where answers are short by the task's rules, rambling is the model's fault and has a price."""
    assert rewards_of_a_cut(Limits(length_reward=-1.0), "length") == (Ending.LENGTH, (-1.0,))


def test_a_turn_cut_by_a_full_context_is_not_the_models_fault():
    """The room that is left is not what the model chose."""
    assert rewards_of_a_cut(Limits(length_reward=-1.0), "context") == (Ending.CONTEXT, (None,))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_price_is_a_number(value):
    """NaN would reach the loss."""
    with pytest.raises(ConfigurationError, match="length_reward must be finite"):
        Limits(length_reward=value)
