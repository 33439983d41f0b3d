"""Python's cyclic garbage collector, told that many objects are alive because many episodes are."""

import gc
import threading
from types import TracebackType
from typing import Self

ALLOCATIONS_AN_EPISODE = 20
"""With a thousand live episodes the collector's default looks at all their objects so often that it takes 40 % of
the time of a run; with this many allocations for each of them between two looks, 10 %."""


class CalmCollector:
    """Spaces collections further apart while it is entered, and puts the process's setting back after the last one.

    A collector that is switched off, or is spaced further apart already, is left alone.
    """

    _lock = threading.Lock()
    _entered = 0
    _before = (0, 0, 0)
    _set = (0, 0, 0)

    def __init__(self, episodes: int) -> None:
        self._allocations = episodes * ALLOCATIONS_AN_EPISODE

    def __enter__(self) -> Self:
        with CalmCollector._lock:
            now = gc.get_threshold()
            if not CalmCollector._entered:
                CalmCollector._before = now
            CalmCollector._entered += 1
            if 0 < now[0] < self._allocations:
                gc.set_threshold(self._allocations, *now[1:])
                CalmCollector._set = gc.get_threshold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with CalmCollector._lock:
            CalmCollector._entered -= 1
            # Whoever has set it otherwise since then meant it.
            if not CalmCollector._entered and gc.get_threshold() == CalmCollector._set:
                gc.set_threshold(*CalmCollector._before)
