"""Processes that train together, played by threads: what each of them is given agrees without a network."""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from tiltyard.train.processes import Processes

T = TypeVar("T")


@dataclass(slots=True)
class _Table:
    """Where the threads lay down what they give."""

    count: int
    barrier: threading.Barrier
    items: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ThreadProcess:
    """One of the "processes" (`tiltyard.train.processes.Processes`); a copy is handed over, as between processes."""

    rank: int
    table: _Table

    @property
    def count(self) -> int:
        """How many there are."""
        return self.table.count

    def gather(self, item: T) -> list[T]:
        """Give an item and get copies of those of all."""
        self.table.items[self.rank] = item
        self.table.barrier.wait()
        found = [copy.deepcopy(self.table.items[rank]) for rank in range(self.count)]
        self.table.barrier.wait()
        return found

    def add(self, tensors: "Sequence[Tensor]") -> None:
        """Replace each tensor by the sum over all threads."""
        everything = self.gather([tensor.detach().clone() for tensor in tensors])
        for index, tensor in enumerate(tensors):
            first, *others = (each[index] for each in everything)
            tensor.copy_(first)
            for other in others:
                tensor.add_(other)


def run_together(count: int, work: "Callable[[Processes], T]", timeout_s: float = 60.0) -> list[T]:
    """Run the work once for each of so many "processes", at the same time; returns what each returned, by rank.

    Raises:
        Exception: What the work of one raised; the others stop waiting for it.
    """
    table = _Table(count, threading.Barrier(count, timeout=timeout_s))

    def run(rank: int) -> T:
        try:
            return work(ThreadProcess(rank, table))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as threads:
        begun = [threads.submit(run, rank) for rank in range(count)]
        errors = [error for each in begun if (error := each.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [each.result() for each in begun]
