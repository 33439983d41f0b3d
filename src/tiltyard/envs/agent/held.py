"""The sandboxes that this process holds: each a lease, kept alive, and killed at the latest when the process ends."""

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import uuid4

from tiltyard._boundary import reason
from tiltyard.envs.agent.sdk import Provider, SandboxCallError, State, nobody_there
from tiltyard.errors import LostSessionError
from tiltyard.leases import Lease, LeaseReport, Leases

RUN, EPISODE, HOST, PID = "tiltyard_run", "tiltyard_episode", "tiltyard_host", "tiltyard_pid"
"""What stands in the metadata of each sandbox."""

AT_EXIT_S = 10.0
MISSED_BEATS = 3
"""A server that did not answer so many heartbeats in a row has let the sandbox go by now."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_leases: Leases | None = None


class HeldSandbox:
    """One sandbox on a server, from its creation until the server says that it is gone."""

    def __init__(self, provider: Provider, sandbox: Any, timeout_s: int, *, refresh: bool) -> None:
        """Lease a sandbox that was made.

        Args:
            provider: Its server.
            sandbox: The SDK's handle.
            timeout_s: How long the server keeps it without a heartbeat.
            refresh: Whether there are heartbeats.
        """
        self.provider = provider
        self.sandbox = sandbox
        self.sandbox_id: str = sandbox.sandbox_id
        self.gone = False
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        self._missed = 0
        self._lease: Lease = _registry().acquire(
            f"sandbox {self.sandbox_id} at {provider.url}",
            self.kill,
            deadline_s=timeout_s,
            heartbeat=self._beat if refresh else None,
            held=self._is_held,
        )

    @property
    def mine(self) -> bool:
        """False in a process that was forked from the one that made it."""
        return self._pid == os.getpid()

    def release(self) -> None:
        """Kill it, and once more what failed before. A kill that fails is logged, in the report, and not raised."""
        if not self.mine:
            return  # a forked child does not end what its parent works with
        if self._lease.given_back:
            self._lease.release_again()
        else:
            self._lease.release()
        if not self.gone:
            _log.warning("sandbox %s at %s could not be killed; it is there until its time is up", *self._name)
        self.sandbox = None  # the record of the lease stays; the handle has connections of its own

    @property
    def _name(self) -> tuple[str, str]:
        return self.sandbox_id, self.provider.url

    def kill(self) -> None:
        """Kill it, trying twice; a connection that nobody takes was tried several times by then.

        Raises:
            SandboxCallError: The server did not do it.
        """
        if self.gone:
            return
        try:
            self.provider.kill(self.sandbox_id)
        except SandboxCallError as error:
            if nobody_there(error):
                raise
            self.provider.kill(self.sandbox_id)
        self.gone = True

    def _beat(self) -> None:
        try:
            self.provider.keep(self.sandbox_id, self._timeout_s)
            self._missed = 0
        except SandboxCallError as error:
            self._missed += 1
            if self.provider.says_gone(error):
                self.gone = True
                raise LostSessionError(f"sandbox {self.sandbox_id} is gone: {reason(error)}") from error
            if self._missed >= MISSED_BEATS:
                raise

    def _is_held(self) -> bool:
        if not self.gone:
            self.gone = self.provider.state(self.sandbox_id)[0] is State.GONE
        return not self.gone


def sandbox_report() -> LeaseReport:
    """What became of the sandboxes of this process: how many there were, and how many are still there.

    A server is asked for those whose kill failed.
    """
    return _registry().report()


@cache
def process_run() -> str:
    """The run id of sandboxes whose `AgentEnv` was given none: one for each process."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


def metadata_of(run_id: str | None, own: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a new sandbox: whose it is, and what the caller gave."""
    return {
        **own,
        RUN: run_id or process_run(),
        EPISODE: str(uuid4()),
        HOST: socket.gethostname(),
        PID: str(os.getpid()),
    }


def reap(provider: Provider, run_id: str | None = None) -> list[str]:
    """Kill what a run left on a server; returns the ids of what was killed.

    Args:
        provider: The server.
        run_id: The run; None takes all runs of this machine whose process does not live any more.

    Raises:
        SandboxCallError: The server did not answer, or did not kill one; the others were killed.
    """
    if run_id is not None:
        left = [name for name, _ in provider.listed({RUN: run_id})]
    else:
        listed = provider.listed({HOST: socket.gethostname()})
        left = [name for name, metadata in listed if not _lives(metadata.get(PID, ""))]
    failed: SandboxCallError | None = None
    killed = []
    for name in left:
        try:
            provider.kill(name)
            killed.append(name)
        except SandboxCallError as error:
            failed = error
    if failed is not None:
        raise failed
    return killed


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
        return True  # it is another user's, or nobody can say
    return True


def _registry() -> Leases:
    global _leases  # noqa: PLW0603  # one a process is the point
    with _lock:
        if _leases is None:
            _leases = Leases()
            atexit.unregister(_leases.close)
            atexit.register(_close_at_exit, _leases)
        return _leases


def _close_at_exit(leases: Leases) -> None:
    """Kill what is left, all at once; a server that does not answer is not waited for."""
    killing = [threading.Thread(target=lease.release, daemon=True) for lease in leases.open]
    for thread in killing:
        thread.start()
    deadline = time.monotonic() + AT_EXIT_S
    for thread in killing:
        thread.join(max(0.0, deadline - time.monotonic()))


def _forget() -> None:
    """In a forked child: the sandboxes are the parent's to kill."""
    global _leases, _lock  # noqa: PLW0603  # one a process is the point
    _lock = threading.Lock()
    process_run.cache_clear()
    if _leases is not None:
        atexit.unregister(_close_at_exit)
        atexit.unregister(_leases.close)
        _leases = None


os.register_at_fork(after_in_child=_forget)
