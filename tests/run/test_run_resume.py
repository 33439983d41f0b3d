"""Runs that were interrupted, and go on."""

import json
import signal
import sys

import pytest
import torch
from safetensors.torch import load_file

from tiltyard.build import train_manifest
from tiltyard.errors import CheckpointError, ConfigurationError, ManifestError
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.train.observer import SilentObserver
from tiltyard.train.run_folder import RunFolder

ROWS = """
from pathlib import Path


class Env:
    dataset_size = int(Path(__file__).with_name("size").read_text())

    def reset(self, seed=None, row_index=None, evaluation=None):
        return f"r{row_index}", {}

    def step(self, action):
        return "", float(len(action)), True, False, {}
"""

SIX_ROWS = "{steps: 3, batch_size: 2, seed: 7, save_every: 1, eval: {tasks: 0}}"


def played(read_lines, run):
    """What was sampled for each episode, by phase, step and id; of one played twice, the last."""
    lines = read_lines(run / "trajectories.jsonl")
    return {
        (line["phase"], line["step"], line["episode_id"]): (line["task"], line["ids"], line["logprobs"])
        for line in lines
    }


def learned(read_lines, run):
    """The figures of each step that say what was learned; of a step that was played twice, the last."""
    lines = {line["step"]: line for line in read_lines(run / "metrics.jsonl")}
    names = ("step", "optimiser_step", "reward", "loss", "grad_norm", "entropy", "sampler_difference_mean", "turns")
    return [[lines[step][name] for name in names] for step in sorted(lines)]


def answers_so_far(path):
    """How many answers the environment of this manifest has had in this process."""
    (module,) = [m for m in sys.modules.values() if getattr(m, "__file__", None) == str(path.with_name("env.py"))]
    return module.Env.answers


def weights(run, step):
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")


@pytest.mark.parametrize("answers", [3, 11, 20, 34])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(answers, write_manifest, train, read_lines, tmp_path):
    """CK-01: Ctrl-C in an evaluation, or any step: same tasks, samples, losses and weights, and every episode kept."""
    path = write_manifest()
    whole = train(path, tmp_path / "whole")
    assert not whole["interrupted"]
    (tmp_path / "stop").write_text(str(answers + answers_so_far(path)))
    broken = train(path, tmp_path / "run")
    kept = read_lines(tmp_path / "run" / "trajectories.jsonl")
    assert (broken["interrupted"], broken["episodes"]) == (True, len(kept))
    summary = train(None, tmp_path / "run", resume=True)
    assert (summary["interrupted"], summary["steps_done"], summary["attempts"]) == (False, 3, 2)
    assert read_lines(tmp_path / "run" / "trajectories.jsonl")[: len(kept)] == kept
    assert played(read_lines, tmp_path / "run") == played(read_lines, tmp_path / "whole")
    assert learned(read_lines, tmp_path / "run") == learned(read_lines, tmp_path / "whole")
    ours, theirs = weights(tmp_path / "run", 3), weights(tmp_path / "whole", 3)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("eval_before", "eval_after"):
        assert summary[name]["mean"] == whole[name]["mean"]


def test_ctrl_c_checkpoints_the_last_finished_step(write_manifest, train, read_lines, tmp_path):
    """Between two checkpoints nothing that was learned is lost."""
    path = write_manifest()
    train(path, tmp_path / "first", "training.steps=1", "training.eval.tasks=0")
    (tmp_path / "stop").write_text(str(answers_so_far(path) + 20))
    summary = train(path, tmp_path / "run", "training.save_every=0", "training.eval.tasks=0")
    assert summary["steps_done"] == len(read_lines(tmp_path / "run" / "metrics.jsonl")) > 0
    assert [f.name for f in (tmp_path / "run" / "checkpoints").glob("step-*")] == [f"step-{summary['steps_done']:08d}"]


def test_a_finished_run_can_be_given_more_steps(write_manifest, train, read_lines, tmp_path):
    """The new steps follow the old ones, and the last evaluation is of the last step."""
    path = write_manifest()
    train(path, tmp_path / "run")
    summary = train(None, tmp_path / "run", "training.steps=4", resume=True)
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
    assert (summary["steps_done"], summary["eval_after"]["step"]) == (4, 4)


def test_a_finished_run_that_is_resumed_plays_nothing(write_manifest, train, read_lines, tmp_path):
    """There is nothing left to do, and the summary stays."""
    path = write_manifest()
    before = train(path, tmp_path / "run")
    after = train(path, tmp_path / "run", resume=True)
    assert (after["episodes"], after["eval_after"]) == (before["episodes"], before["eval_after"])


