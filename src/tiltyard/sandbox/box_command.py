"""The command that starts a sandbox, and the few files that every sandbox is shown."""

import json
import os
import subprocess
from pathlib import Path

from tiltyard.sandbox.alone import lay_program
from tiltyard.sandbox.box_model import BoxLimits, Template
from tiltyard.sandbox.box_system import python_beside, python_mounts, system_beside, system_mounts
from tiltyard.sandbox.guest.wire import HOME, USER, USER_ID
from tiltyard.sandbox.isolation import Isolation
from tiltyard.sandbox.seccomp import filter_program

_GUEST = Path(__file__).with_name("guest")
_HOST_ETC = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
"""What of this machine's `/etc` a sandbox is shown: nothing that says who uses it."""

_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/bash\n{USER}:x:{USER_ID}:{USER_ID}::{HOME}:/bin/bash\n"
    f"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
_SUDO = """#!/bin/sh
# There is one user here, who may do whatever can be done: what sudo is asked to run is run.
while [ $# -gt 0 ]; do
    case "$1" in
        -u|-g|-U|-C|-p) shift 2 ;;
        --) shift; break ;;
        -*) shift ;;
        *=*) export "$1"; shift ;;
        *) break ;;
    esac
done
exec "$@"
"""
_PYTHON = """#!/bin/sh
# Debian has python3 alone; a template that has a python of its own keeps it.
for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
    [ -x "$folder/python" ] && exec "$folder/python" "$@"
done
exec python3 "$@"
"""
_PROGRAMS = {"sudo": _SUDO, "python": _PYTHON}
_NEVER_DUMP = 1
"""A limit of one byte on core dumps: with 0 a machine's crash handler would still be started for each."""


def lay_out(folder: Path, isolation: Isolation) -> None:
    """Write into `folder` what all sandboxes share: the program of the first process, `/etc`, the filter."""
    lay_program(_GUEST, folder / "inside")
    (folder / "inside" / "bin").mkdir()
    for name, text in _PROGRAMS.items():
        (folder / "inside" / "bin" / name).write_text(text)
    subprocess.run(  # noqa: S603 - compiles our own files with the sandboxes' interpreter
        [
            isolation.python,
            "-I",
            "-S",
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "unchecked-hash",
            str(folder / "inside"),
        ],
        check=True,
    )
    (folder / "etc").mkdir()
    for name, text in _ETC.items():
        (folder / "etc" / name).write_text(text)
    (folder / "filter").write_bytes(filter_program() if isolation.seccomp else b"")
    for made in (folder / "inside", folder / "etc", *(folder / "inside").rglob("*"), *(folder / "etc").iterdir()):
        made.chmod(0o755 if made.is_dir() or made.name in _PROGRAMS else 0o644)


def box_command(
    isolation: Isolation, bwrap: Path, folder: Path, template: Template, limits: BoxLimits, boot_id: Path
) -> list[str]:
    """Bubblewrap's command line for a sandbox.

    Args:
        isolation: What was found on this machine.
        bwrap: A bubblewrap that the sandbox's user can start.
        folder: Where `lay_out` wrote.
        template: What the sandbox is made of.
        limits: What it may use.
        boot_id: A file with the number of its start, shown in place of this machine's.
    """
    if isolation.kind == "none":
        return _first_process(isolation, template, limits, folder / "inside")
    memory, disk = limits.memory_mib << 20, limits.disk_mib << 20
    command = [str(bwrap), "--unshare-all", "--unshare-user", "--uid", str(USER_ID), "--gid", str(USER_ID)]
    command += ["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--hostname", "sandbox"]
    command += ["--info-fd", "5", *(["--seccomp", "4"] if isolation.seccomp else [])]
    if template.network:
        command += ["--share-net"]
    command += ["--size", str(disk), "--tmpfs", "/", "--dir", "/var"]
    if template.root is None:
        command += [*_system(template, folder), *python_mounts(isolation.python)]
    else:
        command += [*_root(template.root), *system_beside(isolation.python)]
    command += ["--proc", "/proc", "--ro-bind", str(boot_id), "/proc/sys/kernel/random/boot_id", "--dev", "/dev"]
    command += ["--perms", "1777", "--size", str(min(disk, memory // 8)), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - inside
    command += ["--ro-bind", str(folder / "inside"), "/.tiltyard"]
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - inside
        command += ["--perms", "1777", "--dir", path]
    for path in (HOME, "/root", "/run", "/var/lib", "/var/cache", "/var/log", "/opt", "/srv", "/mnt"):
        command += ["--dir", path]
    command += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8", "--chdir", "/"]
    return [*command, "--", *_first_process(isolation, template, limits, Path("/.tiltyard"))]


def python_in(isolation: Isolation, template: Template) -> list[str]:
    """The command for the interpreter that a sandbox of a template has for its first process."""
    if template.root is None or isolation.kind == "none":
        return [str(isolation.python)]
    return python_beside(isolation.python)


def _first_process(isolation: Isolation, template: Template, limits: BoxLimits, inside: Path) -> list[str]:
    program = f"import sys; sys.path.insert(0, {str(inside)!r}); from tiltyard.sandbox.guest.main import main; main()"
    return [*python_in(isolation, template), "-I", "-S", "-E", "-c", program, _settings(isolation, limits)]


def _settings(isolation: Isolation, limits: BoxLimits) -> str:
    rlimits = {"RLIMIT_NOFILE": limits.open_files, "RLIMIT_CORE": _NEVER_DUMP}
    if isolation.kind != "none":  # outside a namespace it would count all processes of the user
        rlimits["RLIMIT_NPROC"] = limits.processes
    counted = "memory" in isolation.cgroups.controllers
    if not counted:
        rlimits["RLIMIT_DATA"] = limits.memory_mib << 20
    watched = 0 if counted or isolation.kind == "none" else limits.memory_mib << 20
    return json.dumps({"limits": rlimits, "watch_memory": watched})


def _system(template: Template, folder: Path) -> list[str]:
    command = [
        *system_mounts(),
        *(part for path in ("/etc", "/etc/ssl", "/etc/pki", "/etc/pki/tls") for part in ("--dir", path)),
    ]
    for name in _HOST_ETC:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in _ETC:
        command += ["--ro-bind", str(folder / "etc" / name), f"/etc/{name}"]
    if template.network:
        command += ["--ro-bind-try", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]
    return command


def _root(root: Path) -> list[str]:
    """The folders of a root one by one, read-only, so that the top and what is not among them can be written."""
    command = []
    for entry in sorted(root.iterdir()):
        if entry.name in ("proc", "dev", "sys", "tmp", "run", "home", "root"):
            continue
        if entry.is_symlink():
            command += ["--symlink", os.readlink(entry), f"/{entry.name}"]
        else:
            command += ["--ro-bind", str(entry), f"/{entry.name}"]
    return command
