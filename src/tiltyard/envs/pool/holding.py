"""Who holds which slot of a pool: adapters take slots and give them back, and what they hold nobody else calls."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from tiltyard._boundary import shown
from tiltyard.envs.pool.adapter import Adapter, Hold, PoolCalls
from tiltyard.errors import ConfigurationError

POLL_S = 0.02

Where = int | Adapter
"""A slot, by its number; one that an adapter holds, by its adapter."""


class Holding:
    """The slots of a pool by who holds them."""

    def __init__(self, pool_size: int) -> None:
        self._size = pool_size
        self._holds: dict[int, Hold] = {}
        self._lock = threading.Lock()

    def free(self) -> list[int]:
        """The slots that no adapter holds."""
        return [index for index in range(self._size) if index not in self._holds]

    def take(self, n: int, pool: PoolCalls) -> list[Hold]:
        """Take free slots, the lowest first.

        Raises:
            ConfigurationError: There are not so many, or not so many are free.
        """
        if type(n) is not int or n < 1:
            raise ConfigurationError(f"n must be a whole number >= 1, got {n!r}")
        if n > self._size:
            raise ConfigurationError(f"the pool has {self._size} slots, and {n} adapters were asked for")
        with self._lock:
            free = self.free()
            if len(free) < n:
                raise ConfigurationError(
                    f"{n} adapters were asked for, and {len(free)} of the pool's {self._size} slots are free; close "
                    "adapters that are done with, or make a bigger pool"
                )
            holds = [Hold(pool, index) for index in free[:n]]
            self._holds.update((hold.index, hold) for hold in holds)
        return holds

    def wait(self, timeout_s: float) -> None:
        """Wait until a slot is free, but no longer than this."""
        end = time.monotonic() + timeout_s
        while not self.free() and time.monotonic() < end:
            time.sleep(POLL_S)

    def give_back(self, hold: Hold) -> None:
        """Its slot is free again."""
        with self._lock:
            self._holds.pop(hold.index, None)

    def checked(self, index: Any) -> int:
        """A slot's number.

        Raises:
            ConfigurationError: It is none.
        """
        if type(index) is not int or not 0 <= index < self._size:
            raise ConfigurationError(f"slot {shown(index)} is none of this pool, whose slots are 0 to {self._size - 1}")
        return index

    def named(self, indices: Sequence[Where]) -> list[int]:
        """The slots that a caller names, when it may call them.

        Raises:
            ConfigurationError: One is none, is named twice, or is held by an adapter and was named by its number.
        """
        slots: dict[int, None] = {}
        for one in indices:
            hold = one.hold if isinstance(one, Adapter) else None
            index = self.checked(one if hold is None else hold.index)
            if index in slots:
                raise ConfigurationError(
                    f"slot {index} is named twice; a batch runs its calls at the same time, so each slot is in it once"
                )
            if self._holds.get(index) is not hold:
                raise ConfigurationError(
                    f"slot {index} is held by an adapter: call that, give it to the batch in the place of the number, "
                    "or close it"
                    if hold is None
                    else f"the adapter of slot {index} was closed, or is another pool's"
                )
            slots[index] = None
        return list(slots)
