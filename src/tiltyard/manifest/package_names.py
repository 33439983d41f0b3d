"""The names in `environment.env_packages`: packages and their versions, and nothing else that an installer takes."""

import shlex
import sys
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from tiltyard.manifest.environment import EnvironmentSection
from tiltyard.manifest.yaml_text import Problem

KEY = "environment.env_packages"


def packages_problems(section: EnvironmentSection) -> Iterator[Problem]:
    """What is wrong with the names of packages."""
    if len(section.env_packages) > 1:
        yield Problem(KEY, "has uv and pip, which are the same here: both are installed with uv; keep one")
    for tool, packages in section.env_packages.items():
        if not packages:
            yield Problem(f"{KEY}.{tool}", "names no package; leave the key out")
        for position, package in enumerate(packages):
            if reason := _refused(package):
                yield Problem(f"{KEY}.{tool}[{position}]", f"{reason}, got {package!r}")


def named_packages(section: EnvironmentSection) -> tuple[str, ...]:
    """The packages that a checked section names."""
    return tuple(package for packages in section.env_packages.values() for package in packages)


def install_command(packages: Sequence[str]) -> str:
    """What a user types to install them into this interpreter."""
    return shlex.join(["uv", "pip", "install", "--python", sys.executable, *packages])


def _refused(package: str) -> str | None:
    if package.lstrip().startswith("-"):
        return "takes names of packages, not options"
    try:
        requirement = Requirement(package)
    except InvalidRequirement:
        return "is no name of a package; write a name, or a name with a version such as gem-llm==1.0.0"
    if requirement.url is not None:
        return "takes names of packages, not URLs; install it yourself and leave the key out"
    return None
