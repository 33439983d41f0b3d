"""The tokens of one episode, append-only: what the model saw and sampled, id for id."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiltyard.errors import TranscriptError

NO_TURN = -1
"""The turn number of tokens that no turn of the policy sampled (prompt and observations)."""


@dataclass(slots=True)
class Transcript:
    """Token ids with, for each, whether the policy sampled it, its log-probability, its turn and the policy's version.

    The five lists always have one length and only grow. `mask` is True only where the policy sampled;
    `logprobs` is None where it did not, or where the sampler gave none; `turn` is the number of the
    policy's turn from 0, `NO_TURN` elsewhere; `version` says with which weights a token was sampled (how
    many steps they had learned from), None where it was not or where the policy does not say.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    version: list[int | None] = field(default_factory=list)
    _turns: int = 0

    def __post_init__(self) -> None:
        if not self.version:
            self.version = [None] * len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def turns(self) -> int:
        """How many turns the policy has sampled."""
        return self._turns

    @property
    def sampled(self) -> int:
        """How many tokens the policy sampled."""
        return sum(self.mask)

    def observe(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        count = len(ids)
        self.ids.extend(ids)
        self.mask.extend([False] * count)
        self.logprobs.extend([None] * count)
        self.turn.extend([NO_TURN] * count)
        self.version.extend([None] * count)

    def sample(self, ids: Sequence[int], logprobs: Sequence[float] | None, version: int | None = None) -> None:
        """Append one turn of the policy, as it was sampled; an empty one counts as a turn.

        Raises:
            TranscriptError: There is not one finite log-probability per id.
        """
        if logprobs is not None:
            if len(logprobs) != len(ids):
                raise TranscriptError(
                    f"a turn needs one log-probability per sampled id, got {len(logprobs)} for {len(ids)} ids"
                )
            bad = next((i for i, value in enumerate(logprobs) if not math.isfinite(value)), None)
            if bad is not None:
                raise TranscriptError(f"log-probability {bad} of the turn is {logprobs[bad]!r}; it must be finite")
        self.ids.extend(ids)
        self.mask.extend([True] * len(ids))
        self.logprobs.extend(logprobs if logprobs is not None else [None] * len(ids))
        self.turn.extend([self._turns] * len(ids))
        self.version.extend([version] * len(ids))
        self._turns += 1
