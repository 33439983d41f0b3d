"""What a live episode holds while it is driven, and how long it waits for the others of its batch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tiltyard.rollout.jobs import Job
from tiltyard.rollout.recorded import RecordedEpisode
from tiltyard.rollout.slots import EnvSlots, Slot
from tiltyard.rollout.token_episode import TokenEpisode
from tiltyard.rollout.workers import EnvWorkers, Work


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

    Environments whose calls have all been shorter than `linger_s` are waited for up to `prompt_s`: that a busy machine
    makes one of them late now and then does not change which episodes share a batch, and with it the rounding of
    their samples. The first call that takes longer ends that for good.

    Attributes:
        linger_s: How long any environment is waited for.
        prompt_s: How long those are waited for that have always been prompt.
    """

    def __init__(self, linger_s: float, prompt_s: float) -> None:
        self.linger_s = linger_s
        self.prompt_s = max(prompt_s, linger_s)
        self._prompt = linger_s > 0

    def saw(self, ended: Sequence[Work]) -> None:
        """Take note of calls that have ended."""
        self._prompt &= all(work.seconds is not None and work.seconds <= self.linger_s for work in ended)

    def over(self, ready: Sequence[Seat], workers: EnvWorkers) -> bool:
        """True when the ready episodes, of which there must be some, wait no longer."""
        if not workers.pending:
            return True
        over = self.left_s(ready, workers) <= 0
        self._prompt &= not over
        return over

    def left_s(self, ready: Sequence[Seat], workers: EnvWorkers) -> float:
        """How long the ready episodes still wait for the others; without one, for as long as it takes."""
        if not ready:
            return float("inf")
        if not workers.pending:
            return 0.0
        waits = self.prompt_s if self._prompt else self.linger_s
        return max(min(seat.ready_since for seat in ready) + waits - time.monotonic(), 0.0)
