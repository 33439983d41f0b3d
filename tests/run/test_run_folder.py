"""The folder of a run."""

import json
import math

import pytest

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import read_traces
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.train.interrupt import Interrupts
from tiltyard.train.observer import SilentObserver
from tiltyard.train.recorder import Recorder
from tiltyard.train.run_folder import RunFolder
from tiltyard.types import Task

EPISODE = Trajectory("00000-000-01", Task(seed=4), Ending.ENV_ERROR, error="EnvError: broke")


def test_a_folder_that_holds_something_is_not_written_into(tmp_path):
    """The message names both ways on."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        ConfigurationError, match="is there already; resume that run with --resume, or give another --out"
    ):
        RunFolder.create(tmp_path, "a: 1\n")


def test_an_empty_folder_is_taken(tmp_path):
    """An empty folder loses nothing."""
    RunFolder.create(tmp_path, "a: 1\n").close()
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"


def test_only_a_run_can_be_resumed(tmp_path):
    """A folder without `config.yaml` is not one."""
    with pytest.raises(ConfigurationError, match=r"is no run folder: it has no config\.yaml"):
        RunFolder.resume(tmp_path, "a: 1\n")


def test_every_episode_is_a_line_that_says_when_it_was_played(tmp_path):
    """Phase, step, group and attempt stand beside what happened; failed episodes are there with their reason."""
    folder = RunFolder.create(tmp_path / "run", "")
    folder.write_trajectory(EPISODE, phase="train", step=3, group="00000-000")
    folder.close()
    (line,) = read_traces(tmp_path / "run" / "trajectories.jsonl")
    assert (line["phase"], line["step"], line["group"], line["attempt"]) == ("train", 3, "00000-000", 0)
    assert (line["failed"], line["error"], line["reward"]) == (True, "EnvError: broke", None)


def test_a_resumed_run_goes_on_in_the_same_files(tmp_path):
    """Lines of an earlier attempt stay; those of the new one say so."""
    path = tmp_path / "run"
    for open_folder in (RunFolder.create, RunFolder.resume, RunFolder.resume):
        folder = open_folder(path, "a: 1\n")
        folder.write_metrics({"step": 1})
        folder.write_trajectory(EPISODE, phase="train", step=1, group=None)
        folder.close()
    assert [line["attempt"] for line in folder.metrics()] == [0, 1, 2]
    assert [line["attempt"] for line in read_traces(path / "trajectories.jsonl")] == [0, 1, 2]


def test_metrics_never_hold_nan(tmp_path):
    """What is no finite number is null, at any depth, so that every JSON reader can read the line."""
    folder = RunFolder.create(tmp_path / "run", "")
    folder.write_metrics({"loss": math.nan, "seconds": {"rollout": math.inf}, "list": [1.0, -math.inf]})
    folder.close()
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(text) == {"attempt": 0, "loss": None, "seconds": {"rollout": None}, "list": [1.0, None]}
    assert "NaN" not in text


def test_half_a_character_is_kept_as_its_escape(tmp_path):
    """An environment's error may hold one; the summary is written all the same, and reads back."""
    with RunFolder.create(tmp_path / "run", "") as folder:
        folder.write_summary({"errors": {"env_error": "OSError: \ud800 é"}})
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary == {"errors": {"env_error": "OSError: \ud800 é"}}


def test_state_is_kept_beside_what_was_kept_before(tmp_path):
    """Each value stays until it is written again."""
    folder = RunFolder.create(tmp_path / "run", "")
    folder.write_state(seconds=1.0)
    folder.write_state(evaluations={"eval_before": {"mean": 0.5}})
    folder.close()
    assert folder.read_state() == {"attempts": 1, "seconds": 1.0, "evaluations": {"eval_before": {"mean": 0.5}}}


@pytest.mark.parametrize("text", ['{"attempts":', "[1]"])
def test_a_damaged_state_is_named_and_changes_nothing(tmp_path, text):
    """The way on is said: without what it counted."""
    RunFolder.create(tmp_path / "run", "a: 1\n").close()
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"run\.json is damaged.* delete it to go on without what it counted"):
        RunFolder.resume(tmp_path / "run", "a: 2\n")
    assert (tmp_path / "run" / "config.yaml").read_text() == "a: 1\n"


def test_a_line_of_metrics_that_a_crash_cut_is_taken_away(tmp_path):
    """The next line would otherwise be written behind it, and both be lost."""
    with RunFolder.create(tmp_path / "run", "a: 1\n") as folder:
        folder.write_metrics({"step": 1})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"attempt": 0, "st')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: the last line was cut by a crash"):
        folder = RunFolder.resume(tmp_path / "run", "a: 1\n")
    with folder:
        folder.write_metrics({"step": 2})
        assert [line["step"] for line in folder.metrics()] == [1, 2]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A path through a file is none."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/run cannot be made: Not a directory; give another --out"):
        RunFolder.create(tmp_path / "file" / "run", "a: 1\n")


def test_counts_of_another_version_are_refused(tmp_path):
    """Counting on from figures that mean something else would give wrong ones."""
    with RunFolder.create(tmp_path / "run", "a: 1\n") as folder:
        recorder = Recorder(folder, SilentObserver(), Interrupts())
        with pytest.raises(CheckpointError, match=r"run\.json is not that of a run of this version .*'nope'"):
            recorder.load_state({"totals": {"nope": 1}})
