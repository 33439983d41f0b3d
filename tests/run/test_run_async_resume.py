"""Asynchronous runs that were stopped, and go on: to the bit, as if nothing had happened."""

import json
import signal
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file

from tiltyard.build import train_manifest
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.train.observer import SilentObserver
from tiltyard.train.run_folder import RunFolder

ENV = '''
"""Two turns; each answer earns the share of its characters that are letters.

A file `stop` beside this one holds a signal, the answers after which it is sent, and whether the rest hang.
"""

import os
import threading
from pathlib import Path

stop = Path(__file__).with_name("stop")
lock = threading.Lock()
let_go = threading.Event()


class Env:
    dataset_size = 20
    answers = 0

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.turn = 0
        return f"{'held out' if evaluation else 'row'} {row_index}", {}

    def step(self, action):
        with lock:
            Env.answers += 1
            number, after, hang = stop.read_text().split() if stop.exists() else (0, 1 << 30, 0)
            due = Env.answers >= int(after)
            if due and Env.answers == int(after):
                os.kill(os.getpid(), int(number))
        if due and int(hang):
            let_go.wait()
        self.turn += 1
        share = sum(c.isalpha() for c in action) / max(1, len(action))
        return "more", share, self.turn == 2, False, {"success": share > 0.5}

    def close(self):
        if stop.exists():
            let_go.set()
'''

OPTIONS = (
    *("training.asynchronous=true", "training.steps=5", "training.save_every=2", "training.eval.every=3"),
    "rollout.linger_s=2",  # a busy machine splits no batch then: samples are compared to the bit
)


@pytest.fixture(scope="module")
def whole(manifest_in, train, tmp_path_factory):
    """The run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    summary = train(manifest_in(folder, ENV), folder / "run", *OPTIONS)
    return folder / "run", summary


def stopped(path, folder, number, answers, *, hang):
    """Start the run in a process of its own, which gets the signal after so many answers of its environments."""
    (folder / "stop").write_text(f"{number.value} {answers} {int(hang)}")
    options = [word for option in OPTIONS for word in ("--set", option)]
    command = [sys.executable, "-m", "tiltyard", "train", str(path), "--out", str(folder / "run"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    (folder / "stop").unlink()
    assert ended.returncode == (-9 if number == signal.SIGKILL else 130), ended.stderr


def same(read_lines, run, expected):
    """Two runs have the same rows, samples, versions, losses and weights."""
    names = ("optimiser_step", "reward", "loss", "grad_norm", "correction_mean", "staleness_mean", "staleness_max")
    learned, sampled = [], []
    for folder in (run, expected):
        lines = {line["step"]: [line[name] for name in names] for line in read_lines(folder / "metrics.jsonl")}
        learned.append(lines)
        keys = ("step", "task", "ids", "logprobs", "version")
        episodes = read_lines(folder / "trajectories.jsonl")
        sampled.append({(line["phase"], line["episode_id"]): [line[key] for key in keys] for line in episodes})
    assert learned[0] == learned[1]
    assert sampled[0] == sampled[1]
    ours, theirs = (load_file(each / "checkpoints/step-00000005/weights.safetensors") for each in (run, expected))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


# The evaluation before has answers 1 to 8 (fewer where an answer is cut), each batch about 14 more.


def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole, manifest_in, train, read_lines, tmp_path):
    """Finished episodes of the batch ahead are kept with their versions; what is missing gets the same weights."""
    stopped(manifest_in(tmp_path, ENV), tmp_path, signal.SIGKILL, 32, hang=False)
    kept = read_lines(tmp_path / "run" / "trajectories.jsonl")
    summary = train(None, tmp_path / "run", resume=True)
    assert read_lines(tmp_path / "run" / "trajectories.jsonl")[: len(kept)] == kept
    same(read_lines, tmp_path / "run", whole[0])
    for name in ("episodes", "failed", "sampled_tokens", "leaked", "endings"):
        assert summary[name] == whole[1][name]


@pytest.mark.slow
@pytest.mark.parametrize("hang", [False, True])
@pytest.mark.parametrize("answers", [9, 16, 23, 29, 36, 41, 50, 58])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_it_does_not_matter_when_it_was_stopped(number, answers, hang, whole, manifest_in, train, read_lines, tmp_path):
    """In an evaluation, the first batch or one ahead, also where environments never answer."""
    stopped(manifest_in(tmp_path, ENV), tmp_path, number, answers, hang=hang)
    train(None, tmp_path / "run", resume=True)
    same(read_lines, tmp_path / "run", whole[0])


def test_ctrl_c_does_not_wait_for_environments_of_the_batch_ahead(whole, manifest_in, train, read_lines, tmp_path):
    """They hang; the run ends, closes each of them, and says so."""
    stopped(manifest_in(tmp_path, ENV), tmp_path, signal.SIGINT, 30, hang=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["interrupted"], summary["leaked"], summary["failed"]) == (True, 0, 0)
    assert summary["episodes"] == len(read_lines(tmp_path / "run" / "trajectories.jsonl"))
    train(None, tmp_path / "run", resume=True)
    same(read_lines, tmp_path / "run", whole[0])


class PressesCtrlC(SilentObserver):
    """Presses Ctrl-C when the weights have changed and the step is not yet closed."""

    def step_finished(self, metrics):
        if metrics["step"] == 2:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_an_update_finishes_its_step_and_stops_the_batch_ahead(
    whole, manifest_in, train, read_lines, tmp_path
):
    """The checkpoint stands where the step that was learned from ended, not where the sampler is."""
    manifest = load_manifest(manifest_in(tmp_path, ENV), OPTIONS)
    folder = RunFolder.create(tmp_path / "run", manifest_to_yaml(manifest))
    summary = train_manifest(manifest, folder, PressesCtrlC())
    assert (summary["interrupted"], summary["steps_done"], summary["leaked"]) == (True, 2, 0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tiltyard-step")]
    lines = (tmp_path / "run" / "checkpoints" / "step-00000002" / "checkpoint.json").read_text()
    assert '"batches": 2' in lines
    train(None, tmp_path / "run", resume=True)
    same(read_lines, tmp_path / "run", whole[0])


def test_a_finished_run_is_given_more_steps_as_if_it_had_had_them(whole, manifest_in, train, read_lines, tmp_path):
    """Its last checkpoint has the weights that the next batch is sampled with."""
    path = manifest_in(tmp_path, ENV)
    train(path, tmp_path / "run", *OPTIONS, "training.steps=2", "training.eval.after=false")
    train(path, tmp_path / "run", *OPTIONS, resume=True)
    same(read_lines, tmp_path / "run", whole[0])
