"""The page about run folders lists what is there."""

import re
from pathlib import Path

from tiltyard.train.writer import NAME

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"


def listed(heading):
    """The names in code style in the first column of the table under this heading."""
    part = PAGE.read_text().split(f"| {heading} |")[1].split("\n\n")[0]
    return {name for line in part.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def test_the_page_lists_every_file_and_every_figure_of_a_step(write_manifest, train, read_lines, tmp_path):
    """A file or figure that is added or renamed changes the page."""
    train(write_manifest(), tmp_path / "run", "training.steps=1", "training.eval.tasks=0")
    (line,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert listed("Figure") == line.keys()
    files = {path.name + "/" * path.is_dir() for path in (tmp_path / "run").iterdir()}
    assert listed("File") == files | {NAME}  # which is there while the run goes on
