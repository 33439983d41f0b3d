"""Ctrl-C at a run whose environments hang, in a process of its own (CO-02)."""

import os
import signal
import subprocess
import sys
import time

import pytest

HANGS = '''
"""Answers one episode of each group, then hangs; `close` says that it was called, and hangs where it is told to."""

import itertools
import time
from pathlib import Path

here = Path(__file__).parent
made = itertools.count()


def note(text):
    with (here / "notes").open("a") as file:
        file.write(text + "\\n")


class Env:
    def __init__(self):
        self.number = next(made)

    def reset(self, seed=None):
        return "go", {}

    def step(self, action):
        if self.number % 4 == 2:  # the first two are tried out and closed, before the run
            return "", 1.0, True, False, {}
        note("hangs")
        time.sleep(60)
        return "", 1.0, True, False, {}

    def close(self):
        note(f"closed {self.number}")
        if self.number > 1 and (here / "hold").exists():
            time.sleep(60)
'''


@pytest.fixture
def start(write_manifest, tmp_path):
    """Start a run, and give it back once every environment that will hang does and the other episodes are written."""
    path = write_manifest(HANGS, rollout="{max_tokens_per_turn: 200}")
    running = []

    def begin():
        command = [sys.executable, "-m", "tiltyard", "train", str(path), "--out", str(tmp_path / "run")]
        command += ["--set", "training.eval.tasks=0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        wait_for(process, tmp_path / "notes", "hangs", 6)
        wait_for(process, tmp_path / "run" / "trajectories.jsonl", "\n", 2)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def wait_for(process, notes, word, count):
    """Wait until the environments have noted a word so often."""
    while not notes.exists() or notes.read_text().count(word) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_the_first_ctrl_c_ends_a_run_whose_environments_hang(start, read_lines, tmp_path):
    """Nothing waits for them: each is closed once, exit code 130, and what was finished is in the folder."""
    process = start()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert "interrupted after 0 of 3 steps" in out
    closed = sorted((tmp_path / "notes").read_text().split("closed ")[1:], key=str)
    assert len(closed) == 2 + 8
    assert [(line["episode_id"], line["ending"]) for line in read_lines(tmp_path / "run" / "trajectories.jsonl")] == [
        ("00000-000-00", "done"),
        ("00000-001-00", "done"),
    ]


def test_the_second_ctrl_c_ends_the_process_at_once(start, read_lines, tmp_path):
    """Closing is not waited for: there is no summary, and what was finished is in the folder all the same."""
    (tmp_path / "hold").touch()
    process = start()
    process.send_signal(signal.SIGINT)
    wait_for(process, tmp_path / "notes", "closed", 2 + 8)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not os.path.exists(tmp_path / "run" / "summary.json")
    assert len(read_lines(tmp_path / "run" / "trajectories.jsonl")) == 2
