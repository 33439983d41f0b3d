"""A manifest in TOML is the one in YAML, with the same words for what is wrong."""

from pathlib import Path

import pytest

from tiltyard.errors import ManifestError
from tiltyard.manifest import load_manifest, manifest_from_text, manifest_to_yaml
from tiltyard.manifest.yaml_text import write_yaml

IN_TOML = """
x-note = "keys that start with x- are yours, here too"

[environment]
env_type = "rollout"
entrypoint = "env.py:Env"
env_config = { target = 7, shape = [1, 2.5] }

[model]
name = "smollm2-135m-instruct"
train = "lora"
lora = { rank = 4 }

[training]
learning_rate = 1e-5
eval.before = false
"""
IN_YAML = """
environment: {env_type: rollout, entrypoint: 'env.py:Env', env_config: {target: 7, shape: [1, 2.5]}}
model: {name: smollm2-135m-instruct, train: lora, lora: {rank: 4}}
training: {learning_rate: 1e-5, eval: {before: false}}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "env.py").write_text("")
    (tmp_path / "run.toml").write_text(IN_TOML)
    (tmp_path / "run.yaml").write_text(IN_YAML)
    return tmp_path


def test_both_say_the_same(folder):
    """Paths are relative to the file, whatever it is written in."""
    assert load_manifest(folder / "run.toml") == load_manifest(folder / "run.yaml")


def test_overrides_are_the_same(folder):
    """Their values are YAML in both."""
    overrides = ["training.steps=3", "environment.env_config={target: 9}", "training.loggers=[wandb]"]
    assert load_manifest(folder / "run.toml", overrides) == load_manifest(folder / "run.yaml", overrides)
    with pytest.raises(ManifestError, match=r"training\.stps: unknown key; did you mean training\.steps\?"):
        load_manifest(folder / "run.toml", ["training.stps=3"])


def test_a_run_keeps_it_as_yaml(folder):
    """What a run folder has is one form, and loads."""
    manifest = load_manifest(folder / "run.toml")
    assert manifest_from_text(manifest_to_yaml(manifest), source="config.yaml", base=folder) == manifest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.toml: the file is empty; a manifest has the sections environment, model, algorithm, rollout, training"),
        ("[model\n", "m.toml: line 1, column 7: not valid TOML: expected ']' at the end of a table declaration"),
        ("[model]\nname = on\n", "m.toml: line 2, column 8: not valid TOML: invalid value"),
        ("[model]\nname = 017\n", "m.toml: line 2, column 9: not valid TOML: expected newline or end of document "),
        ("[a]\n[a]\n", "m.toml: line 2, column 3: not valid TOML: cannot declare ('a',) twice"),
        ("a = ", "m.toml: end of document: not valid TOML: invalid value"),
        (f"a = {'9' * 5000}", "m.toml: not valid TOML: a number has too many digits"),
        (f"a = {'[' * 3000}{']' * 3000}", "m.toml: not valid TOML: it is nested too deeply"),
        (
            "[model]\nname = 0xffffffffffffffffff\n",
            "m.toml: 2 problems\n  model.name: is a whole number of 72 b",
        ),
    ],
)
def test_what_is_no_toml_is_told_by_its_place(text, message):
    """TOML has no traps to refuse: what is ambiguous in YAML is an error there."""
    with pytest.raises(ManifestError) as raised:
        manifest_from_text(text, source="m.toml", base=Path("/"))
    assert str(raised.value).startswith(message)


def test_the_manual_shows_a_manifest_in_toml():
    """It loads, and says what the YAML of that page says."""
    page = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text()
    text = page.partition("## In TOML")[2].split("```")[1].removeprefix("text\n")
    manifest = manifest_from_text(text, source="m.toml", base=Path("/"))
    assert (manifest.training.eval.tasks, manifest.training.learning_rate) == (200, 1e-4)


def test_numbers_keep_their_kind(folder):
    """1 is no 1.0."""
    manifest = load_manifest(folder / "run.toml")
    assert manifest.environment.env_config == {"target": 7, "shape": [1, 2.5]}
    assert [type(value) for value in manifest.environment.env_config["shape"]] == [int, float]
    assert write_yaml(manifest.environment.env_config["shape"]) == "- 1\n- 2.5\n"
