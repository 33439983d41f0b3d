"""What a live episode holds while it is driven, and how long it waits for the others of its batch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tiltyard.rollout.jobs import Job
from tiltyard.rollout.recorded import RecordedEpisode
from tiltyard.rollout.slots import EnvSlots, Slot
from tiltyard.rollout.token_episode import TokenEpisode
from tiltyard.rollout.workers import EnvWorkers, Work

CALLS_A_LATE_ONE = 20
"""Of environments that are prompt, one call in so many may be late."""

IN_VAIN = 10
"""As so many late calls counts a wait at whose end some call was still running."""


@dataclass(eq=False, slots=True)
class Seat:
    """A live episode and what it holds."""

    index: int
    job: Job
    episode: TokenEpisode | RecordedEpisode
    slot: Slot | None
    ready_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A job whose slot is taken, and whose environment is being made."""

    index: int
    job: Job
    slots: EnvSlots
    number: int


class Patience:
    """How long episodes that are ready wait for environments at work, to be sampled in one batch.

    Environments whose calls hardly ever take longer than `linger_s` are waited for up to `prompt_s`: that a busy
    machine makes one of them late now and then does not change which episodes share a batch, and with it the rounding
    of their samples. Calls that are often late, and waits in vain, end that.

    Attributes:
        linger_s: How long any environment is waited for.
        prompt_s: How long those are waited for that are prompt.
    """

    def __init__(self, linger_s: float, prompt_s: float) -> None:
        self.linger_s = linger_s
        self.prompt_s = max(prompt_s, linger_s)
        self._calls = 0
        self._late = 0

    @property
    def prompt(self) -> bool:
        """True while at most one call in `CALLS_A_LATE_ONE` was late, one at the beginning not counted."""
        return self.linger_s > 0 and CALLS_A_LATE_ONE * (self._late - 1) <= self._calls

    def saw(self, ended: Sequence[Work]) -> None:
        """Take note of calls that have ended."""
        self._calls += len(ended)
        self._late += sum(work.seconds is None or work.seconds > self.linger_s for work in ended)

    def over(self, ready: Sequence[Seat], workers: EnvWorkers) -> bool:
        """True when the ready episodes, of which there must be some, wait no longer."""
        if not workers.pending:
            return True
        over = self.left_s(ready, workers) <= 0
        self._late += IN_VAIN * over
        return over

    def left_s(self, ready: Sequence[Seat], workers: EnvWorkers) -> float:
        """How long the ready episodes still wait for the others; without one, for as long as it takes."""
        if not ready:
            return float("inf")
        if not workers.pending:
            return 0.0
        waits = self.prompt_s if self.prompt else self.linger_s
        return max(min(seat.ready_since for seat in ready) + waits - time.monotonic(), 0.0)
