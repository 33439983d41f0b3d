"""Environment slots whose environments live in the workers of a pool."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tiltyard.envs.pool.pool import EnvPool
from tiltyard.rollout.placement import Placement, TurnsMaker
from tiltyard.rollout.slots import EnvSlots

POOL_CLOSE_S = 4.0
"""How long a worker may take to close its environments; then it is killed, before the slots are given up on."""


class PlacedSlots(EnvSlots):
    """Slots of a pool of their own, for drivers that sample in this process: each turn is one call to a worker.

    The pool keeps the deadlines: what hangs is ended, with its worker, which is replaced. So a driver sets none.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        size: int,
        placement: Placement,
        *,
        timeout_s: float | None,
        eager: bool = False,
    ) -> None:
        """Start the workers, and make every environment.

        Args:
            factory: Makes a new environment at each call; it is sent to the workers.
            size: How many episodes may run at one time, at least 1.
            placement: Where the workers are; there are no more than `size` of them.
            timeout_s: How long one reset or step may take; None sets no bound.
            eager: Take the slots of the pool now, and not each when it is first needed.

        Raises:
            ConfigurationError: The environments cannot be made there, or not so many workers be had.
            EnvError: An environment could not be made.
        """
        workers = None if placement.workers is None else min(placement.workers, size)
        self.pool = EnvPool(
            size,
            env_factory=TurnsMaker(factory),
            num_workers=workers,
            backend=placement.pool_backend,
            step_timeout_s=timeout_s,
            ray=placement.ray,
        )
        try:
            super().__init__(self.pool.adapter, size, eager=eager)
        except BaseException:
            self.pool.close()
            raise

    def begin_close(self) -> None:
        """Begin to close every environment and to end the workers, waiting for none; `close` then waits."""
        if not self._closed:
            super().begin_close()
            self._closing.start([partial(self.pool.close, POOL_CLOSE_S)])


def env_slots(
    factory: Callable[[], Any], size: int, placement: Placement, *, timeout_s: float | None, eager: bool = False
) -> EnvSlots:
    """Slots where the placement says.

    Args:
        factory: Makes a new environment at each call.
        size: How many episodes may run at one time, at least 1.
        placement: Where the environments live.
        timeout_s: Bounds the making of an environment here, and every call of one that lives elsewhere.
        eager: Make all environments now; those that live elsewhere are in any case.

    Raises:
        ConfigurationError: The environments cannot be made there.
        EnvError: An environment could not be made.
    """
    if placement.remote:
        return PlacedSlots(factory, size, placement, timeout_s=timeout_s, eager=eager)
    return EnvSlots(factory, size, eager=eager, timeout_s=timeout_s)
