"""What the environments of a pool are made by, and what cannot be pooled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiltyard._boundary import guarded, shown
from tiltyard.envs.openenv.client import OpenEnvClient
from tiltyard.envs.openenv.embedded import OpenEnv
from tiltyard.envs.openenv.remote import RemoteEnvClient
from tiltyard.envs.turns import as_turns
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.tools.manager import ToolManager

ON_A_SERVER = (
    "its session already lives on a server, and a pool would only add a way to it; make as many clients as you need, "
    "from threads"
)


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """Makes one environment of a pool; sent to the workers.

    Attributes:
        factory: Called with the arguments.
        arguments: Keyword arguments of each call.
    """

    factory: Callable[..., Any]
    arguments: Mapping[str, Any]

    @property
    def own_process(self) -> bool:
        """Whether the environment's class, or the factory, says `own_process = True`."""
        return any(getattr(one, "own_process", False) is True for one in self._seen())

    def refuse(self) -> None:
        """Refuse what can be seen to be none that a pool is for, before anything is started.

        Raises:
            ConfigurationError: It cannot be pooled; says why.
        """
        for one in self._seen():
            if isinstance(one, type):
                _refuse_class(one)

    def make(self) -> Any:
        """A new environment.

        Raises:
            ConfigurationError: It is none, or one that cannot be pooled.
            EnvError: The factory raised.
        """
        name = getattr(_unwrapped(self.factory), "__name__", type(self.factory).__name__)
        env = guarded(f"{name}()", EnvError, self.factory, **self.arguments)
        _refuse_class(type(env))
        for source in as_turns(env).sources:
            _refuse_class(type(source))
        return env

    def _seen(self) -> list[Any]:
        """The factory, and the class that an `OpenEnv` is made of: what is known without making one."""
        return [_unwrapped(self.factory), self.arguments.get("env_cls")]


def env_recipe(env_factory: Any, env_kwargs: Any) -> EnvRecipe:
    """What `EnvPool` was given, checked.

    Raises:
        ConfigurationError: There is no way to make an environment from it, or it is one that cannot be pooled.
    """
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise ConfigurationError(f"env_kwargs must be a dict of keyword arguments, got {shown(env_kwargs)}")
    if env_factory is None and env_kwargs is None:
        raise ConfigurationError(
            "give env_factory, a class or function that makes an environment, or env_kwargs, the arguments of OpenEnv"
        )
    if env_factory is not None and not callable(env_factory):
        raise ConfigurationError(
            "env_factory must be a class or function that makes a new environment, got the "
            f"{type(env_factory).__name__} {shown(env_factory)}; one that is made already cannot be moved to a worker"
        )
    recipe = EnvRecipe(OpenEnv if env_factory is None else env_factory, dict(env_kwargs or {}))
    recipe.refuse()
    return recipe


def _refuse_class(cls: type) -> None:
    if issubclass(cls, ToolManager):
        raise ConfigurationError("a ToolManager cannot be pooled: it is a set of tools, not an environment")
    why = getattr(cls, "not_pooled", None)
    if why is None and issubclass(cls, OpenEnvClient | RemoteEnvClient):
        why = ON_A_SERVER
    if why is not None:
        raise ConfigurationError(f"{cls.__name__} cannot be pooled: {why}")


def _unwrapped(factory: Any) -> Any:
    while isinstance(factory, partial):
        factory = factory.func
    return factory
