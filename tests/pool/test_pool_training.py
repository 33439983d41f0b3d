"""A training run whose environments live on workers: it is the run that it is in process, and survives a worker."""

import pytest

from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.play import new_request, play_manifest
from tiltyard.train.episodes import SilentEpisodes
from tiltyard.train.run_folder import RunFolder

FLAKY = '''
"""Twenty rows, two turns. The first second turn of a run kills its process; a file remembers that it did."""

import os
import signal
from pathlib import Path

KILLED = Path(__file__).with_name("killed")


def first():
    """True once, whichever process asks first."""
    try:
        KILLED.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Env:
    dataset_size = 20

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.row, self.turn = row_index, 0
        return f"row {row_index}", {}

    def step(self, action):
        self.turn += 1
        if self.turn == 2 and first():
            os.kill(os.getpid(), signal.SIGKILL)
        return "more", sum(c.isalpha() for c in action) / 8, self.turn == 2, False, {}
'''
"""An environment that takes its worker with it, once in a run."""


def episodes(read_lines, run):
    """What was played, by id."""
    return {line["episode_id"]: line for line in read_lines(run / "trajectories.jsonl")}


def test_a_training_run_over_workers_is_the_one_in_process(backend, write_manifest, train, read_lines, tmp_path):
    """Seed for seed: the same ids, rewards and endings; log-probabilities to 1e-5; in evaluation as in training."""
    manifest = write_manifest()
    train(manifest, tmp_path / "here")
    summary = train(manifest, tmp_path / "there", f"rollout.backend={backend}", "rollout.workers=2")
    here, there = episodes(read_lines, tmp_path / "here"), episodes(read_lines, tmp_path / "there")
    assert here.keys() == there.keys()
    for name, one in here.items():
        other = there[name]
        for key in ("task", "messages", "ids", "mask", "turn", "rewards", "ending", "first_observation", "success"):
            assert (key, one[key]) == (key, other[key])
        sampled = [value for value in one["logprobs"] if value is not None]
        assert sampled == pytest.approx([value for value in other["logprobs"] if value is not None], abs=1e-5)
    assert (summary["failed"], summary["leaked"]) == (0, 0)


def test_a_training_run_survives_a_worker_that_is_killed(backend, write_manifest, train, read_lines, tmp_path):
    """Its live episodes are failed, without a reward, and teach nothing; the others are what they are in process."""
    manifest = write_manifest(FLAKY)
    (tmp_path / "killed").touch()
    train(manifest, tmp_path / "here", "training.eval.tasks=0")
    (tmp_path / "killed").unlink()
    placed = (f"rollout.backend={backend}", "rollout.workers=2", "training.eval.tasks=0")
    summary = train(manifest, tmp_path / "there", *placed)
    here, there = episodes(read_lines, tmp_path / "here"), episodes(read_lines, tmp_path / "there")
    lost = {name for name, one in there.items() if one["failed"]}
    assert here.keys() == there.keys()
    assert 1 <= len(lost) <= 4
    assert {(there[name]["ending"], there[name]["reward"], there[name]["step"]) for name in lost} == {
        ("lost_session", None, 1)
    }
    for name, one in there.items():
        if one["step"] == 1 and name not in lost:
            assert (one["ids"], one["rewards"]) == (here[name]["ids"], here[name]["rewards"])
    metrics = read_lines(tmp_path / "there" / "metrics.jsonl")
    assert [line["failed"] for line in metrics] == [len(lost), 0, 0]
    assert (summary["failed"], summary["leaked"], summary["steps_done"]) == (len(lost), 0, 3)


def test_an_evaluation_plays_where_the_manifest_says(write_manifest, read_lines, tmp_path):
    """The model samples here, its environments live on workers; what is written is the same."""
    path, played = write_manifest(), {}
    for backend in ("local", "process"):
        manifest = load_manifest(path, [f"rollout.backend={backend}"])
        folder = RunFolder.create(tmp_path / backend, manifest_to_yaml(manifest))
        summary = play_manifest(manifest, folder, new_request({"samples": 2}), SilentEpisodes())
        assert (summary["episodes"], summary["failed"], summary["leaked"]) == (8, 0, 0)
        played[backend] = episodes(read_lines, tmp_path / backend)
    for name, one in played["local"].items():
        other = played["process"][name]
        assert [one[key] for key in ("ids", "rewards", "ending")] == [
            other[key] for key in ("ids", "rewards", "ending")
        ]
