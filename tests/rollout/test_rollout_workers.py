"""Environment calls on threads of our own."""

import threading
import time

import pytest

from tiltyard.errors import EnvTimeoutError
from tiltyard.rollout.workers import Closing, EnvWorkers


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def collect_all(workers):
    found = {}
    while workers.pending:
        found.update({work.tag: work for work in workers.collect(None)})
    return found


def test_each_call_comes_back_under_its_tag():
    """Results are told apart by tag, whatever order they end in."""
    workers = EnvWorkers(10)
    for number in range(20):
        workers.submit(number, lambda number=number: number * number)
    assert {tag: work.result for tag, work in collect_all(workers).items()} == {n: n * n for n in range(20)}
    workers.stop()


def test_what_a_call_raises_comes_back_and_the_thread_goes_on():
    """An error is carried to the thread that collects; the worker survives it."""
    workers = EnvWorkers(10)
    workers.submit("bad", lambda: 1 // 0)
    assert isinstance(collect_all(workers)["bad"].error, ZeroDivisionError)
    assert workers.run(lambda: "fine") == "fine"
    workers.stop()


def test_calls_one_after_the_other_share_one_thread():
    """A thread that is free is reused; the pool is as large as the calls that ran at one time."""
    workers = EnvWorkers(10)
    threads = {workers.run(threading.get_ident) for _ in range(20)}
    # The result is collected just before the thread counts as free again.
    assert len(threads) <= 2
    workers.stop()


def test_as_many_calls_run_at_one_time_as_are_submitted():
    """No fixed pool size: a call never waits for another call's thread."""
    workers = EnvWorkers(10)
    meeting = threading.Barrier(40)
    for number in range(40):
        workers.submit(number, meeting.wait)
    assert [work.error for work in collect_all(workers).values()] == [None] * 40
    workers.stop()


def test_a_call_that_passes_its_deadline_is_abandoned_and_counted(gate):
    """The caller gets a time-out that names the setting; the others are not touched."""
    workers = EnvWorkers(1)
    workers.submit("hangs", gate.wait)
    workers.submit("quick", lambda: 7)
    found = collect_all(workers)
    assert found["quick"].result == 7
    assert isinstance(found["hangs"].error, EnvTimeoutError)
    assert "step_timeout_s=1" in str(found["hangs"].error)
    assert (workers.abandoned, workers.stuck) == (1, 1)
    workers.stop()


def test_what_an_abandoned_call_returns_later_is_dropped(gate):
    """A late result belongs to an episode that is over."""
    workers = EnvWorkers(0.05)
    workers.submit("late", gate.wait)
    assert [work.tag for work in workers.collect(None)] == ["late"]
    gate.set()
    while workers.stuck:
        time.sleep(0.001)
    assert workers.collect(0) == []
    assert workers.stuck == 0
    workers.stop()


def test_a_call_that_ended_after_its_deadline_counts_as_late_whenever_one_looks():
    """What happened does not depend on how busy the collecting thread was."""
    workers = EnvWorkers(0.01)
    ended = threading.Event()

    def slow():
        threading.Event().wait(0.05)
        ended.set()

    workers.submit("slow", slow)
    ended.wait(5)
    assert isinstance(collect_all(workers)["slow"].error, EnvTimeoutError)
    workers.stop()


def test_collecting_with_nothing_pending_returns_at_once():
    """A driver that has nothing to wait for does not block."""
    assert EnvWorkers(None).collect(None) == []


def test_after_stop_no_submitted_call_begins():
    """Ctrl-C: what has not begun never begins."""
    workers = EnvWorkers(10)
    workers.run(lambda: None)
    workers.stop()
    began = []
    workers.submit("x", lambda: began.append(1))
    assert workers.collect(0.05) == []
    assert began == []


def test_threads_do_not_keep_the_process_alive(gate):
    """All are daemons."""
    workers = EnvWorkers(0.05)
    workers.submit("hangs", gate.wait)
    workers.collect(None)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("tiltyard"))
    workers.stop()


def test_closing_waits_for_all_keeps_the_errors_and_counts_those_that_hang(gate):
    """One close that raises and one that hangs do not stop the others."""
    closed = []
    closing = Closing()
    closing.start([lambda: closed.append("a"), lambda: 1 // 0, gate.wait, lambda: closed.append("b")])
    assert closing.wait(2) == 1
    assert sorted(closed) == ["a", "b"]
    assert [type(error) for error in closing.errors] == [ZeroDivisionError]
