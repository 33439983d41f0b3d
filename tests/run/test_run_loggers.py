"""Where a run's figures go beside `metrics.jsonl`."""

import math
import subprocess
import sys

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.report.loggers import LoggerObserver, flat, make_loggers


class Kept:
    """A logger that keeps what it is told, and raises from the call that it is told to."""

    name = "kept"

    def __init__(self, fails=""):
        self.fails = fails
        self.told = []

    def start(self, folder, config):
        self._take("start", folder.name, config)

    def log(self, figures, step):
        self._take("log", figures, step)

    def finish(self):
        self._take("finish")

    def _take(self, call, *args):
        self.told.append((call, *args))
        if call == self.fails:
            raise OSError("disk full")


def play(observer, folder):
    observer.run_started(folder, done=0, steps=1)
    observer.phase_started("train", 2)
    observer.episode_finished()
    observer.step_finished({"step": 1, "reward": 0.5, "skipped": False, "success": None, "seconds": {"step": 2}})
    observer.evaluated("eval_after", {"step": 1, "metric": "reward", "mean": 1, "reward": {"mean": 1.0}})
    observer.run_finished()


def test_a_logger_gets_every_number_of_steps_and_evaluations_by_name(tmp_path):
    """A bool, a word and what is not known are no numbers; the step is not one of the figures."""
    logger = Kept()
    play(LoggerObserver(logger, {"x": 1}), tmp_path)
    assert logger.told == [
        ("start", tmp_path.name, {"x": 1}),
        ("log", {"train/reward": 0.5, "train/seconds/step": 2.0}, 1),
        ("log", {"eval/mean": 1.0, "eval/reward/mean": 1.0}, 1),
        ("finish",),
    ]


@pytest.mark.parametrize("call", ["start", "log", "finish"])
def test_a_logger_that_fails_is_warned_of_once_and_never_stops_the_run(call, tmp_path):
    """The run is worth more than its log."""
    logger = Kept(fails=call)
    with pytest.warns(UserWarning, match=r"the logger 'kept' raised OSError: disk full; the run goes on") as warned:
        play(LoggerObserver(logger, {}), tmp_path)
    assert len(warned) == 1
    assert logger.told[-1][0] == call


def test_a_logger_that_was_never_started_is_not_finished():
    """A run can fail before it begins."""
    logger = Kept()
    LoggerObserver(logger, {}).run_finished()
    assert logger.told == []


def test_no_logger_is_given_what_is_not_finite():
    """TensorBoard would draw it, and trackio would refuse the row."""
    assert dict(flat({"a": math.nan, "b": math.inf, "c": 1}, "train")) == {"train/c": 1.0}


def test_an_unknown_logger_is_refused():
    """The message lists those that there are."""
    with pytest.raises(ConfigurationError, match="tensorboard, wandb, trackio, got 'mlflow'"):
        make_loggers(["mlflow"])


WITHOUT_WANDB = """
import sys
from tiltyard.cli import main
sys.modules["wandb"] = None  # as Python itself does for a module that is not to be found
sys.exit(main(["train", sys.argv[1], "--out", sys.argv[2]]))
"""


def test_a_missing_package_is_said_early_with_its_extra(write_manifest, tmp_path):
    """Before a model is loaded, and with nothing left behind."""
    path = write_manifest(training="{steps: 1, loggers: [wandb]}", model="{name: no-such-model}")
    command = [sys.executable, "-c", WITHOUT_WANDB, str(path), str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (
        2,
        "tiltyard: 'wandb' is not installed; install it with: pip install 'tiltyard[wandb]'",
    )
    assert not (tmp_path / "run").exists()


def test_tensorboard_has_the_curves_of_a_run_and_of_its_resume(write_manifest, train, tmp_path):
    """The event files of all attempts, read back with TensorBoard's own reader."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = write_manifest(training="{steps: 1, batch_size: 2, loggers: [tensorboard], eval: {tasks: 2, before: false}}")
    train(path, tmp_path / "run")
    train(path, tmp_path / "run", "training.steps=2", resume=True)
    read = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in read.Scalars("eval/mean")] == [1, 2]


def test_wandb_writes_into_the_run_folder_and_nowhere_else(write_manifest, train, tmp_path, monkeypatch):
    """Offline, unless WANDB_MODE or WANDB_API_KEY says otherwise."""
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    train(write_manifest(training="{steps: 1, batch_size: 2, loggers: [wandb], eval: {tasks: 0}}"), tmp_path / "run")
    (offline,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (log,) = offline.glob("*.wandb")
    assert b"train/reward" in log.read_bytes()
