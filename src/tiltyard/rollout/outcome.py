"""How an episode ends, and what training may do with it: the one table."""

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """Why an episode ended. Every loop uses these and no others."""

    DONE = "done"
    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    PROMPT_TOO_LONG = "prompt_too_long"
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    TIMEOUT = "timeout"
    ENV_TRUNCATED = "env_truncated"
    UNSCORED = "unscored"
    API_ERROR = "api_error"
    ENV_ERROR = "env_error"
    TOOL_CRASH = "tool_crash"
    LOST_SESSION = "lost_session"

    @property
    def fate(self) -> "Fate":
        """What this ending means for training and for the report."""
        return ENDINGS[self]

    @property
    def failed(self) -> bool:
        """True when the episode has no score: out of the baseline, out of the loss, in the report."""
        return self.fate.failed

    @property
    def truncated(self) -> bool:
        """True when the episode was cut for a reason outside the task."""
        return self.fate.truncated


@dataclass(frozen=True, slots=True)
class Fate:
    """What an ending means.

    Attributes:
        truncated: Cut for a reason outside the task; trains as `training.truncated` says.
        failed: Not scored: the reward is None, and the episode teaches nothing.
        meaning: One line for reports and docs.
    """

    truncated: bool
    failed: bool
    meaning: str


ENDINGS: dict[Ending, Fate] = {
    Ending.DONE: Fate(False, False, "the environment said that the task is over"),
    Ending.STOP: Fate(False, False, "the model answered without a tool call"),
    Ending.LENGTH: Fate(True, False, "a turn reached its token limit"),
    Ending.CONTEXT: Fate(True, False, "a turn was cut because the context was full"),
    Ending.PROMPT_TOO_LONG: Fate(True, False, "the prompt left no room for an answer"),
    Ending.MAX_TURNS: Fate(True, False, "the turns were used up"),
    Ending.MAX_TOOL_CALLS: Fate(True, False, "the tool calls were used up"),
    Ending.TIMEOUT: Fate(True, False, "the episode passed its own deadline between two steps"),
    Ending.ENV_TRUNCATED: Fate(True, False, "the environment cut the episode"),
    Ending.UNSCORED: Fate(False, True, "neither the environment nor a reward function scored it"),
    Ending.API_ERROR: Fate(False, True, "the model or its server failed"),
    Ending.ENV_ERROR: Fate(False, True, "the environment raised, hung or broke its protocol"),
    Ending.TOOL_CRASH: Fate(False, True, "a tool raised something that is not a ToolError"),
    Ending.LOST_SESSION: Fate(False, True, "the session behind the episode is gone"),
}
"""What each ending means for training; `docs/endings.md` is this table."""
