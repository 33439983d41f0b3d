"""Case CO-02: Ctrl-C while tools hang in threads, in both rollouts."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiltyard.rollout.trace import read_traces

PLAY = Path(__file__).with_name("front_interrupted.py")


@pytest.fixture
def play(tmp_path):
    """Starts the play; kills it if the test leaves it running."""
    started = []

    def start(kind, closing_s):
        process = subprocess.Popen(
            [sys.executable, str(PLAY), kind, str(tmp_path), str(closing_s)], stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def noted(folder, start):
    log = folder / "log"
    return sum(line.startswith(start) for line in log.read_text().splitlines()) if log.exists() else 0


def wait_for(seen):
    for _ in range(6000):
        if seen():
            return
        time.sleep(0.01)
    raise AssertionError("what was waited for did not happen")


def traced(folder):
    [path] = (folder / "traces").iterdir()
    return [record["episode_id"] for record in read_traces(path)]


def play_until_three_hang(folder, process):
    wait_for(lambda: noted(folder, "step ") >= 3 or process.poll() is not None)
    wait_for(lambda: list((folder / "traces").glob("*.jsonl")) and traced(folder))


@pytest.mark.parametrize("kind", ["local", "served"])
def test_the_first_interrupt_ends_the_run_without_waiting_for_hung_tools(tmp_path, play, kind):
    """No new step starts, each close runs once and to its end, what was finished is on disk."""
    process = play(kind, 0.3)
    play_until_three_hang(tmp_path, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert [noted(tmp_path, what) for what in ("step ", "close ", "closed ")] == [3, 4, 4]
    assert traced(tmp_path) == ["0000-00000"]


@pytest.mark.parametrize("kind", ["local", "served"])
def test_the_second_interrupt_ends_the_process_at_once(tmp_path, play, kind):
    """Also while closes hang; no close is begun a second time, and the traces stay readable."""
    process = play(kind, 60)
    play_until_three_hang(tmp_path, process)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: noted(tmp_path, "close ") >= 4)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert noted(tmp_path, "close ") == 4
    assert traced(tmp_path) == ["0000-00000"]
