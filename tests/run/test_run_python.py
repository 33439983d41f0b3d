"""Runs that are started from Python, with plain objects."""

import json
from pathlib import Path

import pytest
import yaml

from tiltyard import Manifest, load_manifest, load_model, train_llm_rollout
from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.train.observer import SilentObserver

QUICK = {
    "environment": {"max_turns": 2},
    "algorithm": {"group_size": 2},
    "rollout": {"max_tokens_per_turn": 16},
    "training": {"steps": 2, "batch_size": 2, "learning_rate": 1e-3, "eval": {"tasks": 0}},
}


class Letters:
    """Each answer earns the share of its characters that are letters."""

    dataset_size = 6

    def __init__(self, bonus=0.0):
        self.bonus = bonus

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.turn = 0
        return f"row {row_index}", {}

    def step(self, action):
        self.turn += 1
        share = sum(c.isalpha() for c in action) / max(1, len(action))
        return "more", share + self.bonus, self.turn == 2, False, {}


def run(config, env_factory, policy, out, **options):
    return train_llm_rollout(config, env_factory, policy, out=out, observer=SilentObserver(), **options)


def test_a_class_and_the_name_of_a_model_are_enough(model_folder, tmp_path):
    """What is left out has a manifest's default; the summary is that of the run folder."""
    summary = run(QUICK, Letters, str(model_folder), tmp_path / "run")
    assert (summary["steps_done"], summary["failed"], summary["leaked"]) == (2, 0, 0)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == json.loads(json.dumps(summary))


def test_the_folders_manifest_names_an_environment_that_can_be_imported(model_folder, tmp_path):
    """So the command line can go on with it; a function of this moment has no name that another process knows."""
    run(QUICK, Letters, str(model_folder), tmp_path / "named")
    run(QUICK, lambda: Letters(0.0), str(model_folder), tmp_path / "unnamed")
    names = [
        yaml.safe_load((tmp_path / name / "config.yaml").read_text())["environment"]["entrypoint"]
        for name in ("named", "unnamed")
    ]
    assert names == [f"{__name__}:Letters", "given_in_python:env_factory"]


def test_env_config_is_the_keyword_arguments_of_a_class(model_folder, tmp_path):
    """As they are those of an entrypoint."""
    config = {**QUICK, "environment": {"max_turns": 2, "env_config": {"bonus": 5.0}}}
    run(config, Letters, str(model_folder), tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["reward"] >= 5


def test_a_loaded_model_is_trained_in_place(model_folder, tmp_path):
    """Its weights are others afterwards, and nothing is loaded a second time."""
    loaded = load_model(str(model_folder))
    before = loaded.model.lm_head.weight.detach().clone()
    run(QUICK, Letters, loaded, tmp_path / "run")
    assert not loaded.model.lm_head.weight.equal(before)


def test_a_manifest_from_python_is_the_run_of_the_command_line(write_manifest, train, read_lines, tmp_path):
    """The same losses, whether its path, its values or the manifest itself is given."""
    path = write_manifest(training="{steps: 1, batch_size: 2, eval: {tasks: 0}}")
    train(path, tmp_path / "cli")
    given: list[Path | Manifest | dict] = [path, load_manifest(path), load_manifest(path).model_dump()]
    for index, config in enumerate(given):
        run(config, None, None, tmp_path / str(index))
    losses = [read_lines(tmp_path / name / "metrics.jsonl")[0]["loss"] for name in ("cli", "0", "1", "2")]
    assert losses[0] is not None
    assert losses == [losses[0]] * 4


def test_a_run_goes_on_from_python(model_folder, tmp_path):
    """With the settings that it was begun with, or with more steps."""
    run(QUICK, Letters, str(model_folder), tmp_path / "run")
    longer = {**QUICK, "training": {**QUICK["training"], "steps": 3}}
    summary = run(longer, Letters, str(model_folder), tmp_path / "run", resume=True)
    assert (summary["steps_done"], summary["attempts"]) == (3, 2)
    again = run(None, Letters, None, tmp_path / "run", resume=True)
    assert (again["steps_done"], again["attempts"]) == (3, 3)


def test_a_run_does_not_go_on_with_other_settings(model_folder, tmp_path):
    """As on the command line."""
    run(QUICK, Letters, str(model_folder), tmp_path / "run")
    other = {**QUICK, "rollout": {"max_tokens_per_turn": 17}}
    with pytest.raises(ManifestError, match="max_tokens_per_turn: the run has 16, now it is 17"):
        run(other, Letters, str(model_folder), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("config", "env_factory", "policy", "message"),
    [
        (QUICK, Letters(), "m", r"env_factory must make a new environment at each call, got the Letters"),
        (QUICK, Letters, 7, "policy must be the name of a model, what load_model returns, or a LocalModel, got int"),
        (7, Letters, "m", "config must be a mapping .*, a Manifest or the path of one, got int"),
        ({**QUICK, "trianing": {}}, Letters, "m", "trianing: unknown key; did you mean training"),
        ({"environment": {"env_type": "dataset"}}, Letters, "m", "env_type is rollout, got 'dataset'"),
        (QUICK, Letters, None, "model.name: is required and not given"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_loaded(config, env_factory, policy, message, tmp_path):
    """And no folder is left."""
    with pytest.raises(ConfigurationError, match=message):
        run(config, env_factory, policy, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resume_needs_the_folder_of_the_run(model_folder):
    """There is nothing to go on with."""
    with pytest.raises(ConfigurationError, match="resume goes on with the run in `out`"):
        run(QUICK, Letters, str(model_folder), None, resume=True)
