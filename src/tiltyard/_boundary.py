"""The one place that catches what other people's code raises."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from tiltyard._coroutines import awaited
from tiltyard.errors import ConfigurationError, LoggerError, ProcessLostError, ReportError, RolloutError, ToolError

P = ParamSpec("P")
T = TypeVar("T")

MAX_REASON_CHARS = 2000
"""An exception's text longer than this is cut: it goes into every report."""

MAX_SHOWN_CHARS = 200
"""A value's text longer than this is cut in messages."""


def guarded(
    what: str,
    error: type[RolloutError | LoggerError | ProcessLostError | ReportError],
    call: Callable[P, T],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call code that is not ours, async or not, and turn what it raises into the failure of an episode, log or report.

    `ToolError`, `RolloutError` and `ConfigurationError` mean what they say and pass; so do
    `MemoryError`, `KeyboardInterrupt` and `SystemExit`, which are not the episode's. A `CancelledError` of asyncio is
    that of an event loop of theirs: nobody cancels a call that does not await.

    Args:
        what: Names the call in the error, e.g. "GuessEnv.step".
        error: The class of the failure.
        call: What to call.
        *args: Passed to `call`.
        **kwargs: Passed to `call`.

    Raises:
        RolloutError: An `error` that names the exception, chained to it.
    """
    try:
        return awaited(call(*args, **kwargs))
    except (ToolError, RolloutError, ConfigurationError, MemoryError):
        raise
    except (Exception, asyncio.CancelledError) as cause:
        raise error(f"{what} raised {reason(cause)}") from cause


async def guarded_async(
    what: str, error: type[RolloutError], call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Await code that is not ours; as `guarded`, and the cancellation of the task that awaits passes too.

    Raises:
        RolloutError: An `error` that names the exception, chained to it.
    """
    try:
        return await call(*args, **kwargs)
    except (RolloutError, ConfigurationError, MemoryError):
        raise
    except asyncio.CancelledError as cause:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise error(f"{what} raised {reason(cause)}") from cause
    except Exception as cause:
        raise error(f"{what} raised {reason(cause)}") from cause


def reason(error: BaseException) -> str:
    """An exception as one text, type first, cut to `MAX_REASON_CHARS`."""
    return _cut(f"{type(error).__name__}: {_written(error, str)}", MAX_REASON_CHARS)


def shown(value: object) -> str:
    """A value that is not ours as text for a message: its `repr`, cut to `MAX_SHOWN_CHARS`, whatever that does."""
    return _cut(_written(value, repr), MAX_SHOWN_CHARS)


def _written(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except Exception as error:  # noqa: BLE001  # a value that cannot be written must not hide what is wrong with it
        return f"a {type(value).__name__} whose text cannot be had ({type(error).__name__})"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
