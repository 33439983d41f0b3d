"""How old the weights were that tokens were sampled with."""

import pytest

from tiltyard.errors import TranscriptError
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import from_record, to_record
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.staleness import Staleness, fresh_enough, staleness
from tiltyard.types import Task


def episode(*versions):
    """An episode of turns of two tokens, each sampled with the weights after so many steps."""
    transcript = Transcript()
    for version in versions:
        transcript.observe([1])
        transcript.sample([2, 3], [-1.0, -1.0], version)
    return Trajectory("e", Task(), Ending.DONE, rewards=(0.0,) * len(versions), transcript=transcript)


def test_every_sampled_token_says_with_which_weights():
    """What the policy did not sample has none."""
    assert episode(4, 5).transcript.version == [None, 4, 4, None, 5, 5]


def test_the_age_is_counted_in_steps_over_tokens():
    """Weights that have learned from five steps, tokens of weights that had learned from five, four and three."""
    assert staleness([episode(5, 4), episode(3)], 5) == Staleness(1.0, 2)


def test_a_policy_that_does_not_say_its_version_has_no_age():
    """None is not 0."""
    assert staleness([episode(None), Trajectory("f", Task(), Ending.DONE)], 5) == Staleness(None, None)


def test_what_is_older_than_the_bound_is_not_taken_from_an_earlier_attempt():
    """An episode of which one turn is two steps old is played again; one step old, or of no known age, it is taken."""
    recorded = {"new": episode(5), "old": episode(4, 4), "older": episode(4, 3), "unknown": episode(None)}
    assert list(fresh_enough(recorded, 5)) == ["new", "old", "unknown"]


def test_versions_are_in_the_record_of_an_episode():
    """They come back; a record that an earlier version wrote has none, and is read all the same."""
    record = to_record(episode(4, 5))
    assert record["version"] == [None, 4, 4, None, 5, 5]
    assert from_record(record) == episode(4, 5)
    assert to_record(episode(None))["version"] is None
    del record["version"]
    assert from_record(record).transcript.version == [None] * 6
    with pytest.raises(TranscriptError, match="version are not of one length"):
        from_record({**record, "version": [1]})
