"""Runs that were stopped in the middle of step 7, by Ctrl-C or by a kill that leaves no time for anything."""

import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

ENV = '''
"""Up to three turns; each answer earns the share of its characters that are letters, and an answer of few ends it.

A file `stop` beside this one holds a signal and how many lines `run/trajectories.jsonl` must have for it to be sent.
"""

import os
from pathlib import Path

here = Path(__file__).parent
stop, lines = here / "stop", here / "run" / "trajectories.jsonl"


class Env:
    dataset_size = 20

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.turn = 0
        return f"{'held out' if evaluation else 'row'} {row_index}", {}

    def step(self, action):
        if stop.exists():
            number, wanted = stop.read_text().split()
            if lines.exists() and lines.read_bytes().count(b"\\n") >= int(wanted):
                stop.unlink()
                os.kill(os.getpid(), int(number))
        self.turn += 1
        share = sum(c.isalpha() for c in action) / max(1, len(action))
        over = self.turn == 3 or len(action) % 3 == 0
        return f"{len(action)}", share, over, False, {"success": share > 0.5}
'''

TRAINING = (
    "{steps: 8, batch_size: 2, learning_rate: 1e-3, save_every: 5, threads: 1, schedule: cosine, "
    "eval: {tasks: 4, every: 3, before: true}}"
)
EVALUATED = 3 * 4
"""Episodes of the evaluations before the run, after step 3 and after step 6."""


def figures(read_lines, run):
    """What was learned at each step; of a step that was played twice, the last."""
    lines = {line["step"]: line for line in read_lines(run / "metrics.jsonl")}
    names = ("optimiser_step", "reward", "loss", "grad_norm", "entropy", "learning_rate", "sampler_difference_max")
    return {step: [line[name] for name in names] for step, line in lines.items()}


def sampled(read_lines, run):
    lines = read_lines(run / "trajectories.jsonl")
    return {(line["phase"], line["episode_id"]): [line[k] for k in ("task", "ids", "logprobs")] for line in lines}


@pytest.fixture(scope="module")
def whole(manifest_in, train, tmp_path_factory):
    """The run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    summary = train(manifest_in(folder, ENV, training=TRAINING, algorithm="{group_size: 4}"), folder / "run")
    return folder / "run", summary


def stopped(path, folder, number, episodes):
    """Start the run of a manifest in a process of its own, stopped when so many episodes of step 7 are on the disk."""
    (folder / "stop").write_text(f"{number.value} {EVALUATED + 6 * 8 + episodes}")
    command = [sys.executable, "-m", "tiltyard", "train", str(path), "--out", str(folder / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == (-9 if number == signal.SIGKILL else 130), ended.stderr
    lines = (folder / "run" / "trajectories.jsonl").read_bytes().count(b"\n")
    assert EVALUATED + 6 * 8 + episodes <= lines < EVALUATED + 7 * 8
    assert not (folder / "run" / "checkpoints" / "step-00000007").exists()


def same(read_lines, run, expected):
    """Two runs are one to the bit: rows, samples, losses, learning rates, weights."""
    assert figures(read_lines, run) == figures(read_lines, expected)
    assert sampled(read_lines, run) == sampled(read_lines, expected)
    ours, theirs = (load_file(each / "checkpoints/step-00000008/weights.safetensors") for each in (run, expected))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_that_was_killed_in_step_7_is_the_unbroken_one(whole, write_manifest, train, read_lines, tmp_path):
    """CK-01: no row is skipped and no finished episode played again; each counts once, and the best is the same."""
    path = write_manifest(ENV, training=TRAINING, algorithm="{group_size: 4}")
    stopped(path, tmp_path, signal.SIGKILL, 3)
    summary = train(None, tmp_path / "run", resume=True)
    expected, of_whole = whole
    same(read_lines, tmp_path / "run", expected)
    assert len(read_lines(tmp_path / "run" / "trajectories.jsonl")) == len(read_lines(expected / "trajectories.jsonl"))
    counted = ("episodes", "failed", "truncated", "endings", "sampled_tokens", "best")
    assert [summary[name] for name in counted] == [of_whole[name] for name in counted]
    assert summary["ledger"]["sampled"] == of_whole["ledger"]["sampled"]
    assert summary["eval_after"]["mean"] == of_whole["eval_after"]["mean"]


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [2, 5, 7])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_it_does_not_matter_how_and_when_it_was_stopped(
    number, episodes, whole, write_manifest, train, read_lines, tmp_path
):
    """CK-01: by Ctrl-C, which leaves time for a checkpoint, or by a kill; early in the step or late."""
    stopped(write_manifest(ENV, training=TRAINING, algorithm="{group_size: 4}"), tmp_path, number, episodes)
    train(None, tmp_path / "run", resume=True)
    same(read_lines, tmp_path / "run", whole[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_stopped_run_of_the_real_model_is_the_unbroken_one(number, manifest_in, train, read_lines, tmp_path):
    """CK-01: a sample that rounds otherwise would soon be another token; batches have the make-up that they had."""
    folders = [tmp_path / "whole", tmp_path / "broken"]
    for folder in folders:
        folder.mkdir()
        manifest_in(
            folder,
            ENV,
            training=TRAINING.replace("1e-3", "1e-4"),
            algorithm="{group_size: 4}",
            model="{name: smollm2-135m-instruct, train: 'last:2'}",
            rollout="{max_tokens_per_turn: 12, length_reward: 0}",
        )
    train(folders[0] / "m.yaml", folders[0] / "run")
    stopped(folders[1] / "m.yaml", folders[1], number, 3)
    train(None, folders[1] / "run", resume=True)
    same(read_lines, folders[1] / "run", folders[0] / "run")
