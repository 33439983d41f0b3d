"""The processes that train one model together: what each does of the work, and how they agree."""

from __future__ import annotations  # tensors are named without importing torch

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from tiltyard.errors import ConfigurationError, TiltyardError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Processes(Protocol):
    """All processes of a run, seen from one of them. Every process calls the same methods in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0; number 0 writes the run folder."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def gather(self, item: T) -> list[T]:
        """Give an item and get those of all, in the order of the ranks.

        Raises:
            ProcessLostError: Another process is gone.
        """
        ...

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the sum over all processes.

        Raises:
            ProcessLostError: Another process is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneProcess:
    """A run of one process: nothing is shared."""

    rank: int = 0
    count: int = 1

    def gather(self, item: T) -> list[T]:
        """The item alone."""
        return [item]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Leave them: the sum over one."""


ALONE = OneProcess()
"""A run of one process."""


def joined() -> Processes:
    """The processes that this one was started with, as the environment variables of `torchrun` say; else it alone.

    Raises:
        ProcessLostError: The others could not be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return ALONE
    from tiltyard.train.torch_processes import join  # noqa: PLC0415  # one process needs no torch for this

    return join()


def share(items: Sequence[T], processes: Processes) -> Sequence[T]:
    """What this process does of the items, dealt out one by one."""
    return items[processes.rank :: processes.count]


def woven(parts: Sequence[Sequence[T]]) -> list[T]:
    """What was dealt out with `share`, in its own order again."""
    longest = max(map(len, parts))
    return [part[index] for index in range(longest) for part in parts if index < len(part)]


def share_of(total: int, name: str, processes: Processes) -> int:
    """This process's part of a number that all have together.

    Raises:
        ConfigurationError: It does not divide.
    """
    part, rest = divmod(total, processes.count)
    if rest:
        raise ConfigurationError(
            f"{name} must be a multiple of the {processes.count} processes, got {total}: each has as many of them"
        )
    return part


def agreed(error: TiltyardError | None, processes: Processes) -> None:
    """Raise everywhere what went wrong in one process, so that none waits for one that has stopped.

    Raises:
        TiltyardError: This process's error, else that of the first process that had one.
    """
    if processes.count > 1 or error is not None:
        found = [other for other in processes.gather(error) if other is not None]
        if found:
            raise error or found[0]
