"""The files in `broken/`: what `tiltyard check` says of each, word for word, and which an editor marks."""

from pathlib import Path

import jsonschema
import pytest

from tiltyard.cli import main
from tiltyard.manifest.json_schema import manifest_schema
from tiltyard.manifest.toml_text import read_toml
from tiltyard.manifest.yaml_text import read_yaml

HERE = Path(__file__).parent
BROKEN = sorted(path for path in (HERE / "broken").iterdir() if path.suffix in (".yaml", ".toml"))

ONLY_WE_KNOW = {
    "files": "what is there",
    "not_installed": "what can be imported",
    "packages": "what a package's name is",
    "wrong_arguments": "what the class takes",
    "wrong_attribute": "what the file has",
}
"""What is broken in a way that no schema can say."""


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
def test_a_broken_file_is_told_as_it_is_written_down(path, monkeypatch, capsys):
    """Beside each file stands what a user reads: all that is wrong, each with what to do. The exit code is 2."""
    monkeypatch.chdir(HERE)
    assert main(["check", str(path.relative_to(HERE))]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.replace(str(path.parent), "FOLDER") == path.with_suffix(f"{path.suffix}.txt").read_text()


def test_there_are_a_dozen_broken_files_and_nothing_is_written_down_for_none():
    """A message without its file would not be looked at."""
    assert len(BROKEN) >= 12
    told = {path.name.removesuffix(".txt") for path in (HERE / "broken").glob("*.txt")}
    assert told == {path.name for path in BROKEN}


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
def test_an_editor_marks_what_a_schema_can_say(path):
    """What is not YAML or TOML at all, an editor marks by itself."""
    read = (read_toml if path.suffix == ".toml" else read_yaml)(path.read_text())
    if isinstance(read.value, dict) and path.stem != "twice":  # the later value of two counts there
        assert jsonschema.Draft202012Validator(manifest_schema()).is_valid(read.value) == (path.stem in ONLY_WE_KNOW)
