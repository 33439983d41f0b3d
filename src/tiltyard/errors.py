"""Every exception that Tiltyard raises, as one tree.

TiltyardError
├── ConfigurationError (ValueError)      an argument, manifest or environment that cannot work
│   ├── ManifestError                    a manifest key or value; the message holds its dotted path
│   ├── TemplateError                    a chat template or tokenizer that cannot be used as asked
│   ├── GroupMismatchError               members of one group were given different tasks
│   └── RowsNotFoundError (FileNotFoundError)   a file of rows that is not there; names the path that was tried
├── MissingExtraError (ImportError)      an optional dependency is not installed; names the extra
├── CheckpointError                      a checkpoint that cannot be read or does not fit this run
├── ProcessLostError                     a process that trains the same model is gone, or cannot be reached
├── LoggerError                          where figures are logged failed; the run goes on without it
├── ReportError                          the report of a run could not be written; the run is whole without it
├── EpisodeOverError (RuntimeError)      a step after the episode ended, without a reset
├── NonFiniteError (ArithmeticError)     a loss or gradient that is NaN or inf; the step was not taken
├── TranscriptError (ValueError)         token ids, mask, log-probabilities or turns out of line
├── BoxError                             a sandbox could not do what was asked of it; it lives on
│   ├── BoxPathMissingError              no such file, folder or process in the sandbox
│   ├── BoxPathKindError                 a folder where a file is needed, or the other way round
│   ├── BoxPathExistsError               something is there already
│   ├── BoxPermissionError               the sandbox's user may not
│   ├── BoxArgumentError (ValueError)    an argument that no file or command can have, such as a NUL
│   ├── BoxFullError                     the sandbox's disk is full
│   ├── BoxLimitError                    the sandbox has as many processes or open files as it may
│   └── BoxGoneError                     the sandbox itself is dead; the message says why
├── ToolError                            the model's mistake; its text becomes the next observation
└── RolloutError                         the episode cannot be scored; recorded, kept out of the loss
    ├── EnvError                         the environment raised or broke its protocol
    │   ├── EnvTimeoutError (TimeoutError)   a reset or step that passed its deadline
    │   └── ActionRefusedError               a server says that an action or reset is not of its form
    ├── ToolCrashError                   a tool raised something that is not a ToolError
    ├── PolicyError                      the model or its server failed
    │   └── PromptTooLongError           the server says that the prompt does not fit
    └── LostSessionError                 the session, sandbox or worker behind the episode is gone
        ├── ServerFullError              the server has as many sessions as it takes
        ├── ResetNeededError             the worker of a pool's slot was replaced; a reset begins a new episode
        └── WorkerLostError              a worker process or actor is gone, or does not answer

A `ToolError` is text for the model, a `RolloutError` is data for the report, anything else is a bug and escapes.
"""

from typing import Any, ClassVar


class TiltyardError(Exception):
    """The base of every exception raised on purpose by Tiltyard."""


class ConfigurationError(TiltyardError, ValueError):
    """An argument, manifest or environment cannot work as given."""


class ManifestError(ConfigurationError):
    """A manifest key or value is wrong; the message names its dotted path."""


class TemplateError(ConfigurationError):
    """A chat template or tokenizer cannot be used as asked."""


class GroupMismatchError(ConfigurationError):
    """Members of one group were given different tasks, so their rewards cannot be compared."""


class RowsNotFoundError(ConfigurationError, FileNotFoundError):
    """A file or folder of rows is not there; the message has the absolute path that was looked at."""


class MissingExtraError(TiltyardError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class LoggerError(TiltyardError):
    """Where a run's figures are logged failed; it costs the run nothing but the log."""


class ReportError(TiltyardError):
    """The report of a run could not be written; it costs the run nothing but the report."""


class ProcessLostError(TiltyardError):
    """A process that trains the same model is gone or cannot be reached; the last finished step is kept."""


class CheckpointError(TiltyardError):
    """A checkpoint cannot be read, or does not belong to this run."""


class EpisodeOverError(TiltyardError, RuntimeError):
    """A step was asked of an episode that is over and was not reset."""


class NonFiniteError(TiltyardError, ArithmeticError):
    """A loss or a gradient is NaN or inf; the step was not taken, and the message names the rows."""


class TranscriptError(TiltyardError, ValueError):
    """Token ids, mask, log-probabilities or turn numbers are out of line."""


class BoxError(TiltyardError):
    """A sandbox could not do what was asked of it, and lives on unless it is a `BoxGoneError`."""


class BoxPathMissingError(BoxError):
    """No such file, folder or process is in the sandbox."""


class BoxPathKindError(BoxError):
    """A folder is where a file is needed, or a file where a folder is needed."""


class BoxPathExistsError(BoxError):
    """Something is already where a new file or folder was to be."""


class BoxPermissionError(BoxError):
    """The sandbox's user may not do that."""


class BoxArgumentError(BoxError, ValueError):
    """An argument that no file or command can have: a NUL, a name that is too long, a FIFO to read."""


class BoxFullError(BoxError):
    """The sandbox's disk is full."""


class BoxLimitError(BoxError):
    """The sandbox has as many processes, open files or bytes of memory as it may have."""


class BoxGoneError(BoxError):
    """The sandbox is dead; the message says why."""


class ToolError(TiltyardError):
    """The model's mistake: its text is what the model sees next, and the episode goes on."""


class RolloutError(TiltyardError):
    """The episode cannot be scored: it is recorded with its reason and kept out of the loss.

    `ending` is the value of `tiltyard.rollout.outcome.Ending` that the trajectory ends with.
    """

    ending: ClassVar[str] = "env_error"


class EnvError(RolloutError):
    """The environment raised, or returned something that its protocol does not allow."""


class EnvTimeoutError(EnvError, TimeoutError):
    """A reset or a step of the environment passed its deadline."""


class ActionRefusedError(EnvError):
    """The server says that an action or a reset is not of the form that it takes; the session lives on.

    Attributes:
        errors: What is wrong, one mapping with `loc`, `type` and `msg` for each field.
    """

    def __init__(self, message: str, errors: list[Any] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


class ToolCrashError(RolloutError):
    """A tool raised something other than `ToolError`."""

    ending: ClassVar[str] = "tool_crash"


class PolicyError(RolloutError):
    """The model, or the server it is behind, failed for this episode."""

    ending: ClassVar[str] = "api_error"


class PromptTooLongError(PolicyError):
    """The model cannot take a prompt of this length; the episode ends truncated, not failed."""

    ending: ClassVar[str] = "prompt_too_long"


class LostSessionError(RolloutError):
    """The session, sandbox or worker that held the episode is gone."""

    ending: ClassVar[str] = "lost_session"


class ServerFullError(LostSessionError):
    """The server has as many sessions as it takes.

    Attributes:
        active_sessions: How many it has; None when it did not say.
        max_sessions: How many it takes; None when it did not say.
    """

    def __init__(self, message: str, active_sessions: int | None = None, max_sessions: int | None = None) -> None:
        super().__init__(message)
        self.active_sessions = active_sessions
        self.max_sessions = max_sessions


class ResetNeededError(LostSessionError):
    """The worker that held the episode of a pool's slot is gone and was replaced: `reset` begins another."""


class WorkerLostError(LostSessionError):
    """A worker process or actor is gone, or does not answer any more."""
