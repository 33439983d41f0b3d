"""Case CO-02: Ctrl-C while environments hang in threads."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiltyard.rollout.trace import read_traces

PLAY = Path(__file__).with_name("interrupted_play.py")


@pytest.fixture
def play(tmp_path):
    """Starts the play; kills it if the test leaves it running."""
    started = []

    def start(closing_s):
        process = subprocess.Popen([sys.executable, str(PLAY), str(tmp_path), str(closing_s)], stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(folder, line, count):
    for _ in range(3000):
        if (folder / "log").exists() and lines(folder, line) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{line!r} was not seen {count} times: {(folder / 'log').read_text()}")


def wait_until_three_hang(folder):
    """And the one that plays is over."""
    wait_for(folder, "step ", 3)
    traces = folder / "t.jsonl"
    for _ in range(3000):
        if traces.exists() and list(read_traces(traces)):
            return
        time.sleep(0.01)
    raise AssertionError("the episode that plays was not seen to end")


def lines(folder, start):
    return sum(line.startswith(start) for line in (folder / "log").read_text().splitlines())


def test_the_first_interrupt_ends_the_run_without_waiting_for_hung_steps(tmp_path, play):
    """No new step starts, each close runs exactly once and to its end, what was finished is on disk."""
    process = play(0.3)
    wait_until_three_hang(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert [lines(tmp_path, what) for what in ("step ", "close ", "closed ")] == [3, 4, 4]
    assert [record["episode_id"] for record in read_traces(tmp_path / "t.jsonl")] == ["00000-000-00"]


def test_the_second_interrupt_ends_the_process_at_once(tmp_path, play):
    """Also while closes hang; no close is begun a second time, and the record stays readable."""
    process = play(60)
    wait_until_three_hang(tmp_path)
    process.send_signal(signal.SIGINT)
    wait_for(tmp_path, "close ", 4)
    process.send_signal(signal.SIGINT)
    assert process.wait(50) != 0
    assert lines(tmp_path, "close ") == 4
    assert len(list(read_traces(tmp_path / "t.jsonl"))) == 1
