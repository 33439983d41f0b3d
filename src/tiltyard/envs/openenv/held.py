"""The sessions that this process holds: each is a lease, given back at the latest when the process ends."""

import asyncio
import atexit
import os
import time

from tiltyard.envs.openenv.address import shown
from tiltyard.envs.openenv.connection import Connection
from tiltyard.envs.openenv.loop import SessionLoop
from tiltyard.leases import Lease, LeaseReport, Leases

AT_EXIT_S = 3.0
_leases: Leases | None = None


def lease_session(loop: SessionLoop, connection: Connection) -> Lease:
    """Lease a session that was opened; releasing it begins to close it, and waits for nothing."""
    return _registry().acquire(
        f"session on {shown(connection.url)}",
        lambda: _begin_close(loop, connection),
        held=lambda: not connection.lost,
    )


def session_report() -> LeaseReport:
    """What became of the sessions of this process: how many there were, and how many are still open."""
    return _registry().report()


def _registry() -> Leases:
    global _leases  # noqa: PLW0603  # one a process is the point
    if _leases is None:
        atexit.register(_wait_at_exit)  # before the registry's own, so that it runs after it
        _leases = Leases()
    return _leases


def _begin_close(loop: SessionLoop, connection: Connection) -> None:
    if loop.pid == os.getpid() and not connection.lost:
        asyncio.run_coroutine_threadsafe(connection.close(), loop.loop)


def _wait_at_exit() -> None:
    """All sessions are being closed at once by now: give the servers a moment."""
    deadline = time.monotonic() + AT_EXIT_S
    while time.monotonic() < deadline and session_report().leaked:
        time.sleep(0.01)


def _forget() -> None:
    """In a forked child: the sessions are the parent's to give back."""
    global _leases  # noqa: PLW0603  # one a process is the point
    if _leases is not None:
        atexit.unregister(_wait_at_exit)
        atexit.unregister(_leases.close)
        _leases = None


os.register_at_fork(after_in_child=_forget)