def test_a_run_is_not_resumed_with_other_settings(write_manifest, train, tmp_path):
    """Everything that differs is named, with both values."""
    path = write_manifest()
    train(path, tmp_path / "run", "training.steps=1", "training.eval.tasks=0")
    with pytest.raises(ManifestError) as raised:
        train(path, tmp_path / "run", "training.eval.tasks=0", "training.seed=5", "rollout.top_k=3", resume=True)
    assert str(raised.value) == (
        f"{tmp_path}/run was begun with other settings; resume with them, or begin a new run\n"
        "  rollout.top_k: the run has 0, now it is 3\n"
        "  training.seed: the run has 0, now it is 5"
    )


def test_a_run_whose_learning_rate_falls_to_its_last_step_is_given_no_more(write_manifest, train, tmp_path):
    """Its steps so far would have had other rates, and so other weights."""
    path = write_manifest(training="{steps: 1, batch_size: 2, schedule: linear, eval: {tasks: 0}}")
    train(path, tmp_path / "run")
    with pytest.raises(ManifestError, match=r"training\.steps: the run has 1, now it is 2"):
        train(None, tmp_path / "run", "training.steps=2", resume=True)


def test_a_folder_without_a_run_is_not_resumed(train, tmp_path):
    """The folder is named whole."""
    with pytest.raises(ConfigurationError, match=r"is no run folder: it has no config\.yaml"):
        train(None, tmp_path, resume=True)


def rows_played(read_lines, run):
    """The row of each group, in the order of steps and groups."""
    groups = {line["group"]: line["task"]["row_index"] for line in read_lines(run / "trajectories.jsonl")}
    return [groups[key] for key in sorted(groups)]


def test_a_resumed_run_goes_on_in_the_same_shuffle(write_manifest, train, read_lines, tmp_path):
    """CK-01, runs a, b and d: the rows of 2 + 1 steps are those of 3, and epoch 2 has an order of its own."""
    (tmp_path / "size").write_text("6")
    path = write_manifest(ROWS, algorithm="{group_size: 2}", training=SIX_ROWS)
    train(path, tmp_path / "a")
    train(path, tmp_path / "b", "training.steps=2")
    train(None, tmp_path / "b", "training.steps=3", resume=True)
    assert rows_played(read_lines, tmp_path / "b") == rows_played(read_lines, tmp_path / "a")
    assert sorted(rows_played(read_lines, tmp_path / "a")) == [0, 1, 2, 3, 4, 5]
    train(path, tmp_path / "long", "training.steps=6")
    train(None, tmp_path / "b", "training.steps=6", resume=True)
    rows = rows_played(read_lines, tmp_path / "b")
    assert rows == rows_played(read_lines, tmp_path / "long")
    assert sorted(rows[6:]) == [0, 1, 2, 3, 4, 5]
    assert rows[6:] != rows[:6]


def test_a_checkpoint_is_not_resumed_on_other_data(write_manifest, train, tmp_path):
    """CK-01, run c: both datasets are named, and no row is skipped."""
    (tmp_path / "size").write_text("6")
    path = write_manifest(ROWS, algorithm="{group_size: 2}", training=SIX_ROWS)
    train(path, tmp_path / "run", "training.steps=2")
    (tmp_path / "size").write_text("3")
    (tmp_path / "env.py").rename(tmp_path / "other.py")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("env.py:Env", "other.py:Env"))
    with pytest.raises(CheckpointError, match=r"env\.py:Env' \(6 rows\), but this run has .*other\.py:Env' \(3 rows\)"):
        train(None, tmp_path / "run", "training.steps=3", resume=True)


def test_the_summary_of_an_interrupted_run_is_written(write_manifest, train, tmp_path):
    """It says how far the run came."""
    path = write_manifest()
    train(path, tmp_path / "first", "training.steps=1", "training.eval.tasks=0")
    (tmp_path / "stop").write_text(str(answers_so_far(path) + 2))
    train(path, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["interrupted"], summary["steps_done"], summary["eval_after"], summary["leaked"]) == (
        True,
        0,
        None,
        0,
    )


class PressesCtrlC(SilentObserver):
    """Presses Ctrl-C when the weights have changed and the step is not yet closed."""

    def step_finished(self, metrics):
        signal.raise_signal(signal.SIGINT)


def test_a_step_whose_weights_have_changed_is_finished_first(write_manifest, read_lines, tmp_path):
    """Ctrl-C then waits: weights, tasks and metrics are those of one step."""
    manifest = load_manifest(write_manifest(), ["training.eval.tasks=0"])
    folder = RunFolder.create(tmp_path / "run", manifest_to_yaml(manifest))
    summary = train_manifest(manifest, folder, PressesCtrlC())
    assert (summary["interrupted"], summary["steps_done"]) == (True, 1)
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [1]
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert json.loads((checkpoint / "checkpoint.json").read_text())["position"]["batches"] == 1
