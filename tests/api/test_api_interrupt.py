"""Case CO-02 over a served model: Ctrl-C while steps hang in threads."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLAY = Path(__file__).with_name("api_interrupted_play.py")


@pytest.mark.parametrize("where", ["plain", "in_a_loop"])
def test_an_interrupt_ends_the_run_without_waiting_for_hung_steps(tmp_path, where):
    """No new step starts, each environment is closed once, and the process ends; in a notebook's loop too."""
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, str(PLAY), str(log), where], stderr=subprocess.PIPE) as process:
        try:
            for _ in range(12000):
                if log.exists() and log.read_text().count("step") == 3:
                    break
                time.sleep(0.01)
            else:
                raise AssertionError("the three steps did not begin")
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
            errors = process.stderr.read()
        finally:
            process.kill()
    lines = log.read_text().split()
    assert (code, errors) == (130, b"")
    assert [lines.count(what) for what in ("step", "interrupted", "close")] == [3, 1, 3]
