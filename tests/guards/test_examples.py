"""The examples are what a reader starts from, so they run and are sound."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiltyard.build import env_factory, probe
from tiltyard.build_dataset import dataset_env
from tiltyard.envs.check import check_env
from tiltyard.manifest import load_manifest
from tiltyard.testing.tokenizer import byte_tokenizer

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/tiltyard/demo/*.yaml")])
OF_ROWS = [path for path in MANIFESTS if load_manifest(path).environment.env_type == "dataset"]


@pytest.mark.parametrize("path", [path for path in MANIFESTS if path not in OF_ROWS], ids=lambda path: path.name)
def test_the_environment_of_every_manifest_is_sound(path):
    """What is shipped passes the check that users are told to run."""
    section = load_manifest(path).environment
    assert probe(section, env_factory(section)).max_turns >= 1
    report = check_env(env_factory(section))
    assert report.ok, str(report)


@pytest.mark.parametrize("path", OF_ROWS, ids=lambda path: path.name)
def test_the_rows_of_every_manifest_are_learned_whole(path):
    """None is left out, none is cut; a row has more tokens here than with the manifest's tokenizer."""
    manifest = load_manifest(path)
    manifest = manifest.model_copy(update={"algorithm": manifest.algorithm.model_copy(update={"max_length": None})})
    for counts in dataset_env(manifest, byte_tokenizer()).counts.values():
        assert (counts.used, counts.cut) == (counts.rows, 0)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/make_rows.py")), ids=lambda path: path.parent.name)
def test_the_rows_that_are_shipped_are_those_that_the_script_writes(path, tmp_path):
    """To the byte, and few enough to read."""
    shutil.copy(path, tmp_path)
    subprocess.run([sys.executable, str(tmp_path / path.name)], capture_output=True, check=True)
    rows = path.with_name("rows.jsonl").read_bytes()
    assert (tmp_path / "rows.jsonl").read_bytes() == rows
    assert len(rows) < 200_000


@pytest.mark.parametrize("title", ["guess.py", "guess.yaml"])
def test_the_readme_shows_the_example_that_is_shipped(title):
    """One text, in two places."""
    shown = re.search(rf'```\w+ title="{title}"\n(.*?)```', (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert (ROOT / "examples" / title).read_text().endswith(shown[1])


def test_the_script_plays_both_examples():
    """It runs without a model."""
    script = [sys.executable, str(ROOT / "examples" / "play_by_hand.py")]
    output = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert output.count("ended with 'done'") == 2
