"""The examples are what a reader starts from, so they run and are sound."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiltyard.build import env_factory, probe
from tiltyard.envs.check import check_env
from tiltyard.manifest import load_manifest

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/tiltyard/demo/*.yaml")])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_environment_of_every_manifest_is_sound(path):
    """What is shipped passes the check that users are told to run."""
    section = load_manifest(path).environment
    assert probe(section, env_factory(section)).max_turns >= 1
    report = check_env(env_factory(section))
    assert report.ok, str(report)


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
