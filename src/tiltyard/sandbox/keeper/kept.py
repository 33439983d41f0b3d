"""One sandbox as its keeper sees it: its processes, and how they are started."""

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

from tiltyard.sandbox.keeper.clearing import started_at, thaw

_INFO = 5
"""The last descriptor that bubblewrap gets: 3 is the host, 4 the filter."""
_MOST_FDS = 1 << 20


class Kept:
    """One sandbox: its processes, its control groups, and the file that says so to whoever comes after a crash."""

    def __init__(self, order: dict[str, Any], record: Path) -> None:
        self.id: str = order["id"]
        # The command line is the most of an order, and what is kept here is copied at each start of another.
        self.order = {key: order[key] for key in ("groups", "thaw", "asked", "direct")}
        self.record = record
        self.outer = 0
        self.inner = -1
        self.inner_pid = 0
        self.info = b""
        self.stderr = b""
        self.stderr_read = 0
        self.stderr_fd = -1

    def note(self) -> None:
        """Write down what there is to clear away."""
        groups = [folder for folder, _ in self.order["groups"]]
        pids = [[pid, started_at(pid)] for pid in (self.outer, self.inner_pid) if pid]
        self.record.write_text(json.dumps({"groups": groups, "pids": pids, "thaw": self.order["thaw"]}))

    def kill(self) -> None:
        """Kill it, frozen or not; its end is told when it has come."""
        thaw(self.order["thaw"])
        if self.inner >= 0:
            try:
                signal.pidfd_send_signal(self.inner, signal.SIGKILL)
            except ProcessLookupError:
                self._kill_outer()
        else:
            self._kill_outer()

    def _kill_outer(self) -> None:
        try:
            os.kill(self.outer, signal.SIGKILL)
        except ProcessLookupError:
            return


def become(order: dict[str, Any], agent: int, tell: int, error: int) -> None:
    """In the new process: join the control groups, give up what is root's, be bubblewrap."""
    try:
        for folder, _ in order["groups"]:
            Path(folder, "cgroup.procs").write_text("0")
        seccomp = os.open(order["seccomp"], os.O_RDONLY)
        nothing = os.open("/dev/null", os.O_RDWR)
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (nothing, nothing, error, agent, seccomp, tell)]
        for target, fd in enumerate(moved):
            os.dup2(fd, target, inheritable=True)
        os.closerange(_INFO + 1, _MOST_FDS)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if order["uid"] is not None:
            if order["direct"]:
                os.chown(order["direct"], order["uid"], order["uid"])
            os.setgroups([])
            os.setresgid(order["uid"], order["uid"], order["uid"])
            os.setresuid(order["uid"], order["uid"], order["uid"])
        os.execve(order["argv"][0], order["argv"], {})  # noqa: S606 - arguments are passed on as they are
    except BaseException as failure:  # noqa: BLE001 - nothing may go on in this copy of the keeper
        os.write(error, f"{type(failure).__name__}: {failure}".encode())
    os._exit(127)
