"""The classes of an OpenEnv package, found by what they are and not by how they are called."""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from tiltyard._boundary import guarded, reason
from tiltyard.errors import ConfigurationError, EnvError, RolloutError

_standing_in = threading.RLock()
"""Held while stand-ins are among the modules, which all threads share."""


def refuse_overwritten(path: Sequence[str] | None = None) -> None:
    """Check that no other distribution has overwritten the `openenv` package.

    Args:
        path: Where to look for distributions; None looks where Python imports from.

    Raises:
        ConfigurationError: `openenv-core` is installed beside `openenv`; says the cure.
    """
    found = {}
    every = importlib.metadata.distributions() if path is None else importlib.metadata.distributions(path=list(path))
    for distribution in every:
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in ("openenv", "openenv-core"):
            found[name] = distribution.version
    if len(found) == 2:
        raise ConfigurationError(
            f"openenv-core {found['openenv-core']} is installed beside openenv {found['openenv']}: both are the "
            "package `openenv`, and the one that came last has overwritten the other. Cure: pip uninstall -y "
            "openenv-core && pip install --force-reinstall --no-deps openenv; then install the packages that ask for "
            "openenv-core with --no-deps"
        )


def load_class(spec: Any, what: str) -> Any:
    """The class that `module:Class` or `module.Class` names; a class is itself, and None is None.

    Raises:
        ConfigurationError: There is none; `what` names the argument.
    """
    if spec is None or isinstance(spec, type):
        return spec
    separator = ":" if isinstance(spec, str) and ":" in spec else "."
    module_name, _, name = spec.rpartition(separator) if isinstance(spec, str) else ("", "", "")
    if not module_name or not name:
        raise ConfigurationError(f"{what} must be a class, 'module:Class' or 'module.Class', got {spec!r}")
    refuse_overwritten()
    module = _imported(module_name)
    if isinstance(module, str):
        raise ConfigurationError(f"{what}={spec!r}: {module_name} cannot be imported: {module}")
    found = getattr(module, name, None)
    if not isinstance(found, type):
        known = ", ".join(sorted(key for key, value in vars(module).items() if isinstance(value, type)))
        raise ConfigurationError(f"{what}={spec!r}: {module_name} has no class {name!r}; it has {known or 'none'}")
    return found


def client_class(package: str) -> Any:
    """The package's `EnvClient` subclass.

    Raises:
        ConfigurationError: There is none, or more than one.
    """
    _refuse_absent(package)
    return _one(package, "client", is_client, ("", ".client"), "env_cls")


def environment_class(package: str) -> Any:
    """The package's `Environment` subclass, in any module of `<package>.server`.

    Raises:
        ConfigurationError: There is none, or more than one.
    """
    _refuse_absent(package)
    return _one(package, "environment", _is_environment, (".server", *_below(package, "server")), "env_cls")


def action_class(owner: Any, package: str | None) -> Any:
    """The class of actions: what the owner's bases say, else the one in the package's `__all__`; None without any.

    Raises:
        ConfigurationError: There is more than one.
    """
    for base in getattr(owner, "__orig_bases__", ()):
        for argument in get_args(base)[:1]:
            if isinstance(argument, type) and _derives(argument, "Action"):
                return argument
    name = package or owner.__module__.partition(".")[0]
    with _whole(name):
        module = _imported(name)
        known = (
            [] if isinstance(module, str) else [getattr(module, key, None) for key in getattr(module, "__all__", ())]
        )
        found = {cls for cls in known if isinstance(cls, type) and _derives(cls, "Action")}
        if not found:
            for suffix in (".models", ".client"):
                module = _imported(name + suffix)
                found |= set() if isinstance(module, str) else set(_own(module, name, _is_action))
    if len(found) > 1:
        raise _ambiguous(name, "action", found, "action_cls")
    return next(iter(found), None)


def _refuse_absent(package: Any) -> None:
    refuse_overwritten()
    if not isinstance(package, str) or not package or importlib.util.find_spec(package.partition(".")[0]) is None:
        raise ConfigurationError(
            f"there is no package {package!r}; install it (packages of openenv come from their own repositories), or "
            "give env_cls='module:Class'"
        )


