"""Packages of ours that run without the rest of it, in interpreters that have nothing but the standard library."""

import shutil
from pathlib import Path


def lay_program(package: Path, folder: Path) -> None:
    """Copy a package into `folder` under the name that it has here, with nothing above it.

    What imports it there by its full name gets it and its modules, and none of what this package imports on its way.
    """
    parent = folder / "tiltyard" / "sandbox"
    parent.mkdir(parents=True)
    for above in (parent.parent, parent):
        (above / "__init__.py").write_text("")
    shutil.copytree(package, parent / package.name, ignore=shutil.ignore_patterns("__pycache__"))
