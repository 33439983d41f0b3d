"""Who writes a run folder: at most one process, and whether it is still there."""

import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys

import pytest

from tiltyard.cli import main
from tiltyard.errors import ConfigurationError
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.report.headline import state_text
from tiltyard.report.reading import read_run
from tiltyard.report.watch import watch
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.writer import NAME, Writing, writer_of

WRITES = """
import os, sys
from tiltyard.train.run_folder import RunFolder
folder = RunFolder.create(sys.argv[1], "training: {steps: 2}\\n")
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def killed(path) -> int:
    """Make a folder in a process that is killed while it writes; returns its number."""
    code = f"{WRITES}\nfolder.write_metrics({{'step': 1}})\nos.kill(os.getpid(), {signal.SIGKILL.value})"
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        assert process.wait() == -signal.SIGKILL
    return process.pid


def signed(path, **values) -> None:
    """Change what the lock file says."""
    file = path / NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def no_locks(monkeypatch):
    """A file system that has none, as some shared ones do not."""

    def refused(file, kind):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refused)


def test_a_folder_that_is_written_is_not_resumed(tmp_path):
    """Two processes would mix their lines; the message names the one that is there."""
    with RunFolder.create(tmp_path / "run", "a: 1\n"):
        assert writer_of(tmp_path / "run").writing is Writing.GOES_ON
        with pytest.raises(ConfigurationError, match=rf"run is being written by process {os.getpid()} on .* stop it"):
            RunFolder.resume(tmp_path / "run", "a: 2\n")
    assert (tmp_path / "run" / "config.yaml").read_text() == "a: 1\n"
    RunFolder.resume(tmp_path / "run", "a: 2\n").close()


def test_train_does_not_resume_a_run_that_goes_on(write_manifest, tmp_path, capsys):
    """From the command line it is one message."""
    with RunFolder.create(tmp_path / "run", manifest_to_yaml(load_manifest(write_manifest()))):
        assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert f"is being written by process {os.getpid()}" in capsys.readouterr().err


def test_a_closed_folder_has_no_writer(tmp_path):
    """Nothing of the lock is left, and closing twice is closing once."""
    folder = RunFolder.create(tmp_path / "run", "a: 1\n")
    folder.close()
    again = RunFolder.resume(tmp_path / "run", "a: 1\n")
    folder.close()
    assert writer_of(tmp_path / "run").writing is Writing.GOES_ON
    again.close()
    assert writer_of(tmp_path / "run").writing is Writing.NOBODY
    assert not (tmp_path / "run" / NAME).exists()


def test_a_damaged_folder_that_is_not_resumed_has_no_writer(tmp_path):
    """What cannot be opened is not held."""
    RunFolder.create(tmp_path / "run", "a: 1\n").close()
    (tmp_path / "run" / "run.json").write_text("[")
    with pytest.raises(ConfigurationError, match="damaged"):
        RunFolder.resume(tmp_path / "run", "a: 1\n")
    assert writer_of(tmp_path / "run").writing is Writing.NOBODY


def test_watching_a_killed_run_ends_and_says_so(tmp_path):
    """Its process left no summary, and will not; the run can be gone on with."""
    pid = killed(tmp_path / "run")
    stream = Terminal()
    watch(tmp_path / "run", stream, every_s=60)
    assert f"killed: process {pid} on " in stream.getvalue()
    assert state_text(read_run(tmp_path / "run")).endswith("is gone; --resume goes on with the run")
    with RunFolder.resume(tmp_path / "run", "a: 1\n"):
        assert state_text(read_run(tmp_path / "run")).startswith(f"not ended: process {os.getpid()} on ")


def test_watching_a_run_that_an_error_broke_off_ends_and_says_so(tmp_path):
    """Its process closed the folder and left no summary."""
    RunFolder.create(tmp_path / "run", "training: {steps: 2}\n").close()
    stream = Terminal()
    watch(tmp_path / "run", stream, every_s=60)
    assert "broken off by an error; --resume goes on with the run" in stream.getvalue()


def test_what_was_done_before_is_said_of_a_resumed_run_that_was_killed(tmp_path):
    """Its summary is that of the attempt before."""
    with RunFolder.create(tmp_path / "run", "a: 1\n") as folder:
        folder.write_summary({"steps": 2, "steps_done": 1, "attempts": 1, "seconds": 3.0, "interrupted": True})
    RunFolder.resume(tmp_path / "run", "a: 1\n").close()
    assert state_text(read_run(tmp_path / "run")) == (
        "resumed, and broken off by an error; --resume goes on with the run; before, 1 of 2 steps in 3 s"
    )


def test_a_process_that_outlives_the_run_does_not_hold_its_folder(tmp_path):
    """A worker that was forked from the run is not the run."""
    code = f"{WRITES}\nif not os.fork():\n    print('here', flush=True); sys.stdin.read()\nelse:\n    os.wait()"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "here\n"
        assert writer_of(tmp_path / "run").writing is Writing.GOES_ON
        process.kill()
        process.wait()
        assert writer_of(tmp_path / "run").writing is Writing.GONE


def test_a_free_lock_of_another_machine_says_nothing(tmp_path):
    """Some shared file systems keep a lock to the machine that has it; whoever resumes there knows what they do."""
    killed(tmp_path / "run")
    signed(tmp_path / "run", host="far", boot="another")
    assert writer_of(tmp_path / "run").writing is Writing.UNKNOWN
    assert state_text(read_run(tmp_path / "run")).endswith("on far goes on with it, or was killed")
    RunFolder.resume(tmp_path / "run", "a: 1\n").close()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_process_is_looked_for(tmp_path):
    """On its own machine, it is there or it is not."""
    with RunFolder.create(tmp_path / "run", "a: 1\n"):
        with pytest.raises(ConfigurationError, match=r"stop it first; if that is another program, delete writer\.lock"):
            RunFolder.resume(tmp_path / "run", "a: 1\n")
        assert writer_of(tmp_path / "run").writing is Writing.GOES_ON
    killed(tmp_path / "other")
    assert writer_of(tmp_path / "other").writing is Writing.GONE
    RunFolder.resume(tmp_path / "other", "a: 1\n").close()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_process_of_another_machine_is_a_warning(tmp_path):
    """Nobody can tell, and a run that was killed there must be resumable here."""
    killed(tmp_path / "run")
    signed(tmp_path / "run", host="far")
    with pytest.warns(UserWarning, match=r"whether process \d+ on far still writes here cannot be told"):
        RunFolder.resume(tmp_path / "run", "a: 1\n").close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "\x00\xff"])
def test_a_lock_file_that_was_cut_says_nothing(tmp_path, text):
    """It is taken over as it is."""
    RunFolder.create(tmp_path / "run", "a: 1\n").close()
    (tmp_path / "run" / NAME).write_text(text)
    assert writer_of(tmp_path / "run").writing is Writing.UNKNOWN
    RunFolder.resume(tmp_path / "run", "a: 1\n").close()
