"""What happened in one episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiltyard.errors import TranscriptError
from tiltyard.rollout.outcome import Ending
from tiltyard.tokens.transcript import Transcript
from tiltyard.types import Message, Task, ToolSchema


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode, whole or failed.

    Attributes:
        episode_id: Unique within the run.
        task: What the episode was about; equal for all members of a group.
        ending: Why it ended.
        messages: The conversation, observations after the last answer included.
        tools: The tool schemas that the model was shown.
        rewards: One per turn of the policy; None where the environment did not score the turn.
        start_reward: What the environment's reset gave, before any turn.
        error: Why it failed, with the exception's type; None unless `failed`.
        first_observation: A hash of what reset returned; None when reset failed.
        info: The environment's last `info`.
        success: The environment's own word (`info["success"]`), None where it gives none.
        transcript: The tokens; None when the policy gave no ids.
        untrainable: Why its tokens cannot be trained on, though the episode may have a score; None when they can.
        seconds: Wall-clock seconds from reset to the end.
    """

    episode_id: str
    task: Task
    ending: Ending
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    rewards: tuple[float | None, ...] = ()
    start_reward: float = 0.0
    error: str | None = None
    first_observation: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    success: bool | None = None
    transcript: Transcript | None = None
    seconds: float = 0.0
    untrainable: str | None = None

    def __post_init__(self) -> None:
        if self.ending.failed and self.error is None:
            raise TranscriptError(f"a trajectory that ended with {self.ending.value!r} must say why in `error`")
        if self.transcript is not None and self.transcript.turns != len(self.rewards):
            raise TranscriptError(
                f"episode {self.episode_id}: {self.transcript.turns} sampled turns but {len(self.rewards)} rewards"
            )

    @property
    def turns(self) -> int:
        """How many times the policy answered."""
        return len(self.rewards)

    @property
    def failed(self) -> bool:
        """True when the episode has no score and teaches nothing."""
        return self.ending.failed

    @property
    def truncated(self) -> bool:
        """True when the episode was cut for a reason outside the task."""
        return self.ending.truncated

    @property
    def reward(self) -> float | None:
        """The sum of the turns that were scored; None when the episode failed or no turn was scored."""
        scored = [reward for reward in self.rewards if reward is not None]
        if self.failed or (self.rewards and not scored):
            return None
        return self.start_reward + sum(scored)
