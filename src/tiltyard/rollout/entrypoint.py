"""Entrypoints: `module:attr` and `path.py:attr`, found and loaded."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tiltyard._boundary import shown
from tiltyard.envs.observation import MAX_OBSERVATION_CHARS
from tiltyard.envs.openenv.remote import RemoteEnvClient
from tiltyard.envs.turns import TextTurns, Turns, as_turns
from tiltyard.errors import ConfigurationError

_PREFIX = "tiltyard_entrypoint_"
_LOADING = threading.RLock()
"""Held while a file is executed: another thread must not see the module half made."""


def is_url(spec: str) -> bool:
    """True when the spec names a server and not a Python object."""
    return spec.lower().startswith(("http://", "https://", "ws://", "wss://"))


def load_entrypoint(spec: str, base_dir: str | Path | None = None) -> Any:
    """Load the object that `module:attr` or `path.py:attr` names; `attr` may have dots.

    Args:
        spec: What to load.
        base_dir: What a relative path is relative to; None is the working directory.

    Raises:
        ConfigurationError: The spec is not of either form, or the file, module or attribute does not exist. What
            the module itself raises while it is imported escapes as it is.
    """
    if is_url(spec):
        raise ConfigurationError(
            f"an entrypoint is 'module:attr' or 'path.py:attr', got the URL {spec!r}; a running server is named by "
            "env_url in a manifest, and taken by RolloutHarness and RemoteEnvClient"
        )
    source, colon, attribute = spec.rpartition(":")
    if not (colon and source and attribute) or "://" in spec:
        raise ConfigurationError(f"an entrypoint is 'module:attr' or 'path.py:attr', got {spec!r}")
    module = _load_file(source, spec, base_dir) if source.endswith(".py") else _load_module(source, spec)
    return _find(module, attribute, spec)


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path, once; it can import its siblings by their names.

    Two files of the same name in different folders are two modules, and each has its own siblings.

    Raises:
        ConfigurationError: It is not there, or is no Python file. What the file itself raises escapes as it is.
    """
    return _load_file(str(path), str(path), None)


def build_env(
    spec: str | Callable[..., Any], config: Mapping[str, Any] | None, base_dir: str | Path | None = None
) -> Any:
    """Make one environment from an entrypoint and its `env_config`.

    `system_prompt` is not an argument of the entrypoint: it is set on the environment that comes out.

    Raises:
        ConfigurationError: The entrypoint cannot be loaded or called, or does not take these arguments.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigurationError(f"env_config must be a dict of keyword arguments, got {shown(config)}")
    factory = load_entrypoint(spec, base_dir) if isinstance(spec, str) else spec
    arguments = dict(config or {})
    system_prompt = arguments.pop("system_prompt", None)
    if not callable(factory):
        raise ConfigurationError(
            f"the entrypoint {spec!r} is a {type(factory).__name__}; it must be a class or a function that returns an "
            "environment, so that each episode has its own"
        )
    try:
        env: Any = factory(**arguments)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # raised inside the constructor, not by the call
        raise ConfigurationError(f"env_config does not fit the entrypoint {spec!r}: {error}") from error
    if system_prompt is not None:
        env.system_prompt = system_prompt
    return env


def load_processor(spec: Callable[[Any], str] | str | None) -> Callable[[Any], str] | None:
    """The function that `module:fn` or `path.py:fn` names; a function is itself, and None is None.

    Raises:
        ConfigurationError: It cannot be loaded, or is no function.
    """
    found: Any = load_entrypoint(spec) if isinstance(spec, str) else spec
    if found is not None and not callable(found):
        raise ConfigurationError(f"observation_processor must be a function of the payload, got {found!r}")
    return cast("Callable[[Any], str] | None", found)


def text_turns(
    env: Any,
    observation_field: str | None = None,
    observation_processor: Callable[[Any], str] | None = None,
    max_observation_chars: int | None = MAX_OBSERVATION_CHARS,
) -> Turns:
    """An environment as turns, its observations shown as asked.

    Raises:
        ConfigurationError: It is none; or it is no text environment, and one of the two is given.
    """
    turns = as_turns(env, max_observation_chars=max_observation_chars)
    if observation_field is None and observation_processor is None:
        return turns
    if not isinstance(turns, TextTurns):
        raise ConfigurationError(
            "observation_field and observation_processor are for text environments; "
            f"{type(env).__name__} gives its observations as messages"
        )
    return TextTurns(
        env,
        max_observation_chars=max_observation_chars,
        observation_field=observation_field,
        observation_processor=observation_processor,
    )


def remote_env(url: str, action_field: str, mcp_tool: str | None, request_timeout_s: float) -> RemoteEnvClient:
    """A client of the environment behind a URL; nothing is dialled.

    Raises:
        ConfigurationError: It is no URL.
    """
    if not is_url(url):
        raise ConfigurationError(
            f"{url!r} is no URL of a server; for an entrypoint write RolloutHarness.from_spec({url!r}, …)"
        )
    return RemoteEnvClient(url, action_field=action_field, mcp_tool=mcp_tool, request_timeout_s=request_timeout_s)


def max_turns_of(env: Any, spec: object) -> int:
    """The turn budget that an environment states itself, in its attribute `max_turns`.

    Raises:
        ConfigurationError: It states none, or not a number of at least 1.
    """
    value = getattr(env, "max_turns", None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        stated = "has no max_turns" if value is None else f"states max_turns={value!r}"
        raise ConfigurationError(
            f"max_turns is not given and the environment of {spec!r} {stated}; give max_turns >= 1"
        )
    return value


def _load_file(source: str, spec: str, base_dir: str | Path | None) -> ModuleType:
    path = (Path(base_dir or ".") / Path(source).expanduser()).resolve()
    if not path.is_file():
        folder = path.parent
        known = sorted(entry.name for entry in folder.glob("*.py")) if folder.is_dir() else []
        raise ConfigurationError(
            f"the entrypoint {spec!r} names a file that is not there: {path}{_near(path.name, known)}"
        )
    # One module for one file, however often it is named, so that its classes are the same classes.
    name = f"{_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    with _LOADING:
        return sys.modules[name] if name in sys.modules else _execute(name, path, spec)


def _execute(name: str, path: Path, spec: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ConfigurationError(f"the entrypoint {spec!r} names a file that Python cannot import: {path}")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        with _siblings_of(path):
            found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _siblings_of(path: Path) -> Iterator[None]:
    """Let a file that is executed import the files beside it, as a script can.

    They are no modules of the process afterwards: another folder's file of the same name is another module.
    """
    folder, before = str(path.parent), set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder) and not name.startswith(_PREFIX):
                del sys.modules[name]


def _load_module(source: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not (source == error.name or source.startswith(f"{error.name}.")):
            raise
        raise ConfigurationError(
            f"the entrypoint {spec!r} names a module that cannot be imported: {error.name!r} is not installed or not "
            "on the path; for a file, write 'path.py:attr'"
        ) from error


def _find(module: ModuleType, attribute: str, spec: str) -> Any:
    target: Any = module
    for name in attribute.split("."):
        if not hasattr(target, name):
            known = sorted(entry for entry in vars(target) if not entry.startswith("_"))
            owner = getattr(module, "__file__", None) or module.__name__
            raise ConfigurationError(f"the entrypoint {spec!r}: {owner} has no {name!r}{_near(name, known)}")
        target = getattr(target, name)
    return target


def _near(name: str, known: list[str]) -> str:
    """What to say about the names that do exist."""
    if near := difflib.get_close_matches(name, known, n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; known names: {', '.join(known[:12])}" if known else ""
