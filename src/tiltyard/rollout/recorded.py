"""An episode that is over, among others that are not: it is sampled once more and comes out as it was."""

from tiltyard.errors import RolloutError
from tiltyard.rollout.episode import EnvCall
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.types import FinishReason, Turn


class RecordedEpisode:
    """Takes the part of a `TokenEpisode` whose trajectory an earlier process has finished.

    It asks for the samples that it asked for then, and drops them: a batch of the same make-up gives the episodes
    that are not over the very samples that they would have had. Its environment is not called.

    Attributes:
        env_call: Always None.
        trajectory: The recorded one, once all its turns were sampled again.
        transcript: The tokens before the next turn.
        max_tokens: What that turn could sample.
    """

    def __init__(self, recorded: Trajectory, limits: Limits, *, context_length: int | None = None) -> None:
        self.episode_id = recorded.episode_id
        self.env_call: EnvCall | None = None
        self.trajectory: Trajectory | None = None
        self.transcript = Transcript()
        self.max_tokens = limits.max_tokens_per_turn
        self._recorded = recorded
        self._per_turn = limits.max_tokens_per_turn
        bounds = [bound for bound in (limits.max_context, context_length) if bound is not None]
        self._context = min(bounds) if bounds else None
        self._turns = list(dict.fromkeys(turn for turn in _turns(recorded) if turn >= 0))

    def start(self) -> None:
        """Stand before the first turn."""
        self._go_on()

    def sampled(
        self,
        ids: tuple[int, ...],
        logprobs: tuple[float, ...] | None,
        finish_reason: FinishReason = "stop",
        version: int | None = None,
    ) -> None:
        """Go on to the next turn; what was sampled now is dropped."""
        del ids, logprobs, finish_reason, version
        self._go_on()

    def env_answered(self, turn: Turn) -> None:
        """No environment is ever asked."""
        raise AssertionError(f"episode {self.episode_id} is recorded and has no environment, but got {turn!r}")

    def fail(self, error: RolloutError) -> None:
        """The episode is over, whatever happens to the samples that are dropped."""
        del error
        self.trajectory = self._recorded

    def abandon(self) -> None:
        """There is nothing to drop."""

    def _go_on(self) -> None:
        whole = self._recorded.transcript
        if whole is None or not self._turns:
            self.trajectory = self._recorded
            return
        turn = self._turns.pop(0)
        start = whole.turn.index(turn)
        self.transcript = Transcript(
            whole.ids[:start], whole.mask[:start], whole.logprobs[:start], whole.turn[:start], _turns=turn
        )
        room = self._per_turn if self._context is None else self._context - start
        self.max_tokens = max(1, min(self._per_turn, room))


def _turns(recorded: Trajectory) -> list[int]:
    return [] if recorded.transcript is None else recorded.transcript.turn
