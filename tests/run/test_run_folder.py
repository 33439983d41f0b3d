"""The folder of a run."""

import json
import math

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import read_traces
from tiltyard.rollout.trajectory import Trajectory
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


def test_state_is_kept_beside_what_was_kept_before(tmp_path):
    """Each value stays until it is written again."""
    folder = RunFolder.create(tmp_path / "run", "")
    folder.write_state(seconds=1.0)
    folder.write_state(evaluations={"eval_before": {"mean": 0.5}})
    folder.close()
    assert folder.read_state() == {"attempts": 1, "seconds": 1.0, "evaluations": {"eval_before": {"mean": 0.5}}}
