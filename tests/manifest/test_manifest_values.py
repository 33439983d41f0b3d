"""What a manifest's text comes to: numbers, text, defaults and paths."""

from pathlib import Path

import pytest

from tiltyard.errors import ManifestError
from tiltyard.manifest import Manifest, load_manifest, manifest_from_text, manifest_to_yaml
from tiltyard.manifest.yaml_text import read_yaml, write_yaml

FINE = "environment: {env_type: rollout, entrypoint: 'package:Env'}\nmodel: {name: smollm2-135m-instruct}\n"


def read(text: str, *overrides: str) -> Manifest:
    return manifest_from_text(text, source="m.yaml", base=Path("/nowhere"), overrides=overrides)


@pytest.mark.parametrize("written", ["1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-05"])
def test_a_number_is_a_number_however_it_is_written(written):
    """`1e-5`, which YAML 1.1 takes for text, is the number it looks like."""
    assert read(FINE + f"training: {{learning_rate: {written}}}").training.learning_rate == 1e-5


def test_a_whole_number_is_a_fine_float():
    """`max_grad_norm: 1` is 1.0."""
    manifest = read(FINE + "training: {max_grad_norm: 1}")
    assert repr(manifest.training.max_grad_norm) == "1.0"


def test_quoted_text_is_never_a_number():
    """A quoted `'1e-5'` is text, and text is refused where a number is wanted."""
    with pytest.raises(ManifestError, match=r"training\.learning_rate: must be a number, got the text '1e-5'"):
        read(FINE + "training: {learning_rate: '1e-5'}")


def test_quoted_text_is_kept_letter_for_letter():
    """What stands in quotes reaches the environment as written."""
    config = '{a: "on", b: "08", c: "12:30:45", d: 2026-11-29, e: 1e3, f: true, g: ~}'
    text = f"environment: {{env_type: rollout, entrypoint: 'package:Env', env_config: {config}}}\nmodel: {{name: m}}\n"
    assert read(text).environment.env_config == {
        "a": "on",
        "b": "08",
        "c": "12:30:45",
        "d": "2026-11-29",
        "e": 1000.0,
        "f": True,
        "g": None,
    }


def test_a_key_without_a_value_means_its_default():
    """An empty value and null are "not given", for a section as for a key."""
    assert read(FINE + "training:\nrollout: {top_p: , max_context: null}\n") == read(FINE)


def test_keys_that_start_with_x_are_yours():
    """They are ignored at every level."""
    assert read(FINE + "x-note: {a: 1}\ntraining: {x-why: because}\n") == read(FINE)


def test_action_granularity_is_another_spelling():
    """The alias of the contract sets the same key."""
    assert read(FINE + "algorithm: {action_granularity: turn}").algorithm.advantage_granularity == "turn"


def test_both_spellings_at_once_are_refused():
    """Two values for one key are never settled silently."""
    with pytest.raises(ManifestError, match="another spelling of advantage_granularity, which is given as well"):
        read(FINE + "algorithm: {action_granularity: turn, advantage_granularity: trajectory}")


def test_an_override_replaces_one_value():
    """`--set a.b=1` changes that key and leaves its neighbours."""
    manifest = read(
        FINE + "training: {steps: 7, eval: {tasks: 3}}", "training.eval.every=2", "training.learning_rate=1e-3"
    )
    training = manifest.training
    assert (training.steps, training.eval.tasks, training.eval.every, training.learning_rate) == (7, 3, 2, 1e-3)


def test_the_resolved_manifest_loads_back_equal():
    """`config.yaml` of a run folder is itself a manifest."""
    manifest = read(FINE + "training: {learning_rate: 1e-5}", "environment.env_config={a: 'on', b: '1e-5', c: '017'}")
    assert read(manifest_to_yaml(manifest)) == manifest


