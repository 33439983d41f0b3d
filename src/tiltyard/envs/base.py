"""What an environment is: tool calls (`Env`), plain text (`TextEnv`), or the turn that both become (`TurnEnv`)."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from tiltyard.types import Reply, StepResult, Task, ToolSchema, Turn


class Env(ABC):
    """An environment that is acted on with tool calls.

    Interactive: `reset`, then `step` until a result is `done` or `truncated`. Batch: `evaluate` on
    finished trajectories. An instance plays one episode at a time and is reused for many; whoever
    made it closes it, or uses it as a context manager.
    """

    episodes_started = 0
    """How often `reset` was called, whoever called it: what tells one episode's record from the next."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reset" in cls.__dict__:
            cls.reset = _counted(cls.__dict__["reset"])

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin an episode.

        Args:
            trajectory: `messages`, `seed`, `row_index`, `evaluation` and the fields of the task's row.
                The same seed must give the same first observation.
        """
        del trajectory
        self.episodes_started += 1
        return StepResult()

    @abstractmethod
    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run one tool call.

        Raises:
            ToolError: The model's mistake; its text is what the model sees, and the episode goes on.
        """

    def tools(self) -> list[ToolSchema]:
        """The tools of this episode, as OpenAI function-call schemas."""
        return []

    def evaluate(self, trajectories: Sequence[Any], **kwargs: Any) -> list[float]:
        """Score finished trajectories, one number each."""
        del kwargs
        return [0.0] * len(trajectories)

    def close(self) -> None:
        """Give back what the environment holds; more than one call does no harm."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _counted(reset: Callable[..., StepResult]) -> Callable[..., StepResult]:
    """Count the resets of a subclass: documented use resets the environment by hand before its tools are called."""

    @functools.wraps(reset)
    def counting(self: Env, *args: Any, **kwargs: Any) -> StepResult:
        self.episodes_started += 1
        return reset(self, *args, **kwargs)

    return counting


class TextEnv(Protocol):
    """An environment whose action is the model's text. No base class is needed.

    Optional attributes: `tools` (schemas shown to the model), `dataset_size` (then `reset` also takes
    `row_index` and `evaluation`), `evaluation_size` (rows of the held-out split), `max_turns`, `close`
    (called once, at teardown), `system_prompt` (the leading system message), `examples` (messages that
    show an episode, between the system prompt and the first observation).
    """

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the first observation and an info."""
        ...

    def step(self, action: str) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        """Act: observation, reward (None = not scored), terminated, truncated, info."""
        ...


class TurnEnv(Protocol):
    """What every environment is inside: it opens a conversation and answers each reply of the policy."""

    def start(self, task: Task) -> Turn:
        """Begin an episode; the messages that follow the task's own."""
        ...

    def reply(self, reply: Reply) -> Turn:
        """Answer one reply of the policy, which sampling did not cut short."""
        ...

    def tools(self) -> Sequence[ToolSchema]:
        """The tools of the episode that was started last; must not block."""
        ...

    def close(self) -> None:
        """Give back what the environment holds; more than one call does no harm."""
        ...
