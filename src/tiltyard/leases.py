"""Leases: what an episode holds elsewhere, given back exactly once, and counted."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tiltyard._boundary import guarded, reason
from tiltyard.errors import EnvError, LostSessionError, TiltyardError

LOST_TIMEOUT_S = 10.0
"""How long what could not be given back is tried once more, when it is counted."""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """What became of everything that was leased.

    Attributes:
        acquired: How many leases there were.
        leaked: How many are still held: not released, or said to be held when asked after the release.
        failures: What went wrong in a release, a heartbeat or a question; each names its lease.
    """

    acquired: int
    leaked: int
    failures: tuple[str, ...]


class Lease:
    """One thing held elsewhere; leaving it as a context manager gives it back.

    Attributes:
        ended: Set when it is given back: nobody keeps it alive any more.
        release_failed: Whether the last try to give it back raised.
    """

    def __init__(
        self,
        registry: "Leases",
        name: str,
        release: Callable[[], object],
        *,
        deadline_s: float | None,
        heartbeat: Callable[[], object] | None,
        held: Callable[[], bool] | None,
    ) -> None:
        self.name = name
        self._registry = registry
        self._release = release
        self._deadline_s = deadline_s
        self._heartbeat = heartbeat
        self._held = held
        self._beat_at = registry.clock()
        self._lock = threading.Lock()
        self._given_back = False
        self.release_failed = False
        self.ended = threading.Event()

    @property
    def given_back(self) -> bool:
        """True once `release` was called."""
        return self._given_back

    @property
    def expired(self) -> bool:
        """True when the deadline passed without a heartbeat: the other side may have dropped it."""
        return self._deadline_s is not None and self._registry.clock() - self._beat_at > self._deadline_s

    def release(self) -> None:
        """Give it back; the first call does, whichever thread makes it. A failure is noted, not raised."""
        with self._lock:
            if self._given_back:
                return
            self._given_back = True
        self.ended.set()
        self._give_back()

    def release_again(self) -> None:
        """Try once more what failed; nothing where nothing failed."""
        if self.release_failed:
            self._give_back()

    def _give_back(self) -> None:
        try:
            guarded(f"releasing {self.name}", EnvError, self._release)
            self.release_failed = False
        except TiltyardError as error:
            self.release_failed = True
            self._registry.note(reason(error))

    def beat(self) -> None:
        """Say that it is still wanted.

        Raises:
            LostSessionError: The other side no longer has it.
        """
        if self._heartbeat is not None and not self._given_back:
            guarded(f"heartbeat of {self.name}", LostSessionError, self._heartbeat)
        self._beat_at = self._registry.clock()

    def still_held(self) -> bool:
        """Whether it is still held, by asking where that is possible."""
        if not self._given_back:
            return True
        if self._held is None:
            return self.release_failed
        try:
            return bool(guarded(f"asking for {self.name}", EnvError, self._held))
        except TiltyardError as error:
            self._registry.note(reason(error))
            return True  # nobody can say that it is gone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Leases:
    """Every lease of a run: released at the latest when the run or the process ends, newest first."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._leases: list[Lease] = []
        self._acquired = 0
        self._failures: list[str] = []
        self._lock = threading.Lock()
        _registries.add(self)
        atexit.register(self.close)

    def acquire(
        self,
        name: str,
        release: Callable[[], object],
        *,
        deadline_s: float | None = None,
        heartbeat: Callable[[], object] | None = None,
        held: Callable[[], bool] | None = None,
    ) -> Lease:
        """Register something that is held from now on.

        Args:
            name: Names it in reports, e.g. "sandbox 4f2a".
            release: Gives it back; called once.
            deadline_s: How long the other side keeps it without a heartbeat; None = for ever.
            heartbeat: Tells the other side that it is still wanted; called every third of the deadline.
            held: Asks whether the other side still has it: what `leaked` counts after a release.
        """
        lease = Lease(self, name, release, deadline_s=deadline_s, heartbeat=heartbeat, held=held)
        with self._lock:
            self._leases.append(lease)
            self._acquired += 1
        if heartbeat is not None and deadline_s is not None:
            beating = threading.Thread(target=self._keep, args=(lease, deadline_s / 3), daemon=True)
            beating.start()
        return lease

    def note(self, failure: str) -> None:
        """Keep what went wrong for the report."""
        with self._lock:
            self._failures.append(failure)

    @property
    def open(self) -> list[Lease]:
        """The leases that were not given back, newest first."""
        with self._lock:
            return [lease for lease in reversed(self._leases) if not lease.given_back]

    def close(self) -> LeaseReport:
        """Release whatever is left and report; more than one call does no harm."""
        atexit.unregister(self.close)
        for lease in self.open:
            lease.release()
        return self.report()

    def lost(self, timeout_s: float = LOST_TIMEOUT_S) -> int:
        """How many could not be given back and are still held; each is tried once more first.

        Args:
            timeout_s: How long to wait for all of them, which are tried at the same time; then they count as held.
        """
        with self._lock:
            failed = [lease for lease in self._leases if lease.release_failed]
        gone: set[int] = set()

        def try_again(lease: Lease) -> None:
            lease.release_again()
            if not (lease.release_failed and lease.still_held()):
                gone.add(id(lease))

        trying = [threading.Thread(target=try_again, args=(lease,), daemon=True) for lease in failed]
        for thread in trying:
            thread.start()
        deadline = time.monotonic() + timeout_s
        for thread in trying:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(id(lease) not in gone for lease in failed)

    def report(self) -> LeaseReport:
        """What became of the leases so far; asks for each one that can be asked for."""
        with self._lock:
            leases, acquired = list(self._leases), self._acquired
        settled = {id(lease) for lease in leases if not lease.still_held()}
        with self._lock:
            # A long run has many: those that are known to be gone are only counted from now on.
            self._leases = [lease for lease in self._leases if id(lease) not in settled]
            return LeaseReport(acquired, len(leases) - len(settled), tuple(self._failures))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, lease: Lease, every_s: float) -> None:
        """Beat until the lease is given back or lost, or the run ends."""
        while not lease.ended.wait(every_s):
            try:
                lease.beat()
            except TiltyardError as error:
                self.note(reason(error))
                return


_registries: "weakref.WeakSet[Leases]" = weakref.WeakSet()


def lost_leases() -> int:
    """How many leases of this process could not be given back, and are still held elsewhere."""
    return sum(registry.lost() for registry in list(_registries))
