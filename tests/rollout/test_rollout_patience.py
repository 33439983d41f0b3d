"""How long episodes wait for each other, to be sampled in one batch."""

import time

from tiltyard.rollout.jobs import Job
from tiltyard.rollout.seating import Patience, Seat
from tiltyard.rollout.workers import EnvWorkers, Work
from tiltyard.types import Task


def ready(for_s=0.5):
    """An episode that has been ready for so long."""
    return [Seat(0, Job(None, Task(), "e"), None, None, ready_since=time.monotonic() - for_s)]  # type: ignore[arg-type]


class Busy(EnvWorkers):
    """Workers with a call that does not end."""

    @property
    def pending(self):
        return 1


def took(seconds):
    return Work("e", lambda: None, float("inf"), began=0.0, ended=seconds)


def test_nobody_waits_when_no_environment_works():
    """There is nobody to wait for."""
    assert Patience(10.0, 10.0).over(ready(), EnvWorkers(None))


def test_any_environment_is_waited_for_until_linger_s():
    """Half a second is more than that."""
    assert Patience(0.1, 0.0).over(ready(), Busy(None))
    assert not Patience(100.0, 0.0).over(ready(), Busy(None))


def test_prompt_environments_are_waited_for_longer():
    """One that is late once is so because the machine is busy, and batches stay what they would have been."""
    patience = Patience(0.1, 100.0)
    patience.saw([took(0.01), took(0.1)])
    assert not patience.over(ready(), Busy(None))


def test_one_late_call_in_many_changes_nothing():
    """The first reset may load something, and a machine is busy now and then."""
    patience = Patience(0.1, 100.0)
    patience.saw([took(5.0)])
    patience.saw([took(0.01)] * 20 + [took(0.2)])
    assert not patience.over(ready(), Busy(None))


def test_calls_that_are_often_late_end_that():
    """Such an environment delays nobody but itself."""
    patience = Patience(0.1, 100.0)
    patience.saw([took(0.01)] * 20 + [took(0.2)] * 3)
    assert patience.over(ready(), Busy(None))


def test_a_wait_in_vain_ends_it_too():
    """A call that hangs is waited for once, not each turn."""
    patience = Patience(0.1, 0.4)
    assert patience.over(ready(), Busy(None))
    assert patience.left_s(ready(0.0), Busy(None)) <= 0.1


def test_without_a_wait_there_is_no_longer_one():
    """A linger_s of 0 says that nobody waits."""
    assert Patience(0.0, 100.0).over(ready(), Busy(None))
