"""Ctrl-C while a run is on."""

import signal
import subprocess
import sys

import pytest

from tiltyard.train.interrupt import Interrupts

TWICE = """
import signal
from tiltyard.train.interrupt import Interrupts
with Interrupts() as interrupts:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("stopping", flush=True)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        print("cleaning up", flush=True)
"""


def test_the_first_ctrl_c_raises_at_once():
    """Nothing is held, so nothing waits."""
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert interrupts.seen


def test_the_first_ctrl_c_waits_for_what_is_held():
    """What must not be left half done is finished first."""
    done = []

    def work(interrupts):
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            done.append("finished")
        done.append("never")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        work(interrupts)
    assert done == ["finished"]


def test_a_hold_lasts_until_it_is_released():
    """Two holds and a block within them end with one release."""
    with Interrupts() as interrupts:
        interrupts.hold()
        interrupts.hold()
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()


def test_a_release_without_a_hold_does_nothing():
    """A step that changed no weight holds nothing."""
    with Interrupts() as interrupts:
        interrupts.release()
        assert not interrupts.seen


def test_the_handler_that_was_there_comes_back():
    """Outside a run Ctrl-C means what it meant before."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_ends_the_process_at_once():
    """Exit code 130, and no cleaning up."""
    found = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=30, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, "stopping\n", "")
