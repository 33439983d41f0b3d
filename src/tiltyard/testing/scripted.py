"""Policies that play a script: the replies are known before the run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tiltyard.errors import PolicyError
from tiltyard.types import Prompt, Reply, ToolCall

Line = str | ToolCall | tuple[ToolCall, ...] | Reply | Exception
"""One turn of a script: a text, one or more calls, a whole reply, or an error to raise."""


@dataclass(slots=True)
class ScriptedPolicy:
    """Answers turn `n` of every episode with line `n` of its script.

    Which turn it is follows from the prompt alone, so one policy serves many episodes, in any order and
    from any thread.

    Attributes:
        script: The lines, the same for every episode; or a function that gives the line for a prompt
            and the number of its turn.
        prompts: How many prompts were answered.
    """

    script: Sequence[Line] | Callable[[Prompt, int], Line]
    prompts: int = field(default=0)

    def reply(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Play the next line of each episode.

        Raises:
            PolicyError: A script has no line left.
            Exception: Whatever a line says to raise.
        """
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt: Prompt) -> Reply:
        """Play the next line of one episode; raises as `reply`."""
        turn = sum(message["role"] == "assistant" for message in prompt.messages)
        self.prompts += 1
        if callable(self.script):
            return as_reply(self.script(prompt, turn))
        if turn >= len(self.script):
            raise PolicyError(f"the script has {len(self.script)} lines, and turn {turn} was asked for")
        return as_reply(self.script[turn])


@dataclass(slots=True)
class ScriptedAsyncPolicy:
    """`ScriptedPolicy` as a policy that is awaited.

    Attributes:
        script: As for `ScriptedPolicy`.
        latency_s: How long each answer takes.
        prompts: How many prompts were answered.
        waiting: How many prompts are waited for now.
        most_waiting: How many prompts were waited for at one time, at most.
        entered: How many runs are inside.
    """

    script: Sequence[Line] | Callable[[Prompt, int], Line]
    latency_s: float = 0.0
    prompts: int = field(default=0)
    waiting: int = field(default=0)
    most_waiting: int = field(default=0)
    entered: int = field(default=0)

    async def reply(self, prompt: Prompt, *, max_tokens: int | None) -> Reply:
        """Play the next line of one episode; raises as `ScriptedPolicy.reply`."""
        del max_tokens
        self.prompts += 1
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await asyncio.sleep(self.latency_s)
        finally:
            self.waiting -= 1
        return ScriptedPolicy(self.script).answer(prompt)

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.entered -= 1


def as_reply(line: Line) -> Reply:
    """A line as a reply; an error is raised.

    Raises:
        Exception: The line itself.
    """
    if isinstance(line, Exception):
        raise line
    if isinstance(line, Reply):
        return line
    if isinstance(line, str):
        return Reply(line)
    return Reply("", tool_calls=(line,) if isinstance(line, ToolCall) else line)
