"""The example of a run from Python."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "train_in_python.py"


def test_the_example_trains_and_says_what_came_of_it(model_folder, tmp_path):
    """A reader who copies it has a run."""
    command = [
        sys.executable,
        str(SCRIPT),
        "--steps",
        "1",
        "--out",
        str(tmp_path / "run"),
        "--model",
        str(model_folder),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "of 32 held-out tasks" in said
    assert (tmp_path / "run" / "summary.json").is_file()
