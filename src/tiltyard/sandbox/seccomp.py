"""The system calls that a sandbox may not make, as a program for the kernel's seccomp filter."""

import platform
import struct

from tiltyard.errors import ConfigurationError

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_CLONE_NEWUSER = 0x10000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. A network namespace does not hold back AF_VSOCK, which reaches a machine's hypervisor."""
_X32_BIT = 0x40000000

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED: dict[str, tuple[int, int]] = {
    # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_CLONE, _CLONE3, _UNSHARE, _IOCTL, _SOCKET = (56, 220), (435, 435), (272, 97), (16, 29), (41, 198)


def filter_program(machine: str = "") -> bytes:
    """The filter as the array of `struct sock_filter` that `bwrap --seccomp` reads.

    What is denied fails with EPERM; `clone3`, whose flags a filter cannot see, with ENOSYS, so that C libraries fall
    back to `clone`. Calls of another architecture than the machine's own end the process.

    Args:
        machine: As `platform.machine()` spells it; empty = this machine.

    Raises:
        ConfigurationError: There is no list of call numbers for this kind of machine.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCHITECTURE:
        raise ConfigurationError(f"no seccomp filter for a {machine!r} machine; there is one for x86_64 and aarch64")
    column = 0 if machine == "x86_64" else 1
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCHITECTURE[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_instruction(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), _error(_ENOSYS)]
    for numbers in _DENIED.values():
        program += [_instruction(_JUMP_EQUAL, numbers[column], 0, 1), _error(_EPERM)]
    program += [_instruction(_JUMP_EQUAL, _CLONE3[column], 0, 1), _error(_ENOSYS)]
    for numbers in (_CLONE, _UNSHARE):
        program += _when(numbers[column], 0, [_instruction(_JUMP_SET, _CLONE_NEWUSER, 0, 1), _error(_EPERM)])
    refused = [
        step
        for request in (_TIOCSTI, _TIOCLINUX)
        for step in (_instruction(_JUMP_EQUAL, request, 0, 1), _error(_EPERM))
    ]
    program += _when(_IOCTL[column], 1, refused)
    families = [
        step
        for family in _SOCKET_FAMILIES
        for step in (_instruction(_JUMP_EQUAL, family, 0, 1), _instruction(_RETURN, _ALLOW))
    ]
    program += _when(_SOCKET[column], 0, [*families, _error(_EAFNOSUPPORT)])
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


def _when(number: int, argument: int, steps: list[bytes]) -> list[bytes]:
    """`steps` on the low word of an argument of one call; what falls through has the call's number loaded again."""
    body = [_instruction(_LOAD, _ARGUMENTS + 8 * argument), *steps, _instruction(_LOAD, _NUMBER)]
    return [_instruction(_JUMP_EQUAL, number, 0, len(body)), *body]


def _error(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
