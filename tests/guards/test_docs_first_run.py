"""The first page that a newcomer follows: its commands run and print what it shows; the manual builds."""

import importlib.util
import os
import subprocess
import sys

import pytest
from doc_blocks import DOCS, ROOT, blocks

from tiltyard.cli import main
from tiltyard.manifest import load_manifest

QUICKSTART = blocks(DOCS / "quickstart.md")


def test_the_first_commands_print_what_the_quickstart_shows(tmp_path, monkeypatch, capsys):
    """`init` and `check`; what they wrote is a manifest that `train` takes."""
    (shown,) = (block.text for block in QUICKSTART if "ready to train" in block.text)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_env"]) == 0
    capsys.readouterr()
    assert main(["check", "my_env"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line != "…" and line not in printed] == []
    assert load_manifest(tmp_path / "my_env" / "train.yaml").training.steps == 20


@pytest.mark.slow
def test_the_manual_builds_without_a_warning(tmp_path):
    """As `make docs` does: links, anchors, navigation and the docstrings of the reference."""
    if importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocstrings is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "api" / "index.html").exists()
