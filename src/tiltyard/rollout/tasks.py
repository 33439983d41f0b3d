"""Which task each group of each step gets: every row once an epoch, on one rank, in an order that resumes."""

import hashlib
import random
from collections.abc import Mapping
from typing import Any

from tiltyard.errors import CheckpointError, ConfigurationError
from tiltyard.types import Task


class TaskAssigner:
    """Deals one task to each group.

    With a `dataset_size` the rows of each epoch are shuffled from (seed, epoch) and dealt from one
    endless stream: each step takes the next `batch_size * world_size` rows, and each rank its own
    slice of them. What is left of an epoch begins the step that the next epoch completes, so no row is
    left out. Without one, each group gets a fresh seed. Seeds are even; those of `evaluation_tasks`
    are odd, so that no task is in both.
    """

    def __init__(
        self,
        dataset_size: int | None,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        name: str = "dataset",
    ) -> None:
        """Begin at the first row of the first epoch.

        Args:
            dataset_size: How many training rows there are; None for an environment without rows.
            batch_size: Groups in one step on this rank.
            seed: What the order and the tasks' seeds derive from.
            rank: Which slice of each step is dealt here.
            world_size: How many ranks there are; all use the same `seed`.
            name: Names the dataset: a checkpoint of another one is refused.
        """
        if dataset_size is not None and dataset_size < 1:
            raise ConfigurationError(f"dataset_size must be >= 1, or None without rows, got {dataset_size!r}")
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be >= 1, got {batch_size!r}")
        if not 0 <= rank < world_size:
            raise ConfigurationError(f"rank must be in 0..{world_size - 1} for world_size {world_size}, got {rank!r}")
        self._size = dataset_size
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._name = name
        self._dealt = 0
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def epoch(self) -> int:
        """The epoch of the next row; 0 without rows."""
        return self._dealt // self._size if self._size is not None else 0

    def next(self, count: int | None = None) -> list[Task]:
        """The tasks of this rank's groups in the next step.

        Args:
            count: How many tasks all ranks are dealt together, each a slice of nearly equal length; None deals each
                its `batch_size`.
        """
        count = self._batch_size * self._world_size if count is None else count
        tasks = [self._task(self._dealt + i) for i in slice_of(count, self._rank, self._world_size)]
        self._dealt += count
        return tasks

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, the same on every rank; JSON can hold it."""
        size = self._size
        return {
            "dataset": {"name": self._name, "size": size},
            "seed": self._seed,
            "epoch": self.epoch,
            "position": self._dealt - self.epoch * size if size is not None else self._dealt,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the number of ranks and of groups may differ.

        Raises:
            CheckpointError: It was taken with another dataset or seed, or is not such a state.
        """
        try:
            dataset, seed = state["dataset"], state["seed"]
            name, size, epoch, position = dataset["name"], dataset["size"], int(state["epoch"]), int(state["position"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"this is not the state of a TaskAssigner: {state!r}") from error
        if (name, size) != (self._name, self._size):
            raise CheckpointError(
                f"the checkpoint was taken with {_dataset(name, size)}, but this run has "
                f"{_dataset(self._name, self._size)}; resume with the same data, or begin a new run"
            )
        if seed != self._seed:
            raise CheckpointError(f"the checkpoint was taken with seed {seed!r}, but this run has seed {self._seed!r}")
        self._dealt = epoch * (size or 0) + position

    def _task(self, index: int) -> Task:
        seed = derived_seed(self._seed, "train", index)
        if self._size is None:
            return Task(seed=seed)
        epoch, position = divmod(index, self._size)
        return Task(seed=seed, row_index=self._rows_of(epoch, self._size)[position], epoch=epoch)

    def _rows_of(self, epoch: int, size: int) -> list[int]:
        if self._order[0] != epoch:
            rows = list(range(size))
            # A text seeds the generator the same on every machine; the order is no secret.
            random.Random(f"{self._seed}:{epoch}").shuffle(rows)  # noqa: S311
            self._order = (epoch, rows)
        return self._order[1]


def evaluation_tasks(count: int, *, dataset_size: int | None = None, seed: int = 0) -> list[Task]:
    """The first tasks of the held-out split, the same ones at every evaluation.

    Args:
        count: How many, at least 1.
        dataset_size: How many held-out rows there are; None for an environment without rows.
        seed: What the tasks' seeds derive from.

    Raises:
        ConfigurationError: There are fewer held-out rows than that.
    """
    if count < 1:
        raise ConfigurationError(f"an evaluation needs at least 1 task, got {count!r}")
    if dataset_size is not None and count > dataset_size:
        raise ConfigurationError(f"{count} evaluation tasks were asked for, but there are {dataset_size} held-out rows")
    return [
        Task(
            seed=derived_seed(seed, "evaluation", i) | 1,
            row_index=None if dataset_size is None else i,
            evaluation=True,
        )
        for i in range(count)
    ]


def slice_of(count: int, rank: int, world_size: int) -> range:
    """Which of `count` things this rank has: slices of nearly equal length, in the order of the ranks."""
    return range(rank * count // world_size, (rank + 1) * count // world_size)


def derived_seed(seed: int, purpose: str, index: int) -> int:
    """An even seed below 2**31 that depends on all three and on nothing else."""
    digest = hashlib.sha256(f"{seed}:{purpose}:{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1 & ~1


def _dataset(name: str, size: int | None) -> str:
    return f"{name!r} ({'no rows' if size is None else f'{size} rows'})"
