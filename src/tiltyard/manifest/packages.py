"""`environment.env_packages`: what the entrypoint needs, installed with uv where it cannot be imported without."""

import contextlib
import fcntl
import importlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from tiltyard._boundary import guarded
from tiltyard.errors import ConfigurationError, EnvError, ManifestError
from tiltyard.manifest.environment import EnvironmentSection
from tiltyard.manifest.package_names import KEY, install_command, named_packages
from tiltyard.rollout.entrypoint import load_entrypoint

TOLD_CHARS = 1500
"""Of what uv says about a failure, the last part is told."""

Say = Callable[[str], object]
"""Tells the user one line."""


def ready_packages(section: EnvironmentSection, say: Say, *, install: bool = True, uv: str | None = None) -> bool:
    """Install what the entrypoint needs, where it cannot be imported; returns whether something was installed.

    What is installed already keeps its version: a package that cannot be had beside it is refused, and the
    environment stays as it was. Of several processes one installs, and the others find it done.

    Args:
        section: The environment.
        say: Is told before anything is installed.
        install: False refuses to install, with the command that does.
        uv: The program; None looks for it beside the interpreter and on the path.

    Raises:
        ManifestError: The packages cannot be installed, or may not be; or the entrypoint cannot be imported with them.
    """
    packages = named_packages(section)
    if not packages or _missing(section) is None:
        return False
    with _one_at_a_time():
        missing = _missing(section)
        if missing is None:
            return False
        if not install:
            raise ManifestError(
                f"{KEY}: {section.source!r} needs {missing!r}, which is not installed, and --no-install was given; "
                f"install it with: {install_command(packages)}"
            )
        program = uv or _uv()
        say(f"{section.source} needs {missing}, which is not installed; installing {', '.join(packages)} with uv")
        say(f"into {sys.prefix} (--no-install refuses instead)")
        _install(program, packages)
        importlib.invalidate_caches()
        if (still := _missing(section)) is not None:
            raise ManifestError(
                f"{KEY}: {', '.join(packages)} is installed, and {section.source!r} still needs {still!r}; name the "
                "package that has it"
            )
    return True


def _missing(section: EnvironmentSection) -> str | None:
    """The module that the entrypoint cannot be imported without; None where it can be, or fails in another way."""
    try:
        guarded("importing", EnvError, load_entrypoint, section.source)
    except (ConfigurationError, EnvError) as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            return error.__cause__.name
    return None


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold the lock of this environment's packages; other processes wait."""
    lock = Path(sys.prefix, "tiltyard-packages.lock")
    try:
        lock.touch()
    except OSError as error:
        raise ManifestError(
            f"{KEY}: {sys.prefix} cannot be written to ({error.strerror}); install the packages yourself and leave "
            "the key out"
        ) from error
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise ManifestError(f"{KEY}: is installed with uv, which is not on the path; install it with: pip install uv")
    return found


def _install(uv: str, packages: Sequence[str]) -> None:
    """Resolve, then install; what was installed stays, and what a failed attempt brought goes away again."""
    before = _installed()
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "installed.txt")
        pins.write_text("".join(f"{name}=={version}\n" for name, version in before.items()), encoding="utf-8")
        command = [uv, "pip", "install", "--python", sys.executable, "--constraint", str(pins)]
        for also in (["--dry-run"], []):
            done = _run([*command, *also, *packages])
            if done.returncode == 0:
                continue
            if added := sorted(_installed().keys() - before.keys()):
                _run([uv, "pip", "uninstall", "--python", sys.executable, *added])
            raise ManifestError(
                f"{KEY}: {', '.join(packages)} cannot be installed beside what is installed; nothing was changed. uv "
                f"says: {done.stderr.strip()[-TOLD_CHARS:]}\nHost the environment in an interpreter of its own "
                "(tiltyard serve) and name it by env_url"
            )


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a list, and no shell


def _installed() -> Mapping[str, str]:
    """What is installed, with its version."""
    importlib.invalidate_caches()
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if name:
            found.setdefault(canonicalize_name(name), package.version)
    return found
