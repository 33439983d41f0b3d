"""Leases are given back exactly once, whatever happens, and what is left over is counted."""

import threading

import pytest

from tiltyard.errors import LostSessionError
from tiltyard.leases import Leases, lost_leases


class Server:
    """Something elsewhere that holds sessions."""

    def __init__(self):
        self.sessions = set()
        self.releases = []

    def lease(self, leases, name, **options):
        self.sessions.add(name)
        return leases.acquire(name, lambda: self.release(name), held=lambda: name in self.sessions, **options)

    def release(self, name):
        self.releases.append(name)
        self.sessions.discard(name)


def test_a_lease_is_given_back_when_its_block_is_left():
    """Also when the block is left by an interrupt."""
    server, leases = Server(), Leases()
    with pytest.raises(KeyboardInterrupt), server.lease(leases, "a"):
        raise KeyboardInterrupt
    assert (server.releases, leases.close().leaked) == (["a"], 0)


def test_the_end_of_the_run_gives_back_what_is_left_newest_first():
    """A release happens once, however often it is asked for."""
    server = Server()
    with Leases() as leases:
        kept = [server.lease(leases, name) for name in "abc"]
        kept[1].release()
        kept[1].release()
    assert server.releases == ["b", "c", "a"]
    assert leases.close().leaked == 0
    assert server.releases == ["b", "c", "a"]


def test_two_threads_release_once():
    """Whichever comes first does it."""
    server, leases = Server(), Leases()
    lease = server.lease(leases, "a")
    threads = [threading.Thread(target=lease.release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.releases == ["a"]
    leases.close()


def test_leaked_is_counted_by_asking():
    """A release that returned and released nothing is a leak; so is one that is still open."""
    server, leases = Server(), Leases()
    lazy = leases.acquire("lazy", lambda: None, held=lambda: True)
    lazy.release()
    server.lease(leases, "open")
    report = leases.report()
    assert (report.acquired, report.leaked) == (2, 2)
    assert leases.close().leaked == 1


def test_a_release_that_fails_is_reported_and_stops_no_other():
    """The failure is in the report with the lease's name."""
    server, leases = Server(), Leases()
    server.lease(leases, "a")

    def broken():
        raise ConnectionError("server gone")

    leases.acquire("b", broken)
    report = leases.close()
    assert (server.releases, report.leaked) == (["a"], 1)
    assert report.failures == ("EnvError: releasing b raised ConnectionError: server gone",)


def test_a_heartbeat_moves_the_deadline():
    """Without one the lease expires; a heartbeat that fails means that the session is lost."""
    now = [0.0]
    leases = Leases(clock=lambda: now[0])
    lease = leases.acquire("a", lambda: None, deadline_s=10)
    now[0] = 11
    assert lease.expired
    lease.beat()
    assert not lease.expired

    def gone():
        raise OSError("404")

    with pytest.raises(LostSessionError, match="heartbeat of b"):
        leases.acquire("b", lambda: None, heartbeat=gone).beat()
    leases.close()


def test_heartbeats_go_on_while_nobody_looks():
    """While the model thinks a thread says that the session is still wanted."""
    beaten = threading.Event()
    with Leases() as leases:
        leases.acquire("a", lambda: None, deadline_s=0.03, heartbeat=beaten.set)
        assert beaten.wait(10)


def test_what_could_not_be_given_back_is_tried_once_more_when_it_is_counted():
    """A server that was away at the end of an episode may be back at the end of the run."""
    elsewhere = lost_leases()
    server, leases, away = Server(), Leases(), [True]

    def release():
        if away[0]:
            raise ConnectionError("server gone")
        server.release("a")

    server.sessions.add("a")
    lease = leases.acquire("a", release, held=lambda: "a" in server.sessions)
    lease.release()
    assert (lost_leases() - elsewhere, leases.lost()) == (1, 1)
    away[0] = False
    assert (lost_leases() - elsewhere, server.releases) == (0, ["a"])
    leases.close()


def test_what_is_tried_once_more_and_hangs_is_counted_and_not_waited_for():
    """All are tried at one time: many leases of a server that is gone do not hold up the end of a run."""
    leases, gate, tries = Leases(), threading.Event(), []

    def release():
        tries.append(1)
        if len(tries) > 20:
            gate.wait(30)
        raise ConnectionError("server gone")

    for number in range(20):
        leases.acquire(str(number), release).release()
    assert (leases.lost(timeout_s=2), len(tries)) == (20, 40)
    gate.set()
    leases.close()


def test_a_lease_that_was_given_back_has_no_more_heartbeats():
    """A run of many short episodes does not gather threads that wait."""
    before = threading.active_count()
    with Leases() as leases:
        for number in range(20):
            leases.acquire(str(number), lambda: None, deadline_s=3000, heartbeat=lambda: None).release()
        while threading.active_count() > before:
            threading.Event().wait(0.01)


def test_a_lease_that_is_known_to_be_gone_is_only_counted():
    """A report asks for those that may still be held, not for every one that ever was."""
    asked = []
    leases = Leases()
    leases.acquire("a", lambda: None, held=lambda: asked.append("a") is not None).release()
    assert [leases.report().acquired for _ in range(3)] == [1, 1, 1]
    assert asked == ["a"]
    leases.close()
