"""What the first process knows of the whole sandbox: what it uses, how it is stopped, when it has too much."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal` costs each sandbox a megabyte
import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def processes() -> dict[int, list[str]]:
    """Every process that came of this one: the fields of its `stat` after the name, from the state on."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    found[int(name)] = file.read().rpartition(")")[2].split()
            except OSError:
                continue
    ours, before = {os.getpid()}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {pid for pid, fields in found.items() if int(fields[1]) in ours}
    return {pid: found[pid] for pid in ours - {os.getpid()}}


def usage() -> dict:
    """CPU seconds, bytes of memory and of disk, and how many processes there are."""
    own = os.times()
    seconds = own.user + own.system + own.children_user + own.children_system
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * _PAGE
    for fields in processes().values():
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS
        memory += int(fields[21]) * _PAGE
    disk = os.statvfs("/")
    return {
        "cpu_s": seconds,
        "memory": memory,
        "disk_total": disk.f_blocks * disk.f_frsize,
        "disk_used": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        "processes": len(processes()) + 1,
    }


class Stopped:
    """Stops all processes but this one and lets go of them again, where the kernel's freezer is not to be had."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def stop(self) -> None:
        """Stop every process that is not stopped by itself, those too that start meanwhile."""
        for _ in range(50):
            going = {pid for pid, fields in processes().items() if fields[0] not in "TtZX"} - self._held
            if not going:
                return
            for pid in going:
                _send(pid, _signal.SIGSTOP)
            self._held |= going

    def go_on(self) -> None:
        """Let those that `stop` stopped go on."""
        for pid in self._held:
            _send(pid, _signal.SIGCONT)
        self._held.clear()


def kill_largest(limit: int) -> bool:
    """Kill the largest process when all of them and the disk hold more than `limit` bytes; true goes on watching."""
    sizes = {}
    for pid in processes():
        try:
            with open(f"/proc/{pid}/statm") as file:
                fields = file.read().split()
        except OSError:
            continue
        sizes[pid] = (int(fields[1]) - int(fields[2])) * _PAGE
    disk = os.statvfs("/")
    held = sum(sizes.values()) + (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    if sizes and held > limit:
        _send(max(sizes, key=lambda pid: sizes[pid]), _signal.SIGKILL)
    return True


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
