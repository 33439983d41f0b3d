"""Runs over preferences from a manifest: pairs get right, the reference is computed once, a resumed run is the same."""

import json
import os
import signal

import pytest

from tiltyard.build import train_manifest
from tiltyard.cli import main
from tiltyard.errors import ManifestError
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.models.trainable import make_trainable
from tiltyard.testing.model import tiny_model
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.observer import SilentObserver
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.preference_learner import PreferenceLearner
from tiltyard.train.reference_cache import ReferenceCache
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.supervised_algorithms import DPO

ROWS = [{"prompt": f"say {i}", "chosen": f"it is {i % 3}", "rejected": f"no {i % 5}"} for i in range(40)]
SECTIONS = {
    "environment": "{env_type: dataset, objective: preference, dataset: rows.jsonl, train_test_split: 0.7}",
    "algorithm": "{}",
    "rollout": "{}",
    "training": "{steps: 10, batch_size: 5, learning_rate: 1e-3, save_every: 2, eval: {every: 4}}",
}


@pytest.fixture
def manifest(write_manifest, tmp_path):
    """A manifest that learns the pairs; sections and rows as given."""

    def write(rows=ROWS, **sections):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return write_manifest(**{**SECTIONS, **sections})

    return write


class Stops(SilentObserver):
    """Presses Ctrl-C after a step."""

    def __init__(self, step):
        self.step = step

    def step_finished(self, metrics):
        if metrics["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_held_out_pairs_get_right_and_the_summary_says_how_many(manifest, train, tmp_path, read_lines):
    """Accuracy with its interval, loss, margin, rewards and log-probabilities, before, in between and after."""
    summary = train(manifest(), tmp_path / "run")
    before, after = summary["eval_before"], summary["eval_after"]
    assert (before["metric"], before["mean"], before["n"]) == ("accuracy", 0.5, 12)
    assert before["loss"]["mean"] == pytest.approx(0.693147, abs=1e-4)
    assert after["low"] > before["mean"]
    assert after["margin"]["low"] > 0
    assert after["chosen_reward"] > after["rejected_reward"]
    assert after["chosen_logp"] - before["chosen_logp"] == pytest.approx(10 * after["chosen_reward"], abs=1e-3)
    [line, *_] = read_lines(tmp_path / "run/metrics.jsonl")
    assert {"loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logp", "rejected_logp"} <= {*line}


def test_interrupted_at_step_7_and_resumed_equals_uninterrupted(manifest, train, tmp_path, read_lines):
    """The same pairs and the same losses, to 1e-6; the reference is read, not computed again."""
    path = manifest()
    train(path, tmp_path / "whole")
    folder, loaded = tmp_path / "broken", load_manifest(path)
    summary = train_manifest(loaded, RunFolder.create(folder, manifest_to_yaml(loaded)), Stops(7))
    assert (summary["interrupted"], summary["steps_done"]) == (True, 7)
    kept = (folder / "reference.json").stat()
    train(None, folder, resume=True)
    assert (folder / "reference.json").stat().st_mtime_ns == kept.st_mtime_ns
    whole, broken = (read_lines(run / "metrics.jsonl") for run in (tmp_path / "whole", folder))
    for one, other in zip(whole, broken, strict=True):
        assert [other[name] for name in ("step", "loss", "margin", "chosen_logp")] == pytest.approx(
            [one[name] for name in ("step", "loss", "margin", "chosen_logp")], abs=1e-6
        )


def test_a_run_of_half_an_epoch_computes_the_reference_of_its_own_pairs_only(manifest, train, tmp_path):
    """What is never drawn costs nothing; a longer run adds what is missing."""
    path = manifest()
    train(path, tmp_path / "run", "training.steps=2")
    assert len(json.loads((tmp_path / "run/reference.json").read_text())["train"]) == 10
    train(None, tmp_path / "run", "training.steps=10", resume=True)
    assert len(json.loads((tmp_path / "run/reference.json").read_text())["train"]) == 28


def test_without_a_reference_none_is_computed(manifest, train, tmp_path):
    """There is no file, and the pairs get right all the same."""
    summary = train(manifest(algorithm="{reference_free: true}"), tmp_path / "run")
    assert not (tmp_path / "run/reference.json").exists()
    assert summary["eval_after"]["mean"] > summary["eval_before"]["mean"]


@pytest.mark.parametrize("model", ["lora", "last:1"])
def test_a_part_of_the_model_learns_pairs_too(manifest, train, tmp_path, model, model_folder):
    """The reference is then the model without its adapter, or with its first weights."""
    path = manifest(model=f"{{name: {model_folder}, train: '{model}'}}", algorithm="{loss: ipo, beta: 0.2}")
    summary = train(path, tmp_path / "run")
    assert summary["eval_after"]["loss"]["mean"] < summary["eval_before"]["loss"]["mean"]


@pytest.fixture
def cache(tmp_path):
    """A cache in the test's folder, of rows and a model as given; counts what it computes."""

    def make(rows=ROWS, seed=0):
        tokenizer = byte_tokenizer()
        env = DatasetEnv(rows, tokenizer, objective="preference")
        model = make_trainable(tiny_model(len(tokenizer), seed=seed), "full")
        return ReferenceCache(
            tmp_path / "reference.json", env, PreferenceLearner(model, DPO(), OptimiserSettings(1e-3))
        )

    return make


def test_what_the_reference_said_is_read_by_the_next_process(cache):
    """To the last bit."""
    first = cache()
    assert first.fill("train", [3, 1]) == 2
    again = cache()
    assert again.fill("train", [1, 3]) == 0
    assert again.of("train", [3]) == first.of("train", [3])


@pytest.mark.parametrize("other", [{"seed": 1}, {"rows": ROWS[:-1]}], ids=["another model", "other rows"])
def test_what_another_reference_said_is_computed_again(cache, other):
    """The file belongs to rows, template, settings and weights."""
    cache().fill("train", [1])
    assert cache(**other).fill("train", [1]) == 1


def test_a_damaged_file_counts_as_none(cache, tmp_path):
    """What it held is computed again."""
    (tmp_path / "reference.json").write_text('{"fingerprint": ')
    assert cache().fill("held_out", [0]) == 1


def test_the_command_line_checks_and_trains(manifest, tmp_path, capsys):
    """Both answers are shown, and what came of it is told in pairs."""
    path = str(manifest())
    assert main(["check", path]) == 0
    assert capsys.readouterr().out.count("⟦") == 3  # the two answers, and the words that explain the sign
    assert main(["train", path, "--out", str(tmp_path / "run"), "--set", "training.steps=3"]) == 0
    said = capsys.readouterr()
    assert "pairs right" in said.err
    assert "margin" in said.out


def test_the_answers_of_pairs_are_in_no_response_column(manifest):
    """A key of the other objective is refused with its path."""
    environment = SECTIONS["environment"].replace("train_test", "response_column: chosen, train_test")
    with pytest.raises(ManifestError, match=r"environment.response_column: only with objective: sft"):
        load_manifest(manifest(environment=environment))


def test_two_values_that_do_not_go_together_are_refused(manifest):
    """As the algorithm itself refuses them."""
    with pytest.raises(ManifestError, match="algorithm: label_smoothing is only for loss 'sigmoid'"):
        load_manifest(manifest(algorithm="{loss: ipo, label_smoothing: 0.1}"))
