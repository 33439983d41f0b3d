"""The JSON Schema: it takes what is shipped, and knows what the checks know, as far as a schema can."""

import json
from pathlib import Path

import jsonschema
import pytest
import test_manifest_messages

from tiltyard.cli import main
from tiltyard.manifest import ALGORITHM_SECTIONS, load_manifest, manifest_to_yaml
from tiltyard.manifest.json_schema import manifest_schema
from tiltyard.manifest.keys import ALIASES, leaf_paths
from tiltyard.manifest.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/tiltyard/demo/*.yaml")])
SCHEMA = manifest_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

NOT_IN_A_SCHEMA = {
    *("rows that are not there", "files that are not there", "an entrypoint that is none"),  # what there is
    *("scalars that YAML's versions read differently", "a key twice", "broken YAML"),  # how it is written
    *("a prompt that is none", "options, paths and URLs of packages"),  # what a text says
    *("the answers' column, where there are pairs", "settings that do not go together"),  # several keys together
    *("settings of another way to train", "an entrypoint, and what only a server has", "packages of a server"),
    *("workers where there are none", "workers beside a server"),
}


def complaints(value):
    return [f"{list(error.path)}: {error.message[:200]}" for error in VALIDATOR.iter_errors(value)]


def test_it_is_a_schema_of_draft_2020_12():
    """Editors read that one."""
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_manifest_that_is_shipped_fits(path):
    """As it is written, and with every default spelled out as a run folder has it."""
    assert complaints(read_yaml(path.read_text()).value) == []
    assert complaints(read_yaml(manifest_to_yaml(load_manifest(path))).value) == []


@pytest.mark.parametrize(("name", "text"), [(name, case[0]) for name, case in test_manifest_messages.GOLDEN.items()])
def test_what_the_checks_refuse_does_not_fit(name, text):
    """Apart from what no schema can say."""
    value = read_yaml(text).value
    if name != "broken YAML":
        assert bool(complaints(value)) == (name not in NOT_IN_A_SCHEMA)


def section_of(path, value):
    """A manifest that has one key, by its dotted path, beside what every manifest has."""
    tree = {"environment": {"env_type": "rollout", "entrypoint": "a:b"}, "model": {"name": "m"}}
    inner = tree
    *sections, key = path.split(".")
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = value
    return tree


@pytest.mark.parametrize("path", sorted(set(leaf_paths()) - {"environment.env_type", "model.name"}))
def test_a_key_without_a_value_fits_and_another_value_does_not(path):
    """Every key is in the schema, as what it takes."""
    base = {"algorithm.name": "GRPO"} if path.startswith("algorithm") else {}
    of = [name for name, kind in ALGORITHM_SECTIONS.items() if path.removeprefix("algorithm.") in kind.model_fields]
    named = {"name": of[0]} if base and path != "algorithm.name" else {}
    for value, fits in ((None, path != "environment.entrypoint"), (object, False)):
        tree = section_of(path, value)
        tree.setdefault("algorithm", {}).update(named)
        assert (complaints(tree) == []) == fits, path


@pytest.mark.parametrize("path", ALIASES)
def test_other_spellings_fit_but_not_beside_the_key(path):
    """One of the two is enough."""
    section, _, alias = path.partition(".")
    value = "turn" if section == "algorithm" else "text"
    tree = section_of(path, value)
    if alias == "name":
        del tree["environment"]["entrypoint"]
        tree["environment"]["rubric_file_path"] = "r.py"
    assert complaints(tree) == []
    tree[section][ALIASES[path]] = value
    assert complaints(tree) != []


def test_keys_of_the_user_fit():
    """Anywhere, with any value."""
    assert complaints(section_of("training.x-mine", [1])) == []
    assert complaints(section_of("x-mine", {"a": 1})) == []
    assert complaints(section_of("training.mine", 1)) != []


def test_an_editor_has_words_for_every_key():
    """A description and a default, where there is one."""
    steps = SCHEMA["$defs"]["TrainingSection"]["properties"]["steps"]
    assert (steps["description"], steps["default"]) == ("Steps of the whole run, resumed parts included.", 100)
    silent = [
        f"{name}.{key}"
        for name, section in SCHEMA["$defs"].items()
        for key, told in section["properties"].items()
        if not told.get("description")
    ]
    assert silent == []


def test_the_command_prints_it_or_writes_it(tmp_path, capsys):
    """`--out` names the line that an editor looks for."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    assert main(["schema", "--out", str(tmp_path / "s.json")]) == 0
    assert "# yaml-language-server: $schema=" in capsys.readouterr().out
    assert json.loads((tmp_path / "s.json").read_text()) == SCHEMA
    assert main(["schema", "--out", str(tmp_path / "no" / "s.json")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
