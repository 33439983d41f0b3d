"""Environments from a spec, one for each session, and what there is to know of them before the first."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env
from tiltyard.envs.turns import TextTurns, as_turns
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.rollout.entrypoint import build_env, load_entrypoint
from tiltyard.serving.openenv_played import OpenEnvPlayed, action_class_of, is_environment
from tiltyard.serving.played import Played
from tiltyard.serving.schema import schemas_of
from tiltyard.serving.text_played import TextPlayed
from tiltyard.serving.tool_played import ToolPlayed
from tiltyard.serving.turn_played import TurnPlayed
from tiltyard.tools.manager import ToolManager


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of an environment before a session has one.

    Attributes:
        name: Its class.
        schema: The JSON schemas of actions, observations and states.
        concurrent: Whether several may live in one process.
    """

    name: str
    schema: dict[str, Any]
    concurrent: bool


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What to serve.

    Attributes:
        spec: `module:attr`, `path.py:attr`, or the class or function itself.
        env_config: Its keyword arguments; `system_prompt` is set on the environment and not passed.
        action_cls: The class of an OpenEnv environment's actions, where it cannot be found: itself, or `module:Class`.
    """

    spec: str | Callable[..., Any]
    env_config: Mapping[str, Any] = field(default_factory=dict)
    action_cls: Any = None


class EnvMaker:
    """Makes environments, no two of them the same; calling it makes one for a session."""

    def __init__(self, env: EnvSpec) -> None:
        self._env = env
        self._alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def describe(self) -> Described:
        """Make one, look at it and close it: what is wrong shows before the server starts.

        Raises:
            ConfigurationError: The entrypoint cannot be loaded or called, or makes no environment.
            EnvError: The environment could not be made.
        """
        env = self._made()
        played = self._played(env)
        try:
            native = is_environment(env)
            concurrent = not native or bool(getattr(env, "SUPPORTS_CONCURRENT_SESSIONS", False))
            action_cls = action_class_of(type(env), self._action_cls()) if native else None
            return Described(type(env).__name__, schemas_of(played, env, action_cls), concurrent)
        finally:
            played.close()

    def __call__(self) -> Played:
        """Make one.

        Raises:
            ConfigurationError: It is one that was made before.
            EnvError: The environment's own code failed.
        """
        return self._played(self._made())

    def _made(self) -> Any:
        spec = self._env.spec
        env = guarded(f"making {spec!r}", EnvError, build_env, spec, self._env.env_config)
        with self._lock:
            if env is not None and self._alive.get(id(env)) is env:
                raise ConfigurationError(
                    f"{spec!r} returned one environment twice, which would mix two sessions up; return a new one at "
                    "each call"
                )
            with contextlib.suppress(TypeError):  # an object of a class with slots cannot be watched
                self._alive[id(env)] = env
        return env

    def _played(self, env: Any) -> Played:
        if is_environment(env):
            return OpenEnvPlayed(env, self._action_cls())
        if isinstance(env, Env):
            return ToolPlayed(env)
        if isinstance(env, ToolManager):
            raise ConfigurationError("a ToolManager cannot be served: it is a set of tools, not an environment")
        turns = as_turns(env)
        return TextPlayed(env) if isinstance(turns, TextTurns) and turns is not env else TurnPlayed(env, turns)

    def _action_cls(self) -> Any:
        given = self._env.action_cls
        return load_entrypoint(given) if isinstance(given, str) else given
