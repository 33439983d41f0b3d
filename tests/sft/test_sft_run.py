"""Runs of SFT from a manifest: held-out rows get better, a resumed run is the unbroken one, nothing runs on nothing."""

import json
import os
import signal

import pytest

from tiltyard.build import train_manifest
from tiltyard.cli import main
from tiltyard.errors import CheckpointError, ConfigurationError, ManifestError
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.models.loading import load_model
from tiltyard.models.trainable import make_trainable
from tiltyard.train.dataset import DatasetPlan, run_dataset, steps_of
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.observer import SilentObserver
from tiltyard.train.optimiser import OptimiserSettings
from tiltyard.train.plan import Schedule
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.supervised_algorithms import DPO, SFT
from tiltyard.training_rows import train_llm_dataset

ROWS = [{"prompt": f"say {i}", "response": f"it is {i % 3}"} for i in range(30)]
SECTIONS = {
    "environment": "{env_type: dataset, objective: sft, dataset: rows.jsonl, train_test_split: 0.8}",
    "algorithm": "{}",
    "rollout": "{}",
    "training": "{steps: 10, batch_size: 5, learning_rate: 1e-2, save_every: 2, eval: {every: 4}}",
}


@pytest.fixture
def manifest(write_manifest, tmp_path):
    """A manifest that learns the rows; sections and rows as given."""

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


def losses(lines):
    return [(line["step"], line["loss"], line["token_accuracy"]) for line in lines]


def test_held_out_rows_get_better_and_the_summary_says_by_how_much(manifest, train, tmp_path):
    """Loss and token accuracy before and after, each with its interval over the rows."""
    summary = train(manifest(), tmp_path / "run")
    before, after = summary["eval_before"], summary["eval_after"]
    assert (before["metric"], before["rows"]) == ("loss", 6)
    assert after["high"] < before["low"]
    assert after["token_accuracy"]["mean"] > before["token_accuracy"]["mean"]
    assert 0 <= after["token_accuracy"]["low"] <= after["token_accuracy"]["high"] <= 1
    assert summary["dataset"]["train"]["used"] == 24
    assert list(summary["evaluations"]) == ["eval_4", "eval_8"]


def test_every_row_comes_once_an_epoch(manifest, train, tmp_path, read_lines):
    """Epochs become steps, the last one filled up from the next epoch."""
    training = "{epochs: 2, batch_size: 5, learning_rate: 1e-3, eval: {before: false, after: false}}"
    summary = train(manifest(training=training), tmp_path / "run")
    assert summary["steps"] == steps_of(2, 24, 5) == 10
    assert [line["epoch"] for line in read_lines(tmp_path / "run/metrics.jsonl")] == [0] * 5 + [1] * 5


def test_the_schedule_ends_with_the_epochs(manifest, train, tmp_path, read_lines):
    """The learning rate falls to nothing at the last step that the rows give."""
    training = "{epochs: 1, batch_size: 6, learning_rate: 1e-3, schedule: linear, eval: {tasks: 0}}"
    train(manifest(training=training), tmp_path / "run")
    rates = [line["learning_rate"] for line in read_lines(tmp_path / "run/metrics.jsonl")]
    assert rates == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0.0], abs=1e-9)


def test_interrupted_at_step_7_and_resumed_equals_uninterrupted(manifest, train, tmp_path, read_lines):
    """The same rows and the same losses, to 1e-6; Ctrl-C is pressed once the step is done."""
    path = manifest()
    train(path, tmp_path / "whole")
    folder, loaded = tmp_path / "broken", load_manifest(path)
    summary = train_manifest(loaded, RunFolder.create(folder, manifest_to_yaml(loaded)), Stops(7))
    assert (summary["interrupted"], summary["steps_done"]) == (True, 7)
    resumed = train(None, folder, resume=True)
    assert (resumed["interrupted"], resumed["steps_done"], resumed["attempts"]) == (False, 10, 2)
    whole, broken = (read_lines(run / "metrics.jsonl") for run in (tmp_path / "whole", folder))
    assert [line["attempt"] for line in broken] == [0] * 7 + [1] * 3
    for one, other in zip(losses(whole), losses(broken), strict=True):
        assert other == pytest.approx(one, abs=1e-6)
    assert resumed["eval_after"]["mean"] == pytest.approx(
        json.loads((tmp_path / "whole/summary.json").read_text())["eval_after"]["mean"], abs=1e-6
    )