@pytest.mark.parametrize("text", ["on", "no", "1e-5", "017", "12:30", "1_0", "~", "", "true", "<<", "3", "a: b", "é"])
def test_text_that_looks_like_something_else_survives_writing(text):
    """Written YAML reads back as the same text."""
    assert read_yaml(write_yaml({"key": text})).value == {"key": text}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("&x {b: *x}", "not valid YAML: an alias (*) is inside what it names (&)"),
        ("&x [1, [*x]]", "not valid YAML: an alias (*) is inside what it names (&)"),
        (f"{'[' * 3000}{']' * 3000}", "not valid YAML: it is nested too deeply"),
        ("9" * 5000, "line 1, column 4: not valid YAML: a whole number has at most 1000 digits, got 5000"),
        (f"0x{'f' * 5000}", "line 1, column 4: not valid YAML: a whole number has at most 1000 digits, got 5002"),
        ("!!int three", "line 1, column 4: not valid YAML: three is no whole number"),
        ("!!bool maybe", "line 1, column 4: not valid YAML: maybe is no boolean"),
        ("!!float x", "line 1, column 4: not valid YAML: x is no number"),
        ("[!!set {b}]", "a[0]: line 1: a manifest has text, numbers, booleans, lists and mappings, got !!set"),
        ("!!binary aGk=", "a: line 1: a manifest has text, numbers, booleans, lists and mappings, got !!binary"),
        (
            "!!timestamp 2026-01-01",
            "a: line 1: a manifest has text, numbers, booleans, lists and mappings, got !!timestamp",
        ),
    ],
)
def test_what_json_could_not_hold_is_refused_with_its_place(written, message):
    """It could not be written into a run folder either."""
    (problem,) = read_yaml(f"a: {written}").problems
    assert str(problem) == message


def test_an_alias_may_stand_beside_what_it_names():
    """It is the same value twice."""
    found = read_yaml("{a: &x [1], b: *x, c: {d: *x}}")
    assert (found.problems, found.value) == ((), {"a": [1], "b": [1], "c": {"d": [1]}})


def test_paths_start_from_the_manifest_not_from_the_working_folder(tmp_path, monkeypatch):
    """The same manifest names the same files from anywhere, and says them as absolute paths."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "box.py").touch()
    (tmp_path / "weights").mkdir()
    (tmp_path / "m.yaml").write_text(
        "environment: {env_type: rollout, entrypoint: 'envs/box.py:Box'}\nmodel: {name: weights}\n"
    )
    monkeypatch.chdir("/")
    manifest = load_manifest(tmp_path / "m.yaml")
    assert manifest.environment.entrypoint == f"{tmp_path}/envs/box.py:Box"
    assert manifest.model.name == f"{tmp_path}/weights"


def test_paths_on_the_command_line_start_from_the_working_folder(tmp_path, monkeypatch):
    """An override is typed in the shell, so its paths are the shell's."""
    (tmp_path / "other.py").touch()
    monkeypatch.chdir(tmp_path)
    manifest = read(FINE, "environment.entrypoint=other.py:Env")
    assert manifest.environment.entrypoint == f"{tmp_path}/other.py:Env"


def test_home_and_variables_are_filled_in(tmp_path, monkeypatch):
    """`~` and `$NAME` mean in a manifest what they mean in a shell."""
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read(FINE, "model.name=~/weights").model.name == read(FINE, "model.name=$HOME/weights").model.name
    with pytest.raises(ManifestError, match="names an environment variable that is not set"):
        read(FINE, "model.name=$TILTYARD_UNSET/weights")


def test_a_hub_id_is_left_as_it_is():
    """A model name that is no path here is the hub's."""
    assert read(FINE, "model.name=org/model").model.name == "org/model"


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**900])
def test_a_whole_number_that_torch_cannot_take_is_refused_by_its_key(number):
    """As a seed it would be an error in the middle of loading the model; to the environment it is one like others."""
    with pytest.raises(ManifestError, match=r"training\.seed: must be a whole number of at most 63 bits, got "):
        read(f"{FINE}training: {{seed: {number}}}\n")
    assert read(f"{FINE}training: {{seed: {2**63 - 1}}}\n").training.seed == 2**63 - 1
    assert read(FINE, f"environment.env_config.a={number}").environment.env_config == {"a": number}
