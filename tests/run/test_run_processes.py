"""Runs of several processes: they begin together, stop together, and count together."""

import os
import signal

import pytest

from tiltyard import load_manifest, load_model, train_llm_rollout
from tiltyard.build import Given, train_manifest
from tiltyard.errors import EnvError, ManifestError, ProcessLostError
from tiltyard.manifest import manifest_to_yaml
from tiltyard.testing.processes import run_together
from tiltyard.train.interrupt import Interrupts, hold_together
from tiltyard.train.observer import SilentObserver
from tiltyard.train.processes import in_all
from tiltyard.train.run_folder import RunFolder


class Env:
    """One answer; what is wrong with it is given."""

    dataset_size = 4

    def __init__(self, *, starts=True, closes=True):
        if not starts:
            raise EnvError("no port is free")
        self.closes = closes

    def reset(self, seed=None, row_index=None, evaluation=None):
        return "go", {}

    def step(self, action):
        return "", float(len(action)), True, False, {}

    def close(self):
        if not self.closes:
            raise OSError("the socket is gone")


@pytest.fixture
def trained(write_manifest, model_folder, tmp_path):
    """Train with two processes, the second of which has environments of its own kind."""
    path = write_manifest(training="{steps: 1, batch_size: 2, learning_rate: 1e-3, eval: {tasks: 0}}")
    manifest, models = load_manifest(path), [load_model(str(model_folder)) for _ in range(2)]

    def open_folder():
        return RunFolder.create(tmp_path / "run", manifest_to_yaml(manifest))

    def run(**wrong):
        def one(processes):
            made = iter(range(100))  # the first two are tried out before the run
            bad = wrong if processes.rank else {}
            given = Given(lambda: Env(**(bad if next(made) > 1 else {})), models[processes.rank])
            folder = RunFolder.shared(open_folder, processes)
            return train_manifest(manifest, folder, SilentObserver(), given, processes)

        return run_together(2, one)

    return run


def test_a_run_that_cannot_begin_in_one_process_leaves_no_folder(trained, tmp_path):
    """The other process raises what was wrong, instead of waiting in a folder that stays behind."""
    with pytest.raises(EnvError, match="no port is free"):
        trained(starts=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:4 environments failed to close")
def test_environments_that_another_process_could_not_close_are_counted(trained):
    """The first process, which writes the summary, counts those of all."""
    first, _ = trained(closes=False)
    assert first["leaked"] == 4


def test_what_was_made_is_taken_back_where_another_process_failed():
    """Environments that are open already are closed."""
    closed = []

    def work(processes):
        if processes.rank == 1:
            raise ManifestError("rank 1 cannot")
        return "made"

    def one(processes):
        with pytest.raises(ManifestError, match="rank 1 cannot"):
            in_all(lambda: work(processes), processes, undo=closed.append)

    run_together(3, one)
    assert closed == ["made", "made"]


class Two:
    """Two processes, of which the other says whether it has seen Ctrl-C."""

    rank, count = 0, 2

    def __init__(self, *, other):
        self.other, self.asked = other, 0

    def gather(self, item):
        self.asked += 1
        return [item, self.other]


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_processes_hold_together_and_ask_each_other_once():
    """No Ctrl-C: the step is taken, whichever of its optimiser steps comes first."""
    two = Two(other=False)
    with Interrupts() as interrupts:
        hold_together(interrupts, two)
        hold_together(interrupts, two)
        assert (interrupts.holding, two.asked) == (True, 1)
        press()  # waits, as the weights have begun to change in both
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()


def test_a_process_stops_where_another_has_seen_ctrl_c_and_its_own_is_no_second_one():
    """The signal that is still on its way is the same press of the keys; only another one ends the process."""
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            hold_together(interrupts, Two(other=True))
        press()
        assert (interrupts.seen, interrupts.holding) == (True, False)


def test_a_ctrl_c_between_the_last_agreement_and_the_hold_stops_all():
    """It was seen here, while the others had not begun to change their weights."""

    def change_weights(interrupts):
        with interrupts.held():
            press()
            hold_together(interrupts, Two(other=False))

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        change_weights(interrupts)
    assert not interrupts.holding


class Gone(Two):
    """The other process is gone, as Ctrl-C may have ended it."""

    def gather(self, item):
        if self.other:
            press()
        raise ProcessLostError("connection closed")


@pytest.mark.parametrize(("pressed", "raised"), [(False, ProcessLostError), (True, KeyboardInterrupt)])
def test_a_process_that_is_gone_before_the_weights_change_leaves_a_step_that_can_be_dropped(pressed, raised):
    """Nothing is held, so that the last finished step is checkpointed; Ctrl-C is Ctrl-C here too."""
    with Interrupts() as interrupts:
        with pytest.raises(raised):
            hold_together(interrupts, Gone(other=pressed))
        assert not interrupts.holding


class Constant(Env):
    """Every answer earns the same."""

    def step(self, action):
        return "", 1.0, True, False, {}


def test_a_run_from_python_that_learned_nothing_says_so(model_folder, tmp_path):
    """No weight has changed: never silently."""
    config = {
        "environment": {"max_turns": 1},
        "algorithm": {"group_size": 2},
        "rollout": {"max_tokens_per_turn": 8, "length_reward": 1.0},
        "training": {"steps": 1, "batch_size": 1, "eval": {"tasks": 0}},
    }
    with pytest.warns(UserWarning, match="nothing was learned in 1 steps"):
        train_llm_rollout(config, Constant, str(model_folder), out=tmp_path / "run", observer=SilentObserver())
