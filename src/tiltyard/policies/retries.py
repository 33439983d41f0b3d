"""How long to wait before a request is made again."""

import email.utils
import random
import time
from dataclasses import dataclass, field

from tiltyard.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Retries:
    """Exponential back-off with jitter, so that episodes that failed together do not come back together.

    Attributes:
        max_retries: Attempts after the first one.
        first_delay_s: The most that is waited before the second attempt; it doubles from there.
        max_delay_s: The most that is waited, unless the server asks for more.
    """

    max_retries: int = 8
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    _random: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigurationError(f"max_retries must be >= 0, got {self.max_retries!r}")
        if not 0 < self.first_delay_s <= self.max_delay_s:
            raise ConfigurationError(f"retry_delay_s must be > 0 seconds, got {self.first_delay_s!r}")

    def delay_s(self, attempt: int, asked_s: float | None = None) -> float:
        """Seconds before attempt number `attempt`, the first retry being 1.

        Between half and the whole of the back-off; where the server asked for a pause, that and up to a quarter more.
        """
        if asked_s is not None:
            return asked_s + self._random.uniform(0, 0.25) * max(asked_s, self.first_delay_s)
        longest = min(self.first_delay_s * 2 ** min(attempt - 1, 30), self.max_delay_s)
        return longest * self._random.uniform(0.5, 1.0)


def retry_after_s(value: str | None, now: float | None = None) -> float | None:
    """The pause that a `Retry-After` header asks for, in seconds or as a date; None without a readable one."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = moment.timestamp() - (time.time() if now is None else now)
    return max(seconds, 0.0) if seconds == seconds and seconds != float("inf") else None  # noqa: PLR0124  # NaN
