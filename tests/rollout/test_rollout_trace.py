"""Trajectories on disk."""

import json
import math
import subprocess
import sys
import threading
import types

import pytest

from tiltyard.errors import TranscriptError
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import TraceWriter, from_record, read_traces, to_record
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.types import Task


def trajectory(**changes):
    transcript = Transcript()
    transcript.observe([1, 2, 3])
    transcript.sample([4, 5], [-0.5, -1.25])
    transcript.observe([6])
    transcript.sample([], [])
    fields = {
        "episode_id": "00001-000-00",
        "task": Task(seed=3, row_index=1, messages=({"role": "system", "content": "hé"},), data={"word": "w"}),
        "ending": Ending.DONE,
        "messages": ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}),
        "rewards": (None, 1.0),
        "first_observation": "abc",
        "info": {"success": True},
        "success": True,
        "transcript": transcript,
        "seconds": 1.5,
    }
    return Trajectory(**{**fields, **changes})


def test_a_trajectory_comes_back_from_its_line_as_it_was(tmp_path):
    """Nothing that training or a report needs is lost."""
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trajectory(), step=4)
    [record] = read_traces(tmp_path / "t.jsonl")
    assert from_record(record) == trajectory()
    assert record["step"] == 4


def test_a_failed_episode_is_recorded_with_its_reason():
    """A failure has no reward, and says why."""
    failed = trajectory(ending=Ending.ENV_ERROR, error="EnvError: no", transcript=None, rewards=())
    record = to_record(failed)
    assert (record["failed"], record["reward"], record["error"]) == (True, None, "EnvError: no")
    assert from_record(record) == failed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_line_never_holds_a_bare_nan(tmp_path, value):
    """A line is JSON that any reader takes: numbers that are not finite become text."""
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trajectory(info={"score": value, "nested": [{"x": value}]}))

    def refuse(constant):
        raise AssertionError(constant)

    line = json.loads((tmp_path / "t.jsonl").read_text(), parse_constant=refuse)
    assert line["info"] == {"score": str(value), "nested": [{"x": str(value)}]}


def test_objects_that_json_does_not_know_are_written_as_text(tmp_path):
    """An environment's info may hold anything; the record is written all the same."""
    numpy = pytest.importorskip("numpy")
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trajectory(info={"n": numpy.float32(0.5), "b": numpy.bool_(True), "s": {1}, 7: b"x"}))
    [record] = read_traces(tmp_path / "t.jsonl")
    assert record["info"] == {"n": 0.5, "b": True, "s": "{1}", "7": "b'x'"}


def test_a_task_may_hold_what_json_does_not_know(tmp_path):
    """Fields of a row reach the environment as they are; that they cannot be written or copied costs nothing."""
    endless = []
    endless.append(endless)
    data = {"lock": threading.Lock(), "view": types.MappingProxyType({"word": "w"}), "endless": endless, 7: "seven"}
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trajectory(task=Task(data=data)))
    [record] = read_traces(tmp_path / "t.jsonl")
    told = record["task"]["data"]
    assert told["view"] == {"word": "w"}
    assert "lock" in told["lock"]
    assert told["endless"].startswith("[a list that cannot be written")
    assert told["7"] == "seven"


def test_text_that_is_not_unicode_does_not_stop_the_record(tmp_path):
    """A lone surrogate cannot be encoded; it is written escaped."""
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trajectory(info={"text": "a\udc80b"}))
    assert len(list(read_traces(tmp_path / "t.jsonl"))) == 1


def test_a_cut_last_line_is_left_out_with_a_warning(tmp_path):
    """A crash costs at most the line that it cut."""
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(trajectory())
        writer.write(trajectory(episode_id="other"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="line 2 was cut"):
        assert [record["episode_id"] for record in read_traces(path)] == ["00001-000-00"]


def test_a_writer_goes_on_after_a_cut_line(tmp_path):
    """The unfinished line is removed, so that the next one is whole."""
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(trajectory())
    path.write_bytes(path.read_bytes() + b'{"episode_id": "cut' + b"x" * 70000)
    with pytest.warns(UserWarning, match="cut by a crash"), TraceWriter(path) as writer:
        writer.write(trajectory(episode_id="next"))
    assert [record["episode_id"] for record in read_traces(path)] == ["00001-000-00", "next"]


FULL_FOR_A_WHILE = """
import resource, sys
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import TraceWriter
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.types import Task

writer = TraceWriter(sys.argv[1])
writer.write(Trajectory("first", Task(), Ending.DONE))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 50, hard))
try:
    writer.write(Trajectory("second", Task(), Ending.DONE))
except OSError:
    print("no room")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
writer.write(Trajectory("third", Task(), Ending.DONE))
"""


def test_a_line_that_found_no_room_leaves_nothing_before_the_next_one(tmp_path):
    """Half a line in the middle would make the whole file unreadable."""
    path = tmp_path / "t.jsonl"
    said = subprocess.run(
        [sys.executable, "-c", FULL_FOR_A_WHILE, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert said == "no room\n"
    assert [record["episode_id"] for record in read_traces(path)] == ["first", "third"]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    """Only a crash cuts the last line; anything else is damage, and is not skipped."""
    path = tmp_path / "t.jsonl"
    path.write_text("{}\n{broken\n{}\n")
    with pytest.raises(ValueError, match=r"t\.jsonl: line 2"):
        list(read_traces(path))


def test_each_line_is_there_as_soon_as_it_is_written(tmp_path):
    """Nothing waits in a buffer of this process."""
    writer = TraceWriter(tmp_path / "deep" / "t.jsonl")
    writer.write(trajectory())
    assert len(list(read_traces(writer.path))) == 1
    writer.close()


def test_extra_fields_may_not_hide_those_of_the_record():
    """A name is either the record's or the caller's."""
    with pytest.raises(ValueError, match="ids, reward"):
        to_record(trajectory(), reward=1, ids=[])


def test_a_record_whose_tokens_are_out_of_line_is_refused():
    """ids, mask, logprobs and turn have one length."""
    record = {**to_record(trajectory()), "mask": [True]}
    with pytest.raises(TranscriptError, match="not of one length"):
        from_record(record)
