"""Environments that episodes take turns in: one instance a slot, reused, replaced when it broke."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.turns import Turns, as_turns
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.rollout.harness import RolloutHarness
from tiltyard.rollout.workers import Closing, EnvWorkers


@dataclass(eq=False, slots=True)
class Slot:
    """One environment instance, as it was made and as turns."""

    number: int
    env: Any
    turns: Turns


class EnvSlots:
    """As many environments as episodes run at one time; each is made once and reused.

    Attributes:
        size: How many slots there are.
        replaced: How many environments broke and gave their slot to a fresh one.
        leaked: After `close`: how many environments were not closed, because their `close` hung or raised.
    """

    def __init__(
        self, factory: Callable[[], Any], size: int, *, eager: bool = False, timeout_s: float | None = None
    ) -> None:
        """Set the slots up.

        Args:
            factory: Makes a new environment at each call.
            size: How many episodes may run at one time, at least 1.
            eager: Make all environments now, one after the other, and not each when it is first needed.
            timeout_s: How long the making of one of them may take then; None sets no bound.

        Raises:
            ConfigurationError: `factory` is not a factory, or returned one environment twice.
            EnvTimeoutError: `factory` did not return in time.
        """
        if not callable(factory):
            raise ConfigurationError(
                "env_factory must be a function or class that makes a new environment, got the "
                f"{type(factory).__name__} {factory!r}; write env_factory=lambda: {type(factory).__name__}(...)"
            )
        if size < 1:
            raise ConfigurationError(f"the number of environment slots must be >= 1, got {size!r}")
        self.size = size
        self.replaced = 0
        self.leaked = 0
        self._factory = factory
        self._slots: dict[int, Slot] = {}
        self._free = list(range(size))
        self._closing = Closing()
        self._lock = threading.Lock()
        self._closed = False
        self._waited = False
        if eager:
            self._make_all(timeout_s)

    @property
    def envs(self) -> tuple[Any, ...]:
        """The environments that are in use or wait for their next episode, as they were made."""
        return tuple(slot.env for slot in self._slots.values())

    @property
    def free(self) -> bool:
        """True when a slot can be taken."""
        return bool(self._free) and not self._closed

    def take(self) -> Slot:
        """Take the free slot with the lowest number, making its environment where there is none yet.

        Raises:
            ConfigurationError: No slot is free, or the factory returned an environment that another slot has.
            EnvError: The factory raised; the slot stays free, and the next take tries again.
        """
        number = self.claim()
        try:
            return self.fill(number)
        except BaseException:
            self.put_back(number)
            raise

    def claim(self) -> int:
        """Take the free slot with the lowest number; `fill` gives its environment.

        Raises:
            ConfigurationError: No slot is free.
        """
        if not self.free:
            raise ConfigurationError(f"no environment slot is free: all {self.size} are taken, or the slots are closed")
        number = min(self._free)
        self._free.remove(number)
        return number

    def filled(self, number: int) -> bool:
        """True when `fill` makes nothing, and so does not block."""
        return number in self._slots

    def fill(self, number: int) -> Slot:
        """The claimed slot, its environment made where there is none yet; from any thread.

        Raises:
            ConfigurationError: The factory returned an environment that another slot has; `put_back` is the caller's.
            EnvError: The factory raised; `put_back` is the caller's.
        """
        if not self.filled(number):
            guarded("env_factory", EnvError, self._make, number)
        return self._slots[number]

    def put_back(self, number: int) -> None:
        """Free a claimed slot that was not filled, or whose filling is no longer waited for."""
        self._free.append(number)

    def give_back(self, slot: Slot, *, broken: bool = False) -> None:
        """Free a slot. A broken environment is never used again: it is closed in the background, and not waited for."""
        if broken and not self._closed:
            with self._lock:
                del self._slots[slot.number]
            self.replaced += 1
            self._closing.start([slot.turns.close])
        self._free.append(slot.number)

    def close(self, timeout_s: float = 5.0) -> None:
        """Close every environment once, all at the same time; later calls do nothing.

        Args:
            timeout_s: How long to wait for them; a close that takes longer goes on without being waited for.

        Raises:
            ExceptionGroup: Some raised; the others are closed all the same.
        """
        if self._waited:
            return
        self.begin_close()
        hung = self._closing.wait(timeout_s)
        self._waited = True
        self.leaked = hung + len(self._closing.errors)
        if self._closing.errors:
            raise ExceptionGroup("closing the environments failed", list(self._closing.errors))

    def begin_close(self) -> None:
        """Begin to close every environment, waiting for none; `close` then waits."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._closing.start([slot.turns.close for slot in self._slots.values()])

    def _make_all(self, timeout_s: float | None) -> None:
        workers = EnvWorkers(timeout_s)
        try:
            for number in range(self.size):
                workers.run(partial(self._make, number))
        except BaseException:
            # The first error is the one to see; those of the closes are logged.
            self.begin_close()
            self._closing.wait(5.0)
            raise
        finally:
            workers.stop()

    def _make(self, number: int) -> None:
        """Make the environment of a slot; one that comes when the slot has another, or too late, is closed."""
        env = self._factory()
        turns = env.turns if isinstance(env, RolloutHarness) else as_turns(env)
        with self._lock:
            if number in self._slots or self._closed:
                self._closing.start([turns.close])
            else:
                self._refuse_taken(turns, number)
                self._slots[number] = Slot(number, env, turns)
        if self._closed:
            raise EnvError("the environment slots were closed while this environment was being made")

    def _refuse_taken(self, turns: Turns, number: int) -> None:
        taken = {id(source): slot.number for slot in self._slots.values() for source in slot.turns.sources}
        for source in turns.sources:
            if id(source) in taken:
                raise ConfigurationError(
                    f"env_factory returned the same {type(source).__name__} for slots {taken[id(source)]} and "
                    f"{number}; episodes that run at one time must not share an environment: return a new one at "
                    "each call"
                )
