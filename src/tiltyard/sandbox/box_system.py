"""This machine's programs as a sandbox is shown them: as its own system, or beside a system of its own."""

import os
import struct
from pathlib import Path

from tiltyard.errors import ConfigurationError

BESIDE = "/.system"
"""Where this machine's system is in a sandbox whose own is another one."""


def system_mounts() -> list[str]:
    """Bubblewrap's arguments for this machine's programs and libraries, read-only, and nothing else of it."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        folder = Path("/", name)
        if folder.is_symlink():
            arguments += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            arguments += ["--ro-bind", str(folder), str(folder)]
    return arguments


def python_beside(python: Path) -> list[str]:
    """The command for this machine's interpreter in a sandbox whose own system is another one, mounted at `BESIDE`.

    Started by its own loader with its own libraries, it needs nothing of the other system.
    """
    program = python.resolve()
    loader = Path(_loader_of(program)).resolve()
    libraries = [loader.parent, Path("/usr/lib64"), Path("/usr/lib"), program.parents[1] / "lib"]
    path = ":".join(f"{BESIDE}{folder}" for folder in libraries)
    return [f"{BESIDE}{loader}", "--library-path", path, f"{BESIDE}{program}"]


def system_beside(python: Path) -> list[str]:
    """Bubblewrap's arguments for what `python_beside` starts."""
    command = ["--ro-bind", "/usr", f"{BESIDE}/usr"]
    if not python.resolve().is_relative_to("/usr"):
        prefix = python.resolve().parents[1]
        command += ["--ro-bind", str(prefix), f"{BESIDE}{prefix}"]
    loader = Path(_loader_of(python.resolve())).resolve()
    if not loader.is_relative_to("/usr"):
        command += ["--ro-bind", str(loader.parent), f"{BESIDE}{loader.parent}"]
    return command


def _loader_of(program: Path) -> str:
    """The loader that an ELF program names: what stands in its header of type 3.

    Raises:
        ConfigurationError: The program is none of that kind.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise ConfigurationError(f"{program} is not a 64-bit Linux program, so no sandbox can start it")
        (at,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(at + number * size)
            header = file.read(size)
            if struct.unpack_from("<I", header)[0] == 3:
                offset, length = struct.unpack_from("<Q", header, 8)[0], struct.unpack_from("<Q", header, 32)[0]
                file.seek(offset)
                return file.read(length).rstrip(b"\0").decode()
    raise ConfigurationError(f"{program} names no loader, so no sandbox with a root of its own can start it")


def python_mounts(python: Path) -> list[str]:
    """Bubblewrap's arguments for an interpreter that is not below `/usr`."""
    if python.is_relative_to("/usr"):
        return []
    prefix = python.parents[1]
    return ["--ro-bind", str(prefix), str(prefix)]
