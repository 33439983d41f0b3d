"""How many workers a pool has, and which slots each of them owns."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError

LONGEST_S = 2e6
"""About three weeks; what waits for a message counts its milliseconds in 31 bits."""


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """How many workers there are, as the product of the sizes of named axes.

    Attributes:
        sizes: The size of each axis, e.g. `{"dp": 8}`; without any there is one worker.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping):
            raise ConfigurationError(f"sizes must be a dict such as {{'dp': 8}}, got {shown(self.sizes)}")
        for name, size in self.sizes.items():
            if type(size) is not int or size < 1:
                raise ConfigurationError(f"the size of axis {name!r} must be a whole number >= 1, got {size!r}")

    @classmethod
    def from_sizes(cls, *, world_size: int | None = None, **sizes: int) -> Self:
        """A mesh from sizes such as `dp_size=8`; `world_size`, where given, must be their product.

        Raises:
            ConfigurationError: A name does not end in `_size`, a size is below 1, or the product is another.
        """
        if wrong := [name for name in sizes if not name.endswith("_size")]:
            raise ConfigurationError(f"from_sizes takes sizes such as dp_size=8, got {wrong[0]!r}")
        if world_size is not None and not sizes:
            return cls({"world": world_size})
        mesh = cls({name.removesuffix("_size"): size for name, size in sizes.items()})
        if world_size not in (None, mesh.world_size):
            raise ConfigurationError(f"world_size is {world_size!r}, but the product of {sizes} is {mesh.world_size}")
        return mesh

    @property
    def world_size(self) -> int:
        """The product of the sizes."""
        return math.prod(self.sizes.values())


def shares(pool_size: int, workers: int) -> tuple[range, ...]:
    """The slots of each worker: `ceil(pool_size / workers)` one after the other, and what is left for the last.

    A worker for which nothing is left is not in the list: 5 slots over 4 workers are 2, 2 and 1.
    """
    each = math.ceil(pool_size / workers)
    return tuple(range(first, min(first + each, pool_size)) for first in range(0, pool_size, each))


def worker_count(pool_size: Any, num_workers: Any, device_mesh: Any, *, own_process: bool, at_hand: int) -> int:
    """How many workers there shall be.

    Args:
        pool_size: How many slots there are.
        num_workers: What the caller said; None leaves it to the mesh, and without one to the machine.
        device_mesh: Anything with a `world_size`; None says nothing.
        own_process: Whether each environment asks for a process of its own.
        at_hand: How many workers the machine or the cluster has room for.

    Raises:
        ConfigurationError: A number cannot be, or two of them contradict each other.
    """
    _whole("pool_size", pool_size)
    if num_workers is not None:
        _whole("num_workers", num_workers)
    meshed = None if device_mesh is None else getattr(device_mesh, "world_size", None)
    if device_mesh is not None and type(meshed) is not int:
        raise ConfigurationError(f"device_mesh must have a world_size, such as DeviceMesh; got {shown(device_mesh)}")
    if num_workers is not None and meshed not in (None, num_workers):
        raise ConfigurationError(f"num_workers is {num_workers} and device_mesh has {meshed}; give one of them")
    asked = num_workers if num_workers is not None else meshed
    if asked is not None and asked > pool_size:
        raise ConfigurationError(
            f"pool_size must be at least the number of workers, got {pool_size} slots for {asked} workers; a worker "
            "without a slot would do nothing"
        )
    if not own_process:
        return asked if asked is not None else min(pool_size, at_hand)
    if asked not in (None, pool_size):
        raise ConfigurationError(
            f"each environment asks for a process of its own (own_process), so {pool_size} slots need {pool_size} "
            f"workers, got {asked}; leave num_workers out"
        )
    return pool_size


def bound(name: str, value: Any) -> float | None:
    """How long something may take, in seconds; None sets no bound, as does more than the system can wait for.

    Raises:
        ConfigurationError: It is no such number.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigurationError(f"{name} must be a number > 0, or None for no bound, got {value!r}")
    return None if value > LONGEST_S else float(value)


def processors() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{name} must be a whole number >= 1, got {value!r}")
