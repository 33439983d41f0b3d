"""A text environment in this process, behind the interface that a remote one has too."""

from collections.abc import Sequence
from typing import Any

from tiltyard._coroutines import awaited
from tiltyard.envs.own_random import caller_of
from tiltyard.envs.text_turns import reset_options, taken_options
from tiltyard.errors import ConfigurationError, EpisodeOverError
from tiltyard.types import Message, ToolSchema


class InProcessEnvClient:
    """Calls the `reset` and `step` of a text environment directly, and holds it to the protocol's order.

    It has the shape of a text environment itself: `tools`, `dataset_size`, `system_prompt` and `examples` are the
    environment's.
    """

    def __init__(self, env: Any) -> None:
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise ConfigurationError(f"a text environment needs a {name}() method; {type(env).__name__} has none")
        self.env = env
        self._call = caller_of(env)
        self._options = reset_options(env)
        self._over: str | None = "before the first reset()"
        self._closed = False

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tool schemas that the environment advertises; empty when it has none."""
        return getattr(self.env, "tools", None) or ()

    @property
    def dataset_size(self) -> int | None:
        """How many rows the environment has; None when it is not made of rows."""
        return getattr(self.env, "dataset_size", None)

    @property
    def system_prompt(self) -> str | None:
        """What leads the conversation as the system message; None when there is nothing."""
        return getattr(self.env, "system_prompt", None)

    @property
    def examples(self) -> Sequence[Message]:
        """What shows an episode before the first observation; empty when the environment has no examples."""
        return getattr(self.env, "examples", None) or ()

    def reset(self, seed: int | None = None, *, row_index: int | None = None, evaluation: bool | None = None) -> Any:
        """Start an episode: `(payload, info)`, as the environment gave it.

        Args:
            seed: Passed on to an environment whose `reset` takes it.
            row_index: The data row; only for an environment whose `reset` takes it.
            evaluation: True serves the held-out split; passed on to an environment whose `reset` takes it.

        Raises:
            ConfigurationError: A row is named, and the environment's `reset` cannot be told which.
            EpisodeOverError: The client is closed.
        """
        if self._closed:
            raise EpisodeOverError("reset() after close(): make a new client around a new environment")
        row = {"row_index": row_index, "evaluation": evaluation}
        given = {"seed": seed, **{name: value for name, value in row.items() if value is not None}}
        options = taken_options(self._options, given, f"{type(self.env).__name__}.reset")
        self._over = "after a reset() that failed"
        result = awaited(self._call(self.env.reset, **options))
        self._over = None
        return result

    def step(self, action: str) -> Any:
        """Send one action: `(payload, reward, terminated, truncated, info)`, as the environment gave it.

        Raises:
            EpisodeOverError: The episode is over, or has not begun.
        """
        if self._over is not None:
            raise EpisodeOverError(f"step() {self._over}; call reset() to start an episode")
        result = awaited(self._call(self.env.step, action))
        # A result of another shape is refused by whoever reads it; here it only cannot end the episode.
        if isinstance(result, tuple) and len(result) == 5 and (result[2] or result[3]):
            self._over = "after the end of the episode"
        return result

    def close(self) -> None:
        """Close the environment, where it has a `close`; the second call does nothing."""
        if self._closed:
            return
        self._closed, self._over = True, "after close()"
        if callable(close := getattr(self.env, "close", None)):
            awaited(close())