def _one(package: str, what: str, fits: Callable[[type], bool], suffixes: Sequence[str], argument: str) -> Any:
    found: set[type] = set()
    broken: list[str] = []
    with _whole(package):
        for suffix in suffixes:
            module = _imported(package + suffix)
            if isinstance(module, str):
                broken.append(f"{package + suffix}: {module}")
            else:
                found |= set(_own(module, package, fits))
    # A class that another of them derives from is that one's base.
    found -= {cls for cls in found if any(cls in other.__mro__[1:] for other in found)}
    if len(found) > 1:
        raise _ambiguous(package, what, found, argument)
    if not found:
        causes = "; these could not be imported: " + "; ".join(broken) if broken else ""
        raise ConfigurationError(f"{package} has no {what} class{causes}. Give {argument}='module:Class'")
    return found.pop()


def _ambiguous(package: str, what: str, found: set[type], argument: str) -> ConfigurationError:
    names = sorted(f"{cls.__module__}:{cls.__qualname__}" for cls in found)
    return ConfigurationError(f"{package} has several {what} classes; choose one as {argument}: {', '.join(names)}")


def _own(module: types.ModuleType, package: str, fits: Callable[[type], bool]) -> Iterator[type]:
    """The classes in a module that the package itself defines."""
    top = package.partition(".")[0]
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__.partition(".")[0] == top and fits(value):
            yield value


def _below(package: str, name: str) -> list[str]:
    """The modules of a subpackage, as suffixes; the app last, since importing it makes a server."""
    with _whole(package):
        module = _imported(f"{package}.{name}")
        path = _folders(f"{package}.{name}") if isinstance(module, str) else list(getattr(module, "__path__", ()))
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [f".{name}.{one}" for one in sorted(names, key=lambda one: one == "app") if not one.startswith("_")]


def _imported(name: str) -> types.ModuleType | str:
    """The module, or why there is none: what another package raises while it is imported is not ours."""
    try:
        return guarded(f"import {name}", EnvError, importlib.import_module, name)
    except (RolloutError, ConfigurationError) as error:
        return reason(error.__cause__ or error)


@contextmanager
def _whole(package: str) -> Iterator[None]:
    """Within this block, parts of a package can be imported that its own `__init__` cannot.

    For each package on the way that fails to import, an empty one stands in: what does import is found, and the
    causes of what does not are told.
    """
    with _standing_in:
        stand_ins = []
        for name in (package, f"{package}.server"):
            if name in sys.modules or not isinstance(_imported(name), str):
                continue
            if folders := _folders(name):
                stand_in = types.ModuleType(name)
                stand_in.__path__ = folders
                sys.modules[name] = stand_in
                stand_ins.append(name)
        try:
            yield
        finally:
            for name in stand_ins:
                sys.modules.pop(name, None)


def _folders(name: str) -> list[str]:
    parent, _, last = name.rpartition(".")
    if parent:
        found = importlib.machinery.PathFinder.find_spec(name, _folders(parent))
    else:
        found = importlib.util.find_spec(last) if last not in sys.modules else None
        if last in sys.modules:
            return list(getattr(sys.modules[last], "__path__", ()))
    return list(found.submodule_search_locations or ()) if found is not None else []


def _derives(cls: type, name: str) -> bool:
    """Whether the class derives from openenv's class of that name; openenv itself need not be imported to ask."""
    return any(base.__name__ == name and base.__module__.startswith("openenv") for base in cls.__mro__[1:])


def is_client(cls: type) -> bool:
    """Whether it is a client of a package, of which instances can be made."""
    return _derives(cls, "EnvClient") and not getattr(cls, "__abstractmethods__", None)


def _is_environment(cls: type) -> bool:
    return _derives(cls, "Environment") and not getattr(cls, "__abstractmethods__", None)


def _is_action(cls: type) -> bool:
    return _derives(cls, "Action")
