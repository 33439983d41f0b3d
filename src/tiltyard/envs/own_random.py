"""Games of libraries that draw from the process's own generators, each with a state of its own for them."""

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

DRAW_FROM_THE_PROCESS = ("gem.envs.game_env", "textarena")
"""Packages whose games call `random.seed` and `random.choice` of the module, not of a generator of theirs."""

_ONE_AT_A_TIME = threading.Lock()


class OwnRandom:
    """The state that one environment has of the generators `random` and `numpy.random`.

    Two such environments on two threads would else draw from one sequence: the seed of one decides what the other
    does, members of a group start in different states, and a seed plays differently each time. A call runs with the
    environment's state in the generators, and the process's own state is put back after it; one call at a time.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function with this state."""
        with _ONE_AT_A_TIME:
            outside = _state()
            if self._state is not None:
                _set_state(self._state)
            try:
                return function(*args, **kwargs)
            finally:
                self._state = _state()
                _set_state(outside)


def caller_of(env: object) -> Callable[..., Any]:
    """What calls the environment's methods: `OwnRandom.call` for a game that needs it, else a plain call."""
    module = type(getattr(env, "unwrapped", env)).__module__
    if any(module == package or module.startswith(package + ".") for package in DRAW_FROM_THE_PROCESS):
        return OwnRandom().call
    return _call


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _state() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_state(state: tuple[Any, Any]) -> None:
    own, numpys = state
    random.setstate(own)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)
