"""All workers of a pool: started together, each asked for what it owns, closed whatever becomes of the others."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiltyard.envs.pool.faults import sendable
from tiltyard.envs.pool.recipe import EnvRecipe
from tiltyard.envs.pool.seat import Source
from tiltyard.envs.pool.shard import Batch, Shard
from tiltyard.envs.pool.slot_host import CLOSE_TIMEOUT_S, Call
from tiltyard.tools.at_once import run_at_once

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker has to do of a batch.

    Attributes:
        shard: The worker's.
        at: The positions of its calls in the batch.
        calls: The calls.
        request: The same, pickled.
    """

    shard: Shard
    at: Sequence[int]
    calls: Sequence[Call]
    request: bytes


class Crew:
    """The workers, by the slots that they own.

    Attributes:
        shards: Each worker's slots, in their order.
    """

    def __init__(self, owned: Sequence[range], recipe: EnvRecipe, source: Source) -> None:
        """Set the workers up; none is started.

        Raises:
            ConfigurationError: The cluster has no room for them, or what makes the environments cannot be sent.
        """
        source.backend.check(len(owned))
        self.shards = [Shard(number, slots, recipe, source) for number, slots in enumerate(owned)]
        self._source = source
        self._owner = [shard for shard in self.shards for _ in shard.slots]

    def start(self, progress: Callable[[int, int], None] | None) -> None:
        """Start all workers, and wait until every environment is made; where one is not, close all.

        Raises:
            ConfigurationError: An environment is none that can be pooled.
            EnvError: One could not be made, or a worker not be started.
        """
        ready = 0
        try:
            for shard in self.shards:
                shard.seat.begin()
            for shard in self.shards:
                shard.seat.settle()
                ready += len(shard.slots)
                _log.info("%d of %d environments are ready", ready, len(self._owner))
                if progress is not None:
                    progress(ready, len(self._owner))
        except BaseException:
            self.close(CLOSE_TIMEOUT_S)
            raise

    def owner(self, slot: int) -> Shard:
        """The slots among which this one is."""
        return self._owner[slot]

    def run(self, calls: Sequence[Call], *, begins: bool, timeout_s: float | None) -> list[Any]:
        """Give each call to the owner of its slot: the results or errors, in the order of the calls.

        Args:
            calls: At most one for each slot.
            begins: Whether they begin episodes.
            timeout_s: How long they may take, from when there are workers to run them.

        Raises:
            ConfigurationError: Arguments cannot be sent; nothing was.
        """
        parts = self._parts(calls)
        results: list[Any] = [None] * len(calls)
        try:
            for part, batch in self._asked(parts, begins=begins, timeout_s=timeout_s):
                for position, result in zip(part.at, part.shard.collect(batch), strict=True):
                    results[position] = result
        except BaseException:  # interrupted: what the slots have done by now nobody knows
            for part in parts:
                part.shard.forget(slot for slot, _, _ in part.calls)
            raise
        return results

    def close(self, timeout_s: float) -> list[Exception]:
        """Close every environment and end every worker; what could not be closed."""
        found = run_at_once([partial(shard.close, timeout_s) for shard in self.shards])
        self._source.leases.close()
        self._source.backend.close()
        return [error for errors in found for error in errors]

    def _parts(self, calls: Sequence[Call]) -> list[Part]:
        if len(calls) == 1:
            return [Part(self._owner[calls[0][0]], (0,), calls, sendable(calls, "the arguments"))]
        positions: dict[int, list[int]] = {}
        for position, (slot, _, _) in enumerate(calls):
            positions.setdefault(self._owner[slot].number, []).append(position)
        parts = []
        for number, at in positions.items():
            own = [calls[position] for position in at]
            parts.append(Part(self.shards[number], at, own, sendable(own, "the arguments")))
        return parts

    def _asked(self, parts: Sequence[Part], *, begins: bool, timeout_s: float | None) -> list[tuple[Part, Batch]]:
        """Ask every worker; those that are there before those that are waited for."""
        return [
            (part, part.shard.ask(part.calls, part.request, begins=begins, timeout_s=timeout_s))
            for part in sorted(parts, key=lambda part: part.shard.seat.worker is None)
        ]
