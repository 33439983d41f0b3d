"""What is left of a sandbox, killed and removed: by its keeper, or by whoever comes after a crash."""

import contextlib
import os
import signal
import time
from pathlib import Path


def started_at(pid: int) -> str:
    """When a process started, in the kernel's ticks: with its number, its identity. Empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def thaw(files: list[list[str]]) -> None:
    """Let frozen control groups go on: what is frozen does not die."""
    for file, value in files:
        try:
            Path(file).write_text(value)
        except OSError:
            continue


def clear_groups(folders: list[str], patience_s: float = 2.0) -> list[str]:
    """Kill what is left in control groups and remove them; returns those that could not be."""
    left = list(folders)
    until = time.monotonic() + patience_s
    while left:
        for folder in list(left):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                left.remove(folder)
            except OSError:
                _kill_in(folder)
            else:
                left.remove(folder)
        if left:
            if time.monotonic() > until:
                return left
            time.sleep(0.002)
    return left


def _kill_in(folder: str) -> None:
    try:
        pids = Path(folder, "cgroup.procs").read_text().split()
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        return


def kill_orphans(kept: set[int]) -> None:
    """Kill the children of this process but for those that it started: what a dead sandbox left comes to it."""
    while True:
        orphans = set()
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                    if int(parent) == os.getpid() and state not in "ZX" and int(name) not in kept:
                        orphans.add(int(name))
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