def test_a_run_is_not_resumed_on_other_rows(manifest, train, tmp_path):
    """Both are named."""
    path = manifest()
    train(path, tmp_path / "run", "training.steps=2")
    manifest(rows=ROWS[:20])
    with pytest.raises(CheckpointError, match=r"taken with .*24 rows.*this run has .*16 rows"):
        train(None, tmp_path / "run", "training.steps=4", resume=True)


def test_the_best_checkpoint_stays_beside_the_last(manifest, train, tmp_path):
    """The lowest loss on the held-out rows is the best."""
    summary = train(manifest(), tmp_path / "run", "training.keep_checkpoints=1")
    best = json.loads((tmp_path / "run/checkpoints/best.json").read_text())
    assert best["metric"] == "loss"
    evaluations = {**summary["evaluations"], "eval_after": summary["eval_after"]}
    assert best["value"] == min(result["mean"] for result in evaluations.values())
    assert (tmp_path / f"run/checkpoints/step-{best['step']:08d}").is_dir()


def test_rows_that_teach_nothing_end_the_run_before_it_begins(manifest, train, tmp_path):
    """The message says why, and no folder is left behind."""
    path = manifest(rows=[{"prompt": "q", "response": ""}] * 10)
    with pytest.raises(ConfigurationError, match=r"nothing can be trained on.*8 left out: no token of an answer"):
        train(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_row_longer_than_the_models_context_is_refused(manifest, train, tmp_path):
    """The message has both numbers and the cure."""
    path = manifest(rows=[*ROWS, {"prompt": "q" * 2000, "response": "a"}])
    with pytest.raises(ConfigurationError, match=r"20\d\d tokens, but the model takes 1024; set max_length to 1024"):
        train(path, tmp_path / "run")


def test_check_shows_an_example_with_its_mask_and_the_counts(manifest, capsys):
    """What will be learned can be seen before anything is."""
    path = manifest(rows=[*ROWS, {"prompt": "q", "response": ""}], algorithm="{max_length: 60}")
    assert main(["check", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "⟦it is" in shown
    assert "1 left out: no token of an answer to train" in shown
    assert "10 of 5 rows" in shown


def test_training_says_its_figures_line_by_line(manifest, tmp_path, capsys):
    """Steps, evaluations, and what came of it."""
    assert main(["train", str(manifest()), "--out", str(tmp_path / "run"), "--set", "training.steps=4"]) == 0
    said = capsys.readouterr()
    assert "tokens right" in said.err
    assert "on held-out rows: better, the 95 % intervals are apart" in said.out
    assert "train: 24 of 24 used" in said.out


def test_the_algorithm_follows_the_objective(manifest):
    """Not given, it is SFT; another one is refused."""
    assert load_manifest(manifest()).algorithm.name == "SFT"
    with pytest.raises(ManifestError, match=r"algorithm.name: SFT is what learns with objective: sft, got DPO"):
        load_manifest(manifest(algorithm="{name: DPO}"))
    rollout = "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3}"
    with pytest.raises(ManifestError, match=r"algorithm.name: SFT learns from rows: env_type: dataset"):
        load_manifest(manifest(environment=rollout, algorithm="{name: SFT}"))


def test_what_is_of_episodes_has_no_place_beside_rows(manifest):
    """Nothing is sampled."""
    with pytest.raises(ManifestError, match=r"rollout: only with env_type: rollout"):
        load_manifest(manifest(rollout="{temperature: 0.5}"))


def test_a_prompt_template_makes_the_prompt(manifest, train, tmp_path):
    """It takes the place of the column `prompt`."""
    environment = (
        "{env_type: dataset, objective: sft, dataset: rows.jsonl, response_column: said, "
        "prompt_template: {system_0: Be brief., user_1: 'Say {word}.'}}"
    )
    rows = [{"word": f"w{i}", "said": "yes"} for i in range(12)]
    summary = train(manifest(rows=rows, environment=environment), tmp_path / "run", "training.steps=1")
    assert summary["dataset"]["train"]["used"] == 11


def test_from_python_the_same_run_is_made_of_its_parts(model_folder, tmp_path):
    """An environment of rows, a model, an algorithm, a plan and a folder."""
    loaded = load_model(str(model_folder))
    env = DatasetEnv(ROWS, loaded.tokenizer, objective="sft")
    plan = DatasetPlan(Schedule(steps=3), OptimiserSettings(1e-2), batch_size=4)
    model = make_trainable(loaded.model, "lora")
    with RunFolder.create(tmp_path / "run", "") as folder:
        summary = run_dataset(env, model, SFT(), plan, folder)
    assert summary["eval_after"]["mean"] < summary["eval_before"]["mean"]
    with pytest.raises(ConfigurationError, match="DPO does not learn from rows for 'sft'"):
        run_dataset(env, model, DPO(), plan, folder)


def test_without_held_out_rows_nothing_is_evaluated(model_folder, tmp_path):
    """All rows are trained on."""
    loaded = load_model(str(model_folder))
    env = DatasetEnv(ROWS, loaded.tokenizer, objective="sft", train_test_split=1)
    plan = DatasetPlan(Schedule(steps=2, eval_every=1), OptimiserSettings(1e-2))
    with RunFolder.create(tmp_path / "run", "") as folder:
        summary = run_dataset(env, make_trainable(loaded.model, "full"), SFT(), plan, folder)
    assert (summary["eval_before"], summary["eval_after"], summary["steps_done"]) == (None, None, 2)


QUICK = {"environment": {"objective": "sft"}, "training": {"steps": 3, "batch_size": 4, "learning_rate": 1e-2}}


def test_rows_and_the_name_of_a_model_are_enough(model_folder, tmp_path):
    """What is left out has a manifest's default; the summary is that of the run folder."""
    summary = train_llm_dataset(QUICK, ROWS, str(model_folder), out=tmp_path / "run", observer=SilentObserver())
    assert (summary["steps_done"], summary["dataset"]["train"]["rows"]) == (3, 27)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == json.loads(json.dumps(summary))


def test_a_run_with_an_adapter_goes_on_in_one_process_with_the_same_model(model_folder, tmp_path):
    """The adapter that its first part left in the model is not trained upon, nor in the way."""
    loaded = load_model(str(model_folder))
    found = []
    for out, resume, steps in (("whole", False, 4), ("parts", False, 2), ("parts", True, 4)):
        config = {**QUICK, "model": {"train": "lora"}, "training": {**QUICK["training"], "steps": steps}}
        summary = train_llm_dataset(config, ROWS, loaded, out=tmp_path / out, resume=resume, observer=SilentObserver())
        found.append(summary["eval_after"]["mean"])
    assert found[2] == found[0] < found[1]


def test_an_environment_of_rows_brings_its_objective(model_folder, tmp_path):
    """A trainable model goes with it; the run goes on in its folder with both."""
    loaded = load_model(str(model_folder))
    env = DatasetEnv(ROWS, loaded.tokenizer, objective="sft")
    training = {"training": QUICK["training"]}
    model = make_trainable(loaded.model, "full")
    train_llm_dataset(training, env, model, out=tmp_path / "run", observer=SilentObserver())
    longer = {"training": {**QUICK["training"], "steps": 5}}
    model = make_trainable(load_model(str(model_folder)).model, "full")
    summary = train_llm_dataset(longer, env, model, out=tmp_path / "run", resume=True, observer=SilentObserver())
    assert (summary["steps_done"], summary["attempts"]) == (5, 2)
    with pytest.raises(ConfigurationError, match="the DatasetEnv is for 'sft'"):
        train_llm_dataset({"environment": {"objective": "preference"}}, env, model, out=tmp_path / "other")
    with pytest.raises(ConfigurationError, match="has no tokenizer here: give a DatasetEnv"):
        train_llm_dataset(QUICK, ROWS, model, out=tmp_path / "other")
