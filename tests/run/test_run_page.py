"""Every run leaves a page to look at."""

from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.play import new_request, play_manifest
from tiltyard.report.episodes import read_episodes
from tiltyard.report.playing import episode_observer
from tiltyard.train.run_folder import RunFolder


def test_training_leaves_a_report_of_its_episodes_and_what_their_tokens_say(write_manifest, train, tmp_path):
    """It is written when the run has ended, and has nothing that the folder has not."""
    train(write_manifest(), tmp_path / "run", "training.steps=1", "training.eval.tasks=2")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "finished 1 of 1 steps" in page
    assert 'id="pages-0-0"' in page
    assert read_episodes(tmp_path / "run" / "trajectories.jsonl").count == 2 + 8 + 2


def test_an_evaluation_leaves_one_too(write_manifest, tmp_path):
    """So does a rollout: they are folders like that of a run."""
    manifest = load_manifest(write_manifest())
    folder = RunFolder.create(tmp_path / "eval", manifest_to_yaml(manifest))
    play_manifest(manifest, folder, new_request({"split": "held-out", "tasks": 2}), episode_observer())
    assert "finished 2 of 2 episodes" in (tmp_path / "eval" / "report.html").read_text()
