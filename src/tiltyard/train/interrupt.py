"""Ctrl-C while a run is on: the first stops it cleanly, the second ends the process at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended."""


class Interrupts:
    """Watches for Ctrl-C between `__enter__` and `__exit__`, which puts the handler back that was there.

    The first one raises KeyboardInterrupt, or waits for the end of what is `held`. The second ends the process with
    `INTERRUPTED`, without any cleaning up. Outside the main thread, where Python delivers no signal, it does nothing.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._installed = False
        self._count = 0
        self._held = 0
        self._pinned = False
        self._late = False

    @property
    def seen(self) -> bool:
        """True once Ctrl-C was pressed."""
        return self._count > 0

    @property
    def holding(self) -> bool:
        """True between `hold` and `release`."""
        return self._pinned

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *raised: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)
            self._installed = False

    def hold(self) -> None:
        """Let the first Ctrl-C wait for `release` from here on; what is begun now must not be left half done."""
        if not self._pinned:
            self._pinned = True
            self._held += 1

    def release(self) -> None:
        """End the `hold`, if there is one.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
        """
        if self._pinned:
            self._pinned = False
            self._let_go()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the first Ctrl-C wait for the end of this block; another thread than the main one it never interrupts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._held -= 1
        if self._late and not self._held:
            self._late = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._count += 1
        if self._count > 1:
            os._exit(INTERRUPTED)
        if self._held:
            self._late = True
            return
        raise KeyboardInterrupt
