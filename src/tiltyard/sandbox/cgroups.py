"""Control groups: where this process may make them, and what a sandbox's limits are in them."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tiltyard.sandbox.box_model import BoxLimits
from tiltyard.sandbox.keeper.clearing import clear_groups

_PERIOD_US = 100_000
_SPARE_PROCESSES = 12
"""Beyond what the sandbox's commands may have: bubblewrap, the first process, and what kills a fork bomb."""

_V1_NEEDED = ("memory", "pids")
_V1_WANTED = ("memory", "pids", "cpu", "cpuacct", "freezer")


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """The control groups of one sandbox, in the form that the keeper takes.

    Attributes:
        groups: Folders to make, each with files to write into it.
        thaw: Files to write so that a frozen sandbox goes on.
        freeze: Files to write to freeze it; empty where there is no freezer.
        asked: Files that say, after its end, whether it ran out of memory.
        memory: The file with the bytes that it holds; None without that controller.
        cpu: The file with the time that it used; None without that controller.
    """

    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    thaw: tuple[tuple[str, str], ...] = ()
    freeze: tuple[tuple[str, str], ...] = ()
    asked: tuple[str, ...] = ()
    memory: str | None = None
    cpu: str | None = None


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The control groups that this process may make groups in.

    Attributes:
        version: 1, 2, or 0 when there are none.
        folders: The parent of our groups for each controller; version 2 has one, named "".
    """

    version: int = 0
    folders: tuple[tuple[str, str], ...] = ()

    @property
    def controllers(self) -> frozenset[str]:
        """What can be limited or done: memory, pids, cpu, freezer."""
        if self.version == 2:
            return frozenset(Path(self.folders[0][1], "cgroup.subtree_control").read_text().split()) | {"freezer"}
        return frozenset(name for name, _ in self.folders)

    def order(self, name: str, limits: BoxLimits) -> GroupOrder:
        """The groups of a sandbox of that name."""
        if self.version == 1:
            return self._order_v1(name, limits)
        if self.version == 2:
            return self._order_v2(name, limits)
        return GroupOrder()

    def _order_v1(self, name: str, limits: BoxLimits) -> GroupOrder:
        at = {controller: f"{folder}/{name}" for controller, folder in self.folders}
        memory = str(limits.memory_mib << 20)
        files = {
            "memory": [("memory.limit_in_bytes", memory)],
            "pids": [("pids.max", str(limits.processes + _SPARE_PROCESSES))],
            "cpu": [
                ("cpu.cfs_period_us", str(_PERIOD_US)),
                ("cpu.cfs_quota_us", str(max(1000, int(limits.cpus * _PERIOD_US)))),
            ],
        }
        parent = dict(self.folders).get("memory", "")
        if os.path.exists(f"{parent}/memory.memsw.limit_in_bytes"):
            files["memory"].append(("memory.memsw.limit_in_bytes", memory))
        state = f"{at['freezer']}/freezer.state" if "freezer" in at else ""
        return GroupOrder(
            groups=tuple((folder, tuple(files.get(controller, ()))) for controller, folder in at.items()),
            thaw=((state, "THAWED"),) if state else (),
            freeze=((state, "FROZEN"),) if state else (),
            asked=(f"{at['memory']}/memory.oom_control",),
            memory=f"{at['memory']}/memory.usage_in_bytes",
            cpu=f"{at['cpuacct']}/cpuacct.usage" if "cpuacct" in at else None,
        )

    def _order_v2(self, name: str, limits: BoxLimits) -> GroupOrder:
        folder = f"{self.folders[0][1]}/{name}"
        files = [
            ("memory.max", str(limits.memory_mib << 20)),
            ("pids.max", str(limits.processes + _SPARE_PROCESSES)),
        ]
        if "cpu" in self.controllers:
            files.append(("cpu.max", f"{max(1000, int(limits.cpus * _PERIOD_US))} {_PERIOD_US}"))
        if os.path.exists(f"{_own_v2()}/memory.swap.max"):
            files.append(("memory.swap.max", "0"))
        return GroupOrder(
            groups=((folder, tuple(files)),),
            thaw=((f"{folder}/cgroup.freeze", "0"),),
            freeze=((f"{folder}/cgroup.freeze", "1"),),
            asked=(f"{folder}/memory.events",),
            memory=f"{folder}/memory.current",
            cpu=f"{folder}/cpu.stat",
        )


def find_cgroups() -> Cgroups:
    """Where this process may make groups with at least a limit of memory and of processes."""
    found = {name: folder for name in _V1_WANTED if (folder := _own_v1(name)) and _may_make(folder)}
    if all(name in found for name in _V1_NEEDED):
        return Cgroups(1, tuple(found.items()))
    folder = Path(_own_v2() or "/nowhere")
    while folder != folder.parent and (folder / "cgroup.procs").exists():
        try:
            enabled = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            break
        if set(_V1_NEEDED) <= set(enabled) and os.access(folder / "cgroup.procs", os.W_OK) and _may_make(str(folder)):
            return Cgroups(2, (("", str(folder)),))
        folder = folder.parent
    return Cgroups()


def _may_make(folder: str) -> bool:
    """Whether a group can be made there and a process of ours put into it, by doing so."""
    trial = f"{folder}/tiltyard-trial-{os.getpid()}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    moved = subprocess.run(  # noqa: S603 - a fixed command; a shell moves itself, and is gone
        ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs"', trial], stderr=subprocess.DEVNULL, check=False
    )
    return not clear_groups([trial]) and moved.returncode == 0


def _own_v1(controller: str) -> str:
    """The folder of this process's group for a controller of version 1; empty when it is not mounted."""
    own = ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            own = path
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup" and controller in options.split(" ")[-1].split(","):
            return _below(fields.split()[4], fields.split()[3], own)
    return ""


def _own_v2() -> str:
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 ") and own:
            return _below(fields.split()[4], fields.split()[3], own[0])
    return ""


def _below(mount: str, root: str, own: str) -> str:
    """A group's folder under a mount that may show only a part of the tree, as in a container."""
    inside = own[len(root) :] if root != "/" and own.startswith(root) else own
    folder = f"{mount.rstrip('/')}/{inside.strip('/')}".rstrip("/")
    return folder if os.path.isdir(folder) else mount
