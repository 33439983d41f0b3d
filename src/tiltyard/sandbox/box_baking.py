"""The files of a sandbox, kept as one archive that the host never looks into, and spread in others.

So the set-up commands of a template are run once, and a sandbox can begin as another was left.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.box import Box
from tiltyard.sandbox.box_model import Exited

_SHOWN_CHARS = 2000
_CHUNK = 256 * 1024

_PACK = """
import os, sys, tarfile
root, left_out = sys.argv[1], sys.argv[2:]
top = os.stat(root).st_dev
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    def add(folder):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            found = entry.stat(follow_symlinks=False)
            if found.st_dev != top or entry.path in left_out:
                continue
            try:
                tar.add(entry.path, os.path.relpath(entry.path, root), recursive=False)
                if entry.is_dir(follow_symlinks=False):
                    add(entry.path)
            except FileNotFoundError:  # removed by a command that runs
                continue
    add(root)
"""

_SPREAD = """
import os, sys, tarfile
root = sys.argv[1]
whole = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
    for member in tar:
        path = os.path.join(root, member.name)
        if os.path.lexists(path):
            if member.isdir():
                continue
            try:
                os.unlink(path)
            except OSError:
                continue
        tar.extract(member, root, set_attrs=True, numeric_owner=True, **whole)
"""


_NEVER_KEPT = ("/.tiltyard", "/dev", "/proc")
_OF_THE_MOMENT = ("/tmp", "/run")  # noqa: S108 - inside


@dataclass(frozen=True, slots=True)
class Baked:
    """The files of a sandbox."""

    archive: Path

    def remove(self) -> None:
        """Keep them no longer; whoever reads them reads to the end."""
        self.archive.unlink(missing_ok=True)


async def bake(box: Box, archive: Path) -> Baked:
    """Run the set-up commands of a sandbox's template in it, and keep what they left, but for temporary files.

    Raises:
        ConfigurationError: A command failed; the message has its end.
        BoxError: The sandbox died of it.
    """
    for command in box.template.setup:
        output, exited = await _run(box, "/bin/bash", ["-c", command])
        if exited.exit_code != 0:
            raise ConfigurationError(
                f"set-up of template {box.template.name!r} failed: {command!r} ended with exit code "
                f"{exited.exit_code} ({exited.error or 'no error of the sandbox'}); its output ended with:\n{output}"
            )
    return await _packed(box, archive, f"what the set-up of template {box.template.name!r} left", _OF_THE_MOMENT)


async def keep_files(box: Box, archive: Path) -> Baked:
    """Keep the files of a sandbox as they are now; what runs in it goes on, and is no part of it.

    Raises:
        ConfigurationError: They cannot be kept, as when a file shrinks meanwhile.
        BoxError: The sandbox is dead, or has no process left to be had.
    """
    return await _packed(box, archive, f"the files of sandbox {box.id!r}", ())


async def keep_still(box: Box, archive: Path) -> Baked:
    """As `keep_files`, with all that runs in the sandbox stopped: it is then killed, and goes on only if this fails."""
    await box.halt()
    try:
        return await keep_files(box, archive)
    except BaseException:
        if box.alive:
            await box.go_on()
        raise


async def _packed(box: Box, archive: Path, what: str, left_out: tuple[str, ...]) -> Baked:
    """Raises `ConfigurationError` when it cannot be done; then there is no archive."""
    try:
        with archive.open("wb") as file:
            archive.chmod(0o600)
            await _pack(box, file, what, left_out)
    except BaseException as error:
        archive.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigurationError(f"{what} cannot be kept on this machine: {error}") from error
        raise
    return Baked(archive)


async def _pack(box: Box, file: BinaryIO, what: str, left_out: tuple[str, ...]) -> None:
    most = 2 * (box.limits.disk_mib << 20)
    arguments = [*box.python[1:], "-I", "-S", "-c", _PACK, _root(box), *_NEVER_KEPT, *left_out]
    process = await box.spawn(box.python[0], arguments, cwd="/")
    size, said = 0, b""
    async with process.subscribe() as output:
        async for item in output:
            if isinstance(item, Exited):
                if item.exit_code != 0:
                    raise ConfigurationError(f"{what} cannot be kept: {said.decode(errors='replace')}")
            elif item.stream == "stderr":
                said = (said + item.data)[-_SHOWN_CHARS:]
            else:
                size += len(item.data)
                if size > most:
                    raise ConfigurationError(f"{what} cannot be kept: it is more than {most} bytes")
                file.write(item.data)


async def spread(box: Box, baked: Baked) -> None:
    """Put kept files into a new sandbox.

    Raises:
        ConfigurationError: It does not fit, or the files were removed.
        BoxError: The sandbox is dead.
    """
    try:
        archive = baked.archive.open("rb")
    except FileNotFoundError as error:
        raise ConfigurationError("the files that it was to have were deleted meanwhile") from error
    except OSError as error:
        raise ConfigurationError(f"the files that it was to have cannot be read: {error}") from error
    with archive:
        await _unpack(box, archive)


async def _unpack(box: Box, archive: BinaryIO) -> None:
    arguments = [*box.python[1:], "-I", "-S", "-c", _SPREAD, _root(box)]
    process = await box.spawn(box.python[0], arguments, cwd="/", stdin=True)
    said = b""
    async with process.subscribe() as output:
        while piece := archive.read(_CHUNK):
            await process.send_stdin(piece)
        await process.close_stdin()
        async for item in output:
            if not isinstance(item, Exited):
                said = (said + item.data)[-_SHOWN_CHARS:]
            elif item.exit_code != 0:
                raise ConfigurationError(
                    f"the files for a sandbox of template {box.template.name!r} do not fit in it: "
                    f"{said.decode(errors='replace')}"
                )


def _root(box: Box) -> str:
    """The folder that a sandbox's files are in: without isolation the rest is this machine's."""
    return box.homes.outside or "/"


async def _run(box: Box, cmd: str, args: list[str]) -> tuple[str, Exited]:
    process = await box.spawn(cmd, args)
    said, exited = b"", Exited(-1)
    async with process.subscribe() as output:
        async for item in output:
            if isinstance(item, Exited):
                exited = item
            else:
                said = (said + item.data)[-_SHOWN_CHARS:]
    return said.decode("utf-8", "replace"), exited
