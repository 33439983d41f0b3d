"""Imports of optional dependencies, each with the extra that brings it."""

import importlib
from types import ModuleType

from tiltyard.errors import MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Raises:
        MissingExtraError: It is not installed. A dependency that is installed and fails to import
            raises its own error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtraError(
            f"{module!r} is not installed; install it with: pip install 'tiltyard[{extra}]'"
        ) from error
