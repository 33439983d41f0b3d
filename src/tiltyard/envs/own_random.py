"""Games of libraries that draw from the process's own generators, each with a state of its own for them."""

import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

DRAW_AT_EACH_CALL = ("gem.envs.game_env", "textarena")
"""Packages whose games call `random.seed` and `random.choice` of the module, not of a generator of theirs."""

DRAW_AT_RESET = ("gem",)
"""Every `reset` of GEM seeds the module's generators, and most of its environments choose their row with them."""

SLOW_TO_RESET = ("gem.envs.terminal", "gem.envs.mcpmark")
"""Those that start containers: they would keep all the others waiting."""

_ONE_AT_A_TIME = threading.Lock()


class OwnRandom:
    """The state that one environment has of the generators `random` and `numpy.random`.

    Two such environments on two threads would else draw from one sequence: the seed of one decides what the other
    does, members of a group start in different states, and a seed plays differently each time. A call runs with the
    environment's state in the generators, and the process's own state is put back after it; one call at a time. Until
    a call seeds them it is a state of chance: two environments without a seed play two episodes.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with this state."""
        with _ONE_AT_A_TIME:
            outside = _state()
            try:
                if self._state is None:
                    _seed_by_chance()
                else:
                    _set_state(self._state)
                return function(*args, **kwargs)
            finally:
                self._state = _state()
                _set_state(outside)


def caller_of(env: object) -> Callable[..., Any]:
    """What calls the environment's methods: `OwnRandom.call` for those that need it, else a plain call."""
    modules = [cls.__module__ for cls in type(getattr(env, "unwrapped", env)).__mro__]
    if _among(modules, DRAW_AT_EACH_CALL):
        return OwnRandom().call
    if _among(modules, DRAW_AT_RESET) and not _among(modules, SLOW_TO_RESET):
        own = OwnRandom()
        return lambda function, /, *args, **kwargs: (
            own.call if getattr(function, "__name__", "") == "reset" else _call
        )(function, *args, **kwargs)
    return _call


def _among(modules: Sequence[str], packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for module in modules for package in packages)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _state() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _seed_by_chance() -> None:
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _set_state(state: tuple[Any, Any]) -> None:
    own, numpys = state
    random.setstate(own)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)
